import { setMaxListeners } from 'node:events';
import { RatchetError } from '../../core/errors.ts';
import type { Inference, Sample } from '../../backends/inference/index.ts';
import type { Place, PlayObserver } from '../../backends/rollouts/training-players.ts';
import { type WorkProgress, WorkUnderWay } from './work-under-way.ts';

/** Since when the inference server answers nothing, and what it says instead. */
export interface NotReady {
  /** ISO time. */
  readonly since: string;
  readonly message: string;
}

/** What the heartbeats of the activity carry to whoever tries it again. */
export interface GenerationProgress {
  readonly playedMs: number;
  readonly notReady: NotReady | null;
  readonly work: WorkProgress;
}

/**
 * One attempt at a chunk, over all retries of its activity. Only time at work counts towards the deadline: neither the
 * wait for a worker nor the sleep of a machine.
 */
export class GenerationAttempt implements PlayObserver {
  readonly #startedAt = performance.now();
  readonly #playedBeforeMs: number;
  #timer: ReturnType<typeof setTimeout> | undefined;
  #notReady: NotReady | null;
  readonly work: WorkUnderWay;

  constructor(before: GenerationProgress | undefined) {
    this.#playedBeforeMs = before?.playedMs ?? 0;
    this.#notReady = before?.notReady ?? null;
    this.work = new WorkUnderWay(before?.work);
  }

  get notReady(): NotReady | null {
    return this.#notReady;
  }

  progress(): GenerationProgress {
    const playedMs = this.#playedBeforeMs + performance.now() - this.#startedAt;
    return { playedMs, notReady: this.#notReady, work: this.work.progress() };
  }

  seconds(): number {
    return (performance.now() - this.#startedAt) / 1000;
  }

  /** One signal for everything in the attempt: raised when it is cancelled, or when its time is over. */
  until(cancelled: AbortSignal, limitMs: number): { readonly signal: AbortSignal; readonly deadline: AbortSignal } {
    const over = new AbortController();
    this.#timer = setTimeout(() => over.abort(), Math.max(0, limitMs - this.#playedBeforeMs)).unref();
    const signal = AbortSignal.any([cancelled, over.signal]);
    setMaxListeners(0, signal); // every rollout listens
    return { signal, deadline: over.signal };
  }

  end(): void {
    this.work.end();
    clearTimeout(this.#timer);
  }

  begin(place: Place): void {
    this.work.begin(pieceOf(place));
  }

  sampled(place: Place, tokens: number): void {
    this.work.sampled(pieceOf(place), tokens);
  }

  finish(place: Place): void {
    this.work.finish(pieceOf(place));
  }

  /** The same server, with an eye on whether it answers. */
  watch(inference: Inference): Pick<Inference, 'sample'> {
    return { sample: (request): Promise<Sample> => this.look(() => inference.sample(request)) };
  }

  /** Asks a server, and notes whether it answered. */
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
