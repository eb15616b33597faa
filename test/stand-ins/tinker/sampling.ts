import { randomUUID } from 'node:crypto';
import { setTimeout as delay } from 'node:timers/promises';
import { z } from 'zod';
import { hash32 } from '../../../core/random.ts';
import type { Futures } from './futures.ts';
import type { Journal, Outcome } from './journal.ts';
import type { StandInOptions } from './options.ts';
import { Refusal } from './refusal.ts';
import type { Slots } from './slots.ts';
import { SampleWish } from './words.ts';

/** Sampling from checkpoints. */
export class Sampling {
  readonly #options: StandInOptions;
  readonly #journal: Journal;
  readonly #slots: Slots;
  readonly #futures: Futures;
  /** Paths that sampling sessions sample from. */
  readonly #sessions = new Map<string, string>();

  constructor(options: StandInOptions, journal: Journal, slots: Slots, futures: Futures) {
    this.#options = options;
    this.#journal = journal;
    this.#slots = slots;
    this.#futures = futures;
  }

  /** The answer to a request; undefined where it is about something else. */
  answer(word: string, body: unknown): unknown {
    switch (word) {
      case 'create_sampling_session': {
        const { model_path: from } = z.object({ model_path: z.string() }).parse(body);
        const session = `sampling_${randomUUID().slice(0, 8)}`;
        this.#sessions.set(session, from);
        return { type: 'create_sampling_session', sampling_session_id: session };
      }
      case 'asample': {
        const wish = SampleWish.parse(body);
        if (this.#options.isLikeTuft && !this.#sessions.has(wish.sampling_session_id ?? ''))
          throw new Refusal(404, `Session ${wish.sampling_session_id ?? 'None'} not found.`);
        if (this.#options.wantsBase && !(body as { base_model?: unknown }).base_model)
          throw new Refusal(400, 'base_model is required but could not be resolved');
        const from = wish.model_path ?? this.#sessions.get(wish.sampling_session_id ?? '');
        if (from === undefined) throw new Refusal(404, 'Sampling session not found');
        const [model, ...rest] = from.replace('tinker://', '').split('/');
        this.#journal.requireModel(model!);
        const checkpoint = `${model}/sampler_weights/${rest.at(-1)}`;
        if (!this.#journal.remembered.checkpoints.has(checkpoint)) {
          throw new Refusal(404, `Checkpoint not found: ${model}/${rest.at(-1)}`);
        }
        return this.#sample(model!, checkpoint, wish);
      }
      default:
        return undefined;
    }
  }

  /** Requests that wait are sampled together, each with its seed; so they do not wait for the training's turn to end. */
  #sample(model: string, checkpoint: string, wish: z.infer<typeof SampleWish>): { request_id: string } {
    const { prompt, sampling_params: params, prompt_logprobs: isScored } = wish;
    const tokens = prompt.chunks.flatMap((chunk) => chunk.tokens);
    const sampled = async (): Promise<Outcome> => {
      await delay((this.#options.tokenMs ?? 0) * params.max_tokens);
      const { policy, ...sequence } = await this.#slots.sample(model, checkpoint, {
        tokens,
        ...params,
        stop: params.stop ?? [],
      });
      const scored = isScored ? await this.#slots.score(model, checkpoint, tokens) : undefined;
      const { seed, temperature } = params;
      const line = { policy, seed, temperature, prompt: hash32(...tokens) };
      const result = { sequences: [sequence], ...(scored ? { prompt_logprobs: scored } : {}) };
      return { result, ...(params.max_tokens > 1 ? { sampled: line } : {}) };
    };
    return this.#futures.aside(params.seed, sampled());
  }
}
