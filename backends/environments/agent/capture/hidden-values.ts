import { isUtf8 } from 'node:buffer';
import { SecretSpellings } from '../../../../config/toml/secret-spellings.ts';

/**
 * Values of the program that must not be in stored turns: programs print their environment, and the model may read it.
 * What comes from the program has a name in their place; so it is also the same in each attempt, whose keys differ.
 */
export class HiddenValues {
  readonly #key: string;
  readonly #inward: readonly (readonly [name: string, spellings: SecretSpellings])[];

  /** `key` of the rollout; `secrets` are other values that the program has. */
  constructor(key: string, secrets: readonly string[]) {
    this.#key = key;
    this.#inward = [
      [keyName, new SecretSpellings([key])],
      [secretName, new SecretSpellings(secrets)],
    ];
  }

  /** A body of JSON as it may be stored. Its own escapes are among the spellings. */
  inward(body: Buffer): Buffer {
    if (!isUtf8(body)) return body; // no JSON; its reader says so
    const text = body.toString('utf8');
    let clean = text.replaceAll(escapedPlain, (written, before: string, hex: string) =>
      before.length % 2 === 0 ? written : before.slice(1) + String.fromCharCode(Number.parseInt(hex, 16)),
    );
    for (const [name, spellings] of this.#inward) clean = spellings.replacedBy(name, clean);
    return clean === text ? body : Buffer.from(clean, 'utf8');
  }

  /** An answer as JSON: a command that the model writes with the key's name works. Other secrets stay names. */
  outward(json: string): string {
    return json.includes(keyName) ? json.replaceAll(keyName, this.#key) : json;
  }
}

/** Letters and digits as escapes of JSON, behind a run of backslashes. No encoder writes them, and a program may. */
const escapedPlain = /(?<!\\)(\\+)u00(3\d|[46][1-9a-fA-F]|[57][\daA])/g;

/** As JSON has them, without an escape. The first begins as keys do, since programs look at that. */
const keyName = 'sk-ratchet-key-of-this-rollout';
const secretName = '[secret]';
