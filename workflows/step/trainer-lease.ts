import {
  ApplicationFailure,
  CancellationScope,
  condition,
  isCancellation,
  sleep,
  workflowInfo,
} from '@temporalio/workflow';
import { trainerTraits } from '../../core/kinds/trainers.ts';
import { engineFailuresMax } from '../../core/limits.ts';
import { trainerWaits, notRegisteredType, taskQueues, trainerQueues } from '../../core/names.ts';
import { nextWaitMs } from '../../core/patience.ts';
import { memoryRemedies } from '../../core/rl/failures.ts';
import type { RunHandle } from '../../core/rl/run-state.ts';
import type { RunSpec } from '../../config/run-spec.ts';
import type { TrainerLeased } from '../../activities/index.ts';
import type { CarriedTurn } from './pool-turn.ts';
import { PoolTurn } from './pool-turn.ts';
import { givingBackOn, holdingOn, eager, lookup, trainingOn, uploadsOn } from '../options.ts';
import { awaitedLater } from '../beside/beside.ts';
import { isReport } from '../beside/root-cause.ts';
import { onSignal } from '../control/listen.ts';
import { trainerLeasedSignal } from '../control/messages.ts';
import type { RunControl } from '../control/run-control.ts';

/** The GPU worker that holds the run, and how to ask it. */
interface LeasedTrainer {
  readonly epoch: number;
  readonly holder: string;
  readonly steps: ReturnType<typeof trainingOn>;
  readonly uploads: ReturnType<typeof uploadsOn>;
}

interface Lease extends LeasedTrainer {
  /** Resolves when the lease is over: the host is lost, or the lease was given back. */
  readonly over: Promise<void>;
  readonly giveBack: () => void;
}

/** Message of a trainer that keeps failing; null for any other failure, which is the caller's. */
function failing(reason: unknown): string | null {
  const { cause } = reason as Error;
  return cause instanceof ApplicationFailure && cause.type === 'TrainerFailing' ? cause.message : null;
}

/** Returns the message of a GPU worker that does not have the activity; null for any other failure. */
function lacking(reason: unknown): string | null {
  const { cause } = reason as Error;
  if (!(cause instanceof ApplicationFailure) || cause.type !== notRegisteredType) return null;
  return cause.message.split(',', 1)[0]!; // the rest of the message lists its activities
}

/** A custom trainer runs in the GPU worker's process, and ends it without a message. */
function endedAgain(times: number): string {
  return `the GPU worker ended ${times} times in a row in the middle of the same work: its log says what the trainer module did there. Where it was killed for want of memory (exit code 137): ${memoryRemedies.trainer}.`;
}

/** Failure of an attempt to hold a worker; null when no worker took the run, or nothing is wrong. */
function failureOf(end: { readonly reason: unknown } | null): string | null {
  const { cause } = (end?.reason ?? {}) as Error;
  return cause instanceof ApplicationFailure ? cause.message : null;
}

/** Time that a run waits in silence, and the interval at which it then looks for workers. */
const firstLookMs = 2_000;
const lookMsMax = 300_000;
/** A pool that was begun anew hears of its runs within this time. */
const turnLookMsMax = 30_000;
/** Pause before asking for a GPU worker after one of another version was given back. */
const otherVersionMs = 5_000;
/** Delay before a second attempt when the first ended before a worker held the run. */
const firstMs = 1_000;

/**
 * The GPU worker that holds the run. It is held on demand, for as long as its `leaseTrainer` heartbeats; when that
 * ends, work under way there is cancelled and scheduled on the next holder, under a later epoch.
 */
export class TrainerLease {
  readonly #run: RunHandle;
  readonly #spec: RunSpec;
  readonly #control: RunControl;
  readonly #scope = CancellationScope.current();
  /** Worker tried first, over its own queue, since it may still hold the newest version. */
  #preferred: string | null;
  #current: Promise<Lease> | null = null;
  #told: TrainerLeased | null = null;
  #users = 0;
  #isReleaseWanted = false;
  #waitingFor: string;
  /** Its turn with a trainer of its pool; null for a run of no pool, which takes any GPU worker that is free. */
  readonly #turn: PoolTurn | null;
  /** Steps whose version is not in the store yet: between them the pool may have the trainer. */
  #openSteps = 0;
  /** Whether the newest version has its optimizer's state, so that another trainer continues without training anything again. */
  #isSealed: boolean;
  /** The step that began last. */
  #begun = 0;
  /** The last step that this trainer would train, were it asked back now: the first that makes a checkpoint. */
  #lastOfTurn: number;
  /** Why the last worker could not hold the run. */
  #lastFailure: string | null = null;
  /**
   * Called when work is scheduled again because the worker that held the run is lost, with the seconds since it was
   * first scheduled.
   */
  onLost: (epoch: number, seconds: number) => void = () => undefined;

  /** Called when the trainer is given back. */
  onTurnOver: () => void = () => undefined;

  constructor(
    { run, spec }: { readonly run: RunHandle; readonly spec: RunSpec },
    control: RunControl,
    { preferred, turn }: { readonly preferred: string | null; readonly turn: CarriedTurn | null },
  ) {
    this.#run = run;
    this.#spec = spec;
    this.#control = control;
    this.#preferred = preferred;
    this.#turn = spec.queue ? new PoolTurn(spec.queue, control, turn) : null;
    this.#isSealed = this.#turn?.trainer == null;
    this.#lastOfTurn = this.#isSealed ? 0 : Infinity;
    this.#waitingFor = this.#waitingAtFirst;
    if (this.#turn) this.#turn.onAskedBack = (why) => this.#isAskedBack(why);
    onSignal(
      trainerLeasedSignal,
      (held: TrainerLeased) => void (this.#told = held),
      (problem) => control.ignored(problem),
    );
    // Leased early, before another run gets it: this worker need not restore anything.
    const held = this.#turn ? this.#turn.trainer : preferred;
    if (held !== null) void this.#lease();
    if (this.#turn?.isAskedBack === true) this.#releaseIfIdle();
  }

  /** Asks the worker that holds the run, and the next one if that is lost, until there is an answer. */
  async use<T>(ask: (on: LeasedTrainer) => Promise<T>): Promise<T> {
    this.#users += 1;
    try {
      let lost: { readonly epoch: number; readonly askedAt: number } | null = null;
      const ended = new Set<string>();
      for (let lostInARow = 0; ;) {
        const lease = await this.#lease();
        ended.delete(lease.holder); // that process was slow, or cut off, when it was taken for lost
        if (lost !== null) this.onLost(lost.epoch, (Date.now() - lost.askedAt) / 1000);
        lost = null;
        const askedAt = Date.now();
        const scope = new CancellationScope();
        let isAnswered = false;
        const answer = awaitedLater(scope.run(() => ask(lease)).finally(() => (isAnswered = true)));
        await Promise.race([answer.catch(() => undefined), lease.over]);
        if (!isAnswered) {
          scope.cancel();
          lost = { epoch: lease.epoch, askedAt };
          ended.add(lease.holder);
          if (++lostInARow < engineFailuresMax || trainerTraits(this.#spec.trainer).code === 'ratchet') continue;
          if (ended.size < engineFailuresMax) continue;
          await this.#pause(endedAgain(lostInARow));
          lostInARow = 0;
          ended.clear();
        } else if (!(await this.#isToAskAgain(answer, lease))) return await answer;
      }
    } finally {
      this.#users -= 1;
      this.#releaseIfIdle();
    }
  }

  /** A trainer that fails again and again pauses the run; resuming it means that the cause was dealt with. */
  async #isToAskAgain(answer: Promise<unknown>, lease: Lease): Promise<boolean> {
    const reason: unknown = await answer.then(
      () => null,
      (error: unknown) => error,
    );
    if (reason === null) return false;
    const lacks = lacking(reason);
    if (lacks !== null) {
      await this.#leave(lease, lacks);
      return true;
    }
    const failure = failing(reason);
    if (failure === null) return false;
    await this.#pause(failure);
    return true;
  }

  /** Releases a worker of another version and waits a while, so that another worker takes the run. */
  async #leave(lease: Lease, lacks: string): Promise<void> {
    this.#control.warnOnce(
      null,
      `the GPU worker ${lease.holder} is of another version than this run's orchestrator: ${lacks}. Restart it with the orchestrator's version; another GPU worker takes the run meanwhile, if there is one`,
    );
    this.#current = null;
    this.#preferred = null;
    this.#giveBack(Promise.resolve(lease), true);
    await this.#control.waitFor("a GPU worker of the orchestrator's version", sleep(otherVersionMs));
  }

  async #pause(because: string): Promise<void> {
    this.#users -= 1; // in a long pause another run may have the worker
    try {
      this.#control.pause(`${because} Then resume.`);
      await this.#control.untilResumed();
    } finally {
      this.#users += 1;
    }
  }

  /** Gives the worker back once it has no work. The next use holds one again. */
  releaseWhenIdle(): void {
    this.#isReleaseWanted = true;
    this.#releaseIfIdle();
  }

  /**
   * A step begins. A trainer that was asked back is given back before it, if the newest version is a checkpoint; else
   * this step makes one, and the trainer is given back when that is in the store.
   */
  async beginStep(step: number): Promise<void> {
    const turn = this.#turn!;
    if (turn.isAskedBack && this.#isSealed) {
      this.#releaseIfIdle();
      const given = condition(() => !turn.isAskedBack);
      await this.#control.waitFor(`the uploads under way, then the trainer goes back to the pool ${turn.pool}`, given);
    }
    this.#openSteps += 1;
    this.#isSealed = false;
    this.#begun = step;
    this.#lastOfTurn = turn.isAskedBack ? step : step + 1;
  }

  /** A step has ended, once what is uploaded of it is in the store. `isSealed`: it has made a checkpoint. */
  endStep(uploads: Promise<unknown>, isSealed: boolean): void {
    this.#lastOfTurn = isSealed ? this.#begun : this.#begun + 1;
    const end = (): void => {
      this.#openSteps -= 1;
      if (this.#openSteps === 0) this.#isSealed = isSealed;
      this.#releaseIfIdle();
    };
    void uploads.then(end, end); // whoever needs the upload gets its failure
  }

  /** Whether the pool wants the trainer back: the step that is planned makes a checkpoint. */
  get isAskedBack(): boolean {
    return this.#turn?.isAskedBack === true;
  }

  /** Whether the run takes turns with others of a pool. */
  get takesTurns(): boolean {
    return this.#turn !== null;
  }

  /** Whether what is sampled for a step from now on is for a later turn: the run has no trainer of its pool, or gives it back before that step. */
  waitsForTurn(step: number): boolean {
    return this.#turn !== null && (this.#turn.trainer === null || (this.isAskedBack && step > this.#lastOfTurn));
  }

  /** Tells the pool that what the run asks for has changed. */
  tellPool(): void {
    void this.#turn?.tell();
  }

  /** The run ends, and wants no trainer any more. */
  async leave(): Promise<void> {
    await this.#turn?.leave();
  }

  carryTurn(): CarriedTurn | null {
    return this.#turn?.carry() ?? null;
  }

  #isAskedBack(why: string): void {
    this.#control.emit(
      'warning',
      null,
      `its trainer goes to another run at the end of a step, with a checkpoint: ${why}`,
    );
    this.#releaseIfIdle();
  }

  /** Holder that the next execution of this workflow prefers. */
  carry(): string | null {
    return this.#preferred;
  }

  #releaseIfIdle(): void {
    const isAsked = this.isAskedBack && this.#openSteps === 0 && this.#isSealed;
    if ((!this.#isReleaseWanted && !isAsked) || this.#users > 0) return;
    this.#isReleaseWanted = false;
    const leasing = this.#current;
    this.#current = null;
    if (leasing) this.#giveBack(leasing.catch(() => null)); // null: no worker held it, so there is nothing to release
  }

  /** Ends the lease, and tells the pool when it is over: the next run is not to find the trainer busy. */
  #giveBack(leasing: Promise<Lease | null>, isLost = false): void {
    const over = leasing.then(async (lease) => {
      lease?.giveBack();
      if (this.#turn) await lease?.over;
    });
    this.#turn?.giveBack(over, { isLost });
    if (!isLost) this.onTurnOver();
  }

  #lease(): Promise<Lease> {
    if (this.#current) return this.#current;
    const leasing = awaitedLater(this.#control.waitFor(() => this.#describeWaiting(), this.#take()));
    this.#current = leasing;
    const forget = () => {
      if (this.#current === leasing) this.#current = null;
    };
    void leasing.then(({ over }) => over.then(forget), forget);
    return leasing;
  }

  async #take(): Promise<Lease> {
    const looking = { isOver: false };
    void awaitedLater(this.#lookWhomFor(looking)); // it only writes messages
    try {
      for (let waitMs = 0, waitedMs = 0; ;) {
        const turn = this.#turn;
        const preferred = turn ? await turn.get() : this.#preferred;
        this.#preferred = null;
        const epoch = await eager.nextTrainerEpoch({ run: this.#run });
        const lease = await this.#ask(epoch, preferred);
        if (lease) return lease;
        if (turn) turn.giveBack(Promise.resolve(), { isLost: true });
        else if (preferred !== null) continue;
        waitMs = nextWaitMs({ firstMs, waitMs, waitedMs });
        waitedMs += waitMs;
        await sleep(waitMs);
      }
    } finally {
      looking.isOver = true;
    }
  }

  #describeWaiting(): string {
    return this.#lastFailure === null
      ? this.#waitingFor
      : `${this.#waitingFor}; the last one failed: ${this.#lastFailure}`;
  }

  /** One attempt to hold a worker; null when none took the run, or the one that did ended at once. */
  async #ask(epoch: number, preferred: string | null): Promise<Lease | null> {
    const scope = new CancellationScope({ cancellable: true, parent: this.#scope });
    const taskQueue = preferred === null ? taskQueues.train : trainerQueues(preferred).hold;
    const summary = `${this.#run.name}, lease ${epoch}`;
    const input = { run: this.#run, workflowId: workflowInfo().workflowId, epoch };
    let end: { readonly reason: unknown } | null = null;
    const over = scope
      .run(() =>
        holdingOn(this.#spec, taskQueue, {
          isOwnQueue: preferred !== null,
          isWaitedFor: this.#turn !== null,
        }).leaseTrainer.executeWithOptions({ summary }, [input]),
      )
      .then(
        () => void (end = { reason: null }),
        (reason: unknown) => void (end = { reason }),
      );
    await condition(() => end !== null || this.#told?.epoch === epoch);
    const held = this.#told;
    if (end !== null || held?.epoch !== epoch) {
      this.#lastFailure = failureOf(end);
      const { reason = null } = end ?? {};
      if (isReport((reason as Error | null)?.cause)) throw reason;
      return null;
    }
    this.#lastFailure = null;
    this.#waitingFor = this.#waitingAtFirst;
    this.#preferred = held.holder;
    let isGivenBack = false;
    void over.then(() => {
      if (isGivenBack || this.#scope.consideredCancelled) return;
      this.#preferred = null;
      this.#turn?.giveBack(Promise.resolve(), { isLost: true });
      const line = `the GPU worker ${held.holder} of this run is lost; another one continues from what is stored`;
      this.#control.emit('recovery', null, line, { lost: held.holder, epoch });
    });
    return {
      epoch,
      holder: held.holder,
      steps: trainingOn(this.#spec, held.holder),
      uploads: uploadsOn(this.#spec, held.holder),
      over,
      giveBack: () => {
        isGivenBack = true;
        if (this.#turn) void awaitedLater(givingBackOn(held.holder).giveBackTrainer({ run: this.#run, epoch }));
        scope.cancel();
      },
    };
  }

  get #waitingAtFirst(): string {
    return this.#turn ? `${trainerWaits.ofPool} ${this.#turn.pool}` : trainerWaits.alone;
  }

  async #whomFor(): Promise<string> {
    const { workflowId } = workflowInfo();
    if (!this.#turn) return lookup.describeTrainers({ workflowId });
    const why = await lookup.describeTurn({ pool: this.#turn.pool, run: workflowId });
    if (why !== null) return `${this.#waitingAtFirst}: ${why}`;
    void this.#turn.tell(); // the pool was begun anew, or its answer was lost
    return this.#waitingAtFirst;
  }

  /** Lists the available workers while none takes the run. */
  async #lookWhomFor(looking: { readonly isOver: boolean }): Promise<void> {
    for (let lookMs = firstLookMs; ; lookMs = Math.min(lookMs * 2, this.#turn ? turnLookMsMax : lookMsMax)) {
      if (await condition(() => looking.isOver, lookMs)) return;
      try {
        this.#waitingFor = await this.#whomFor();
      } catch (error) {
        if (isCancellation(error)) throw error;
        this.#waitingFor = this.#turn
          ? `${this.#waitingAtFirst}, which does not answer`
          : `${this.#waitingAtFirst} (Temporal did not list them)`;
      }
      if (lookMs === firstLookMs && !looking.isOver)
        this.#control.emit('warning', null, `waiting for ${this.#waitingFor}`);
    }
  }
}
