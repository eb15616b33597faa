import { nothingLost } from '../../core/rl/lost-work.ts';
import type { RowPlace, RunState } from '../../core/rl/run-state.ts';
import { priorityOfRun, rolloutsFor } from '../options.ts';
import type { RunContext } from '../run-context.ts';
import type { CollectedStep } from './collect-step.ts';

/** Batches of a run with `[data]`: the next sequences of its rows, in place of rollouts. A batch that was refused is not drawn again. */
export class DrawnRows {
  readonly #context: RunContext;
  /** State of the newest commit. */
  readonly #state: () => RunState;
  #next: RowPlace | null = null;

  constructor(context: RunContext, state: () => RunState) {
    this.#context = context;
    this.#state = state;
  }

  async collect(step: number): Promise<CollectedStep> {
    const { run, spec, control } = this.#context;
    const state = this.#state();
    const from = this.#next ?? state.rows ?? { row: 0, sample: 0 };
    const summary = `step ${step}: from row ${from.row + 1}`;
    const priority = priorityOfRun(spec, control.overrides, { rollouts: 1 });
    const { packed, rows, next, metrics } = await control.waitFor(
      `draw rows, ${summary}`,
      rolloutsFor(spec, priority).drawRows.executeWithOptions({ summary }, [
        { run, step, from, policy: state.reference },
      ]),
    );
    this.#next = next;
    return {
      packed,
      trained: [],
      surplus: [],
      curriculum: state.curriculum,
      rowsNext: next,
      issued: [],
      ended: [],
      rows,
      figures: metrics,
      lost: nothingLost,
    };
  }
}
