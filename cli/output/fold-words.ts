/**
 * Folds a line into rows of at most `columns` characters. It breaks between parts (two spaces) if that leaves no row
 * half empty, else between words; anything longer than a row, such as a path or a command, stays whole, so that it can
 * be copied.
 */
export function foldWords(line: string, columns: number): string[] {
  const rows: string[] = [];
  let rest = line;
  while (rest.length > columns) {
    const end = breakOf(rest, columns);
    if (end < 0) break;
    rows.push(rest.slice(0, end).trimEnd());
    rest = rest.slice(end).trimStart();
  }
  return [...rows, rest];
}

/** Index at which the next row begins; -1 without a place to break. */
function breakOf(text: string, columns: number): number {
  const between = text.lastIndexOf('  ', columns);
  if (between > columns / 2) return between;
  const word = text.lastIndexOf(' ', columns);
  return word > 0 && text.slice(0, word).trim() !== '' ? word : text.trimStart().indexOf(' ');
}
