import { ApplicationFailure, isCancellation, workflowInfo } from '@temporalio/workflow';
import type { LeasedRound, LeaseInput, MayLease } from '../../activities/index.ts';
import type { RunSpec } from '../../config/run-spec.ts';
import type { LeasedChunk } from '../../core/rl/sampling/chunks.ts';
import { type RolloutPriority, shareWhileWaiting } from '../../core/fleet/rollout-turns.ts';
import { present } from '../../core/present.ts';
import type { CurriculumState } from '../../core/rl/sampling/curriculum.ts';
import { decodeRanges, encodeRanges } from '../../core/rl/ledger.ts';
import { type PartsNotice, type PlayedPart, restrictPart } from '../../core/rl/rollout/played-part.ts';
import type { OpenRound, PolicyVersion, Prompts, RunHandle, SamplingRound } from '../../core/rl/run-state.ts';
import { differInGroups, rolloutsPerGroup } from '../../core/rl/learning/selection.ts';
import { awaitedLater } from '../beside/beside.ts';
import { onSignal } from '../control/listen.ts';
import { groupsEndedSignal, rolloutsWaitSignal, type RoundsPlayed, roundsPlayedSignal } from '../control/messages.ts';
import { RewindAsked, type RunControl } from '../control/run-control.ts';
import { isHistoryLong } from '../history-length.ts';
import { eager, priorityOfRun } from '../options.ts';
import type { RoundToPlay } from '../play-rounds.ts';
import { ChunkGate } from './chunk-gate.ts';
import { type ChunkInPlay, ChunksInPlay } from './chunks-in-play.ts';
import type { CurriculumInTurn } from './curriculum-in-turn.ts';
import { type ChunkPlayed, playChunk } from './play-chunk.ts';
import type { ReadyGroups } from './ready-groups.ts';
import type { RolloutFlow } from './rollout-flow.ts';
import type { ServingSchedule } from './serving-schedule.ts';
import type { WindowSize } from './window-size.ts';

export interface RoundsContext {
  readonly run: RunHandle;
  readonly spec: RunSpec;
  readonly datasets: LeaseInput['datasets'];
  readonly control: RunControl;
  /** An evaluation may have the servers to itself for a while. */
  readonly serving: ServingSchedule;
  /** Generates rounds that outlive this execution. */
  readonly flow: RolloutFlow;
  /** Whether rounds of this step that are leased now are for a later turn with a trainer of the pool. */
  readonly waitsForTurn: (step: number) => boolean;
  /** Newest version at the servers, looked up for every round. */
  readonly newestPolicy: () => PolicyVersion;
  /** System prompts in use; undefined while every environment has its own. */
  readonly prompts: () => Prompts | undefined;
}

interface Parts {
  readonly size: WindowSize;
  readonly ready: ReadyGroups;
  readonly curriculum: CurriculumInTurn;
  /** Whether a round's results are added in the order of its chunks, whichever came first. */
  readonly byRounds: boolean;
}

/** A round as it is asked for. */
export type RoundToLease = Pick<LeaseInput, 'step' | 'count' | 'groupsPerChunk'>;

/** A round that is leased, and those of its chunks that have not ended. */
interface Leased {
  readonly round: SamplingRound;
  readonly chunks: readonly LeasedChunk[];
  /** Unfinished groups; absent: none has ended. */
  readonly left?: ReadonlySet<number>;
}

/** Rounds from their lease to the end of their groups, which join the ready ones as they are reported. */
export class RoundsInPlay {
  readonly #context: RoundsContext;
  readonly #parts: Parts;
  readonly #chunks = new ChunksInPlay();
  readonly #gate = new ChunkGate();
  /** Ordinals that have ended, and are not added yet. */
  readonly #judging = new Set<number>();
  /** Rounds whose activities belong to this execution. */
  #own = 0;
  /** Of the rollout workers of the run's pool, relative to other runs. */
  #share = 1;
  #changes = 0;
  #heard = 0;
  #failure: { readonly reason: unknown } | null = null;

  constructor(context: RoundsContext, parts: Parts) {
    this.#context = context;
    this.#parts = parts;
    const [only] = context.spec.environments;
    context.control.progress.inPlay = () => this.#chunks.byEnvironment(only?.name ?? '');
  }

  get chunks(): Pick<ChunksInPlay, 'groups' | 'chunks' | 'groupsFor' | 'each' | 'open' | 'ordinals' | 'takeGroupMs'> {
    return this.#chunks;
  }

  /** Whether all generation would survive the end of this execution. */
  get outlive(): boolean {
    return this.#own === 0;
  }

  /** How often groups have ended, or something failed. */
  get changes(): number {
    return this.#changes;
  }

  get hasFailed(): boolean {
    return this.#failure !== null;
  }

  /** Number of signals about groups. */
  get heard(): number {
    return this.#heard;
  }

  throwIfFailed(): void {
    if (this.#failure) throw this.#failure.reason;
  }

  describe(): string {
    return this.#chunks.describe(meanSize(this.#context.spec));
  }

  /** Begins to handle signals about ended groups, once it is known what is in flight. */
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

  /** Resumes what was in flight when an execution ended: rounds that the commit names, and those leased after it. */
  async reopen(open: readonly OpenRound[]): Promise<void> {
    const { run, control, serving, flow } = this.#context;
    const { curriculum, ready } = this.#parts;
    const asked = { run, open, curriculum: curriculum.state, flows: flow.known };
    const found = await control.waitFor('find the rounds in play', eager.reopenRounds(asked));
    curriculum.goOnFrom(found.curriculum);
    flow.keepCarried(found.rounds.map(({ first }) => first));
    for (const { isIssued, chunks, groups, parts, ...round } of found.rounds) {
      if (!isIssued) ready.collected.issue(round.first, round.last);
      const left = groups === undefined ? {} : { left: new Set(decodeRanges(groups)) };
      const playing = this.#hold({ round, chunks, ...left });
      this.#watch(async () => {
        for (const part of parts) await this.#addPart(part); // signalled to the previous execution
        await serving.shared(() => this.#play(playing.filter((one) => one.left.size > 0)));
      });
    }
  }

  /** Leases a round, which is played from then on. False: there is no example to draw. */
  async open(asked: RoundToLease): Promise<boolean> {
    const { serving, control } = this.#context;
    let isLetIn = false;
    const leasing = new Promise<boolean>((resolve) => {
      this.#watch(() =>
        serving.shared(async () => {
          isLetIn = true;
          const leased = await this.#lease(asked).catch((reason: unknown) => {
            resolve(true); // a failed round is reported once
            throw reason;
          });
          const playing = leased ? this.#hold(leased) : [];
          resolve(leased !== null);
          await this.#play(playing);
        }),
      );
    });
    const what = `lease ${asked.count} groups for step ${asked.step}`;
    const isLeased = await control.waitFor(() => (isLetIn ? what : serving.heldUp(what)), leasing);
    this.throwIfFailed();
    return isLeased;
  }

  /**
   * Leases a round by an activity that does something else as well, and plays it from then on. Nothing may be in play, or be leased
   * meanwhile. `isWanted` is asked when the lease is there: one that is not is nobody's, and whoever leases next is given the same.
   */
  leaseWith<T extends MayLease>(
    asked: RoundToLease,
    policy: PolicyVersion,
    { send, isWanted }: { readonly send: (lease: LeaseInput) => Promise<T>; readonly isWanted: () => boolean },
  ): Promise<T> {
    return this.#parts.curriculum.change(async (curriculum, set) => {
      const result = await send(this.#leaseInput(asked, curriculum, policy));
      const leased = result.leased && isWanted() ? this.#take(asked.step, result.leased, set) : null;
      if (leased) {
        const playing = this.#hold(leased);
        this.#watch(() => this.#context.serving.shared(() => this.#play(playing)));
      }
      return result;
    });
  }

  /**
   * Gives up groups that a step may not train on any more. Where rollouts take later weights, their workers do it, who know which tokens are
   * the oldest (`play/rollout-age.ts`).
   */
  giveUpStale(step: number): void {
    const { maxOffPolicySteps } = this.#context.spec;
    const stale = this.#chunks.giveUpStale(step, maxOffPolicySteps);
    this.#parts.ready.collected.ended.push(...stale.map(({ ordinals }) => ({ stale: ordinals })));
    this.#context.flow.giveUp([...new Set(stale.map(({ first }) => first))]);
  }

  /** Gives up what is in flight; it stays in the store, and a run that continues here resumes it. */
  abandon(): void {
    this.#failure ??= { reason: new RewindAsked() };
    this.#chunks.giveUp(() => true);
    this.#changes += 1;
  }

  /** Keeps the first failure; {@link throwIfFailed} throws it. */
  #watch(work: () => Promise<void>): void {
    void work()
      .catch((reason: unknown) => (this.#failure ??= { reason }))
      .finally(() => (this.#changes += 1));
  }

  async #pause(reason: string): Promise<void> {
    const { control, flow } = this.#context;
    // Each chunk in flight reports a missing server.
    if (!control.isPaused) control.pause(reason);
    await control.untilResumed();
    flow.resume();
  }

  #lease(asked: RoundToLease): Promise<Leased | null> {
    const { newestPolicy } = this.#context;
    return this.#parts.curriculum.change(async (curriculum, set) => {
      const input = this.#leaseInput(asked, curriculum, newestPolicy()); // a broadcast that was waited for has changed it
      return this.#take(asked.step, await eager.leaseGroups(input), set);
    });
  }

  #leaseInput(asked: RoundToLease, curriculum: CurriculumState, policy: PolicyVersion): LeaseInput {
    const { run, datasets, prompts } = this.#context;
    return { run, ...asked, curriculum, datasets, policy, ...present({ prompts: prompts() }) };
  }

  /** Null where there was no example to draw. */
  #take(step: number, leased: LeasedRound, set: (after: CurriculumState) => void): Leased | null {
    const { spec, control } = this.#context;
    const { size, ready } = this.#parts;
    const { round, chunks, workers, share, otherVersions = [] } = leased;
    for (const line of otherVersions) control.warnOnce(step, line);
    size.workers = workers ?? size.workers;
    this.#share = share ?? this.#share;
    if (round === null) return null;
    set(leased.curriculum);
    ready.collected.issue(round.first, round.last);
    const rollouts = Math.round((round.last - round.first + 1) * rolloutsPerGroup(spec));
    control.progress.leased({ policyStep: round.policyStep, rollouts });
    return { round, chunks };
  }

  #hold({ round, chunks, left }: Leased): ChunkInPlay[] {
    return chunks.map((chunk) => {
      const groups = decodeRanges(chunk.ordinals);
      return this.#chunks.add({ round, chunk }, left && groups.filter((ordinal) => left.has(ordinal)));
    });
  }

  /**
   * Generates chunks of a round side by side. Quick rounds run in activities of this execution, whose results have
   * their groups. Others, and those leased when it is about to continue as new, go to a workflow that outlives it.
   */
  async #play(chunks: readonly ChunkInPlay[]): Promise<void> {
    const [one] = chunks;
    if (one === undefined) return;
    const { byRounds, size } = this.#parts;
    const { flow } = this.#context;
    const { first } = one.round;
    if (byRounds || (size.isQuick && !isHistoryLong() && !flow.isCarried(first))) return this.#playHere(chunks);
    await this.#chunks.playing(chunks, () =>
      flow.play(first, () => {
        const inPlay = chunks.filter(({ left }) => left.size > 0);
        return inPlay.length === 0 ? null : this.#handedOver(one.round, inPlay);
      }),
    );
  }

  #handedOver(round: SamplingRound, chunks: readonly ChunkInPlay[]): RoundToPlay {
    const toPlay = chunks.map((one) => {
      const only = one.left.size === one.chunk.groups ? {} : { only: encodeRanges([...one.left]) };
      return { chunk: one.chunk, label: this.#labelOf(one), priority: this.#priorityOf(one), ...only };
    });
    const takesNewest = !this.#parts.byRounds && this.#context.spec.inflightUpdates !== 'never';
    return { round, chunks: toPlay, workers: this.#parts.size.workers, takesNewest };
  }

  #priorityOf({ round, left }: ChunkInPlay): RolloutPriority {
    const { spec, control, waitsForTurn } = this.#context;
    const share = this.#share * (waitsForTurn(round.step) ? shareWhileWaiting : 1);
    return priorityOfRun(spec, control.overrides, { rollouts: left.size * rolloutsPerGroup(spec), share });
  }

  #labelOf({ round, left }: ChunkInPlay): string {
    return `step ${round.step}: ${left.size} groups × ${meanSize(this.#context.spec)} from v${round.policyStep}`;
  }

  async #playHere(chunks: readonly ChunkInPlay[]): Promise<void> {
    const { byRounds } = this.#parts;
    let before: Promise<unknown> = Promise.resolve();
    this.#own += 1;
    try {
      await Promise.all(
        chunks.map((one) => {
          const played = awaitedLater(this.#playOne(one)); // unawaited when the chunk before it fails
          const added = (byRounds ? before.then(() => played) : played)
            .then((found) => found && this.#addPlayed(found))
            .finally(() => (this.#changes += 1));
          before = added;
          return added;
        }),
      );
    } finally {
      this.#own -= 1;
    }
  }

  /** Null for one that was given up. */
  async #playOne(one: ChunkInPlay): Promise<ChunkPlayed | null> {
    const { round, scope } = one;
    const { run, spec, control } = this.#context;
    const { chunks, ...rest } = this.#handedOver(round, [one]);
    const tells = this.#parts.byRounds ? {} : { tells: workflowInfo().workflowId };
    const asked = { run, spec, ...rest, ...chunks[0]!, ...tells };
    try {
      const play = (): Promise<ChunkPlayed> => this.#chunks.playing([one], () => playChunk(control, asked));
      const { size } = this.#parts;
      return await scope.run(() => this.#gate.within(one.left.size, () => size.atOnce, play));
    } catch (reason) {
      if (isCancellation(reason) && scope.consideredCancelled) return null;
      throw reason;
    }
  }

  /** Adds parts of a chunk by ordinal, whichever ended first. */
  async #addPlayed(played: RoundsPlayed['played']): Promise<void> {
    if ('failed' in played) throw ApplicationFailure.nonRetryable(played.failed.message, played.failed.type);
    const { parts, adopted, lost } = played;
    this.#parts.ready.collected.spend({ adopted, lost });
    for (const part of parts.toSorted((a, b) => firstOf(a) - firstOf(b))) await this.#addPart(part);
  }

  /** Adds groups to the ready ones, except those given up or received before. */
  async #addPart(whole: PlayedPart): Promise<void> {
    const { control } = this.#context;
    const { size, ready } = this.#parts;
    const one = decodeRanges(whole.ordinals)
      .map((ordinal) => this.#chunks.of(ordinal))
      .find((found) => found);
    const part = one && restrictPart(whole, new Set([...one.left].filter((ordinal) => !this.#judging.has(ordinal))));
    if (!one || !part) return;
    const ordinals = decodeRanges(part.ordinals);
    for (const ordinal of ordinals) this.#judging.add(ordinal);
    const filtered = await control.waitFor(`filter groups ${part.ordinals} again`, ready.judge(one.round, part));
    for (const ordinal of ordinals) this.#judging.delete(ordinal);
    if (!ordinals.every((ordinal) => one.left.has(ordinal))) return; // they had been given up
    this.#chunks.end(one, ordinals);
    this.#changes += 1;
    size.measure(part);
    size.judged({ groups: ordinals.length, kept: decodeRanges(filtered.kept.ordinals).length });
    ready.add(one.round, part, filtered);
    control.progress.played(part.rollouts);
    control.progress.filtered(ready.all, filtered.ended);
  }
}

function firstOf({ ordinals }: PlayedPart): number {
  return decodeRanges(ordinals)[0] ?? 0;
}

/** Rollouts of a group, as people read it. */
function meanSize(spec: Parameters<typeof rolloutsPerGroup>[0]): string {
  const mean = rolloutsPerGroup(spec);
  return differInGroups(spec) ? `about ${mean.toFixed(1)}` : `${mean}`;
}
