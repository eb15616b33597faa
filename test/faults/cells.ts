/** The fault matrix: what goes wrong (rows), and in which gap of a step (columns). */
import assert from 'node:assert/strict';
import { existsSync, readdirSync, readFileSync } from 'node:fs';
import path from 'node:path';
import { setTimeout as delay } from 'node:timers/promises';
import type { FailpointPlan, FiredFailpoint } from '../../backends/failpoints.ts';
import { heartbeatTimeoutMs } from './stage.ts';
import type { FaultStage, RunSummary, StagedRun } from './stage.ts';

/** Long enough for a checkpoint, a step after it, and one to recover in. */
export const stepsOfRun = 4;

/** Slower than finished rollouts are stored, so that a chunk has both kinds. */
const slowSampleMs = 2_000;

/** A gap of a step, by the failpoint in it; `at` is its passing in the second step, or where it comes once. */
export const columns = {
  'warm-up': { failpoint: 'warmUp.done', at: 1 },
  lease: { failpoint: 'leaseGroups.done', at: 2 },
  generate: { failpoint: 'generate.part', at: 2, sampleMs: slowSampleMs },
  generated: { failpoint: 'generateRollouts.done', at: 3 },
  score: { failpoint: 'scoreRollouts.done', at: 2 },
  filter: { failpoint: 'filterGroups.done', at: 2 },
  plan: { failpoint: 'planStep.done', at: 2 },
  train: { failpoint: 'train.applied', at: 2 },
  trained: { failpoint: 'trainStep.done', at: 2 },
  commit: { failpoint: 'commitStep.done', at: 3 },
  broadcast: { failpoint: 'broadcastWeights.done', at: 3 },
  checkpoint: { failpoint: 'saveCheckpoint.done', at: 2 },
} as const satisfies Record<string, { readonly failpoint: string; readonly at: number; readonly sampleMs?: number }>;
export type Column = keyof typeof columns;

interface Row {
  readonly action: FailpointPlan['action'];
  /** Happens while the failpoint holds. */
  readonly strike: (stage: FaultStage, fired: FiredFailpoint, release: () => void) => Promise<void>;
}

const killed = (role: string): Row => ({
  action: 'hold',
  strike: async (stage) => {
    process.kill(stage.pid(role), 'SIGKILL');
    await delay(100);
  },
});

export const rows = {
  'orchestrator worker killed': killed('orchestrator worker'),
  'rollout worker killed': killed('rollout worker'),
  'GPU worker killed': killed('train worker'),
  'Temporal server killed': killed('Temporal server'),
  'activity fails': { action: 'fail', strike: () => Promise.resolve() },
  'activity done twice': { action: 'repeat', strike: () => Promise.resolve() },
  'zombie: stopped, and goes on when it is given up': {
    action: 'hold',
    strike: async (_, { pid }, release) => {
      process.kill(pid, 'SIGSTOP');
      release();
      await delay(2 * heartbeatTimeoutMs);
      process.kill(pid, 'SIGCONT');
    },
  },
  'machine asleep': {
    action: 'hold',
    strike: async (stage, _, release) => {
      const pids = Object.values(stage.stack.pids()).filter((pid) => pid !== null);
      for (const pid of pids) process.kill(pid, 'SIGSTOP');
      release();
      await delay(10 * heartbeatTimeoutMs);
      for (const pid of pids) process.kill(pid, 'SIGCONT');
    },
  },
} as const satisfies Record<string, Row>;
export type RowName = keyof typeof rows;

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

/** Plays a run with one fault in it, and compares its end with that of the undisturbed one. */
export async function runCell(stage: FaultStage, cell: Cell, undisturbed: RunSummary): Promise<CellResult> {
  const column: { readonly failpoint: string; readonly at: number; readonly sampleMs?: number } = columns[cell.column];
  const { failpoint, at, sampleMs } = column;
  const { action, strike } = rows[cell.row];
  stage.plan(failpoint, { at, action });
  const name = `${cell.column}-${cell.row.replaceAll(/[^a-z]+/gi, '-').toLowerCase()}`;
  const run = await stage.start(name, { steps: stepsOfRun, ...(sampleMs === undefined ? {} : { sampleMs }) });
  const fired = await stage.fired(failpoint, run);
  assert.ok(fired, `${failpoint} fired`);
  const inFlightBefore = countInFlight(stage, run);
  const struckAt = performance.now();
  await strike(stage, fired, () => stage.release(failpoint));
  const inFlight = Math.max(inFlightBefore, countInFlight(stage, run));
  stage.release(failpoint);
  const summary = await run.handle.result();
  const seconds = (performance.now() - struckAt) / 1000;
  assert.equal(summary.step, stepsOfRun);
  assert.ok(summary.ledger.isSound, JSON.stringify(summary.ledger));
  assert.deepEqual(summary.ledger.counts, undisturbed.ledger.counts);
  assert.equal(summary.policyDigest, undisturbed.policyDigest, 'the weights of the undisturbed run');
  const again = sampledAgain(run);
  const regenerated = Math.max(0, again - inFlight);
  assert.equal(regenerated, 0, `${again} rollouts were sampled again, ${inFlight} were lost in flight`);
  return { regenerated, inFlight, seconds };
}

/** Answers beyond the first at a place of the run. */
export function sampledAgain(run: Pick<StagedRun, 'sampled'>): number {
  const lines = run.sampled();
  return lines.length - new Set(lines.map(({ seed, policy }) => `${policy} ${seed}`)).size;
}

/** Rollouts that were sampled and are not in the store. */
export function countInFlight(stage: Pick<FaultStage, 'folder'>, run: Pick<StagedRun, 'name' | 'sampled'>): number {
  const folder = path.join(stage.folder, 'outputs', run.name, 'rollouts');
  const stored = new Set<string>();
  for (const file of filesBelow(folder)) {
    if (!/chunk_[^/]*\.jsonl$|part_\d+\.jsonl$/.test(file)) continue;
    for (const line of readFileSync(file, 'utf8').split('\n')) {
      if (line === '') continue;
      const { group, index } = JSON.parse(line) as { group: number; index: number };
      stored.add(`${group}/${index}`);
    }
  }
  const seeds = new Set(run.sampled().map(({ seed }) => seed));
  return Math.max(0, seeds.size - stored.size);
}

function filesBelow(folder: string): string[] {
  if (!existsSync(folder)) return [];
  return readdirSync(folder, { recursive: true, withFileTypes: true })
    .filter((entry) => entry.isFile())
    .map((entry) => path.join(entry.parentPath, entry.name));
}
