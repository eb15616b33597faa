import type { PolicyVersion, Prompts, RunState } from '../../core/rl/run-state.ts';
import type { RunContext } from '../run-parts.ts';
import { levelWithin } from '../../core/rl/drift.ts';
import { levelOf } from '../../core/rl/window.ts';
import { awaitedLater } from '../beside/beside.ts';
import { isHistoryLong } from '../history-length.ts';
import { type CollectedStep, collectStep, type StepsAhead } from './collect-step.ts';
import { DrawnRows } from './drawn-rows.ts';
import type { Recoveries } from './recoveries.ts';
import { type CarriedFlows, RolloutFlow } from './rollout-flow.ts';
import { SamplingWindow, type WindowContext } from './sampling-window.ts';
import { maxMismatchKlOf } from './run-states.ts';
import type { ServingSchedule } from './serving-schedule.ts';

interface Options {
  readonly recoveries: Recoveries;
  readonly serving: ServingSchedule;
  /** Resolves when the servers hold the newest version. */
  readonly ready: () => Promise<void>;
  readonly newestPolicy: () => PolicyVersion;
  /** System prompts in use. */
  readonly prompts: () => Prompts | undefined;
  /** Of the newest commit. */
  readonly state: () => RunState;
  /** Whether an execution before this one may have left rounds in play. */
  readonly goesOn: boolean;
  /** Who plays them. */
  readonly flows: CarriedFlows | undefined;
}

/**
 * Batches of rollouts, or of rows where the run has `[data]`. At level 0 each is collected after the step before is served; beyond it the batch of the next step is collected beside
 * the training of a step. What is sampled further ahead, of `max_async_level` batches at most and no more than `max_off_policy_steps`, waits.
 */
export class Rollouts {
  readonly #context: RunContext;
  readonly #options: Options;
  /** Collected, or being collected, ahead of the step that is asked for. */
  readonly #ahead: { readonly step: number; readonly batch: Promise<CollectedStep> }[] = [];
  readonly #flow: RolloutFlow;
  readonly #drawn: DrawnRows;
  #isCollecting = false;
  #window: Promise<SamplingWindow> | null = null;
  #opened: SamplingWindow | null = null;

  constructor(context: RunContext, options: Options) {
    this.#context = context;
    this.#options = options;
    this.#flow = new RolloutFlow(context, options.flows);
    this.#drawn = new DrawnRows(context, options.state);
  }

  /** Whether the run may be continued as new: nothing is in play, or whoever goes on takes up what is. */
  get mayBeLeft(): boolean {
    return this.#ahead.length === 0 || this.#opened?.isContinuous === true;
  }

  /** How often anything was heard of rollouts by this execution. */
  get heard(): number {
    return this.#opened?.heard ?? 0;
  }

  /** Whether servers may be given other weights while rollouts are played. */
  get changesInFlight(): boolean {
    return this.#opened?.changesInFlight === true;
  }

  /** The batch of a step: the one that was sampled ahead, or one that begins from here. */
  collect(step: number): Promise<CollectedStep> {
    return this.#ahead.shift()?.batch ?? this.#begin(step);
  }

  /** Collects for the next step that nothing is collected for, while the one after `step` trains, where the run goes on to it. */
  sampleAhead(step: number): void {
    if (this.#isCollecting) return; // it goes on from there by itself
    const { spec, control } = this.#context;
    const next = (this.#ahead.at(-1)?.step ?? step) + 1;
    const endsFirst = isHistoryLong() && this.#opened?.isContinuous !== true;
    const goesOn = !control.isPaused && control.rewind === null && !endsFirst;
    // Where groups are sampled continuously a batch is taken when the one before it trains, and not before: what is late may yet be in it.
    const ahead = this.#opened?.isContinuous === true ? 1 : levelOf(spec);
    if (!goesOn || next > control.lastStep || next > this.#lastAllowed(ahead)) return;
    const batch = this.#begin(next);
    this.#ahead.push({ step: next, batch });
    void this.#goOnAfter(batch, next);
  }

  /** Ends once no batch is collected any more. What is in play is played on for the execution that goes on, which is told who does. */
  async drain(): Promise<CarriedFlows> {
    const window = this.#opened;
    const flows = this.#flow.carry();
    if (window?.isContinuous === true) window.abandon();
    await this.#flow.leave();
    await Promise.all(this.#ahead.map(({ batch }) => batch.catch(() => undefined)));
    return flows;
  }

  /** Nothing is sampled any more: what was in play stays in the store. */
  async leave(): Promise<void> {
    this.#opened?.abandon();
    await this.#flow.end();
  }

  get #windowContext(): WindowContext {
    return { ...this.#context, ...this.#options, flow: this.#flow };
  }

  /** Of so many steps ahead those that `max_mismatch_kl` lets sampling be, fractions among them. */
  #within(level: number): number {
    const { spec, control } = this.#context;
    return levelWithin(level, this.#options.state().drift, maxMismatchKlOf(spec, control.overrides));
  }

  #lastAllowed(level: number): number {
    return this.#options.state().step + 1 + level;
  }

  #begin(step: number): Promise<CollectedStep> {
    this.#isCollecting = true;
    return awaitedLater(this.#collectOne(step));
  }

  async #collectOne(step: number): Promise<CollectedStep> {
    const { spec, control } = this.#context;
    const { recoveries, ready } = this.#options;
    recoveries.samplesFor(step);
    const steps = (): StepsAhead => {
      const toEnd = control.lastStep - step + 1;
      const left = this.#lastAllowed(this.#within(levelOf(spec))) - step + 1;
      return { left: Math.min(toEnd, left), toEnd, within: this.#within(spec.maxOffPolicySteps) };
    };
    try {
      if (spec.data) return await this.#drawn.collect(step);
      await ready();
      this.#window ??= this.#open();
      return await collectStep(this.#windowContext, await this.#window, { step, steps });
    } finally {
      this.#isCollecting = false;
    }
  }

  async #goOnAfter(batch: Promise<CollectedStep>, step: number): Promise<void> {
    // Who asks for the batch is told what it failed of.
    if (await batch.catch(() => null)) this.sampleAhead(step);
  }

  async #open(): Promise<SamplingWindow> {
    const { spec } = this.#context;
    const { state, goesOn } = this.#options;
    const from = state();
    const window = new SamplingWindow(this.#windowContext, from);
    this.#opened = window;
    const { open = [] } = from;
    if (open.length > 0 || (goesOn && spec.maxAsyncLevel > 0)) await window.reopen(open);
    window.listen();
    return window;
  }
}
