/** The fault matrix as a table for people. */
import { type Column, allColumns, type EngineName } from './columns.ts';
import { whyNot } from './row.ts';
import { allRows, type RowName, rowOf } from './rows.ts';
import { kindOf } from './stage-kinds.ts';
import type { Outcome } from './suite.ts';

/** Between these the whole matrix is written into docs/guide/faults.md. */
export const markers = { begin: '<!-- matrix begins -->', end: '<!-- matrix ends -->' } as const;

/** A table for each engine, with the columns of its own; null = of the fakes and the embedded engine. */
const engines: readonly (EngineName | null)[] = [
  null,
  'tinker',
  'vllm',
  'level 1',
  'level 2',
  'torch',
  'prime-rl',
  'agents',
];

/** Markdown: rows by columns of each engine, and the reasons of the cells that are not. */
export function faultTable(outcomes: readonly Outcome[], date: string): string {
  const notes: string[] = [];
  const note = (reason: string): number => {
    if (!notes.includes(reason)) notes.push(reason);
    return notes.indexOf(reason) + 1;
  };
  const mark = (row: RowName, column: Column): string => {
    const reason = whyNot(rowOf(row), column);
    if (reason !== null) return `– (${note(reason)})`;
    const outcome = outcomes.find((one) => one.row === row && one.column === column);
    if (!outcome) return 'not run';
    if (outcome.kind === 'not run') return `not run (${note(outcome.because)})`;
    if (outcome.kind === 'broken') return '✗';
    const lost = outcome.lost === 0 ? '' : `, ${outcome.lost} lost`;
    return `✓ ${outcome.recoverySeconds.toFixed(1)} s${lost}`;
  };
  const lines = [
    `${summary(outcomes)} (${date}.)`,
    '',
    ...engines.flatMap((engine) => {
      const rows = allRows.filter((row) => (kindOf(rowOf(row).stage).engine ?? null) === engine);
      const columns = allColumns.filter((column) => rows.some((row) => whyNot(rowOf(row), column) === null));
      return [
        `| fault | ${columns.join(' | ')} |`,
        `| --- | ${columns.map(() => '---').join(' | ')} |`,
        ...rows.map((row) => `| ${row} | ${columns.map((column) => mark(row, column)).join(' | ')} |`),
        '',
      ];
    }),
    ...notes.map((reason, i) => `${i + 1}. ${reason}`),
  ];
  return `${lines.join('\n')}\n`;
}

/** A sentence: how many held, how long the longest took, what was lost. */
export function summary(outcomes: readonly Outcome[]): string {
  if (outcomes.length === 0) return 'No cell was run.';
  const held = outcomes.filter((one) => one.kind === 'held');
  const broken = outcomes.filter((one) => one.kind === 'broken').length;
  const slowest = held.toSorted((a, b) => b.recoverySeconds - a.recoverySeconds)[0];
  const lost = held.reduce((sum, { lost }) => sum + lost, 0);
  const at = slowest
    ? `, the slowest next commit after ${slowest.recoverySeconds.toFixed(1)} s (${slowest.row}, ${slowest.column})`
    : '';
  return `${held.length} cells passed, ${broken} did not; ${lost} rollouts were lost in flight, none that was stored${at}.`;
}

/** The document with the table in the place of the one before. */
export function withTable(document: string, table: string): string {
  const [begin, end] = [document.indexOf(markers.begin), document.indexOf(markers.end)];
  if (begin < 0 || end < begin) throw new Error(`expected ${markers.begin} and then ${markers.end} in the document`);
  return `${document.slice(0, begin)}${markers.begin}\n\n${table}\n${document.slice(end)}`;
}
