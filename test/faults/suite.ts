/** Cells of the fault matrix as tests, some side by side. */
import { after, describe, test } from 'node:test';
import { type Cell, type CellResult, runCell } from './cells.ts';
import { placeOf, StagePool } from './stage-pool.ts';
import { StageUnavailable } from './stage-unavailable.ts';

/** Most of a cell is waiting for heartbeats that do not come: two cores have room for three. */
export const cellsAtOnce = 3;

/** How a cell ended; one that is not among them was not run. */
export type Outcome = Cell &
  (
    | ({ readonly kind: 'held' } & CellResult)
    | { readonly kind: 'broken' }
    | { readonly kind: 'not run'; readonly because: string }
  );

export function testCells(
  cells: readonly Cell[],
  { onOutcome, onEnd }: { onOutcome?: (outcome: Outcome) => void; onEnd?: () => Promise<void> } = {},
): void {
  const pool = new StagePool(cellsAtOnce);

  describe('faults', { concurrency: cellsAtOnce }, () => {
    after(async () => {
      await pool.close();
      await onEnd?.();
    });

    // Cells of one kind of stage together: then few stages have to be opened.
    for (const cell of cells.toSorted((a, b) => placeOf(a).key.localeCompare(placeOf(b).key))) {
      test(`${cell.row}, ${cell.column}: the same weights, nothing trained twice, nothing sampled again`, async (t) => {
        try {
          const result = await pool.on(cell, (stage, undisturbed) => runCell(stage, cell, undisturbed));
          onOutcome?.({ ...cell, kind: 'held', ...result });
          t.diagnostic(
            `${result.recoverySeconds.toFixed(1)} s to the next commit, ${result.lost} rollouts lost in flight`,
          );
        } catch (error) {
          if (error instanceof StageUnavailable) {
            onOutcome?.({ ...cell, kind: 'not run', because: error.message });
            return t.skip(error.message);
          }
          onOutcome?.({ ...cell, kind: 'broken' });
          throw error;
        }
      });
    }
  });
}
