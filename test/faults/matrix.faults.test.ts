/**
 * `npm run test:faults`: every cell of the matrix, and then the table in docs/guide/faults.md. RATCHET_FAULTS names a part of it
 * (", score", "GPU worker", "vLLM|Tinker"); the table is then printed.
 */
import { readFile, writeFile } from 'node:fs/promises';
import { fileURLToPath } from 'node:url';
import { formatMarkdown } from '../docs/format-markdown.ts';
import { allColumns } from './columns.ts';
import { whyNot } from './row.ts';
import { allRows, rowOf } from './rows.ts';
import { type Outcome, testCells } from './suite.ts';
import { faultTable, withTable } from './table.ts';

/** For the reporter to tell the last of it. */
const lookOutMs = 10_000;

const only = process.env['RATCHET_FAULTS'] ?? '';
const all = allRows.flatMap((row) =>
  allColumns.filter((column) => whyNot(rowOf(row), column) === null).map((column) => ({ row, column })),
);
testCells(
  all.filter(({ row, column }) => only.split('|').some((words) => `${row}, ${column}`.includes(words))),
  async (outcomes: readonly Outcome[]) => {
    // A cell that hung may still look for what does not come: that holds up nobody once all are told.
    setTimeout(() => process.exit(), lookOutMs).unref();
    const table = faultTable(outcomes, new Date().toISOString().slice(0, 10));
    if (only !== '') {
      process.stdout.write(`\n${table}`);
      return;
    }
    const file = fileURLToPath(new URL('../../docs/guide/faults.md', import.meta.url));
    const document = withTable(await readFile(file, 'utf8'), table);
    await writeFile(file, await formatMarkdown(file, document));
  },
);
