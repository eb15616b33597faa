/**
 * Values of the program that must not be in stored turns: programs print their environment, and the model may read it.
 * What comes from the program has a name in their place; so it is also the same in each attempt, whose keys differ.
 */
export class HiddenValues {
  readonly #key: string;
  readonly #inward: readonly (readonly [value: Buffer, name: string])[];

  /** `key` of the rollout; `secrets` are other values that the program has. */
  constructor(key: string, secrets: readonly string[]) {
    this.#key = key;
    const longestFirst = secrets.toSorted((a, b) => b.length - a.length);
    this.#inward = [[key, keyName], ...longestFirst.map((value) => [value, secretName] as const)].map(
      ([value, name]) => [Buffer.from(JSON.stringify(value).slice(1, -1)), name] as const,
    );
  }

  /** A body of JSON as it may be stored. */
  inward(body: Buffer): Buffer {
    const found = this.#inward.filter(([value]) => body.includes(value));
    if (found.length === 0) return body;
    // One byte is one character, so that bytes which are no text stay what they are.
    let text = body.toString('latin1');
    for (const [value, name] of found) text = text.replaceAll(value.toString('latin1'), () => name);
    return Buffer.from(text, 'latin1');
  }

  /** An answer as JSON: a command that the model writes with the key's name works. Other secrets stay names. */
  outward(json: string): string {
    return json.includes(keyName) ? json.replaceAll(keyName, this.#key) : json;
  }
}

/** As JSON has them, without an escape. The first begins as keys do, since programs look at that. */
const keyName = 'sk-ratchet-key-of-this-rollout';
const secretName = '[secret]';
