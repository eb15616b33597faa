import { z } from 'zod';
import type { InTurn, TinkerClient } from './client.ts';
import { isProtobuf } from './http.ts';
import { decodePassOutput, encodePassRequest } from './proto.ts';
import { metrics, numbers } from './shapes.ts';
import { isTrouble, TinkerTrouble } from './trouble.ts';
import type { AdamParams, Datum, LossCall, PassOutput } from './types.ts';

const tensor = z.looseObject({ data: numbers });
const Pass = z.looseObject({
  loss_fn_outputs: z.array(z.record(z.string(), tensor)),
  metrics: metrics.default({}),
});
const Step = z.looseObject({ metrics: metrics.nullish() });
const Saved = z.looseObject({ path: z.string() });

/** A model in training. Its requests are executed in the order in which they are sent. */
export class TinkerModel {
  readonly id: string;
  readonly #client: TinkerClient;
  #sequence = 0;
  #lastSent: Promise<unknown> = Promise.resolve();

  constructor(client: TinkerClient, id: string) {
    this.#client = client;
    this.id = id;
  }

  /** Gradients of several calls add up until the next {@link optimStep}. */
  async forwardBackward(data: readonly Datum[], loss: LossCall): Promise<PassOutput> {
    return this.#pass(data, loss, false);
  }

  /** Logprobs only; changes nothing. */
  async forward(data: readonly Datum[]): Promise<PassOutput> {
    return this.#pass(data, { lossFn: 'cross_entropy', config: null }, true);
  }

  /** Never sent twice: servers may apply it twice. If its outcome is unknown the model is `lost`. */
  async optimStep(adam: AdamParams): Promise<Readonly<Record<string, number>>> {
    const body = { type: 'optim_step', model_id: this.id, seq_id: this.#next(), adam_params: adam };
    return (await this.#client.promised('/api/v1/optim_step', body, Step, { inTurn: this.#inTurn })).metrics ?? {};
  }

  /** Weights and optimizer, as a checkpoint for further training. Returns its path. */
  async saveWeights(name: string, ttlS: number | null): Promise<string> {
    return this.#save('/api/v1/save_weights', { type: 'save_weights', path: name }, ttlS);
  }

  /** Weights for sampling. Returns their path. */
  async saveForSampler(name: string, ttlS: number | null): Promise<string> {
    const body = { type: 'save_weights_for_sampler', path: name };
    return this.#save('/api/v1/save_weights_for_sampler', body, ttlS);
  }

  /** A copy for a download, file by file (hosted). Returns its path. */
  async saveExternal(name: string, ttlS: number): Promise<string> {
    return this.#save('/api/v1/save_weights_external', { type: 'save_weights_external', path: name }, ttlS);
  }

  /** Only as the first request of a new model. */
  async loadWeights(path: string, { optimizer }: { readonly optimizer: boolean }): Promise<void> {
    const body = { type: 'load_weights', model_id: this.id, seq_id: this.#next(), path, optimizer };
    await this.#client.promised('/api/v1/load_weights', body, z.looseObject({}), { inTurn: this.#inTurn });
  }

  /** Frees its room; failures are ignored. */
  async unload(): Promise<void> {
    const call = { body: { type: 'unload_model', model_id: this.id }, mayRepeat: true, timeoutMs: 10_000 };
    await this.#client.http.once('POST', '/api/v1/unload_model', call).catch(() => undefined);
  }

  async #pass(data: readonly Datum[], loss: LossCall, forwardOnly: boolean): Promise<PassOutput> {
    const request = { modelId: this.id, seqId: this.#next(), data, loss, forwardOnly };
    return this.#client.inItsEncoding(async (asProtobuf) => {
      const route = forwardOnly && !asProtobuf ? '/api/v1/forward' : '/api/v1/forward_backward';
      const body = asProtobuf ? encodePassRequest(request) : jsonPass(request);
      const call = { body, mayRepeat: forwardOnly };
      const reply = await this.#client.future(route, call, { asProtobuf, inTurn: this.#inTurn });
      if (isProtobuf(reply)) return decodePassOutput(reply.bytes);
      const { loss_fn_outputs: outputs, metrics: told } = this.#client.read(Pass, reply, route);
      return { logprobs: outputs.map((output) => output['logprobs']?.data ?? []), metrics: told };
    });
  }

  /** A name taken by our own earlier request means success. */
  async #save(
    route: string,
    wish: { readonly type: string; readonly path: string },
    ttlS: number | null,
  ): Promise<string> {
    const body = { ...wish, model_id: this.id, seq_id: this.#next(), ...(ttlS === null ? {} : { ttl_seconds: ttlS }) };
    try {
      return (await this.#client.promised(route, body, Saved, { mayRepeat: true, inTurn: this.#inTurn })).path;
    } catch (error) {
      if (!isTrouble(error) || error.status !== 409) throw error;
      const kind = route.endsWith('save_weights')
        ? '/weights/'
        : route.endsWith('sampler')
          ? '/sampler_weights/'
          : '/external_weights/';
      const paths = await this.#client.checkpointsOf(this.id);
      const found = paths.find((path) => path.endsWith(kind + wish.path));
      if (found !== undefined) return found;
      throw new TinkerTrouble('lost', `${error.message}, and no such checkpoint is whole.`, {
        status: 409,
        cause: error,
      });
    }
  }

  /** Requests arrive in the order of their numbers; their promises are waited for together. */
  readonly #inTurn: InTurn = (send) => {
    const sent = this.#lastSent.then(send);
    this.#lastSent = sent.catch(() => undefined);
    return sent;
  };

  #next(): number {
    return ++this.#sequence;
  }
}

/** A pass in JSON, as SkyRL takes it. */
export function jsonPass(request: Parameters<typeof encodePassRequest>[0]): unknown {
  const { modelId, seqId, data, loss, forwardOnly } = request;
  const input = {
    data: data.map(({ tokens, inputs }) => ({
      model_input: { chunks: [{ type: 'encoded_text', tokens }] },
      loss_fn_inputs: Object.fromEntries(
        Object.entries(inputs).map(([name, { dtype, data: values }]) => [
          name,
          { data: values, dtype, shape: [values.length] },
        ]),
      ),
    })),
    loss_fn: loss.lossFn,
    ...(loss.config === null ? {} : { loss_fn_config: loss.config }),
  };
  return {
    model_id: modelId,
    seq_id: seqId,
    ...(forwardOnly ? { forward_input: input } : { forward_backward_input: input }),
  };
}
