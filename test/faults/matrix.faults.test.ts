/** `npm run test:faults`: every cell of the matrix; RATCHET_FAULTS names a part of it (", score", "GPU worker"). */
import { allColumns } from './columns.ts';
import { whyNot } from './row.ts';
import { allRows, rowOf } from './rows.ts';
import { testCells } from './suite.ts';

const only = process.env['RATCHET_FAULTS'] ?? '';
const all = allRows.flatMap((row) =>
  allColumns.filter((column) => whyNot(rowOf(row), column) === null).map((column) => ({ row, column })),
);
testCells(all.filter(({ row, column }) => `${row}, ${column}`.includes(only)));
