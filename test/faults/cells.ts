/** Cells of the fault matrix: a run with one fault in it, compared with the same run without. */
import assert from 'node:assert/strict';
import { setTimeout as delay } from 'node:timers/promises';
import { decodeRows } from '../../store/objects.ts';
import type { Rollout } from '../../core/rl/rollout/rollout.ts';
import { layout } from '../../runs/layout.ts';
import { firstLineage } from '../../core/names.ts';
import { sha256 } from '../../store/file-store.ts';
import { resultOf } from '../../workers/temporal/result-of.ts';
import type { trainRun } from '../../workflows/train-run.ts';
import { type Column, type Gap, gapOf } from './columns.ts';
import { branchOutcome, branchOverrides } from './branch-column.ts';
import { scoredGroups } from './continuous-faults.ts';
import { judgeByWeights } from './judge.ts';
import { isContinuous, kindOf } from './stage-kinds.ts';
import { stepsOfRun, type UndisturbedRun } from './row.ts';
import type { SampledLine } from './fake-inference.ts';
import { type RowName, rowOf } from './rows.ts';
import type { FaultStage, RunSummary, StagedRun } from './stage.ts';

/** Far more than any cell needs: one that takes longer hangs. */
const cellLimitMs = 300_000;

const commitsLookMs = 20;
const neverLeft = new AbortController().signal;

export interface Cell {
  readonly row: RowName;
  readonly column: Column;
}

export interface CellResult {
  /** Rollouts that had to be sampled again: at most those that were sampled but not stored when the fault struck. */
  readonly lost: number;
  /** From the strike, or from the end of the harm where that lasts, to the run's next commit. */
  readonly recoverySeconds: number;
}

/** Runs the cell; a run that fails or hangs is terminated, so that it does not hold the stage's trainer. */
export async function runCell(stage: FaultStage, cell: Cell, undisturbed: UndisturbedRun): Promise<CellResult> {
  const { limitMs = cellLimitMs, action, steps = stepsOfRun, overrides = {} } = rowOf(cell.row);
  const { failpoint, at, sampleMs } = gapOfCell(cell);
  const besides = await besidesOf(cell);
  stage.plan(failpoint, { at, action });
  const name = nameOf(cell);
  const run = await stage.start(name, {
    steps,
    overrides: { ...besides, ...overrides },
    ...(sampleMs === undefined ? {} : { sampleMs }),
  });
  const limit = new AbortController();
  const late = async (): Promise<never> => {
    await delay(limitMs, undefined, { signal: limit.signal });
    const status = await stage.client.workflow
      .getHandle(run.name)
      .query<unknown>('status')
      .catch((error: unknown) => String(error));
    throw new Error(
      `not done after ${limitMs / 1000} s: ${JSON.stringify(status)}; the supervisor said:\n${stage.said}`,
    );
  };
  try {
    return await Promise.race([playCell(stage, cell, run, undisturbed), late()]);
  } catch (error) {
    stage.clear();
    await stage.client.workflow
      .getHandle(run.name)
      .terminate('its cell failed')
      .catch(() => undefined); // it may have ended
    throw error;
  } finally {
    limit.abort();
  }
}

/** A server may note an answer after its client was killed. */
const looks = 3;
const lookMs = 100;

/** A name that is valid for a run. */
function nameOf({ row, column }: Cell): string {
  const words = `${column} ${row}`.toLowerCase().match(/[a-z0-9]+/g) ?? [];
  return words.join('-').slice(0, 60).replace(/-$/, '');
}

async function playCell(
  stage: FaultStage,
  cell: Cell,
  run: StagedRun,
  undisturbed: UndisturbedRun,
): Promise<CellResult> {
  const { column } = cell;
  const { strike, judge = judgeByWeights, losesNothing = false, steps = stepsOfRun } = rowOf(cell.row);
  const { failpoint, continuesAsNew = false } = gapOfCell(cell);
  const fired = await stage.fired(failpoint, run);
  assert.ok(fired, `${failpoint} fired`);
  const isByChance = isContinuous(kindOf(rowOf(cell.row).stage).engine);
  const countNow = (): Promise<number> => (isByChance ? countUnscored(run) : countInFlight(run));
  let inFlight = 0;
  const noteInFlight = async (): Promise<void> => {
    inFlight = Math.max(inFlight, await countNow());
  };
  await noteInFlight();
  const recovery = new RecoveryClock(run, await countCommits(run));
  const release = (): void => stage.release(failpoint);
  try {
    const harmEnds = (): void => recovery.startOver();
    const other = await strike({ stage, run, column, fired, release, harmEnds, noteInFlight });
    for (let look = 0; look < looks; look++, await delay(lookMs)) await noteInFlight();
    release();
    // As a command waits: while a server is away, or refuses.
    const summary = await resultOf<typeof trainRun>((other ?? run).handle, neverLeft);
    const recoverySeconds = await recovery.seconds();
    assert.equal(summary.step, steps);
    assert.ok(summary.ledger.isSound, JSON.stringify(summary.ledger));
    await judge({ stage, run, column, summary, weights: await weightsDigest(run, summary), undisturbed });
    if (undisturbed.branch !== undefined) assert.equal(await branchOutcome(stage, other ?? run), undisturbed.branch);
    const lost = isByChance ? run.sampled().length - seedsSampled(run).size : sampledAgain(run);
    const lostMax = losesNothing ? 0 : inFlight;
    assert.ok(
      lost <= lostMax,
      `${lost} rollouts were sampled again, ${inFlight} were in flight, ${lostMax} may be lost`,
    );
    if (continuesAsNew && other === undefined) await hasContinued(stage, run);
    return { lost, recoverySeconds };
  } finally {
    recovery.stop();
  }
}

/** The gap that a cell's fault falls into. */
export function gapOfCell({ row, column }: Cell): Gap {
  return rowOf(row).gaps?.[column] ?? gapOf(column);
}

/** Further settings of the gap's run. */
export async function besidesOf(cell: Cell): Promise<Readonly<Record<string, string>>> {
  const { overrides = {}, hasBranch = false } = gapOfCell(cell);
  return hasBranch ? branchOverrides() : overrides;
}

/** sha256 of the file with the run's last weights. */
export async function weightsDigest(run: StagedRun, { weights }: RunSummary): Promise<string> {
  const file = (await run.store.list(weights)).find((key) => key.endsWith('.safetensors'));
  assert.ok(file, `${weights} has weights, or an adapter`);
  return sha256((await run.store.read(file))!);
}

async function hasContinued(stage: FaultStage, { name, handle }: StagedRun): Promise<void> {
  const { status } = await stage.client.workflow.getHandle(name, handle.firstExecutionRunId).describe();
  assert.equal(status.name, 'CONTINUED_AS_NEW', 'the run has continued as new');
}

/** How long a run takes from a fault to its next commit. */
class RecoveryClock {
  readonly #run: StagedRun;
  #startedAt = performance.now();
  readonly #stopping = new AbortController();
  /** When the next commit was there; null when it was stopped before. */
  #committedAt: Promise<number | null>;

  constructor(run: StagedRun, commitsBefore: number) {
    this.#run = run;
    this.#committedAt = this.#watch(Promise.resolve(commitsBefore));
    this.#committedAt.catch(() => undefined); // its caller gets the failure
  }

  /** The run may have continued in between, so the next commit must come after those that exist now. */
  startOver(): void {
    this.#startedAt = performance.now();
    this.#committedAt = this.#watch(countCommits(this.#run));
    this.#committedAt.catch(() => undefined);
  }

  stop(): void {
    this.#stopping.abort();
  }

  /** Once the run has ended; 0 where it had made its last commit already, as a slow machine may, and only an upload was held up. */
  async seconds(): Promise<number> {
    this.stop();
    const committedAt = await this.#committedAt;
    return committedAt === null ? 0 : Math.max(0, committedAt - this.#startedAt) / 1000;
  }

  async #watch(counting: Promise<number>): Promise<number | null> {
    const commitsBefore = await counting;
    for (;;) {
      const isLast = this.#stopping.signal.aborted;
      if ((await countCommits(this.#run)) > commitsBefore) return performance.now();
      if (isLast) return null;
      await delay(commitsLookMs);
    }
  }
}

async function countCommits({ store }: StagedRun): Promise<number> {
  return (await store.list(layout.commits(firstLineage))).length;
}

/** Answers beyond the first at a place of the run. */
export function sampledAgain(run: StagedRun): number {
  const lines = run.sampled();
  return lines.length - new Set(lines.map(placeOf)).size;
}

/** Evaluations sample the same places of each version, and once more without chance; a search under one prompt after another. */
function placeOf({ policy, seed, temperature = 1, prompt = 0 }: SampledLine): string {
  return `${policy} ${seed} ${temperature} ${prompt}`;
}

/** If weights change in flight, a place is sampled from whichever version is served. */
function seedsSampled(run: StagedRun): ReadonlySet<number> {
  return new Set(run.sampled().map(({ seed }) => seed));
}

/** The same for rollouts in parts of their chunks, and in their groups once those are scored. */
async function countUnscored(run: StagedRun): Promise<number> {
  const stored = new Set<string>();
  const add = ({ group, index }: Pick<Rollout, 'group' | 'index'>): void => void stored.add(`${group}/${index}`);
  for (const { rollouts } of await scoredGroups(run)) rollouts.forEach(add);
  for (const key of await run.store.list('rollouts/')) {
    if (!/part_\d+\.jsonl$/.test(key)) continue;
    decodeRows<Rollout>((await run.store.read(key)) ?? Buffer.of(), key).forEach(add);
  }
  return Math.max(0, seedsSampled(run).size - stored.size);
}

/** Rollouts that were sampled and are not in the store. */
async function countInFlight(run: StagedRun): Promise<number> {
  const stored = new Set<string>();
  for (const key of [...(await run.store.list('rollouts/')), ...(await run.store.list('evals/'))]) {
    if (!/chunk_[^/]*\.jsonl$|part_\d+\.jsonl$/.test(key)) continue;
    const evaluation = /^evals\/.*(?=\/rollouts\/)/.exec(key)?.[0] ?? ''; // groups of a run are counted through
    for (const { group, index } of decodeRows<Rollout>((await run.store.read(key)) ?? Buffer.of(), key)) {
      stored.add(`${evaluation}/${group}/${index}`);
    }
  }
  for (const key of await run.store.list('gepa/')) {
    if (!/answers\/part_\d+\.jsonl$/.test(key)) continue;
    const rows = decodeRows<{ request: string; index?: number }>((await run.store.read(key)) ?? Buffer.of(), key);
    for (const { request, index } of rows) if (index !== undefined) stored.add(`gepa/${request}/${index}`);
  }
  const places = new Set(run.sampled().map(placeOf));
  return Math.max(0, places.size - stored.size);
}
