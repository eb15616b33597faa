/** Cells of the fault matrix as tests, after the undisturbed runs that they are compared with. */
import assert from 'node:assert/strict';
import { after, test } from 'node:test';
import { type Cell, runCell, stepsOfRun } from './cells.ts';
import { sampledAgain } from './judges.ts';
import { rowOf } from './rows.ts';
import type { StageKindName } from './stage-kinds.ts';
import { FaultStage, type RunSummary } from './stage.ts';

/** Stages by kind, opened when first needed, and the undisturbed runs on them. */
class Stages {
  readonly #open = new Map<StageKindName, FaultStage>();
  readonly #undisturbed = new Map<string, RunSummary>();

  async of(kind: StageKindName): Promise<FaultStage> {
    const stage = this.#open.get(kind) ?? (await FaultStage.open(kind));
    this.#open.set(kind, stage);
    return stage;
  }

  async undisturbed(kind: StageKindName, overrides: Readonly<Record<string, string>> = {}): Promise<RunSummary> {
    const key = JSON.stringify([kind, overrides]);
    const known = this.#undisturbed.get(key);
    if (known) return known;
    const stage = await this.of(kind);
    stage.clear();
    const run = await stage.start(`undisturbed-${this.#undisturbed.size + 1}`, { steps: stepsOfRun, overrides });
    const summary = await run.handle.result();
    assert.ok(summary.ledger.isSound);
    assert.ok((summary.ledger.counts['trained'] ?? 0) > 0);
    assert.equal(sampledAgain(run), 0, 'an undisturbed run samples everything once');
    this.#undisturbed.set(key, summary);
    return summary;
  }

  /** After a failure: nobody knows what it left behind. */
  async replace(kind: StageKindName): Promise<void> {
    const stage = this.#open.get(kind);
    this.#open.delete(kind);
    await stage?.close();
  }

  async close(): Promise<void> {
    for (const kind of this.#open.keys()) await this.replace(kind);
  }
}

export function testCells(cells: readonly Cell[]): void {
  const stages = new Stages();
  after(() => stages.close());

  for (const cell of cells) {
    const skip = rowOf(cell.row).notRun ?? false;
    test(
      `${cell.row}, ${cell.column}: the same weights, nothing trained twice, nothing sampled again`,
      { skip },
      async (t) => {
        const { stage: kind, overrides } = rowOf(cell.row);
        const undisturbed = await stages.undisturbed(kind, overrides);
        try {
          const { inFlight, seconds } = await runCell(await stages.of(kind), cell, undisturbed);
          t.diagnostic(`${seconds.toFixed(1)} s to the end, ${inFlight} rollouts lost in flight`);
        } catch (error) {
          await stages.replace(kind);
          throw error;
        }
      },
    );
  }
}
