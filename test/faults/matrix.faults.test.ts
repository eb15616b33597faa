/** `npm run test:faults`: every cell of the matrix; RATCHET_FAULTS names a part of it (", score", "GPU worker"). */
import { type Column, columns, type RowName, rows } from './cells.ts';
import { testCells } from './suite.ts';

const only = process.env['RATCHET_FAULTS'] ?? '';
const all = (Object.keys(rows) as RowName[]).flatMap((row) =>
  (Object.keys(columns) as Column[]).map((column) => ({ row, column })),
);
testCells(all.filter(({ row, column }) => `${row}, ${column}`.includes(only)));
