import type { PolicyVersion, Prompts } from '../../core/rl/run-state.ts';
import type { RunContext } from '../run-parts.ts';
import { awaitedLater } from '../beside/beside.ts';
import { isHistoryLong } from '../history-length.ts';
import { type CollectedStep, collectStep } from './collect-step.ts';
import type { Recoveries } from './recoveries.ts';
import type { ServingSchedule } from './serving-schedule.ts';

/** What a batch goes on from. */
type DrawnFrom = Pick<CollectedStep, 'curriculum' | 'surplus'>;

interface Options {
  readonly recoveries: Recoveries;
  readonly serving: ServingSchedule;
  /** Resolves when the servers hold the newest version. */
  readonly ready: () => Promise<void>;
  readonly newestPolicy: () => PolicyVersion;
  /** System prompts in use. */
  readonly prompts: () => Prompts | undefined;
}

/** Batches of rollouts: at level 0 each after the step before is served, at level 1 the next one beside the training of a step. */
export class Rollouts {
  readonly #context: RunContext;
  readonly #options: Options;
  #next: Promise<CollectedStep> | null = null;

  constructor(context: RunContext, options: Options) {
    this.#context = context;
    this.#options = options;
  }

  /** Whether nothing is sampled ahead. */
  get areIdle(): boolean {
    return this.#next === null;
  }

  /** The batch of a step: the one that was sampled ahead, or one that begins from here. */
  collect(step: number, from: DrawnFrom): Promise<CollectedStep> {
    const batch = this.#next ?? this.#begin(step, from);
    this.#next = null;
    return batch;
  }

  /** Samples for a step while the one before it trains, where the run goes on to it. */
  prefetch(step: number, from: DrawnFrom): void {
    const { spec, control } = this.#context;
    const goesOn = !control.isPaused && control.rewind === null && !isHistoryLong();
    if (spec.maxAsyncLevel > 0 && step <= control.lastStep && goesOn) this.#next = this.#begin(step, from);
  }

  /** Ends once nothing is sampled any more, for a step that will not be made. */
  async drain(): Promise<void> {
    await this.#next?.catch(() => undefined);
  }

  #begin(step: number, { curriculum, surplus }: DrawnFrom): Promise<CollectedStep> {
    const { run, spec, datasets, control } = this.#context;
    const { recoveries, serving, ready, newestPolicy, prompts } = this.#options;
    recoveries.samplesFor(step);
    return awaitedLater(
      ready().then(() => {
        const drawn = { run, spec, datasets, step, curriculum, surplus };
        return collectStep(control, { ...drawn, newestPolicy, serving, prompts: prompts() });
      }),
    );
  }
}
