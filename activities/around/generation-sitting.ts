import { setMaxListeners } from 'node:events';
import { RatchetError } from '../../core/errors.ts';
import type { Inference, Sample } from '../../backends/inference/index.ts';
import { type WorkProgress, WorkUnderWay } from './work-under-way.ts';

/** Since when the inference server answers nothing, and what it says instead. */
export interface NotReady {
  /** ISO time. */
  readonly since: string;
  readonly message: string;
}

/** What a sitting's heartbeats carry from attempt to attempt. */
export interface SittingProgress {
  readonly playedMs: number;
  readonly notReady: NotReady | null;
  /** Absent where an older version of Ratchet said it. */
  readonly work?: WorkProgress;
}

/**
 * One sitting of generation, over all attempts of its activity. Only time at work counts towards the deadline: neither the
 * wait for a worker nor the sleep of a machine.
 */
export class GenerationSitting {
  readonly #startedAt = performance.now();
  readonly #playedBeforeMs: number;
  #timer: ReturnType<typeof setTimeout> | undefined;
  #notReady: NotReady | null;
  readonly work: WorkUnderWay;

  constructor(before: SittingProgress | undefined) {
    this.#playedBeforeMs = before?.playedMs ?? 0;
    this.#notReady = before?.notReady ?? null;
    this.work = new WorkUnderWay(before?.work);
  }

  get notReady(): NotReady | null {
    return this.#notReady;
  }

  progress(): SittingProgress {
    const playedMs = this.#playedBeforeMs + performance.now() - this.#startedAt;
    return { playedMs, notReady: this.#notReady, work: this.work.progress() };
  }

  seconds(): number {
    return (performance.now() - this.#startedAt) / 1000;
  }

  /** One signal for everything in the sitting: raised when it is cancelled, or when its time is over. */
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
