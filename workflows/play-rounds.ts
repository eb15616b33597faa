import {
  ApplicationFailure,
  CancellationScope,
  condition,
  defineSignal,
  getExternalWorkflowHandle,
  isCancellation,
  log,
  setCurrentDetails,
} from '@temporalio/workflow';
import type { RolloutPriority } from '../core/fleet/rollout-turns.ts';
import { flowIdleMs } from '../core/limits.ts';
import { present } from '../core/present.ts';
import type { LeasedChunk } from '../core/rl/sampling/chunks.ts';
import type { RunHandle, SamplingRound } from '../core/rl/run-state.ts';
import type { RunSpec } from '../config/run-spec.ts';
import { rootCause } from './beside/root-cause.ts';
import { playChunk } from './step/play-chunk.ts';
import { readPlayRoundsInput } from './inputs.ts';
import { onSignal } from './control/listen.ts';
import { type ChunkUnderWay, chunksText } from './control/lines.ts';
import { type RoundsPlayed, roundsPlayedSignal, rolloutsWaitSignal } from './control/messages.ts';

/** A leased round with its chunks that have unfinished groups. */
export interface RoundToPlay {
  readonly round: SamplingRound;
  readonly chunks: readonly ChunkToPlay[];
  /** Rollout workers that share the run. */
  readonly workers: number;
  readonly takesNewest: boolean;
}

interface ChunkToPlay {
  readonly chunk: LeasedChunk;
  /** Groups that have not ended, as ranges; absent: all. */
  readonly only?: string;
  readonly label: string;
  /** In the queue of the rollout workers; absent: a run of an earlier version has handed it over. */
  readonly priority?: RolloutPriority;
}

export interface PlayRoundsInput {
  readonly run: RunHandle;
  readonly spec: Pick<RunSpec, 'heartbeatTimeoutS' | 'queue'>;
  /** Id of the run's workflow, for any of its executions. */
  readonly tells: string;
}

/** Generates rounds besides those in flight; a round in flight continues. */
export const playRoundsSignal = defineSignal<[readonly RoundToPlay[]], 'play'>('play');
/** Gives up what is in flight of these rounds, named by their first ordinals. */
export const giveUpRoundsSignal = defineSignal<[firsts: readonly number[]], 'give-up'>('give-up');
/** Ends every wait for a person. */
export const resumeRoundsSignal = defineSignal<[], 'resume'>('resume');
/** No more rounds will come. */
export const leaveRoundsSignal = defineSignal<[], 'leave'>('leave');

/**
 * Generates the rounds that a run has leased and handed over. It outlives the execution of the run that began it, so
 * that a run continues as new with groups in flight. Workers notify the run of groups as they end; this workflow
 * reports the rest. It ends when no more rounds come and none is in flight.
 */
export async function playRounds(...given: [PlayRoundsInput]): Promise<void> {
  const flow = new Flow(readPlayRoundsInput(given));
  // A terminated run sends no signal, so an idle flow ends by itself.
  while (!flow.isOver) {
    const isBusy = await condition(() => flow.isOver || flow.isPlaying, flowIdleMs);
    if (!isBusy) return;
    await condition(() => flow.isOver || !flow.isPlaying);
  }
  flow.throwIfRunIsGone();
}

class Flow {
  readonly #input: PlayRoundsInput;
  readonly #rounds = new Map<number, CancellationScope>();
  readonly #chunks = new Set<ChunkUnderWay>();
  #isLeft = false;
  /** Whether the run that it works for is gone. */
  #isNobodys = false;
  #resumed = 0;

  constructor(input: PlayRoundsInput) {
    this.#input = input;
    const ignored = (problem: string): void => log.warn(problem);
    onSignal(leaveRoundsSignal, () => void (this.#isLeft = true), ignored);
    onSignal(resumeRoundsSignal, () => void (this.#resumed += 1), ignored);
    const giveUp = (firsts: readonly number[]): void => {
      for (const first of firsts) this.#rounds.get(first)?.cancel();
    };
    onSignal(giveUpRoundsSignal, giveUp, ignored);
    const play = (rounds: readonly RoundToPlay[]): void => {
      this.#resumed += 1; // a run that sends rounds is not paused
      for (const round of rounds) if (!this.#rounds.has(round.round.first)) void this.#play(round);
    };
    onSignal(playRoundsSignal, play, ignored);
  }

  get isPlaying(): boolean {
    return this.#rounds.size > 0;
  }

  get isOver(): boolean {
    return this.#isNobodys || (this.#isLeft && !this.isPlaying);
  }

  throwIfRunIsGone(): void {
    if (this.#isNobodys) throw ApplicationFailure.nonRetryable('its run is gone', 'RunGone');
  }

  async #play({ round, chunks, workers, takesNewest }: RoundToPlay): Promise<void> {
    const scope = new CancellationScope();
    const { first } = round;
    this.#rounds.set(first, scope);
    const { run, spec, tells } = this.#input;
    const play = async (one: ChunkToPlay): Promise<void> => {
      const asked = { run, spec, round, workers, takesNewest, tells, ...one };
      const { parts, adopted, lost } = await this.#shown(round, one, () => scope.run(() => playChunk(this, asked)));
      const isNews = parts.length > 0 || adopted > 0 || lost.recoveries > 0 || lost.seconds > 0;
      if (isNews) await this.#signal({ parts, adopted, lost });
    };
    try {
      await Promise.all(chunks.map(play));
    } catch (error) {
      if (!isCancellation(error)) await this.#signal({ failed: failureOf(error) });
      else if (!scope.consideredCancelled) throw error;
    } finally {
      this.#rounds.delete(first);
    }
  }

  /** Shows a chunk in the Temporal UI while it is generated. */
  async #shown<T>({ policyStep }: SamplingRound, { chunk }: ChunkToPlay, play: () => Promise<T>): Promise<T> {
    const { environment, groups } = chunk;
    const shown = { ...present({ environment }), groups, policyStep, since: Date.now() };
    const tell = (): void => setCurrentDetails(chunksText(this.#input.run.name, [...this.#chunks]));
    this.#chunks.add(shown);
    tell();
    try {
      return await play();
    } finally {
      this.#chunks.delete(shown);
      tell();
    }
  }

  /** Notifies the run, which pauses. */
  pause(reason: string): void {
    const told = getExternalWorkflowHandle(this.#input.tells).signal(rolloutsWaitSignal, { reason });
    told.catch(() => void (this.#isNobodys = true));
  }

  async untilResumed(): Promise<void> {
    const before = this.#resumed;
    await condition(() => this.#resumed > before || this.#isNobodys);
  }

  async #signal(played: RoundsPlayed['played']): Promise<void> {
    const { tells, run } = this.#input;
    await getExternalWorkflowHandle(tells)
      .signal(roundsPlayedSignal, { lineage: run.lineage, played })
      .catch(() => void (this.#isNobodys = true));
  }
}

function failureOf(error: unknown): { readonly message: string; readonly type: string } {
  const cause = rootCause(error);
  const type = cause instanceof ApplicationFailure ? cause.type : null;
  return { message: cause.message, type: type ?? cause.name };
}
