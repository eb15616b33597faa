import {
  CancellationScope,
  ChildWorkflowCancellationType,
  condition,
  getExternalWorkflowHandle,
  isCancellation,
  ParentClosePolicy,
  type SignalDefinition,
  startChild,
  workflowInfo,
} from '@temporalio/workflow';
import { flowFirstLookMs, flowLookAgainMs } from '../../core/limits.ts';
import { rolloutsWorkflowId } from '../../core/names.ts';
import { present } from '../../core/present.ts';
import {
  giveUpRoundsSignal,
  leaveRoundsSignal,
  type playRounds,
  playRoundsSignal,
  resumeRoundsSignal,
  type RoundToPlay,
} from '../play-rounds.ts';
import type { RunContext } from '../run-context.ts';

/** Rounds by the workflow that generates them, named by first ordinals; for continue-as-new. */
export type CarriedFlows = Readonly<Record<string, readonly number[]>>;

/** The workflow that this execution began for its rounds. */
interface OwnFlow {
  readonly workflowId: string;
  hasEnded: boolean;
  /** It ended by itself, so none of its activities is running. */
  isDone: boolean;
}

/**
 * The run's side of `playRounds`: hands rounds to a workflow that outlives this execution. Rounds of the previous
 * execution stay with their workflow. When such a workflow is lost, its rounds are handed over again, and continue from
 * what is stored.
 */
export class RolloutFlow {
  readonly #context: Pick<RunContext, 'run' | 'spec'>;
  readonly #carried: Map<number, string>;
  /** Workflows of the executions before that are gone. */
  readonly #lost = new Set<string>();
  /** Returns what is left of each round. */
  readonly #left = new Map<number, () => RoundToPlay | null>();
  /** Rounds in flight, with their workflow. */
  readonly #flows = new Map<number, string>();
  #own: Promise<OwnFlow> | null = null;
  /** Ids of all workflows that this execution began, including ended ones. */
  readonly #ids: string[] = [];
  #begun = 0;
  #isLeft = false;

  constructor(context: Pick<RunContext, 'run' | 'spec'>, carried: CarriedFlows = {}) {
    this.#context = context;
    const pairs = Object.entries(carried).flatMap(([id, firsts]) => firsts.map((first) => [first, id] as const));
    this.#carried = new Map(pairs);
  }

  /** Has a round generated until it has ended: `current` returns what is left of it, or null. */
  async play(first: number, current: () => RoundToPlay | null): Promise<void> {
    try {
      const carried = this.#carried.get(first);
      if (carried !== undefined) await this.#playedBy(carried, first, current);
      this.#carried.delete(first);
      while (current() !== null) await this.#playByOwn(first, current);
    } finally {
      this.#flows.delete(first);
    }
  }

  giveUp(firsts: readonly number[]): void {
    const flows = new Map<string, number[]>();
    for (const first of firsts) {
      const flow = this.#flows.get(first);
      if (flow !== undefined) flows.set(flow, [...(flows.get(flow) ?? []), first]);
    }
    for (const [flow, rounds] of flows) this.#signal(flow, giveUpRoundsSignal, rounds).catch(() => undefined);
  }

  /** Ends the wait for a person in all workflows. */
  resume(): void {
    for (const flow of new Set(this.#flows.values())) this.#signal(flow, resumeRoundsSignal).catch(() => undefined);
  }

  /** Whether a workflow of an earlier execution generates this round. */
  isCarried(first: number): boolean {
    return this.#carried.has(first);
  }

  /** Ids of the workflows that generate rounds for this execution. */
  get known(): readonly string[] {
    return [...new Set([...this.#ids, ...this.#carried.values()])];
  }

  /** State for the next execution, including carried rounds that this one has not resumed yet. */
  carry(): CarriedFlows {
    const flows: Record<string, number[]> = {};
    for (const [first, flow] of [...this.#carried, ...this.#flows]) {
      if (!flows[flow]?.includes(first)) (flows[flow] ??= []).push(first);
    }
    return flows;
  }

  /** Keeps only these carried rounds, which are still in flight. */
  keepCarried(firsts: readonly number[]): void {
    for (const first of this.#carried.keys()) if (!firsts.includes(first)) this.#carried.delete(first);
  }

  /** This execution hands over no more rounds. */
  async leave(): Promise<void> {
    this.#isLeft = true;
    const own = await this.#own;
    if (own !== null) await this.#signal(own.workflowId, leaveRoundsSignal);
  }

  /**
   * Ends all generation. Waits for its signals to be sent: the server sends nothing more from a workflow that has
   * ended.
   */
  async end(): Promise<void> {
    this.#isLeft = true;
    const own = await this.#own?.catch(() => null);
    const flows = new Set([...this.#flows.values(), ...this.#carried.values(), ...(own ? [own.workflowId] : [])]);
    await Promise.allSettled([...flows].map((flow) => getExternalWorkflowHandle(flow).cancel()));
  }

  /** Until it has ended, or that workflow is gone. */
  async #playedBy(flow: string, first: number, current: () => RoundToPlay | null): Promise<void> {
    this.#flows.set(first, flow);
    this.#left.set(first, current);
    if (this.#left.size === 1) void this.#lookAfter();
    await condition(() => current() === null || this.#lost.has(flow));
    this.#left.delete(first);
    if (this.#lost.has(flow)) await this.#outliveOrphans(current, () => false);
  }

  /**
   * Waits until the activities of a lost workflow have stopped. They learn of its end with a heartbeat, and store the
   * groups that end before. A round handed over at once would sample those groups a second time.
   */
  async #outliveOrphans(current: () => RoundToPlay | null, isDone: () => boolean): Promise<void> {
    if (current() === null) return;
    await condition(() => current() === null || isDone(), this.#context.spec.heartbeatTimeoutS * 1000);
  }

  /** Sends rounds to their workflows again from time to time; running ones continue. */
  async #lookAfter(): Promise<void> {
    let waitMs = flowFirstLookMs;
    while (!(await condition(() => this.#left.size === 0, waitMs))) {
      waitMs = Math.min(2 * waitMs, flowLookAgainMs);
      const flows = new Map<string, RoundToPlay[]>();
      for (const [first, current] of this.#left) {
        const [flow, round] = [this.#carried.get(first), current()];
        if (flow !== undefined && round) flows.set(flow, [...(flows.get(flow) ?? []), round]);
      }
      for (const [flow, rounds] of flows) {
        if (!(await this.#signal(flow, playRoundsSignal, rounds))) this.#lost.add(flow);
      }
    }
  }

  async #playByOwn(first: number, current: () => RoundToPlay | null): Promise<void> {
    // A round leased meanwhile is found by the next execution in the store. A workflow begun for it here would never be
    // ended.
    if (this.#isLeft) return condition(() => current() === null);
    const own = await (this.#own ??= this.#begin());
    const round = current();
    if (round === null) return;
    this.#flows.set(first, own.workflowId);
    if (await this.#signal(own.workflowId, playRoundsSignal, [round])) {
      await condition(() => current() === null || own.hasEnded);
    } else {
      this.#isLost(own);
    }
    if (!own.isDone) await this.#outliveOrphans(current, () => own.isDone);
  }

  async #begin(): Promise<OwnFlow> {
    const { run, spec } = this.#context;
    const { workflowId: tells, runId } = workflowInfo();
    this.#begun += 1;
    const workflowId = rolloutsWorkflowId(tells, runId, this.#begun);
    this.#ids.push(workflowId);
    const { heartbeatTimeoutS, queue } = spec;
    // If the run is cancelled before the start is known, the workflow starts all the same, and `end` has to know of it.
    const handle = await CancellationScope.nonCancellable(() =>
      startChild<typeof playRounds>('playRounds', {
        workflowId,
        args: [{ run, spec: { heartbeatTimeoutS, ...present({ queue }) }, tells }],
        parentClosePolicy: ParentClosePolicy.ABANDON,
        cancellationType: ChildWorkflowCancellationType.ABANDON,
        workflowIdReusePolicy: 'ALLOW_DUPLICATE',
        staticSummary: `rollouts of ${run.name}`,
      }),
    );
    const own: OwnFlow = { workflowId, hasEnded: false, isDone: false };
    const isDone = (): void => {
      own.isDone = true;
      this.#isLost(own);
    };
    handle.result().then(isDone, () => this.#isLost(own));
    return own;
  }

  /** The workflow has ended or was ended: its rounds in flight go to the next one. */
  #isLost(own: OwnFlow): void {
    if (own.hasEnded) return;
    own.hasEnded = true;
    this.#own = null;
  }

  /** False when that workflow is gone. */
  async #signal<Args extends unknown[]>(flow: string, signal: SignalDefinition<Args>, ...args: Args): Promise<boolean> {
    try {
      await getExternalWorkflowHandle(flow).signal(signal, ...args);
      return true;
    } catch (error) {
      if (isCancellation(error)) throw error; // this run was cancelled; the other workflow exists
      return false;
    }
  }
}
