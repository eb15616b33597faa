import { setMaxListeners } from 'node:events';
import { ApplicationFailure } from '@temporalio/common';
import { RatchetError } from '../../core/errors.ts';
import { passedOnType } from '../../core/names.ts';
import { present } from '../../core/present.ts';
import type { Inference, Sample } from '../../backends/inference/index.ts';
import type { ChunkAttempt, NotReady } from '../../play/chunk-play.ts';
import type { Place } from '../../play/training-players.ts';
import type { LostWork } from '../../core/rl/lost-work.ts';
import { isShutdown } from './heartbeat.ts';
import { lostIn, type WorkProgress, WorkUnderWay } from './work-under-way.ts';

/** Heartbeat details of the activity, for the attempt that retries it. */
export interface GenerationProgress {
  readonly playedMs: number;
  readonly notReady: NotReady | null;
  readonly work: WorkProgress;
  /** Names the servers that do not answer; null while at least one answers. */
  readonly waitsFor?: string | null;
  /** Attempts since `work` that gave the chunk back without having begun it. */
  readonly passedOn?: PassedOn;
}

interface PassedOn {
  /** The newest of them, from 1. */
  readonly attempt: number;
  readonly times: number;
}

/** Milliseconds before a chunk that was given back goes to a worker that asks. */
const passedOnMs = 100;

/**
 * One attempt at a chunk, over all retries of its activity. Only time at work counts towards the deadline: neither the
 * wait for a worker nor the sleep of a machine.
 */
export class GenerationAttempt implements ChunkAttempt {
  readonly #startedAt = performance.now();
  readonly #playedBeforeMs: number;
  #timer: ReturnType<typeof setTimeout> | undefined;
  #notReady: NotReady | null;
  readonly #work: WorkUnderWay;
  #passedOn: PassedOn | undefined;
  readonly isShutdown = isShutdown;
  /** Names the servers that do not answer; null while at least one answers. */
  silence: () => string | null = () => null;

  readonly retry: number;

  constructor(before: GenerationProgress | undefined, retry = 1) {
    this.retry = retry;
    this.#playedBeforeMs = before?.playedMs ?? 0;
    this.#notReady = before?.notReady ?? null;
    this.#work = new WorkUnderWay(before?.work, before?.passedOn?.times);
    this.#passedOn = before?.passedOn;
  }

  get notReady(): NotReady | null {
    return this.#notReady;
  }

  progress(): GenerationProgress {
    const playedMs = this.#playedBeforeMs + performance.now() - this.#startedAt;
    const waitsFor = this.silence();
    const progress = { playedMs, notReady: this.#notReady, work: this.#work.progress() };
    return { ...progress, ...present({ waitsFor: waitsFor ?? undefined, passedOn: this.#passedOn }) };
  }

  seconds(): number {
    return (performance.now() - this.#startedAt) / 1000;
  }

  /** One signal for everything in the attempt: raised when it is cancelled, or when its time is over. */
  until(cancelled: AbortSignal, limitMs: number): ReturnType<ChunkAttempt['until']> {
    const over = new AbortController();
    const leftMs = Math.max(0, limitMs - this.#playedBeforeMs);
    this.#timer = setTimeout(() => over.abort(), leftMs).unref();
    const signal = AbortSignal.any([cancelled, over.signal]);
    setMaxListeners(0, signal); // every rollout listens
    return { signal, deadline: over.signal, endsAtMs: performance.now() + leftMs };
  }

  /** Whether the attempt before gave the chunk back. */
  get wasPassedOn(): boolean {
    return this.#passedOn?.attempt === this.retry - 1;
  }

  /** The failure that gives the chunk back before it begins, so that a worker with room for it gets it. */
  passOn(): ApplicationFailure {
    this.#passedOn = { attempt: this.retry, times: (this.#passedOn?.times ?? 0) + 1 };
    return ApplicationFailure.create({
      type: passedOnType,
      message: 'its run has all the rollouts in flight that it may have in this process; another worker may have room',
      nextRetryDelay: passedOnMs,
    });
  }

  goOnFrom(stored: Parameters<ChunkAttempt['goOnFrom']>[0]): void {
    this.#passedOn = undefined;
    this.#work.goOnFrom(stored);
  }

  lost(): { readonly lost?: LostWork } {
    return lostIn(this.#work.lost);
  }

  lostIfItStopsHere(stored: Parameters<ChunkAttempt['lostIfItStopsHere']>[0]): { readonly lost?: LostWork } {
    return lostIn(this.#work.ifItStopsHere(stored));
  }

  /** Generation is over. */
  end(): void {
    clearTimeout(this.#timer);
  }

  /** The activity ends. */
  over(): void {
    this.#work.end();
  }

  begin(place: Place): void {
    this.#work.begin(pieceOf(place));
  }

  sampled(place: Place, tokens: number): void {
    this.#work.sampled(pieceOf(place), tokens);
  }

  /** Every rollout is stored; time is all that can be lost from here on. */
  beginScoring(): void {
    this.#work.beginScoring();
  }

  finish(place: Place): void {
    this.#work.finish(pieceOf(place));
  }

  /** The same server, recording whether it answers. */
  watch(inference: Inference): Pick<Inference, 'sample'> {
    return { sample: (request): Promise<Sample> => this.look(() => inference.sample(request)) };
  }

  /** Asks a server, and records whether it answered. */
  async look<T>(ask: () => Promise<T>): Promise<T> {
    const since = new Date().toISOString();
    try {
      const answer = await ask();
      this.#notReady = null;
      return answer;
    } catch (error) {
      if (error instanceof RatchetError && error.code === 'InferenceUnavailable') {
        this.#notReady = { since: this.#notReady?.since ?? since, message: error.message };
      }
      throw error;
    }
  }
}

function pieceOf({ group, index }: Place): string {
  return `${group}/${index}`;
}
