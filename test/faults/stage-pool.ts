import assert from 'node:assert/strict';
import { branchOutcome } from './branch-column.ts';
import { besidesOf, gapOfCell, sampledAgain, weightsDigest, type Cell } from './cells.ts';
import { stepsOfRun, type UndisturbedRun } from './row.ts';
import { rowOf } from './rows.ts';
import type { StageKindName } from './stage-kinds.ts';
import { FaultStage } from './stage.ts';

interface Pooled {
  readonly key: string;
  readonly stage: FaultStage;
  isBusy: boolean;
}

/**
 * Stages for cells, one cell at a time on each: opened when none of the kind is free, closed when a stage of another
 * kind is needed instead.
 */
export class StagePool {
  readonly #stagesMax: number;
  #pooled: Pooled[] = [];
  readonly #undisturbed = new Map<string, Promise<UndisturbedRun>>();

  constructor(stagesMax: number) {
    this.#stagesMax = stagesMax;
  }

  /** Runs on a stage that the cell may have alone. After a failure the stage is dropped, since its state is unknown. */
  async on<T>(cell: Cell, play: (stage: FaultStage, undisturbed: UndisturbedRun) => Promise<T>): Promise<T> {
    const place = placeOf(cell);
    const pooled = await this.#take(place);
    try {
      const hasBranch = gapOfCell(cell).hasBranch === true;
      const besides = hasBranch ? await besidesOf(cell) : {};
      const { steps = stepsOfRun, overrides } = rowOf(cell.row);
      const like = { steps, overrides: { ...besides, ...overrides }, hasBranch };
      const result = await play(pooled.stage, await this.#undisturbedOn(pooled, like));
      pooled.isBusy = false;
      return result;
    } catch (error) {
      await this.#remove(pooled);
      throw error;
    }
  }

  async close(): Promise<void> {
    await Promise.all(this.#pooled.map((pooled) => this.#remove(pooled)));
  }

  async #take({ key, kind, continuesAsNew }: Place): Promise<Pooled> {
    const free = this.#pooled.find((one) => one.key === key && !one.isBusy);
    if (free) {
      free.isBusy = true;
      return free;
    }
    const idle = this.#pooled.find((one) => !one.isBusy);
    if (this.#pooled.length >= this.#stagesMax && idle) await this.#remove(idle);
    const opened = { key, stage: await FaultStage.open(kind, { continuesAsNew }), isBusy: true };
    this.#pooled.push(opened);
    return opened;
  }

  async #remove(pooled: Pooled): Promise<void> {
    this.#pooled = this.#pooled.filter((one) => one !== pooled);
    await pooled.stage.close();
  }

  /** Once per kind and settings, whichever stage of it comes first. */
  #undisturbedOn({ key, stage }: Pooled, like: Like): Promise<UndisturbedRun> {
    const name = JSON.stringify([key, like]);
    const known = this.#undisturbed.get(name);
    if (known) return known;
    const playing = playUndisturbed(stage, `undisturbed-${this.#undisturbed.size + 1}`, like);
    this.#undisturbed.set(name, playing);
    return playing;
  }
}

/** Undisturbed runs to compare a cell's runs with. */
interface Like {
  readonly steps: number;
  readonly overrides: Readonly<Record<string, string>>;
  readonly hasBranch: boolean;
}

interface Place {
  readonly key: string;
  readonly kind: StageKindName;
  readonly continuesAsNew: boolean;
}

/** Cells of one key may share a stage. */
export function placeOf(cell: Cell): Place {
  const { stage: kind } = rowOf(cell.row);
  const { continuesAsNew = false } = gapOfCell(cell);
  return { key: continuesAsNew ? `${kind}, continues as new` : kind, kind, continuesAsNew };
}

async function playUndisturbed(
  stage: FaultStage,
  name: string,
  { steps, overrides, hasBranch }: Like,
): Promise<UndisturbedRun> {
  stage.clear();
  const run = await stage.start(name, { steps, overrides });
  const summary = await run.handle.result();
  assert.ok(summary.ledger.isSound);
  assert.ok((summary.ledger.counts['trained'] ?? 0) > 0);
  assert.equal(sampledAgain(run), 0, 'an undisturbed run samples everything once');
  if (stage.surroundings.sampledLog !== undefined) assert.ok(run.sampled().length > 0, 'its answers are noted');
  const branch = hasBranch ? { branch: await branchOutcome(stage, run) } : {};
  return { summary, weights: await weightsDigest(run, summary), ...branch };
}
