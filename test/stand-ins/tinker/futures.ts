import { appendFileSync } from 'node:fs';
import { setTimeout as delay } from 'node:timers/promises';
import type { SampledLine } from '../../faults/fake-inference.ts';
import type { Journal, Outcome, Sampled } from './journal.ts';
import type { StandInOptions } from './options.ts';
import { Refusal } from './refusal.ts';

/** One piece of training's work at the server, in milliseconds of the system clock. */
export interface Span {
  readonly call: string;
  readonly from: number;
  readonly to: number;
}

const longPollMs = 20_000;

/** What the server has promised: each request gets a number, by which its result is asked for. */
export class Futures {
  readonly spans: Span[] = [];
  readonly #options: StandInOptions;
  readonly #journal: Journal;
  readonly #settled = new Map<string, () => void>();
  /** Work is done one piece after the other, as SkyRL's engine does it. */
  #tail: Promise<unknown> = Promise.resolve();

  constructor(options: StandInOptions, journal: Journal) {
    this.#options = options;
    this.#journal = journal;
  }

  /** Does work when its turn comes. */
  promise(word: string, work: () => Promise<unknown>): { request_id: string } {
    const id = this.#begun();
    const turn = this.#tail.then(async () => {
      const from = Date.now();
      await delay(this.#options.callMs?.[word] ?? 0);
      const result = await work();
      this.spans.push({ call: word, from, to: Date.now() });
      return result;
    });
    this.#tail = turn.catch(() => undefined);
    this.#settle(id, outcomeOf(turn));
    return { request_id: id };
  }

  /** Does work at once, beside what is in turn. */
  aside(seed: number, work: Promise<Outcome>): { request_id: string } {
    const id = this.#begun(seed);
    this.#settle(id, work.catch(failed));
    return { request_id: id };
  }

  #begun(seed?: number): string {
    const id = String(this.#journal.remembered.futures.size + 1);
    this.#journal.write({ future: id, ...(seed === undefined ? {} : { seed }) });
    return id;
  }

  #settle(id: string, work: Promise<Outcome>): void {
    void work.then((outcome) => {
      this.#journal.write({ done: id, outcome });
      this.#settled.get(id)?.();
      this.#settled.delete(id);
    });
  }

  async retrieve(id: string, isHeard: () => boolean): Promise<unknown> {
    const { futures } = this.#journal.remembered;
    if (!futures.has(id)) throw new Refusal(404, 'Future not found');
    if (futures.get(id) === null) {
      const settled = new Promise<void>((resolve) => this.#settled.set(id, resolve));
      await Promise.race([settled, delay(longPollMs)]);
    }
    const outcome = futures.get(id);
    if (!outcome) throw new Refusal(408, 'Timeout waiting for result');
    if ('error' in outcome) throw new Refusal(400, outcome.error);
    if (outcome.sampled && isHeard()) this.#note(outcome.sampled);
    return outcome.result;
  }

  #note(sampled: Sampled): void {
    const { sampledLog } = this.#options;
    if (sampledLog === undefined) return;
    const line: SampledLine = { ...sampled, pid: process.pid, time: new Date().toISOString() };
    appendFileSync(sampledLog, `${JSON.stringify(line)}\n`);
  }
}

function outcomeOf(work: Promise<unknown>): Promise<Outcome> {
  return work.then((result) => ({ result }), failed);
}

function failed(error: unknown): Outcome {
  return { error: error instanceof Error ? error.message : String(error) };
}
