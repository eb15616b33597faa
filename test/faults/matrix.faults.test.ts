/**
 * `npm run test:faults`: every cell of the matrix, and then the table in docs/guide/faults.md. RATCHET_FAULTS names a part of it
 * (", score", "GPU worker", "vLLM|Tinker"); the table is then printed. With RATCHET_FAULTS_OUTCOMES, a file of JSON lines, outcomes
 * are kept: cells that passed or could not be run are not run again, and the table is written once the file has all.
 */
import { appendFileSync, existsSync, readFileSync } from 'node:fs';
import { readFile, writeFile } from 'node:fs/promises';
import { fileURLToPath } from 'node:url';
import { formatMarkdown } from '../docs/format-markdown.ts';
import type { Cell } from './cells.ts';
import { allColumns } from './columns.ts';
import { whyNot } from './row.ts';
import { allRows, rowOf } from './rows.ts';
import { type Outcome, testCells } from './suite.ts';
import { faultTable, withTable } from './table.ts';

/** Time for the reporter's last output. */
const lookOutMs = 10_000;

const only = process.env['RATCHET_FAULTS'] ?? '';
const kept = process.env['RATCHET_FAULTS_OUTCOMES'] ?? '';
const outcomes = kept !== '' && existsSync(kept) ? readOutcomes(kept) : [];
const isKnown = (cell: Cell) => outcomes.some((one) => one.row === cell.row && one.column === cell.column);

const all = allRows.flatMap((row) =>
  allColumns.filter((column) => whyNot(rowOf(row), column) === null).map((column) => ({ row, column })),
);
testCells(
  all.filter(
    (cell) => only.split('|').some((words) => `${cell.row}, ${cell.column}`.includes(words)) && !isKnown(cell),
  ),
  {
    onOutcome: (outcome) => {
      outcomes.push(outcome);
      if (kept !== '') appendFileSync(kept, `${JSON.stringify(outcome)}\n`);
    },
    onEnd: async () => {
      // A hung cell may still look for something that never comes, which delays nothing once all are reported.
      setTimeout(() => process.exit(), lookOutMs).unref();
      const table = faultTable(outcomes, new Date().toISOString().slice(0, 10));
      if (!all.every(isKnown)) {
        process.stdout.write(`\n${table}`);
        return;
      }
      const file = fileURLToPath(new URL('../../docs/guide/faults.md', import.meta.url));
      const document = withTable(await readFile(file, 'utf8'), table);
      await writeFile(file, await formatMarkdown(file, document));
    },
  },
);

/** Outcomes that did not pass are dropped, so that they run again. */
function readOutcomes(file: string): Outcome[] {
  const lines = readFileSync(file, 'utf8').split('\n').filter(Boolean);
  return lines.map((line) => JSON.parse(line) as Outcome).filter((one) => one.kind !== 'broken');
}
