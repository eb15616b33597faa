import { ApplicationFailure, condition, isCancellation, patched } from '@temporalio/workflow';
import type { LeaseInput } from '../../activities/index.ts';
import type { RunSpec } from '../../config/run-spec.ts';
import type { LeasedChunk } from '../../core/rl/chunks.ts';
import type { Baselines } from '../../core/rl/agents.ts';
import type { CurriculumState } from '../../core/rl/curriculum.ts';
import type { FilteredGroups } from '../../core/rl/filter-groups.ts';
import { decodeRanges, encodeRanges } from '../../core/rl/ledger.ts';
import { type PartsNotice, type PlayedPart, restrictFiltered, restrictPart } from '../../core/rl/played-part.ts';
import type {
  KeptGroups,
  OpenRound,
  PolicyVersion,
  Prompts,
  RunHandle,
  RunState,
  SamplingRound,
} from '../../core/rl/run-state.ts';
import { batchSizeOf, countGroups, differInGroups, rolloutsPerGroup } from '../../core/rl/selection.ts';
import { isStale } from '../../core/rl/staleness.ts';
import {
  chunkGroups,
  isContinuous,
  leastRoom,
  levelOf,
  roomInWindow,
  type SamplingPace,
  slowPlayS,
  windowGroups,
} from '../../core/rl/window.ts';
import { awaitedLater } from '../beside/beside.ts';
import { onSignal } from '../control/listen.ts';
import { RewindAsked, type RunControl } from '../control/run-control.ts';
import { groupsEndedSignal, rolloutsWaitSignal, type RoundsPlayed, roundsPlayedSignal } from '../control/messages.ts';
import { eager } from '../options.ts';
import { type ChunkInPlay, ChunksInPlay } from './chunks-in-play.ts';
import { Harvest } from './harvest.ts';
import { type ChunkPlayed, playChunk } from './play-chunk.ts';
import type { ServingSchedule } from './serving-schedule.ts';
import { StaleShare } from './stale-share.ts';
import type { StepsAhead } from './collect-step.ts';
import type { RolloutFlow } from './rollout-flow.ts';
import type { RoundToPlay } from '../play-rounds.ts';

export interface WindowContext {
  readonly run: RunHandle;
  readonly spec: RunSpec;
  readonly datasets: LeaseInput['datasets'];
  readonly control: RunControl;
  /** The servers may be an evaluation's alone for a while. */
  readonly serving: ServingSchedule;
  /** Plays what is sampled continuously. */
  readonly flow: RolloutFlow;
  /** The newest version the servers hold, asked again for every round. */
  readonly newestPolicy: () => PolicyVersion;
  /** System prompts in use; undefined while every environment has its own. */
  readonly prompts: () => Prompts | undefined;
}

/** A round that is leased, and those of its chunks that have not ended. */
interface Leased {
  readonly round: SamplingRound;
  readonly chunks: readonly LeasedChunk[];
  /** Those of its groups that have not ended; absent: none has. */
  readonly left?: ReadonlySet<number>;
}

/** Groups whose time says how long the next will take. */
const partsRemembered = 16;
/** Batches of which that with most in play says how much the next has. */
const batchesRemembered = 4;

/** Kept groups of the batch that is collected. */
export interface ReadyGroups {
  /** Those that wait for the next one included. */
  readonly waiting: number;
  readonly isWhole: boolean;
  /** Of a whole one. */
  readonly groupsPerBatch: number;
}

/**
 * Groups that are leased and not trained yet: those in play, and kept ones that wait for a batch. It goes on from step to step: at level 0 it is
 * empty between them, beyond it groups are in play while steps train. What it holds at a batch is in that batch's commit.
 */
export class SamplingWindow {
  readonly #context: WindowContext;
  readonly #inPlay = new ChunksInPlay();
  readonly #playS: number[] = [];
  readonly #occupancies: number[] = [];
  readonly #groupsInPlay: number[] = [];
  #workers = 1;
  #batchS: number | null = null;
  #batchAt = Date.now();
  /** Groups that may be in play. */
  #size: number;
  /** As far as it is known where a batch is so many tokens. */
  #groupsPerBatch: number;
  #utilisation: number | null = null;
  #curriculum: CurriculumState;
  #baselines: Baselines | undefined;
  #surplus: readonly KeptGroups[];
  #harvest = new Harvest();
  /** Ordinals that have ended, and are not added yet. */
  readonly #judging = new Set<number>();
  /** Each lease goes on from the one before, and each filter from what was leased by then. */
  #turn: Promise<unknown> = Promise.resolve();
  #ready: Record<'surplus' | 'kept' | 'all', readonly KeptGroups[]> | null = null;
  #changes = 0;
  #heard = 0;
  #failure: { readonly reason: unknown } | null = null;
  readonly #age = new StaleShare();
  /** What rounds are filtered with from here on. */
  isWidened = false;
  /** The first widening is explained; later ones are only told. */
  hasExplainedWidening = false;

  constructor(
    context: WindowContext,
    { curriculum, surplus, open = [], baselines }: Pick<RunState, 'curriculum' | 'surplus' | 'open' | 'baselines'>,
  ) {
    this.#context = context;
    this.#curriculum = curriculum;
    this.#baselines = baselines;
    this.#surplus = surplus;
    this.#groupsPerBatch = batchSizeOf(context.spec).groups;
    this.#size = this.#groupsPerBatch;
    if (open.length > 0 || context.flow.isCarrying) this.#playS.push(slowPlayS); // at level 1 nothing else is in play at a commit
    const [only] = context.spec.environments;
    context.control.progress.inPlay = () => this.#inPlay.byEnvironment(only?.name ?? '');
  }

  /** Takes what is told of groups as they end: from when it is known what is in play. */
  listen(): void {
    const { run, control } = this.#context;
    const ignored = (problem: string): void => control.ignored(problem);
    const groupsEnded = ({ lineage, parts }: PartsNotice): void => {
      this.#heard += 1;
      if (lineage === run.lineage) for (const part of parts) this.#watch(() => this.#addPart(part));
    };
    const roundsPlayed = ({ lineage, played }: RoundsPlayed): void => {
      this.#heard += 1;
      if (lineage === run.lineage) this.#watch(() => this.#addPlayed(played));
    };
    const wait = ({ reason }: { readonly reason: string }): void => this.#watch(() => this.#pause(reason));
    onSignal(groupsEndedSignal, groupsEnded, ignored);
    onSignal(roundsPlayedSignal, roundsPlayed, ignored);
    onSignal(rolloutsWaitSignal, wait, ignored);
  }

  async #pause(reason: string): Promise<void> {
    const { control, flow } = this.#context;
    // Each chunk in play says it when a server is away.
    if (!control.isPaused || !patched('paused-once')) control.pause(reason);
    await control.untilResumed();
    flow.resume();
  }

  /** A batch is collected from here on, for whoever watches. */
  collects(step: number): void {
    const { spec, control } = this.#context;
    const needed = this.#groupsPerBatch;
    const inPlay = Math.round(this.#inPlay.groups * rolloutsPerGroup(spec));
    control.progress.collects({ step, needed, kept: countGroups(this.ready), inPlay });
  }

  /** Of what was sampled since a batch was taken last. */
  get harvest(): Harvest {
    return this.#harvest;
  }

  /** As the batch that was taken last left them. */
  get baselines(): Baselines | undefined {
    return this.#baselines;
  }

  get curriculum(): CurriculumState {
    return this.#curriculum;
  }

  /** Kept groups that no step has trained yet; the same list until something changes. */
  get ready(): readonly KeptGroups[] {
    const [surplus, kept] = [this.#surplus, this.#harvest.kept];
    if (this.#ready?.surplus !== surplus || this.#ready.kept !== kept) {
      this.#ready = { surplus, kept, all: [...surplus, ...kept] };
    }
    return this.#ready.all;
  }

  get isInPlay(): boolean {
    return this.#inPlay.chunks > 0;
  }

  get isContinuous(): boolean {
    const { spec } = this.#context;
    return isContinuous(levelOf(spec), this.#pace, spec.tasksPerMinute !== null);
  }

  /** Whether weights may change while rollouts are played. */
  get changesInFlight(): boolean {
    return this.isContinuous && this.#context.spec.inflightUpdates !== 'never';
  }

  /** The rounds in play, as a commit names them. */
  get open(): readonly OpenRound[] {
    return this.#inPlay.open;
  }

  /** Ordinals of what is in play, as ranges. */
  get inPlay(): string {
    return this.#inPlay.ordinals;
  }

  /** How often groups were told of. */
  get heard(): number {
    return this.#heard;
  }

  throwIfFailed(): void {
    if (this.#failure) throw this.#failure.reason;
  }

  /** Takes up what was in play when an execution ended: rounds that the commit names, and those that were leased after it. */
  async reopen(open: readonly OpenRound[]): Promise<void> {
    const { run, serving, flow } = this.#context;
    const { rounds, curriculum } = await eager.reopenRounds({
      run,
      open,
      curriculum: this.#curriculum,
      flows: flow.known,
    });
    this.#curriculum = curriculum;
    flow.keepCarried(rounds.map(({ first }) => first));
    for (const { isIssued, chunks, groups, parts, ...round } of rounds) {
      if (!isIssued) this.#harvest.issue(round.first, round.last);
      const left = groups === undefined ? {} : { left: new Set(decodeRanges(groups)) };
      const playing = this.#hold({ round, chunks, ...left });
      this.#watch(async () => {
        for (const part of parts) await this.#addPart(part); // told to the execution before
        await serving.shared(() => this.#play(playing.filter((one) => one.left.size > 0)));
      });
    }
  }

  /** Opens rounds until the window is full, or a batch is ready. False: there is no example to draw. */
  async fill(
    step: number,
    { left: stepsLeft, toEnd: stepsToEnd, within, ready }: StepsAhead & { readonly ready: () => ReadyGroups },
  ): Promise<boolean> {
    const { spec } = this.#context;
    const { groupsPerBatch } = ready();
    this.#groupsPerBatch = groupsPerBatch;
    const counted = this.#groupsInPlay.length > 0 && patched('window-by-play');
    const pace = { ...this.#pace, inPlay: counted ? Math.max(...this.#groupsInPlay) : null };
    const window = windowGroups({
      ...spec,
      rolloutsPerExample: rolloutsPerGroup(spec),
      groupsPerBatch,
      level: levelOf(spec),
      stepsLeft,
      stepsToEnd,
      within,
      pace,
    });
    const size = this.#chunkGroups(window);
    this.#size = window;
    for (;;) {
      const { waiting, isWhole } = ready(); // chunks end while others are leased
      // Stragglers, leased for a step that is made, hold up nobody.
      const inPlay = this.#inPlay.groupsFor(step);
      const held = waiting + inPlay;
      const room = roomInWindow({
        ...spec,
        rolloutsPerExample: rolloutsPerGroup(spec),
        window,
        held,
        chunks: this.#inPlay.chunks,
        playing: this.#inPlay.groups,
        chunkGroups: size,
        pace,
      });
      // More room is waited for, unless nothing else would come.
      if (isWhole || room === 0 || room < leastRoom({ window, inPlay, chunkGroups: size })) return true;
      const target = Math.min(step + Math.floor(held / groupsPerBatch), step + stepsToEnd - 1);
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

  /** How often groups have ended, or something failed. */
  get changes(): number {
    return this.#changes;
  }

  /** Waits until this is so, a group has ended, or something failed. */
  async until(isSo: () => boolean): Promise<void> {
    const seen = this.#changes;
    await condition(() => isSo() || this.#changes !== seen);
  }

  /** Waits until a group has ended since `seen`, or something failed; round by round, until all have ended. */
  async next(seen = this.#changes): Promise<void> {
    if (!this.isInPlay) return;
    const change = condition(() =>
      this.isContinuous ? this.#changes !== seen : !this.isInPlay || this.#failure !== null,
    );
    const { control, spec } = this.#context;
    await control.waitFor(() => this.#inPlay.describe(meanSize(spec)), change);
  }

  /**
   * Groups that a step may not train on any more are given up while they are played. Where rollouts take later weights, it is their workers that
   * know which tokens are the oldest, and end them (`backends/rollouts/rollout-age.ts`).
   */
  giveUpStale(step: number): void {
    if (this.changesInFlight) return;
    const { maxOffPolicySteps } = this.#context.spec;
    const stale = this.#inPlay.giveUp(({ round }) => isStale(round.policyStep, step, maxOffPolicySteps));
    this.#harvest.ended.push(...stale.map(({ ordinals }) => ({ stale: ordinals })));
    this.#context.flow.giveUp([...new Set(stale.map(({ first }) => first))]);
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

  /** The batch that was taken is one; what it left of baselines, where there are any. */
  taken(baselines?: Baselines): void {
    this.#baselines = baselines;
    const now = Date.now();
    this.#batchS = (now - this.#batchAt) / 1000;
    const whole = this.#size * (now - this.#batchAt);
    const inPlay = this.#inPlay.takeGroupMs();
    this.#utilisation = whole === 0 ? null : inPlay / whole;
    if (now > this.#batchAt) remember(this.#groupsInPlay, inPlay / (now - this.#batchAt), batchesRemembered);
    this.#batchAt = now;
    this.isWidened = false;
  }

  /** Share of the window that was in play while the batch was sampled that was taken last, on average; null where no time went by. */
  get utilisation(): number | null {
    return this.#utilisation;
  }

  /** Of the batch that was taken last. A line for people where more grows too old than a window of any size could help. */
  noteStale(of: { readonly stale: number; readonly trained: number }): string | null {
    return this.#age.note(of, this.#context.spec.maxOffPolicySteps);
  }

  /** Every example may be drawn again. */
  drawAll(): void {
    const { nextOrdinal, environments } = this.#curriculum;
    this.#curriculum = { nextOrdinal, environments };
  }

  /** Gives up what is in play: it stays in the store, and whoever goes on from here takes it up. */
  abandon(): void {
    this.#failure ??= { reason: new RewindAsked() };
    this.#inPlay.giveUp(() => true);
    this.#changes += 1;
  }

  get #pace(): Omit<SamplingPace, 'inPlay'> {
    const occupancy = this.#occupancies.reduce((sum, one) => sum + one, 0) / this.#occupancies.length;
    return {
      playS: this.#playS.length === 0 ? null : Math.max(...this.#playS),
      batchS: this.#batchS,
      occupancy: this.#occupancies.length === 0 ? 1 : occupancy,
    };
  }

  #chunkGroups(window: number): number {
    return chunkGroups({ groupsPerBatch: this.#groupsPerBatch, window, workers: this.#workers, pace: this.#pace });
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
      const { round, chunks, curriculum, workers, otherVersions = [] } = leased;
      for (const line of otherVersions) control.warnOnce(asked.step, line);
      this.#workers = workers ?? this.#workers;
      if (round === null) return null;
      this.#curriculum = curriculum;
      this.#harvest.issue(round.first, round.last);
      const rollouts = Math.round(groupsOf(round) * rolloutsPerGroup(spec));
      control.progress.leased({ policyStep: round.policyStep, rollouts });
      return { round, chunks };
    });
  }

  #hold({ round, chunks, left }: Leased): ChunkInPlay[] {
    return chunks.map((chunk) => {
      const groups = decodeRanges(chunk.ordinals);
      return this.#inPlay.add({ round, chunk }, left && groups.filter((ordinal) => left.has(ordinal)));
    });
  }

  /** Plays chunks of a round side by side. */
  async #play(chunks: readonly ChunkInPlay[]): Promise<void> {
    const { isContinuous } = this;
    const [one] = chunks;
    if (one === undefined) return;
    if (!isContinuous) return this.#playHere(chunks);
    await this.#inPlay.playing(chunks, () =>
      this.#context.flow.play(one.round.first, () => {
        const inPlay = chunks.filter(({ left }) => left.size > 0);
        return inPlay.length === 0 ? null : this.#handedOver(one.round, inPlay);
      }),
    );
  }

  #handedOver(round: SamplingRound, chunks: readonly ChunkInPlay[]): RoundToPlay {
    const toPlay = chunks.map((one) => {
      const only = one.left.size === one.chunk.groups ? {} : { only: encodeRanges([...one.left]) };
      return { chunk: one.chunk, label: this.#labelOf(one), ...only };
    });
    return { round, chunks: toPlay, workers: this.#workers, takesNewest: this.changesInFlight };
  }

  #labelOf({ round, left }: ChunkInPlay): string {
    return `step ${round.step}: ${left.size} groups × ${meanSize(this.#context.spec)} from v${round.policyStep}`;
  }

  /** Round by round what came of them is added in their order, so that it is the same whoever was first. */
  async #playHere(chunks: readonly ChunkInPlay[]): Promise<void> {
    let before: Promise<unknown> = Promise.resolve();
    const playing = chunks.map((one) => {
      const played = awaitedLater(this.#playOne(one)); // where the one before it fails, nobody waits for it
      const added = before
        .then(() => played)
        .then((found) => found && this.#addPlayed(found))
        .finally(() => (this.#changes += 1));
      before = added;
      return added;
    });
    await Promise.all(playing);
  }

  /** Null for one that was given up. */
  async #playOne(one: ChunkInPlay): Promise<ChunkPlayed | null> {
    const { round, scope } = one;
    const { run, spec, control } = this.#context;
    const { chunks, ...rest } = this.#handedOver(round, [one]);
    const asked = { run, spec, ...rest, ...chunks[0]! };
    try {
      return await this.#inPlay.playing([one], () => scope.run(() => playChunk(control, asked)));
    } catch (reason) {
      if (isCancellation(reason) && scope.consideredCancelled) return null;
      throw reason;
    }
  }

  async #addPlayed(played: RoundsPlayed['played']): Promise<void> {
    if ('failed' in played) throw ApplicationFailure.nonRetryable(played.failed.message, played.failed.type);
    const { parts, adopted, lost } = played;
    this.#harvest.spend({ adopted, lost });
    for (const part of parts) await this.#addPart(part);
  }

  /** Adds groups to what there is; those that were given up, or told of before, are none of it. */
  async #addPart(whole: PlayedPart): Promise<void> {
    const { control } = this.#context;
    const one = decodeRanges(whole.ordinals)
      .map((ordinal) => this.#inPlay.of(ordinal))
      .find((found) => found);
    const known = one && restrictPart(whole, new Set([...one.left].filter((ordinal) => !this.#judging.has(ordinal))));
    if (!one || !known) return;
    const ordinals = decodeRanges(known.ordinals);
    for (const ordinal of ordinals) this.#judging.add(ordinal);
    const filtered = await this.#filter(one.round, known);
    for (const ordinal of ordinals) this.#judging.delete(ordinal);
    if (!ordinals.every((ordinal) => one.left.has(ordinal))) return; // they had been given up
    this.#inPlay.end(one, ordinals);
    this.#changes += 1;
    const { generateS, scoreS, occupancy, scored, rollouts } = known;
    remember(this.#playS, generateS);
    if (occupancy !== null) remember(this.#occupancies, occupancy);
    const share = this.#shareOf(one.round, filtered, ordinals.length);
    const generatedAt = Date.now() - scoreS * 1000;
    this.#harvest.add({ round: one.round, scored, filtered, ordinals }, { generateS, scoreS, generatedAt }, share);
    control.progress.played(rollouts);
    control.progress.filtered(this.ready, filtered.ended);
  }

  /** How much of a batch was sampled with a part. */
  #shareOf(round: SamplingRound, { size = 0 }: FilteredGroups, groups: number): number {
    const batch = batchSizeOf(this.#context.spec);
    if (batch.total !== null) return size / batch.total;
    return groups / (this.isContinuous ? batch.groups : groupsOf(round));
  }

  /** As its worker judged it, unless the filter is another one by now; examples move between pools in one order. */
  #filter(round: SamplingRound, { scored, filtered, ordinals }: PlayedPart): Promise<FilteredGroups> {
    const { run, spec } = this.#context;
    const hasPools = spec.environments.some(({ pools }) => pools !== null);
    if (!hasPools && !this.isWidened) return Promise.resolve(filtered);
    return this.#inTurn(async () => {
      const widened = this.isWidened ? { widened: true } : {};
      const judged = await eager.filterGroups({ run, round, scored, curriculum: this.#curriculum, ...widened });
      this.#curriculum = judged.curriculum ?? this.#curriculum;
      return restrictFiltered(judged, new Set(decodeRanges(ordinals)));
    });
  }

  #inTurn<T>(work: () => Promise<T>): Promise<T> {
    const before = this.#turn;
    const own = before.then(work);
    this.#turn = own.catch(() => undefined);
    return own;
  }
}

function remember(values: number[], value: number, most = partsRemembered): void {
  values.push(value);
  if (values.length > most) values.shift();
}

function groupsOf({ first, last }: SamplingRound): number {
  return last - first + 1;
}

/** Rollouts of a group, as people read it. */
function meanSize(spec: Parameters<typeof rolloutsPerGroup>[0]): string {
  const mean = rolloutsPerGroup(spec);
  return differInGroups(spec) ? `about ${mean.toFixed(1)}` : `${mean}`;
}
