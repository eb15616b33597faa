/** The names of all kinds, in the order of their table. */
export function kindsOf<Kind extends string>(table: Readonly<Record<Kind, unknown>>): readonly [Kind, ...Kind[]] {
  return Object.keys(table) as [Kind, ...Kind[]];
}

/** Kinds with a trait, for messages: `names` as `"embedded", "openai" or "vllm"`, `are` by description. */
export function kindsWith<Kind extends string, Traits extends { readonly is: string }>(
  table: Readonly<Record<Kind, Traits>>,
  isMeant: (traits: Traits) => boolean,
): { readonly names: string; readonly are: string } {
  const kinds = kindsOf(table).filter((kind) => isMeant(table[kind]));
  const [names, are] = [kinds.map((kind) => JSON.stringify(kind)), kinds.map((kind) => table[kind].is)];
  return { names: oneOf(names), are: oneOf(are) };
}

function oneOf(words: readonly string[]): string {
  return words.length < 2 ? words.join('') : `${words.slice(0, -1).join(', ')} or ${words.at(-1)}`;
}

/**
 * A list of all kinds for the documentation of a setting: `the embedded engine, a server of the Tinker API, or a
 * trainer of your own`.
 */
export function whatTheyAre(table: Readonly<Record<string, { readonly is: string }>>): string {
  const all = Object.values(table).map(({ is }) => is);
  return `${all.slice(0, -1).join(', ')}, or ${all.at(-1)}`;
}
