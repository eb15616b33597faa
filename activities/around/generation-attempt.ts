import { setMaxListeners } from 'node:events';
import { RatchetError } from '../../core/errors.ts';
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
}

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
  readonly isShutdown = isShutdown;
  /** Names the servers that do not answer; null while at least one answers. */
  silence: () => string | null = () => null;

  readonly retry: number;

  constructor(before: GenerationProgress | undefined, retry = 1) {
    this.retry = retry;
    this.#playedBeforeMs = before?.playedMs ?? 0;
    this.#notReady = before?.notReady ?? null;
    this.#work = new WorkUnderWay(before?.work);
  }

  get notReady(): NotReady | null {
    return this.#notReady;
  }

  progress(): GenerationProgress {
    const playedMs = this.#playedBeforeMs + performance.now() - this.#startedAt;
    const waitsFor = this.silence();
    const progress = { playedMs, notReady: this.#notReady, work: this.#work.progress() };
    return waitsFor === null ? progress : { ...progress, waitsFor };
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

  goOnFrom(stored: Parameters<ChunkAttempt['goOnFrom']>[0]): void {
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
