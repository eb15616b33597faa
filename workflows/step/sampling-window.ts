import { CancellationScope, condition, isCancellation } from '@temporalio/workflow';
import type { LeaseInput } from '../../activities/index.ts';
import type { RunSpec } from '../../config/run-spec.ts';
import type { LeasedChunk } from '../../core/rl/chunks.ts';
import type { CurriculumState } from '../../core/rl/curriculum.ts';
import type { FilteredGroups } from '../../core/rl/filter-groups.ts';
import { decodeRanges, encodeRanges } from '../../core/rl/ledger.ts';
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
import {
  chunkGroups,
  isContinuous,
  roomInWindow,
  type SamplingPace,
  slowPlayS,
  windowGroups,
} from '../../core/rl/window.ts';
import { awaitedLater } from '../beside/beside.ts';
import { RewindAsked, type RunControl } from '../control/run-control.ts';
import type { GroupsInPlay } from '../control/messages.ts';
import { eager } from '../options.ts';
import { Harvest } from './harvest.ts';
import { type ChunkPlayed, playChunk } from './play-chunk.ts';
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

/** A round that is leased, and those of its chunks that have not ended. */
interface Leased {
  readonly round: SamplingRound;
  readonly chunks: readonly LeasedChunk[];
  readonly chunksInAll: readonly LeasedChunk[];
}

/** A chunk between its lease and the end of its play. */
interface ChunkInPlay {
  readonly round: SamplingRound;
  readonly chunk: LeasedChunk;
  /** Its place among the chunks of its round, and how many they are. */
  readonly at: number;
  readonly of: number;
  /** ms since 1970. */
  readonly since: number;
  readonly scope: CancellationScope;
}

/** Chunks whose time says how long the next will take. */
const chunksRemembered = 16;

/**
 * Groups that are leased and not trained yet: chunks of rounds in play, and kept groups that wait for a batch. It goes on from step to step: at
 * level 0 it is empty between them, beyond it chunks are in play while steps train. What it holds at a batch is in that batch's commit.
 */
export class SamplingWindow {
  readonly #context: WindowContext;
  /** Until what came of them is added. */
  readonly #inPlay = new Set<ChunkInPlay>();
  /** Of those, the ones that a worker is at. */
  readonly #playing = new Set<ChunkInPlay>();
  readonly #playS: number[] = [];
  readonly #occupancies: number[] = [];
  #workers = 1;
  #batchS: number | null = null;
  #batchAt = Date.now();
  /** Groups that may be in play, and what those in play came to since the batch before: groups × ms. */
  #size: number;
  #groupMs = 0;
  #observedAt = Date.now();
  #utilisation: number | null = null;
  #curriculum: CurriculumState;
  #surplus: readonly KeptGroups[];
  #harvest = new Harvest();
  /** Each lease goes on from the one before, and each filter from what was leased by then. */
  #turn: Promise<unknown> = Promise.resolve();
  #changes = 0;
  #failure: { readonly reason: unknown } | null = null;
  /** What rounds are filtered with from here on. */
  isWidened = false;

  constructor(
    context: WindowContext,
    { curriculum, surplus, open = [] }: Pick<RunState, 'curriculum' | 'surplus' | 'open'>,
  ) {
    this.#context = context;
    this.#curriculum = curriculum;
    this.#surplus = surplus;
    this.#size = context.spec.batchSize / context.spec.rolloutsPerExample;
    if (open.length > 0) this.#playS.push(slowPlayS); // at level 1 nothing else is in play at a commit
    context.control.progress.inPlay = () => this.#groupsInPlay();
  }

  /** A batch is collected from here on, for whoever watches. */
  collects(step: number): void {
    const { spec, control } = this.#context;
    const needed = spec.batchSize / spec.rolloutsPerExample;
    const inPlay = sum(this.#inPlay) * spec.rolloutsPerExample;
    control.progress.collects({ step, needed, kept: countGroups(this.ready), inPlay });
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

  /** Whether weights may change while rollouts are played. */
  get changesInFlight(): boolean {
    return this.isContinuous && this.#context.spec.inflightUpdates !== 'never';
  }

  /** The rounds in play, as a commit names them. */
  get open(): readonly OpenRound[] {
    const rounds = new Map<number, ChunkInPlay[]>();
    for (const one of this.#inPlay) rounds.set(one.round.first, [...(rounds.get(one.round.first) ?? []), one]);
    return [...rounds.values()].map((chunks) => {
      const { round, of } = chunks[0]!;
      const { step, first, last, leases } = round;
      const rest = chunks.length === of ? {} : { chunks: chunks.map(({ at }) => at) };
      return { step, first, last, leases: leases.sha256, ...rest };
    });
  }

  /** Ordinals of what is in play, as ranges. */
  get inPlay(): string {
    return encodeRanges([...this.#inPlay].flatMap(({ chunk }) => decodeRanges(chunk.ordinals)));
  }

  throwIfFailed(): void {
    if (this.#failure) throw this.#failure.reason;
  }

  /** Takes up what was in play when an execution ended: rounds that the commit names, and those that were leased after it. */
  async reopen(open: readonly OpenRound[]): Promise<void> {
    const { run, serving } = this.#context;
    const { rounds, curriculum } = await eager.reopenRounds({ run, open, curriculum: this.#curriculum });
    this.#curriculum = curriculum;
    for (const { isIssued, chunks, chunksInAll, ...round } of rounds) {
      if (!isIssued) this.#harvest.issue(round.first, round.last);
      const playing = this.#hold({ round, chunks, chunksInAll });
      this.#watch(() => serving.shared(() => this.#play(playing)));
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
    const { maxAsyncLevel: level, oversamplingFactor } = spec;
    const window = windowGroups({ groupsPerBatch, level, oversamplingFactor, stepsLeft, pace });
    const size = this.#chunkGroups(window);
    this.#size = window;
    for (;;) {
      const waiting = ready(); // chunks end while others are leased
      const chunks = [...this.#inPlay];
      // Stragglers, leased for a step that is made, hold up nobody.
      const inPlay = sum(chunks.filter(({ round }) => round.step >= step));
      const held = waiting + inPlay;
      const room = roomInWindow({
        ...spec,
        window,
        held,
        chunks: chunks.length,
        playing: sum(chunks),
        chunkGroups: size,
        pace,
      });
      // A part of a chunk is waited for, unless nothing else would come.
      if (waiting >= groupsPerBatch || room === 0 || (room < size && inPlay > 0)) return true;
      const target = Math.min(step + Math.floor(held / groupsPerBatch), step + stepsLeft - 1);
      const count = Math.min(room, groupsPerBatch - (held % groupsPerBatch));
      if (!(await this.openRound(target, count, size))) return false;
    }
  }

  /** Leases a round, which is played from then on. False: there is no example to draw. */
  async openRound(step: number, count: number, groupsPerChunk = this.#chunkGroups(count)): Promise<boolean> {
    const { serving } = this.#context;
    const isLeased = await new Promise<boolean>((resolve) => {
      this.#watch(() =>
        serving.shared(async () => {
          const leased = await this.#lease({ step, count, groupsPerChunk }).catch((reason: unknown) => {
            resolve(true); // of one that failed nothing more is to be said
            throw reason;
          });
          const playing = leased ? this.#hold(leased) : [];
          resolve(leased !== null);
          await this.#play(playing);
        }),
      );
    });
    this.throwIfFailed();
    return isLeased;
  }

  /** Waits until a chunk has ended or failed; round by round, until all have ended. */
  async next(): Promise<void> {
    const seen = this.#changes;
    if (!this.isInPlay) return;
    const change = condition(() =>
      this.isContinuous ? this.#changes !== seen : !this.isInPlay || this.#failure !== null,
    );
    await this.#context.control.waitFor(() => this.#describe(), change);
  }

  /** Chunks that a step may not train on any more are given up while they are played. */
  giveUpStale(step: number): void {
    const { maxOffPolicySteps } = this.#context.spec;
    for (const one of this.#inPlay) {
      if (!isStale(one.round, step, maxOffPolicySteps)) continue;
      this.#observe();
      this.#inPlay.delete(one);
      this.#harvest.ended.push({ stale: one.chunk.ordinals });
      one.scope.cancel();
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
    this.#observe();
    const now = Date.now();
    this.#batchS = (now - this.#batchAt) / 1000;
    const whole = this.#size * (now - this.#batchAt);
    this.#utilisation = whole === 0 ? null : this.#groupMs / whole;
    this.#groupMs = 0;
    this.#batchAt = now;
    this.isWidened = false;
  }

  /** Share of the window that was in play while the batch was sampled that was taken last, on average; null where no time went by. */
  get utilisation(): number | null {
    return this.#utilisation;
  }

  /** Every example may be drawn again. */
  drawAll(): void {
    const { nextOrdinal, environments } = this.#curriculum;
    this.#curriculum = { nextOrdinal, environments };
  }

  /** Gives up what is in play: it stays in the store, and whoever goes on from here takes it up. */
  abandon(): void {
    this.#failure ??= { reason: new RewindAsked() };
    for (const { scope } of this.#inPlay) scope.cancel();
    this.#inPlay.clear();
    this.#changes += 1;
  }

  /** Called before what is in play changes. */
  #observe(): void {
    const now = Date.now();
    this.#groupMs += sum(this.#inPlay) * (now - this.#observedAt);
    this.#observedAt = now;
  }

  get #pace(): SamplingPace {
    const occupancy = this.#occupancies.reduce((sum, one) => sum + one, 0) / this.#occupancies.length;
    return {
      playS: this.#playS.length === 0 ? null : Math.max(...this.#playS),
      batchS: this.#batchS,
      occupancy: this.#occupancies.length === 0 ? 1 : occupancy,
    };
  }

  #chunkGroups(window: number): number {
    const { spec } = this.#context;
    const groupsPerBatch = spec.batchSize / spec.rolloutsPerExample;
    return chunkGroups({ groupsPerBatch, window, workers: this.#workers, pace: this.#pace });
  }

  /** What it fails of is told to whoever asks for a batch. */
  #watch(work: () => Promise<void>): void {
    void work()
      .catch((reason: unknown) => (this.#failure ??= { reason }))
      .finally(() => (this.#changes += 1));
  }

  #lease(asked: Pick<LeaseInput, 'step' | 'count' | 'groupsPerChunk'>): Promise<Leased | null> {
    const { run, spec, datasets, newestPolicy, prompts, control } = this.#context;
    return this.#inTurn(async () => {
      const inUse = prompts();
      const policy = newestPolicy(); // a broadcast that was waited for has changed it
      const input = { run, ...asked, curriculum: this.#curriculum, datasets, policy };
      const leased = await eager.leaseGroups({ ...input, ...(inUse ? { prompts: inUse } : {}) });
      const { round, chunks, curriculum, workers } = leased;
      this.#workers = workers ?? this.#workers;
      if (round === null) return null;
      this.#curriculum = curriculum;
      this.#harvest.issue(round.first, round.last);
      const rollouts = (round.last - round.first + 1) * spec.rolloutsPerExample;
      control.progress.leased({ policyStep: round.policyStep, rollouts });
      return { round, chunks, chunksInAll: chunks };
    });
  }

  #hold({ round, chunks, chunksInAll }: Leased): ChunkInPlay[] {
    const held = chunks.map((chunk): ChunkInPlay => {
      const at = chunksInAll.findIndex((one) => one.ordinals === chunk.ordinals);
      return { round, chunk, at, of: chunksInAll.length, since: Date.now(), scope: new CancellationScope() };
    });
    this.#observe();
    for (const one of held) this.#inPlay.add(one);
    return held;
  }

  /** Plays chunks of a round side by side. Round by round what came of them is added in their order, so that it is the same whoever was first. */
  async #play(chunks: readonly ChunkInPlay[]): Promise<void> {
    const { isContinuous } = this;
    let before: Promise<unknown> = Promise.resolve();
    const playing = chunks.map((one) => {
      const played = awaitedLater(this.#playOne(one)); // where the one before it fails, nobody waits for it
      const added = (isContinuous ? played : before.then(() => played))
        .then((found) => found && this.#add(one, found, isContinuous))
        .finally(() => (this.#changes += 1));
      before = added;
      return added;
    });
    await Promise.all(playing);
  }

  /** Null for one that was given up. */
  async #playOne(one: ChunkInPlay): Promise<ChunkPlayed | null> {
    const { round, chunk, scope } = one;
    this.#playing.add(one);
    const { run, spec, control } = this.#context;
    const label = `step ${round.step}: ${chunk.groups} groups × ${spec.rolloutsPerExample} from v${round.policyStep}`;
    try {
      return await scope.run(() =>
        playChunk(control, {
          run,
          spec,
          round,
          chunk,
          label,
          workers: this.#workers,
          takesNewest: this.changesInFlight,
        }),
      );
    } catch (reason) {
      if (isCancellation(reason) && scope.consideredCancelled) return null;
      throw reason;
    } finally {
      this.#playing.delete(one);
    }
  }

  /** Adds what came of a chunk to what there is. */
  async #add(one: ChunkInPlay, played: ChunkPlayed, isContinuous: boolean): Promise<void> {
    const { spec, control } = this.#context;
    const { round, chunk } = one;
    const { scored, scoreS, generateS, occupancy, adopted, lost } = played;
    remember(this.#playS, generateS);
    if (occupancy !== null) remember(this.#occupancies, occupancy);
    const filtered = await this.#filter(round, played);
    this.#observe();
    if (!this.#inPlay.delete(one)) return; // it had been given up
    const share =
      chunk.groups / (isContinuous ? spec.batchSize / spec.rolloutsPerExample : round.last - round.first + 1);
    const generatedAt = Date.now() - scoreS * 1000;
    this.#harvest.add({ round, scored, filtered }, { generateS, scoreS, generatedAt, adopted, lost }, share);
    control.progress.filtered(this.ready, filtered.ended);
  }

  /** As its worker judged it, unless the filter is another one by now; examples move between pools in one order. */
  #filter(round: SamplingRound, { scored, filtered }: ChunkPlayed): Promise<FilteredGroups> {
    const { run, spec } = this.#context;
    const hasPools = spec.environments.some(({ pools }) => pools !== null);
    if (!hasPools && !this.isWidened) return Promise.resolve(filtered);
    return this.#inTurn(async () => {
      const widened = this.isWidened ? { widened: true } : {};
      const judged = await eager.filterGroups({ run, round, scored, curriculum: this.#curriculum, ...widened });
      this.#curriculum = judged.curriculum ?? this.#curriculum;
      return judged;
    });
  }

  #inTurn<T>(work: () => Promise<T>): Promise<T> {
    const before = this.#turn;
    const own = before.then(work);
    this.#turn = own.catch(() => undefined);
    return own;
  }

  #groupsInPlay(): GroupsInPlay[] {
    const found = new Map<string, GroupsInPlay>();
    const [only] = this.#context.spec.environments;
    for (const { round, chunk, since } of this.#playing) {
      const environment = chunk.environment ?? only?.name ?? '';
      const before = found.get(environment);
      found.set(environment, {
        environment,
        groups: (before?.groups ?? 0) + chunk.groups,
        since: before?.since ?? new Date(since).toISOString(), // they are in the order of their leases
        policyStep: Math.min(before?.policyStep ?? Infinity, round.policyStep),
      });
    }
    return [...found.values()];
  }

  #describe(): string {
    const { rolloutsPerExample } = this.#context.spec;
    const chunks = [...this.#playing];
    const versions = [...new Set(chunks.map(({ round }) => round.policyStep))].toSorted((a, b) => a - b);
    const from = versions.length > 1 ? `v${versions[0]}-v${versions.at(-1)}` : `v${versions[0] ?? '?'}`;
    const steps = [...new Set(chunks.map(({ round }) => round.step))].toSorted((a, b) => a - b);
    const names = [...new Set(chunks.flatMap(({ chunk }) => chunk.environment ?? []))].toSorted();
    const of = names.length === 0 ? '' : `, of ${names.join(', ')}`;
    return `generate step ${steps.join(', ')}: ${sum(chunks)} groups × ${rolloutsPerExample} from ${from}${of}`;
  }
}

function remember(values: number[], value: number): void {
  values.push(value);
  if (values.length > chunksRemembered) values.shift();
}

function sum(chunks: Iterable<ChunkInPlay>): number {
  return [...chunks].reduce((groups, { chunk }) => groups + chunk.groups, 0);
}
