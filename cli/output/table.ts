/** Rows under one heading, with aligned columns; empty without rows. */
export function alignedRows(heading: string, rows: readonly (readonly string[])[]): string[] {
  const widths = (rows[0] ?? []).map((_, column) => Math.max(...rows.map((row) => row[column]!.length)));
  return rows.map((row, i) => {
    const cells = row.map((cell, column) => (column === row.length - 1 ? cell : cell.padEnd(widths[column]!)));
    return `  ${(i === 0 ? heading : '').padEnd(13)} ${cells.join('  ')}`.trimEnd();
  });
}
