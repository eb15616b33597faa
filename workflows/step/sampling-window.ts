import { condition } from '@temporalio/workflow';
import type { MayLease } from '../../activities/index.ts';
import type { RunSpec } from '../../config/run-spec.ts';
import type { Baselines } from '../../core/rl/rollout/agents.ts';
import type { CurriculumState } from '../../core/rl/sampling/curriculum.ts';
import type { KeptGroups, OpenRound, RunState } from '../../core/rl/run-state.ts';
import { groupsAwaited, staleBudgetAfter } from '../../core/rl/sampling/late-groups.ts';
import { countGroups, rolloutsPerGroup, type Selection } from '../../core/rl/learning/selection.ts';
import { levelOf } from '../../core/rl/sampling/window.ts';
import type { WindowRoom } from '../../core/rl/sampling/window-room.ts';
import type { StepsAhead } from './collect-step.ts';
import { CurriculumInTurn } from './curriculum-in-turn.ts';
import type { Collected } from './collected.ts';
import { ReadyGroups } from './ready-groups.ts';
import { type RoundsContext, RoundsInPlay, type RoundToLease } from './rounds-in-play.ts';
import { StaleShare } from './stale-share.ts';
import { WindowSize } from './window-size.ts';

export type WindowContext = RoundsContext;

/** Kept groups of the batch that is collected. */
export interface CollectedGroups {
  /** Includes those that wait for the next batch. */
  readonly waiting: number;
  /** Whether it can be taken: it waits for none of the groups in flight. */
  readonly isWhole: boolean;
  /** Ordinal of the youngest group of a whole one, taken or not; 0: it is not whole. */
  readonly youngest: number;
  /** Groups of a whole batch. */
  readonly groupsPerBatch: number;
}

interface Next {
  readonly seen?: number;
  readonly why?: string;
  /** Whether more may be leased than when the window was last filled. */
  readonly mayLease?: () => boolean;
}

/** How much may be leased for a step, and what waits for it by now. */
export interface ToFill extends StepsAhead {
  readonly ready: () => CollectedGroups;
  /** Whether nothing more is leased by this fill: what has happened meanwhile has to be decided on first. */
  readonly isOver: () => boolean;
}

/**
 * Whether groups are sampled in rounds: a round is decided on when all of it has ended, and its groups are added in the
 * order of their chunks. So a run at level 0 has the same bits each time, and environments with a limited pace
 * (`tasks_per_minute`) keep it. Else the window is kept full across steps.
 */
function samplesByRounds(spec: RunSpec): boolean {
  return levelOf(spec) === 0 || spec.tasksPerMinute !== null;
}

/**
 * Groups that are leased and not trained yet: those in flight, and kept ones that wait for a batch. It lasts from step
 * to step: at level 0 it is empty between them; beyond, groups are in flight while steps train. Its contents at a batch
 * are in that batch's commit. {@link WindowSize} decides how many there may be, {@link RoundsInPlay} has those in
 * flight, {@link ReadyGroups} those that wait.
 */
export class SamplingWindow {
  readonly #context: WindowContext;
  readonly #curriculum: CurriculumInTurn;
  readonly #size: WindowSize;
  readonly #ready: ReadyGroups;
  readonly #rounds: RoundsInPlay;
  readonly #age = new StaleShare();
  /** The fills beside batches, one after another; `#fills` have not ended. */
  #filling: Promise<unknown> = Promise.resolve();
  #fills = 0;
  /** Fills that were wanted in this execution. */
  #wanted = 0;
  /** How many more groups may grow stale. */
  #staleBudget: number;
  readonly byRounds: boolean;

  /** `playS`: seconds that chunks took in the previous execution. */
  constructor(
    context: WindowContext,
    state: Pick<RunState, 'curriculum' | 'surplus' | 'baselines' | 'staleBudget'>,
    playS: number | null,
  ) {
    const { run, spec } = context;
    this.#context = context;
    this.byRounds = samplesByRounds(spec);
    const { byRounds } = this;
    this.#curriculum = new CurriculumInTurn(state.curriculum);
    this.#staleBudget = state.staleBudget ?? 0;
    this.#size = new WindowSize(spec, playS);
    this.#ready = new ReadyGroups({ run, spec, curriculum: this.#curriculum, byRounds }, state);
    const parts = { size: this.#size, ready: this.#ready, curriculum: this.#curriculum, byRounds };
    this.#rounds = new RoundsInPlay(context, parts);
  }

  /** Resumes rounds of an earlier execution: those that the commit names and those leased after it. */
  async reopen(open: readonly OpenRound[]): Promise<void> {
    await this.#rounds.reopen(open);
  }

  /** Begins to handle signals about groups, once it is known what is in flight. */
  listen(): void {
    this.#rounds.listen();
  }

  /** Begins the progress of a batch, for watchers. */
  collects(step: number): void {
    const { spec, control } = this.#context;
    const inPlay = Math.round(this.#rounds.chunks.groups * rolloutsPerGroup(spec));
    const [kept, round] = [countGroups(this.ready), this.collected.issued.length];
    control.progress.collects({ step, needed: this.#size.groupsPerBatch, kept, round, inPlay });
  }

  /** Results of sampling since the last batch was taken. */
  get collected(): Collected {
    return this.#ready.collected;
  }

  get baselines(): Baselines | undefined {
    return this.#ready.baselines;
  }

  get curriculum(): CurriculumState {
    return this.#curriculum.state;
  }

  /** Kept groups that no step has trained yet; the same list until something changes. */
  get ready(): readonly KeptGroups[] {
    return this.#ready.all;
  }

  /** Whether groups are filtered with the widened filter from now on. */
  get isWidened(): boolean {
    return this.#ready.isWidened;
  }

  widen(): void {
    this.#ready.isWidened = true;
  }

  get isInPlay(): boolean {
    return this.#rounds.chunks.chunks > 0;
  }

  /** Whether weights may change while rollouts are generated. */
  get changesInFlight(): boolean {
    return !this.byRounds && this.#context.spec.inflightUpdates !== 'never';
  }

  /** Whether the run may continue as new with its groups in flight. */
  get mayBeLeft(): boolean {
    return !this.byRounds && this.#rounds.outlive;
  }

  /** Seconds that chunks take, for the next execution. */
  get playS(): number | null {
    return this.#size.playS;
  }

  /** Rounds in flight, in the form of a commit. */
  get open(): readonly OpenRound[] {
    return this.#rounds.chunks.open;
  }

  /** Ordinals in flight, as ranges. */
  get inPlay(): string {
    return this.#rounds.chunks.ordinals;
  }

  /** Number of signals about groups. */
  get heard(): number {
    return this.#rounds.heard;
  }

  /** How often groups have ended, or something failed. */
  get changes(): number {
    return this.#rounds.changes;
  }

  throwIfFailed(): void {
    this.#rounds.throwIfFailed();
  }

  /**
   * Leases groups for a step: by rounds as many as are missing, when nothing is in flight; else until the window is
   * full, a batch is ready, or the fill is over. A fill beside a batch ends before it. False: there is no example to draw.
   */
  async fill(step: number, asked: ToFill & { readonly missing: number }): Promise<boolean> {
    if (this.byRounds) {
      const { missing: count } = asked;
      return this.isInPlay || this.#rounds.open({ step, count, groupsPerChunk: this.#size.chunkGroups(count) });
    }
    this.#wanted += 1;
    await this.#filling;
    return this.#fill(step, asked);
  }

  /** The round with which sampling begins for a step; null while anything is in play or leased. */
  firstRound(step: number, asked: ToFill & { readonly missing: number }, policyStep: number): RoundToLease | null {
    if (this.isInPlay || this.#fills > 0) return null;
    const { missing: count } = asked;
    if (this.byRounds) return { step, count, groupsPerChunk: this.#size.chunkGroups(count) };
    return this.#firstRound(step, asked, policyStep);
  }

  #firstRound(step: number, asked: ToFill, policyStep: number): RoundToLease | null {
    const { ready } = asked;
    return this.#nextRound(step, ready, this.#size.room(ready().groupsPerBatch, step, asked), policyStep);
  }

  /** See {@link RoundsInPlay.leaseWith}. */
  leaseWith<T extends MayLease>(...given: Parameters<typeof RoundsInPlay.prototype.leaseWith<T>>): Promise<T> {
    return this.#rounds.leaseWith(...given);
  }

  /**
   * Fills the window while a batch that was taken is packed. Groups may have ended faster than others were leased: without this nothing more
   * would be sampled until the next batch is collected, which is once this one trains. Two fills at once would each find the same room,
   * so one waits for the other. It ends when another fill is wanted: where groups end as fast as others are leased it would never end by itself.
   */
  fillBeside(
    {
      step,
      groups,
      groupsPerBatch,
    }: { readonly step: number; readonly groups: number; readonly groupsPerBatch: number },
    ahead: StepsAhead,
  ): void {
    if (this.byRounds) return;
    const { control } = this.#context;
    this.#wanted += 1;
    const nth = this.#wanted;
    const ready = (): CollectedGroups => ({
      waiting: groups + countGroups(this.ready),
      isWhole: false,
      youngest: 0,
      groupsPerBatch,
    });
    const isOver = (): boolean => nth !== this.#wanted || control.isPaused || control.rewind !== null;
    const asked = { ...ahead, ready, isOver };
    const before = this.#fills > 0 ? this.#filling : null;
    if (isOver()) return;
    if (before === null && this.#firstRound(step, asked, this.#context.newestPolicy().step) === null) return;
    this.#fills += 1;
    // `open` keeps what a lease fails with, and the next batch throws it.
    this.#filling = this.#fillAfter(before, step, asked)
      .catch(() => undefined)
      .finally(() => (this.#fills -= 1));
  }

  async #fillAfter(before: Promise<unknown> | null, step: number, asked: ToFill): Promise<void> {
    if (before !== null) await before;
    await this.#fill(step, asked);
  }

  /** Resolves when no lease is under way beside a batch. */
  async filled(): Promise<void> {
    await this.#filling;
  }

  async #fill(step: number, asked: ToFill): Promise<boolean> {
    const room = this.#size.room(asked.ready().groupsPerBatch, step, asked);
    while (!asked.isOver()) {
      const round = this.#nextRound(step, asked.ready, room, this.#context.newestPolicy().step);
      if (round === null) return true;
      if (!(await this.#rounds.open(round))) return false;
    }
    return true;
  }

  /** Null: the window is full, or a batch is ready. */
  #nextRound(step: number, ready: ToFill['ready'], room: WindowRoom, policyStep: number): RoundToLease | null {
    const { groups: playing, chunks } = this.#rounds.chunks;
    const { waiting, isWhole, youngest } = ready(); // chunks end while others are leased
    if (isWhole) return null;
    // Stragglers, leased for a step that is made or older than a whole batch, hold up nobody.
    const inPlay = this.#rounds.chunks.groupsFor(step, youngest);
    return room.nextRound({ waiting, inPlay, playing, chunks, policyStep });
  }

  /** How many groups in play the batch of a step waits for, which would be made of these. */
  awaited(step: number, { trained, surplus }: Pick<Selection, 'trained' | 'surplus'>): number {
    if (this.byRounds) return 0;
    return groupsAwaited({
      step,
      trained,
      surplus,
      inPlay: this.#rounds.chunks.each(),
      groupsPerBatch: this.#size.issuedPerBatch,
      maxOffPolicySteps: this.#context.spec.maxOffPolicySteps,
      staleBudget: this.#staleBudget - this.collected.stale,
    });
  }

  /** Number of groups that may still become stale after the last batch; null when none does. */
  get staleBudget(): number | null {
    return this.byRounds ? null : this.#staleBudget;
  }

  /** Waits until a condition holds, a group has ended, or something failed. */
  async until(what: string, isSo: () => boolean): Promise<void> {
    const seen = this.changes;
    await this.#context.control.waitFor(
      what,
      condition(() => isSo() || this.changes !== seen),
    );
  }

  /**
   * Waits until a group has ended since `seen`, or something failed, or more may be leased; by rounds, until all have
   * ended. `why` is added to the wait's text.
   */
  async next({ seen = this.changes, why = '', mayLease = () => false }: Next = {}): Promise<void> {
    if (!this.isInPlay) return;
    const { byRounds } = this;
    const change = condition(() =>
      byRounds ? !this.isInPlay || this.#rounds.hasFailed : this.changes !== seen || mayLease(),
    );
    await this.#context.control.waitFor(() => `${this.#rounds.describe()}${why}`, change);
  }

  /** Gives up groups in flight that a step may no longer train on, unless their workers do that. */
  giveUpStale(step: number): void {
    if (!this.changesInFlight) this.#rounds.giveUpStale(step);
  }

  take(surplus: readonly KeptGroups[]): Collected {
    return this.#ready.take(surplus);
  }

  giveBack(taken: Collected): void {
    this.#ready.giveBack(taken);
  }

  /** Confirms the batch that was taken, with which so many groups ended, and the baselines after it. */
  taken({ ended, stale }: { readonly ended: number; readonly stale: number }, baselines: Baselines | undefined): void {
    const { groupsPerBatch } = this.#size;
    this.#staleBudget = staleBudgetAfter(this.#staleBudget, { ended, stale, groupsPerBatch });
    this.#ready.taken(baselines);
    this.#size.measureBatch(this.#rounds.chunks.takeGroupMs());
  }

  get utilisation(): number | null {
    return this.#size.utilisation;
  }

  /**
   * Records the stale groups of the last batch. Returns a warning when more become stale than any window size could
   * prevent.
   */
  noteStale(of: { readonly stale: number; readonly trained: number }): string | null {
    return this.#age.note(of, this.#context.spec.maxOffPolicySteps);
  }

  /** Returns all examples to the normal pool. */
  drawAll(): void {
    this.#curriculum.drawAll();
  }

  /** Gives up what is in flight; it stays in the store, and a run that continues here resumes it. */
  abandon(): void {
    this.#rounds.abandon();
  }
}
