import { CancellationScope, condition, isCancellation } from '@temporalio/workflow';
import type { LeaseInput } from '../../activities/index.ts';
import type { RunSpec } from '../../config/run-spec.ts';
import { generateChunks, openRoundsMax } from '../../core/limits.ts';
import { chunksOfRound } from '../../core/rl/chunks.ts';
import type { CurriculumState } from '../../core/rl/curriculum.ts';
import { encodeRanges } from '../../core/rl/ledger.ts';
import { addLost, nothingLost } from '../../core/rl/lost-work.ts';
import type {
  KeptGroups,
  OpenRound,
  PolicyVersion,
  Prompts,
  RunHandle,
  RunState,
  SamplingRound,
} from '../../core/rl/run-state.ts';
import { countGroups } from '../../core/rl/selection.ts';
import { isStale } from '../../core/rl/staleness.ts';
import { isContinuous, leaseGroups, type SamplingPace, windowGroups } from '../../core/rl/window.ts';
import { RewindAsked, type RunControl } from '../control/run-control.ts';
import { eager, rolloutsFor } from '../options.ts';
import { type GeneratedRound, generateRound } from './generate-round.ts';
import { Harvest } from './harvest.ts';
import type { ServingSchedule } from './serving-schedule.ts';

export interface WindowContext {
  readonly run: RunHandle;
  readonly spec: RunSpec;
  readonly datasets: LeaseInput['datasets'];
  readonly control: RunControl;
  /** The servers may be an evaluation's alone for a while. */
  readonly serving: ServingSchedule;
  /** The newest version the servers hold, asked again for every round. */
  readonly newestPolicy: () => PolicyVersion;
  /** System prompts in use; undefined while every environment has its own. */
  readonly prompts: () => Prompts | undefined;
}

/** A round between its lease and the filter. */
interface RoundInPlay {
  readonly round: SamplingRound;
  readonly groups: number;
  readonly scope: CancellationScope;
}

type WaitFor = <T>(what: string | (() => string), work: Promise<T>) => Promise<T>;

/** What is generated, and not scored yet. */
interface PlayedRound {
  readonly round: SamplingRound;
  readonly label: string;
  readonly generated: GeneratedRound;
  /** ms since 1970. */
  readonly generatedAt: number;
  readonly waitFor: WaitFor;
}

/** A round that is leased. */
interface Leased {
  readonly round: SamplingRound;
  readonly groups: Readonly<Record<string, number>> | undefined;
  /** As it was played before. */
  readonly chunks?: number;
}

/** Rounds whose time says how long the next will take. */
const roundsRemembered = 8;

/**
 * Groups that are leased and not trained yet: rounds in play, and kept groups that wait for a batch. It goes on from step to step: at level 0
 * it is empty between them, beyond it rounds are in play while steps train. What it holds at a batch is in that batch's commit.
 */
export class SamplingWindow {
  readonly #context: WindowContext;
  readonly #inPlay = new Map<number, RoundInPlay>();
  readonly #roundS: number[] = [];
  #batchS: number | null = null;
  #batchAt = Date.now();
  #curriculum: CurriculumState;
  #surplus: readonly KeptGroups[];
  #harvest = new Harvest();
  /** Each lease goes on from the one before, and each filter from what was leased by then. */
  #turn: Promise<unknown> = Promise.resolve();
  #changes = 0;
  #failure: { readonly reason: unknown } | null = null;
  /** What rounds are filtered with from here on. */
  isWidened = false;

  constructor(context: WindowContext, { curriculum, surplus }: Pick<RunState, 'curriculum' | 'surplus'>) {
    this.#context = context;
    this.#curriculum = curriculum;
    this.#surplus = surplus;
  }

  /** Of what was sampled since a batch was taken last. */
  get harvest(): Harvest {
    return this.#harvest;
  }

  get curriculum(): CurriculumState {
    return this.#curriculum;
  }

  /** Kept groups that no step has trained yet. */
  get ready(): readonly KeptGroups[] {
    return [...this.#surplus, ...this.#harvest.kept];
  }

  get isInPlay(): boolean {
    return this.#inPlay.size > 0;
  }

  get isContinuous(): boolean {
    const { maxAsyncLevel, tasksPerMinute } = this.#context.spec;
    return isContinuous(maxAsyncLevel, this.#pace, tasksPerMinute !== null);
  }

  /** The rounds in play, as a commit names them. */
  get open(): readonly OpenRound[] {
    return [...this.#inPlay.values()].map(({ round: { step, first, last, leases } }) => {
      return { step, first, last, leases: leases.sha256 };
    });
  }

  throwIfFailed(): void {
    if (this.#failure) throw this.#failure.reason;
  }

  /** Takes up what was in play when an execution ended: rounds that the commit names, and those that were leased after it. */
  async reopen(open: readonly OpenRound[]): Promise<void> {
    const { run, spec } = this.#context;
    const { rounds, curriculum } = await eager.reopenRounds({ run, open, curriculum: this.#curriculum });
    this.#curriculum = curriculum;
    for (const { isIssued, groups, chunks, ...round } of rounds) {
      if (!isIssued) this.#harvest.issue(round.first, round.last);
      const ofEach = spec.environments.length > 1 ? groups : undefined;
      const leased = { round, groups: ofEach, ...(chunks === undefined ? {} : { chunks }) };
      const scope = new CancellationScope();
      this.#holdInPlay(leased, scope);
      this.#play(scope, () => this.#sampleLeased(leased));
    }
  }

  /** Opens rounds until the window is full, or a batch is ready. `ready` counts groups that wait for one. False: there is no example to draw. */
  async fill(
    step: number,
    { stepsLeft, ready }: { readonly stepsLeft: number; readonly ready: () => number },
  ): Promise<boolean> {
    const { spec } = this.#context;
    const groupsPerBatch = spec.batchSize / spec.rolloutsPerExample;
    const pace = this.#pace;
    const { maxAsyncLevel: level, oversamplingFactor, rolloutsPerExample, maxConcurrent } = spec;
    const window = windowGroups({ groupsPerBatch, level, oversamplingFactor, stepsLeft, pace });
    const size = leaseGroups({ groupsPerBatch, window, rolloutsPerExample, maxConcurrent, pace });
    for (;;) {
      const waiting = ready(); // rounds end while others are leased
      const rounds = [...this.#inPlay.values()];
      const playing = rounds.reduce((sum, { groups }) => sum + groups, 0);
      // Stragglers, leased for a step that is made, hold up nobody.
      const inPlay = rounds.reduce((sum, { groups, round }) => sum + (round.step < step ? 0 : groups), 0);
      const held = waiting + inPlay;
      const isFull =
        rounds.length >= openRoundsMax ||
        (maxConcurrent !== null && playing > 0 && (playing + size) * rolloutsPerExample > maxConcurrent);
      const count = Math.min(size, window - held);
      // A part of a lease is waited for, unless nothing else would come.
      const isEnough = waiting >= groupsPerBatch || isFull || count <= 0 || (count < size && inPlay > 0);
      if (isEnough) return true;
      const target = Math.min(step + Math.floor(held / groupsPerBatch), step + stepsLeft - 1);
      if (!(await this.openRound(target, count))) return false;
    }
  }

  /** Leases a round, which is played from then on. False: there is no example to draw. */
  async openRound(step: number, count: number): Promise<boolean> {
    const isLeased = await new Promise<boolean>((resolve) => {
      const scope = new CancellationScope();
      this.#play(scope, async () => {
        try {
          await this.#sample(scope, { step, count }, resolve);
        } finally {
          resolve(true); // of one that failed nothing more is to be said
        }
      });
    });
    this.throwIfFailed();
    return isLeased;
  }

  /** Waits until a round has ended, or failed. */
  async next(): Promise<void> {
    const seen = this.#changes;
    if (!this.isInPlay) return;
    const change = condition(() => this.#changes !== seen);
    await (this.isContinuous ? this.#context.control.waitFor(() => this.#describe(), change) : change);
  }

  /** Rounds that a step may not train on any more are given up while they are played. */
  giveUpStale(step: number): void {
    const { maxOffPolicySteps } = this.#context.spec;
    for (const { round, scope } of this.#inPlay.values()) {
      if (!isStale(round, step, maxOffPolicySteps)) continue;
      this.#inPlay.delete(round.first);
      this.#harvest.ended.push({ stale: encodeRanges([...ordinalsOf(round)]) });
      scope.cancel();
    }
  }

  /** A batch is taken: `surplus` waits for the next one, and what comes from here on. Gives what the batch was taken of. */
  take(surplus: readonly KeptGroups[]): Harvest {
    const taken = this.#harvest;
    this.#surplus = surplus;
    this.#harvest = new Harvest();
    return taken;
  }

  /** The batch that was taken is none: what it was taken of is the next one's. */
  giveBack(taken: Harvest): void {
    taken.absorb(this.#harvest);
    this.#harvest = taken;
  }

  /** The batch that was taken is one. */
  taken(): void {
    const now = Date.now();
    this.#batchS = (now - this.#batchAt) / 1000;
    this.#batchAt = now;
    this.isWidened = false;
  }

  /** Every example may be drawn again. */
  drawAll(): void {
    const { nextOrdinal, environments } = this.#curriculum;
    this.#curriculum = { nextOrdinal, environments };
  }

  /** Gives up what is in play: it stays in the store, and whoever goes on from here takes it up. */
  abandon(): void {
    this.#failure ??= { reason: new RewindAsked() };
    for (const { scope } of this.#inPlay.values()) scope.cancel();
    this.#inPlay.clear();
    this.#changes += 1;
  }

  get #pace(): SamplingPace {
    return { roundS: this.#roundS.length === 0 ? null : Math.max(...this.#roundS), batchS: this.#batchS };
  }

  #play(scope: CancellationScope, work: () => Promise<void>): void {
    void scope
      .run(work)
      .catch((reason: unknown) => {
        if (!(isCancellation(reason) && scope.consideredCancelled)) this.#failure ??= { reason };
      })
      .finally(() => (this.#changes += 1));
  }

  /** Leases, plays, scores and filters a round. */
  async #sample(
    scope: CancellationScope,
    { step, count }: { readonly step: number; readonly count: number },
    tellLeased: (isLeased: boolean) => void,
  ): Promise<void> {
    const played = await this.#context.serving.shared(async () => {
      const leased = await this.#lease(scope, step, count);
      tellLeased(leased !== null);
      return leased && this.#generate(leased);
    });
    if (played) await this.#score(played);
  }

  async #sampleLeased(leased: Leased): Promise<void> {
    await this.#score(await this.#context.serving.shared(() => this.#generate(leased)));
  }

  #holdInPlay({ round }: Leased, scope: CancellationScope): void {
    this.#inPlay.set(round.first, { round, groups: round.last - round.first + 1, scope });
  }

  #lease(scope: CancellationScope, step: number, count: number): Promise<Leased | null> {
    const { run, datasets, newestPolicy, prompts } = this.#context;
    return this.#inTurn(async () => {
      const inUse = prompts();
      const policy = newestPolicy(); // a broadcast that was waited for has changed it
      const curriculum = this.#curriculum;
      const asked = { run, step, count, curriculum, datasets, policy, ...(inUse ? { prompts: inUse } : {}) };
      const { round, groups, curriculum: after } = await eager.leaseGroups(asked);
      if (round === null) return null;
      this.#curriculum = after;
      this.#harvest.issue(round.first, round.last);
      this.#holdInPlay({ round, groups }, scope);
      return { round, groups };
    });
  }

  async #generate({ round, groups, chunks: before }: Leased): Promise<PlayedRound> {
    const { run, spec, control } = this.#context;
    const count = round.last - round.first + 1;
    const label = `step ${round.step}: ${count} groups × ${spec.rolloutsPerExample} from v${round.policyStep}`;
    control.progress.leased({
      step: round.step,
      policyStep: round.policyStep,
      rollouts: count * spec.rolloutsPerExample,
      needed: spec.batchSize / spec.rolloutsPerExample,
      kept: countGroups(this.ready),
    });
    // One of many is in the line of them all.
    const isContinuous = this.isContinuous;
    const waitFor: WaitFor = isContinuous ? (_, work) => work : (what, work) => control.waitFor(what, work);
    const chunks = chunksOfRound(count, groups, before ?? (isContinuous ? 1 : generateChunks));
    const generated = await generateRound(control, { run, spec, round, chunks, label, waitFor });
    this.#roundS.push(generated.seconds);
    if (this.#roundS.length > roundsRemembered) this.#roundS.shift();
    return { round, label, generated, generatedAt: Date.now(), waitFor };
  }

  /** Scores and filters a round, and adds it to what there is. */
  async #score({ round, label, generated, generatedAt, waitFor }: PlayedRound): Promise<void> {
    const { run, spec, control } = this.#context;
    control.progress.scoring();
    const { scored, seconds, lost } = await waitFor(
      `score ${label}`,
      rolloutsFor(spec).scoreRollouts.executeWithOptions({ summary: `${label}: rubric` }, [
        { run, round, finished: generated.finished },
      ]),
    );
    const filtered = await this.#inTurn(async () => {
      const widened = this.isWidened ? { widened: true } : {};
      const judged = await eager.filterGroups({ run, round, scored, curriculum: this.#curriculum, ...widened });
      this.#curriculum = judged.curriculum ?? this.#curriculum;
      return judged;
    });
    if (!this.#inPlay.delete(round.first)) return; // it had been given up
    this.#harvest.add(
      { round, scored, filtered },
      {
        generateS: generated.seconds,
        scoreS: seconds,
        generatedAt,
        adopted: generated.adopted,
        lost: addLost(generated.lost, lost ?? nothingLost),
      },
      this.isContinuous ? ((round.last - round.first + 1) * spec.rolloutsPerExample) / spec.batchSize : 1,
    );
    control.progress.filtered(this.ready, filtered.ended);
  }

  #inTurn<T>(work: () => Promise<T>): Promise<T> {
    const before = this.#turn;
    const own = before.then(work);
    this.#turn = own.catch(() => undefined);
    return own;
  }

  #describe(): string {
    const { rolloutsPerExample } = this.#context.spec;
    const rounds = [...this.#inPlay.values()];
    const groups = rounds.reduce((sum, one) => sum + one.groups, 0);
    const versions = [...new Set(rounds.map(({ round }) => round.policyStep))].toSorted((a, b) => a - b);
    const from = versions.length > 1 ? `v${versions[0]}-v${versions.at(-1)}` : `v${versions[0] ?? '?'}`;
    return `generate ${groups} groups × ${rolloutsPerExample} from ${from}, in ${rounds.length} leases`;
  }
}

function* ordinalsOf({ first, last }: Pick<SamplingRound, 'first' | 'last'>): Generator<number> {
  for (let ordinal = first; ordinal <= last; ordinal++) yield ordinal;
}
