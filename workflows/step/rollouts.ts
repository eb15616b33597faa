import { condition } from '@temporalio/workflow';
import type { LeaseInput, MayLease } from '../../activities/index.ts';
import type { PolicyVersion, Prompts, RunState } from '../../core/rl/run-state.ts';
import type { RunContext } from '../run-context.ts';
import { levelWithin } from '../../core/rl/sampling/drift.ts';
import { levelOf } from '../../core/rl/sampling/window.ts';
import { awaitedLater } from '../beside/beside.ts';
import { isHistoryLong } from '../history-length.ts';
import { type Asked, type CollectedStep, collectStep, firstRound, type StepsAhead } from './collect-step.ts';
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
  /** Whether they hold it by now. */
  readonly isReady: () => boolean;
  readonly newestPolicy: () => PolicyVersion;
  readonly waitsForTurn: (step: number) => boolean;
  readonly prompts: () => Prompts | undefined;
  /** State of the newest commit. */
  readonly state: () => RunState;
  /** Whether an earlier execution may have left rounds in flight. */
  readonly goesOn: boolean;
  /** Workflows that generate those rounds. */
  readonly flows: CarriedFlows | undefined;
  /** Seconds that chunks took in the previous execution. */
  readonly playS: number | null;
}

/**
 * Batches of rollouts, or of rows for a run with `[data]`. At level 0 each is collected after the previous step is
 * served; beyond it the next step's batch is collected while a step trains. Groups sampled further ahead, up to
 * `max_async_level` batches and `max_off_policy_steps`, wait.
 */
export class Rollouts {
  readonly #context: RunContext;
  readonly #options: Options;
  /** Batches collected, or being collected, ahead of the requested step. */
  readonly #ahead: { readonly step: number; readonly batch: Promise<CollectedStep> }[] = [];
  readonly #flow: RolloutFlow;
  readonly #drawn: DrawnRows;
  #isCollecting = false;
  /** Newest step whose batch was begun; it may train while a version is broadcast. 0 before the first. */
  #begun = 0;
  /** The step whose collection waits for the servers to be brought to a version; null: none does. */
  #awaitsServers: number | null = null;
  /** Nothing more is leased by this execution. */
  #isLeft = false;
  #window: Promise<SamplingWindow> | null = null;
  #opened: SamplingWindow | null = null;

  constructor(context: RunContext, options: Options) {
    this.#context = context;
    this.#options = options;
    this.#flow = new RolloutFlow(context, options.flows);
    this.#drawn = new DrawnRows(context, options.state);
  }

  /** Whether the run may continue as new: nothing is in flight, or the next execution can resume it. */
  get mayBeLeft(): boolean {
    if (this.#opened === null) return this.#ahead.length === 0;
    return this.#opened.mayBeLeft || (this.#ahead.length === 0 && !this.#opened.isInPlay);
  }

  /** Number of signals about rollouts in this execution. */
  get heard(): number {
    return this.#opened?.heard ?? 0;
  }

  /** Whether servers may get other weights while rollouts are generated. */
  get changesInFlight(): boolean {
    return this.#opened?.changesInFlight === true;
  }

  /** The batch of a step: the one that was sampled ahead, or one that begins from here. */
  collect(step: number): Promise<CollectedStep> {
    return this.#ahead.shift()?.batch ?? this.#begin(step);
  }

  /**
   * Sends a version to the servers, and has the first round that begins with it leased by the same activity, where a step begins with that:
   * nothing is in play then. A version that was made again may be served once later steps are made: it begins none of them.
   */
  leaseWith<T extends MayLease>(policy: PolicyVersion, send: (lease?: LeaseInput) => Promise<T>): Promise<T> {
    const { step: committed } = this.#options.state();
    const step = this.#isCollecting ? this.#awaitsServers : Math.max(this.#begun, committed) + 1;
    return step === null ? send() : this.#leaseFor(step, policy, send);
  }

  /** Packs the batch of a step, and has the first round of the next step leased by the same activity, where that is sampled from now on. */
  #packWith<T extends MayLease>(step: number, pack: (lease?: LeaseInput) => Promise<T>): Promise<T> {
    const { serving, isReady, newestPolicy } = this.#options;
    if (!isReady() || !serving.isFree) return pack();
    return serving.shared(() => this.#leaseFor(step + 1, newestPolicy(), pack));
  }

  #leaseFor<T extends MayLease>(
    step: number,
    policy: PolicyVersion,
    send: (lease?: LeaseInput) => Promise<T>,
  ): Promise<T> {
    const window = this.#opened;
    const isNewest = policy.step === this.#options.state().step;
    if (window === null || !isNewest || !this.#mayBegin(step)) return send();
    const round = firstRound(this.#windowContext, window, this.#asked(step), policy.step);
    if (round === null) return send();
    const isWanted = (): boolean => !this.#isLeft && step <= this.#context.control.lastStep;
    return window.leaseWith(round, policy, { send, isWanted });
  }

  /** Collects for the next step that nothing is collected for, while the one after `step` trains, where the run goes on to it. */
  sampleAhead(step: number): void {
    if (this.#isCollecting) return; // it goes on from there by itself
    const next = (this.#ahead.at(-1)?.step ?? step) + 1;
    if (!this.#mayBegin(next)) return;
    const batch = this.#begin(next);
    this.#ahead.push({ step: next, batch });
    void this.#goOnAfter(batch, next);
  }

  /** Whether the batch of a step may be collected by now, beside the step that trains. */
  #mayBegin(step: number): boolean {
    const { spec, control } = this.#context;
    const byRounds = this.#opened?.byRounds !== false;
    const endsFirst = isHistoryLong() && byRounds;
    const goesOn = !control.isPaused && control.rewind === null && !endsFirst;
    // A window that is kept full gives a batch once the previous one trains, not before: late groups may yet be in it.
    const ahead = byRounds ? levelOf(spec) : 1;
    return goesOn && step <= control.lastStep && step <= this.#lastAllowed(ahead);
  }

  /** Ends once no batch is collected any more. What is in play is played on for the execution that goes on, which is told who does. */
  async drain(): Promise<{ readonly flows: CarriedFlows; readonly playS: number | null }> {
    this.#isLeft = true;
    const window = this.#opened;
    const flows = this.#flow.carry();
    // A round that came with a broadcast or a batch may be in play, and nothing collects it.
    if (window?.byRounds === false || this.#ahead.length === 0) window?.abandon();
    await this.#flow.leave();
    await Promise.all(this.#ahead.map(({ batch }) => batch.catch(() => undefined)));
    await window?.filled();
    return { flows, playS: window?.playS ?? this.#options.playS };
  }

  /** Ends sampling; what was in flight stays in the store. */
  async leave(): Promise<void> {
    this.#isLeft = true;
    this.#opened?.abandon();
    await this.#flow.end();
  }

  get #windowContext(): WindowContext {
    return { ...this.#context, ...this.#options, flow: this.#flow };
  }

  /** Steps ahead that `max_mismatch_kl` allows, up to `level`; may be a fraction. */
  #within(level: number): number {
    const { spec, control } = this.#context;
    return levelWithin(level, this.#options.state().drift, maxMismatchKlOf(spec, control.overrides));
  }

  #lastAllowed(level: number): number {
    return this.#options.state().step + 1 + level;
  }

  #begin(step: number): Promise<CollectedStep> {
    this.#isCollecting = true;
    this.#begun = step;
    return awaitedLater(this.#collectOne(step));
  }

  async #collectOne(step: number): Promise<CollectedStep> {
    const { recoveries, ready, newestPolicy, state } = this.#options;
    const { control } = this.#context;
    const { step: committed } = state();
    recoveries.samplesFor(step);
    try {
      if (this.#context.spec.data) return await this.#drawn.collect(step);
      this.#awaitsServers = step;
      await ready();
      // A commit is known a moment before its version is sent: groups would be sampled from the one before.
      if (newestPolicy().step < committed) {
        const sent = condition(() => newestPolicy().step >= committed);
        await control.waitFor(`the broadcast of v${committed} to begin`, sent);
      }
      this.#awaitsServers = null;
      this.#window ??= this.#open();
      return await collectStep(this.#windowContext, await this.#window, this.#asked(step));
    } finally {
      this.#isCollecting = false;
      this.#awaitsServers = null;
    }
  }

  #asked(step: number): Asked {
    const { spec, control } = this.#context;
    const steps = (): StepsAhead => {
      const toEnd = control.lastStep - step + 1;
      const left = this.#lastAllowed(this.#within(levelOf(spec))) - step + 1;
      return { left: Math.min(toEnd, left), toEnd, within: this.#within(spec.maxOffPolicySteps) };
    };
    return { step, steps, packWith: (pack) => this.#packWith(step, pack) };
  }

  async #goOnAfter(batch: Promise<CollectedStep>, step: number): Promise<void> {
    // The caller that asks for the batch gets its failure.
    if (await batch.catch(() => null)) this.sampleAhead(step);
  }

  async #open(): Promise<SamplingWindow> {
    const { spec } = this.#context;
    const { state, goesOn, playS } = this.#options;
    const from = state();
    const window = new SamplingWindow(this.#windowContext, from, playS);
    this.#opened = window;
    const { open = [] } = from;
    if (open.length > 0 || (goesOn && spec.maxAsyncLevel > 0)) await window.reopen(open);
    window.listen();
    return window;
  }
}
