import { z } from 'zod';
import type { Futures } from './futures.ts';
import type { Journal } from './journal.ts';
import { lossRequest, lossSum, passOutput } from './losses.ts';
import type { StandInOptions } from './options.ts';
import { Refusal } from './refusal.ts';
import type { Slots } from './slots.ts';
import { Adam, Forward, name, Pass } from './words.ts';

/** Below a model's name, by the route that makes them. */
const checkpointKinds = {
  save_weights: 'weights',
  save_weights_for_sampler: 'sampler_weights',
  save_weights_external: 'external_weights',
} as const;

/** Training of models, and their checkpoints. */
export class Training {
  readonly #options: StandInOptions;
  readonly #journal: Journal;
  readonly #slots: Slots;
  readonly #futures: Futures;
  /** Names of checkpoints that were asked for. */
  readonly #taken = new Set<string>();
  /** The number of each model's last request. */
  readonly #asked = new Map<string, number>();

  constructor(options: StandInOptions, journal: Journal, slots: Slots, futures: Futures) {
    this.#options = options;
    this.#journal = journal;
    this.#slots = slots;
    this.#futures = futures;
  }

  /** The answer to a request; undefined where it is about something else. */
  answer(word: string, body: unknown): unknown {
    const { models } = this.#journal.remembered;
    switch (word) {
      case 'get_info': {
        const { model_id: model } = z.object({ model_id: z.string() }).parse(body);
        this.#journal.requireModel(model);
        const model_data = { model_name: this.#options.model };
        return { model_id: model, model_data, is_lora: true, lora_rank: models.get(model)!.rank };
      }
      case 'unload_model': {
        const { model_id: model } = z.object({ model_id: z.string() }).parse(body);
        if (this.#options.isLikeTuft) this.#journal.write({ forgotten: model });
        return this.#futures.promise(word, async () => this.#slots.unload(model));
      }
      case 'forward_backward': {
        if (typeof body === 'object' && body !== null && 'forward_input' in body) return this.#forward(body);
        this.#requireTurn(body);
        const { model_id: model, forward_backward_input: input } = Pass.parse(body);
        this.#journal.requireModel(model);
        const request = lossRequest(input, this.#options.replacesLosses);
        return this.#futures.promise(word, async () => {
          const logprobs = await this.#slots.get(model).forwardBackward(request);
          return this.#passed(logprobs, this.#options.isLikeTuft ? { 'loss:sum': lossSum(request, logprobs) } : {});
        });
      }
      case 'forward':
        return this.#forward(body);
      case 'optim_step': {
        const { model_id: model, adam_params: adam } = z
          .object({ model_id: z.string(), adam_params: Adam })
          .parse(body);
        this.#journal.requireModel(model);
        this.#requireTurn(body);
        return this.#futures.promise(word, async () => {
          const { gradNorm } = await this.#slots.get(model).optimStep(adam);
          if (this.#options.isSilent || this.#options.isLikeTuft) return { metrics: {} };
          return { metrics: { 'skyrl.ai/grad_norm': gradNorm, 'skyrl.ai/learning_rate': adam.learning_rate } };
        });
      }
      case 'save_weights':
      case 'save_weights_external':
      case 'save_weights_for_sampler': {
        const { model_id: model, path: wanted } = z.object({ model_id: z.string(), path: name }).parse(body);
        this.#journal.requireModel(model);
        const kind = checkpointKinds[word];
        const checkpoint = `${model}/${kind}/${wanted}`;
        if (this.#taken.has(checkpoint) || this.#journal.remembered.checkpoints.has(checkpoint)) {
          throw new Refusal(409, `Checkpoint '${wanted}' already exists for model '${model}'`);
        }
        this.#taken.add(checkpoint);
        this.#requireTurn(body);
        return this.#futures.promise(word, async () => {
          await (kind === 'weights'
            ? this.#slots.get(model).save(this.#slots.folderOf(checkpoint))
            : this.#slots.saveForSampler(model, checkpoint));
          this.#journal.write({ checkpoint });
          const isPlain = kind === 'sampler_weights' && this.#options.hostedKey === undefined;
          return { type: word, path: `tinker://${model}/${isPlain ? '' : `${kind}/`}${wanted}` };
        });
      }
      case 'load_weights': {
        const shape = z.object({ model_id: z.string(), path: z.string(), optimizer: z.boolean().default(true) });
        const { model_id: model, path: from, optimizer } = shape.parse(body);
        const withMoments = optimizer || this.#options.heedsOptimizer !== true;
        this.#journal.requireModel(model);
        const isFirst = !this.#asked.has(model);
        this.#requireTurn(body);
        if (this.#options.holdsOne && !isFirst) throw new Refusal(400, 'LoadWeights is not permitted with seq_id 2');
        const [source, kind, wanted] = from.replace('tinker://', '').split('/');
        const checkpoint = `${source}/${kind}/${wanted}`;
        if (kind !== 'weights' || !this.#journal.remembered.checkpoints.has(checkpoint)) {
          throw new Refusal(404, `Checkpoint not found: ${source}/${wanted}`);
        }
        return this.#futures.promise(word, async () => {
          await this.#slots.get(model).load(this.#slots.folderOf(checkpoint), withMoments);
          return { type: 'load_weights' };
        });
      }
      default:
        return undefined;
    }
  }

  /** Requests of a model come in the order of their numbers. A started server knows none of before. */
  #requireTurn(body: unknown): void {
    const { model_id: model, seq_id: number } = z.looseObject({ model_id: z.string(), seq_id: z.int() }).parse(body);
    const expected = (this.#asked.get(model) ?? 0) + 1;
    if (this.#options.isLikeTuft && this.#asked.has(model) && number !== expected)
      throw new Refusal(409, `Sequence conflict: expected ${expected}, got ${number}.`);
    this.#asked.set(model, number);
  }

  #forward(body: unknown): { request_id: string } {
    this.#requireTurn(body);
    const { model_id: model, forward_input: input } = Forward.parse(body);
    this.#journal.requireModel(model);
    return this.#futures.promise('forward', async () =>
      this.#passed(await this.#slots.get(model).logprobs(input.data)),
    );
  }

  #passed(logprobs: readonly (readonly number[])[], metrics: Record<string, number> = {}): unknown {
    return passOutput(this.#options.hidesLogprobs ? logprobs.map(() => []) : logprobs, metrics);
  }
}
