import { randomUUID } from 'node:crypto';
import { z } from 'zod';
import type { Futures } from './futures.ts';
import type { Journal } from './journal.ts';
import type { StandInOptions } from './options.ts';
import { Refusal } from './refusal.ts';
import type { Slots } from './slots.ts';
import { Wrong } from './words.ts';

/** Sessions and the models in them. A session without heartbeats loses its models. */
export class Sessions {
  readonly #journal: Journal;
  readonly #slots: Slots;
  readonly #futures: Futures;
  readonly #heartbeats = new Map<string, number>();
  /** Sessions of which nothing more is wanted, as the hosted service says it. */
  readonly #finished = new Set<string>();
  readonly #cleaner: ReturnType<typeof setInterval>;

  constructor(options: StandInOptions, journal: Journal, slots: Slots, futures: Futures) {
    this.#journal = journal;
    this.#slots = slots;
    this.#futures = futures;
    const timeoutMs = options.sessionTimeoutMs ?? 300_000;
    this.#cleaner = setInterval(() => this.#endSessions(timeoutMs), Math.min(1_000, timeoutMs / 4));
  }

  stop(): void {
    clearInterval(this.#cleaner);
  }

  /** The answer to a request; undefined where it is about something else. */
  answer(word: string, body: unknown): unknown {
    const { sessions } = this.#journal.remembered;
    switch (word) {
      case 'create_session': {
        const session = `session_${randomUUID().slice(0, 8)}`;
        this.#journal.write({ session });
        this.#heartbeats.set(session, performance.now());
        return { type: 'create_session', session_id: session };
      }
      case 'session_heartbeat': {
        const { session_id: session } = z.object({ session_id: z.string() }).parse(body);
        if (!sessions.has(session)) throw new Refusal(404, 'Session not found');
        if (this.#finished.has(session)) throw new Refusal(410, 'Session is finished');
        this.#heartbeats.set(session, performance.now());
        return { type: 'session_heartbeat' };
      }
      case 'create_model': {
        const shape = z.object({
          session_id: z.string(),
          base_model: z.string(),
          lora_config: z.object({ rank: z.int(), seed: z.int().default(0) }),
        });
        const { session_id: session, lora_config } = shape.parse(body);
        if (!sessions.has(session)) throw new Refusal(404, 'Session not found');
        if (this.#finished.has(session)) throw new Refusal(410, 'Session is finished');
        const model = `model_${randomUUID().slice(0, 8)}`;
        this.#heartbeats.set(session, performance.now());
        this.#journal.write({ model, of: session, ...lora_config });
        const created = async () => {
          await this.#slots.create(model, lora_config);
          return { model_id: model };
        };
        return { ...this.#futures.promise(word, created), model_id: model };
      }
      case 'stand_in': {
        Wrong.parse(body);
        for (const session of this.#heartbeats.keys()) this.#finished.add(session);
        this.#endSessions(0);
        return {};
      }
      default:
        return undefined;
    }
  }

  /** Those without a heartbeat for so long; their models are gone when their turn comes. */
  #endSessions(timeoutMs: number): void {
    for (const [session, at] of this.#heartbeats) {
      if (performance.now() - at < timeoutMs) continue;
      this.#heartbeats.delete(session);
      for (const [model, { session: of }] of this.#journal.remembered.models) {
        if (of === session) this.#futures.promise('cleanup', async () => this.#slots.unload(model));
      }
    }
  }
}
