/** Counts as tables of markdown. */
import type { Counts, RoomCounts, Spread, UnusedExport } from './counts.ts';

export function tablesOf(counts: Counts): string {
  const { cycles, comments, unusedExports: unused } = counts;
  const largest = (found: readonly string[][]): string => `${found.length} (largest: ${found[0]?.length ?? 0} files)`;
  const kinds = Object.values(counts.backendKinds);
  const exported = (some: readonly UnusedExport[]): string => {
    const types = some.filter(({ isType }) => isType).length;
    return `${some.length - types} values, ${types} types`;
  };
  const share = (number: number): string => `${number} (${((100 * number) / comments.all).toFixed(1)} %)`;
  const forbidden = ['Of', 'With', 'Where', 'As', 'By', 'For'].map((word) => comments.byFirstWord[word] ?? 0);
  const sections = [
    'p50 · p90 · max; functions with a block or more than one line',
    table(
      ['room', 'files', 'code', 'lines a file', 'lines a function', 'exports', 'imports', 'comments'],
      Object.entries(counts.rooms).map(([room, one]) => [room, ...roomCells(one)]),
    ),
    table(
      ['beside the product', 'files', 'code'],
      Object.entries(counts.beside).map(([room, one]) => [room, String(one.files), thousands(one.codeLines)]),
    ),
    table(
      ['what', 'count'],
      [
        ['cycles of values', largest(cycles.values)],
        ['cycles with types', largest(cycles.withTypes)],
        ...counts.twoWayArrows.map(({ rooms, there, back }) => [
          `values both ways: ${rooms.join(', ')}`,
          `${there} there, ${back} back`,
        ]),
        ['rooms with values both ways', String(counts.twoWayArrows.length)],
        ['files with over 15 imports', String(counts.filesOver15Imports.length)],
        ['comparisons of backend kinds outside of adapters', `${total(kinds)} in ${kinds.length} files`],
        ['conditional spreads', String(counts.conditionalSpreads)],
        ['uses of present()', String(counts.present)],
        ['uses of patched()', String(counts.patched)],
        ['exports', thousands(unused.all)],
        ['exports that nobody uses', exported(unused.usedByNobody)],
        ['exports that only tests use', exported(unused.usedByTestsOnly)],
        ['exports for tests, used in their file', exported(unused.alsoByTests)],
        ['exports used only in their file', exported(unused.inOwnFileOnly)],
      ],
    ),
    table(
      ['folder with over 27 files', 'files'],
      Object.entries(counts.flatFolders).map(([folder, files]) => [`${folder}/`, String(files)]),
    ),
    table(
      ['first word of a comment', 'comments'],
      [
        ...Object.entries(comments.byFirstWord).map(([word, number]) => [word, share(number)]),
        ['Of, With, Where, As, By or For', share(total(forbidden))],
        ['any; of six words or fewer', `${thousands(comments.all)}; ${share(comments.short)}`],
      ],
    ),
    table(
      ['private word', 'uses'],
      Object.entries(counts.privateWords).map(([word, number]) => [word, String(number)]),
    ),
  ];
  return `${sections.join('\n\n')}\n`;
}

function roomCells(room: RoomCounts): string[] {
  const three = (spread: Spread): string => spread.join(' · ');
  return [
    thousands(room.files),
    thousands(room.codeLines),
    three(room.linesPerFile),
    three(room.linesPerFunction),
    three(room.exports),
    three(room.imports),
    `${Math.round(100 * room.commentShare)} %`,
  ];
}

function table(head: readonly string[], rows: readonly (readonly string[])[]): string {
  const widths = head.map((cell, i) => Math.max(cell.length, ...rows.map((row) => (row[i] ?? '').length)));
  const line = (cells: readonly string[]): string =>
    `| ${cells.map((cell, i) => cell.padEnd(widths[i]!)).join(' | ')} |`;
  return [line(head), line(widths.map((width) => '-'.repeat(width))), ...rows.map(line)].join('\n');
}

function thousands(number: number): string {
  return number.toLocaleString('en-US');
}

function total(numbers: readonly number[]): number {
  return numbers.reduce((all, one) => all + one, 0);
}
