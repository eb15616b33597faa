/**
 * The runs among these names that are meant: a name is that run, and `lr-*` all whose names begin so, in the order of
 * their names. `absent`: what means no run.
 */
export function runsMeant(
  words: readonly string[],
  names: readonly string[],
): { readonly runs: readonly string[]; readonly absent: readonly string[] } {
  const inOrder = names.toSorted((a, b) => a.localeCompare(b, 'en', { numeric: true }));
  const meant = words.map((word) => ({ word, runs: inOrder.filter((name) => isMeant(word, name)) }));
  return {
    runs: [...new Set(meant.flatMap(({ runs }) => runs))],
    absent: meant.flatMap(({ word, runs }) => (runs.length === 0 ? [word] : [])),
  };
}

function isMeant(word: string, name: string): boolean {
  return word.endsWith('*') ? name.startsWith(word.slice(0, -1)) : name === word;
}
