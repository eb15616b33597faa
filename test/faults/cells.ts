/** Cells of the fault matrix: a run with one fault in it, compared with the same run without. */
import assert from 'node:assert/strict';
import { setTimeout as delay } from 'node:timers/promises';
import { decodeRows } from '../../backends/store/objects.ts';
import type { Rollout } from '../../core/rl/rollout.ts';
import type { Column } from './columns.ts';
import { judgeByWeights, sampledAgain } from './judges.ts';
import { gapOf } from './row.ts';
import { type RowName, rowOf } from './rows.ts';
import type { FaultStage, RunSummary, StagedRun } from './stage.ts';

/** Long enough for a checkpoint, a step after it, and one to recover in. */
export const stepsOfRun = 4;

/** Far more than any cell needs: one that takes longer hangs. */
const cellLimitMs = 120_000;

export interface Cell {
  readonly row: RowName;
  readonly column: Column;
}

export interface CellResult {
  /** Rollouts sampled again beyond those that were lost in flight; 0 or the promise is broken. */
  readonly regenerated: number;
  /** Rollouts that were sampled but not stored when their process was struck. */
  readonly inFlight: number;
  /** From the strike to the run's end. */
  readonly seconds: number;
}

/** Plays it; a run that fails or hangs is terminated, so that it does not hold the stage's trainer. */
export async function runCell(stage: FaultStage, cell: Cell, undisturbed: RunSummary): Promise<CellResult> {
  const row = rowOf(cell.row);
  const { limitMs = cellLimitMs, action, overrides = {} } = row;
  const { failpoint, at, sampleMs } = gapOf(row, cell.column);
  stage.plan(failpoint, { at, action });
  const name = `${cell.column}-${cell.row.replaceAll(/[^a-z0-9]+/gi, '-').toLowerCase()}`.slice(0, 60);
  const run = await stage.start(name, {
    steps: stepsOfRun,
    overrides,
    ...(sampleMs === undefined ? {} : { sampleMs }),
  });
  const limit = new AbortController();
  const late = async (): Promise<never> => {
    await delay(limitMs, undefined, { signal: limit.signal });
    throw new Error(`not done after ${limitMs / 1000} s; the supervisor said:\n${stage.said}`);
  };
  try {
    return await Promise.race([playCell(stage, cell, run, undisturbed), late()]);
  } catch (error) {
    stage.clear();
    await run.handle.terminate('its cell failed').catch(() => undefined); // it may have ended
    throw error;
  } finally {
    limit.abort();
  }
}

async function playCell(
  stage: FaultStage,
  { row: name, column }: Cell,
  run: StagedRun,
  undisturbed: RunSummary,
): Promise<CellResult> {
  const row = rowOf(name);
  const { strike, losesNothing = false, judge = judgeByWeights } = row;
  const { failpoint } = gapOf(row, column);
  const fired = await stage.fired(failpoint, run);
  assert.ok(fired, `${failpoint} fired`);
  const inFlightBefore = await countInFlight(run);
  const struckAt = performance.now();
  const other = await strike({ stage, run, column, fired, release: () => stage.release(failpoint) });
  const inFlight = losesNothing ? 0 : Math.max(inFlightBefore, await countInFlight(run));
  stage.release(failpoint);
  const summary = await (other ?? run).handle.result();
  const seconds = (performance.now() - struckAt) / 1000;
  assert.equal(summary.step, stepsOfRun);
  assert.ok(summary.ledger.isSound, JSON.stringify(summary.ledger));
  await judge({ stage, run, column, summary, undisturbed });
  const again = sampledAgain(run);
  const regenerated = Math.max(0, again - inFlight);
  assert.equal(regenerated, 0, `${again} rollouts were sampled again, ${inFlight} were lost in flight`);
  return { regenerated, inFlight, seconds };
}

/** Rollouts that were sampled and are not in the store. */
async function countInFlight(run: StagedRun): Promise<number> {
  const stored = new Set<string>();
  for (const key of await run.store.list('rollouts/')) {
    if (!/chunk_[^/]*\.jsonl$|part_\d+\.jsonl$/.test(key)) continue;
    for (const { group, index } of decodeRows<Rollout>((await run.store.read(key)) ?? Buffer.of(), key)) {
      stored.add(`${group}/${index}`);
    }
  }
  const seeds = new Set(run.sampled().map(({ seed }) => seed));
  return Math.max(0, seeds.size - stored.size);
}
