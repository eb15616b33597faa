import type { Candidate, ComponentSelection, Texts } from './search-state.ts';

/** Chooses the components to rewrite, and the candidate's next turn: turns advance even without a result. */
export function selectComponents(
  selection: ComponentSelection,
  { texts, turn }: Pick<Candidate, 'texts' | 'turn'>,
): { readonly components: readonly string[]; readonly turn: number } {
  const names = Object.keys(texts);
  if (selection === 'all') return { components: names, turn };
  return { components: [names[turn % names.length]!], turn: (turn + 1) % names.length };
}

/** A child continues at the turn of its most advanced parent. */
export function turnOfChild(parents: readonly Pick<Candidate, 'turn'>[]): number {
  return Math.max(0, ...parents.map(({ turn }) => turn));
}

/** Whether two candidates are equal, in any order of their components. */
export function isSameTexts(a: Texts, b: Texts): boolean {
  const names = Object.keys(a);
  return names.length === Object.keys(b).length && names.every((name) => a[name] === b[name]);
}

/** The text whose SHA-256 is a candidate's digest, as in gepa 0.1.4: pairs sorted by name, in Python's form of JSON. */
export function textToDigest(texts: Texts): string {
  const pairs = Object.entries(texts).sort(([a], [b]) => (a < b ? -1 : 1));
  const written = pairs.map(([name, text]) => `[${asciiJson(name)}, ${asciiJson(text)}]`);
  return `[${written.join(', ')}]`;
}

function asciiJson(text: string): string {
  const escaped = (char: string): string => `\\u${char.charCodeAt(0).toString(16).padStart(4, '0')}`;
  return JSON.stringify(text).replaceAll(/[\u007f-\uffff]/g, escaped);
}
