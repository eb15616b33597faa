import { isDeepStrictEqual } from 'node:util';
import { z } from 'zod';
import { RatchetError } from '../../core/errors.ts';
import { saysOutOfMemory, saysOverlong } from '../../core/rl/failures.ts';
import { askPatiently } from './patience.ts';
import type { Inference, Sample, SampleRequest, ScoreRequest, ServedPolicy } from './types.ts';

/**
 * Ratchet's own policy server, over its OpenAI-compatible routes. Calls made in the same turn of the event loop travel
 * as one `/v1/completions` request with many prompts (token ids in, token ids out), so an environment may be written
 * one rollout at a time and 512 of them cost one round trip.
 */
export class EmbeddedInference implements Inference {
  readonly #url: string;
  readonly #provider: 'cpu' | 'cuda';
  #waiting: Waiting[] = [];

  constructor(url: string, provider: 'cpu' | 'cuda' = 'cpu') {
    this.#url = url.replace(/\/+$/, '');
    this.#provider = provider;
  }

  sample(request: SampleRequest): Promise<Sample> {
    return new Promise((resolve, reject) => {
      if (this.#waiting.length === 0) setImmediate(() => this.#flush());
      this.#waiting.push({ request, resolve, reject });
    });
  }

  /** One forced token after each beginning: its logprob is that of the whole vocabulary all the same. */
  async score({ policy, tokenIds, positions }: ScoreRequest): Promise<readonly number[]> {
    const ask = async (position: number): Promise<number> => {
      const request = { policy, promptTokenIds: tokenIds.slice(0, position), maxTokens: 1, temperature: 1, seed: 0 };
      const forced = { allowed_token_ids: [tokenIds[position]!] };
      const [sample] = await askPatiently(undefined, () => this.#completions([request], forced));
      return sample!.logprobs[0]!;
    };
    return Promise.all(positions.map(ask));
  }

  async bringTo(policy: ServedPolicy): Promise<void> {
    await askPatiently(undefined, () => this.#load(policy));
  }

  #flush(): void {
    const batches: [Waiting, ...Waiting[]][] = [];
    for (const waiting of this.#waiting) {
      const batch = batches.find(([first]) => travelTogether(first.request, waiting.request));
      if (batch) batch.push(waiting);
      else batches.push([waiting]);
    }
    this.#waiting = [];
    for (const batch of batches) void this.#complete(batch); // settles every waiting promise, never rejects
  }

  async #complete(batch: readonly [Waiting, ...Waiting[]]): Promise<void> {
    try {
      const first = batch[0].request;
      const samples = await askPatiently(first.signal, () => this.#completions(batch.map(({ request }) => request)));
      batch.forEach(({ resolve }, i) => resolve(samples[i]!));
    } catch (error) {
      const half = batch.length >> 1;
      const [first, second] = [batch.slice(0, half), batch.slice(half)];
      if (!isOneForAll(error) || !isFilled(first) || !isFilled(second)) {
        for (const { reject } of batch) reject(error);
        return;
      }
      // One prompt is answered for all that travel with it; what is too much at once may fit one half after the other.
      await this.#complete(first);
      await this.#complete(second);
    }
  }

  async #completions(
    requests: readonly SampleRequest[],
    more: Readonly<Record<string, unknown>> = {},
  ): Promise<Sample[]> {
    const { policy, signal } = requests[0]!;
    const response = await this.#post(
      '/v1/completions',
      {
        model: policy.name,
        prompt: requests.map(({ promptTokenIds }) => promptTokenIds),
        seeds: requests.map(({ seed }) => seed),
        ...samplingBody(requests[0]!),
        ...more,
        logprobs: 0,
        return_token_ids: true,
      },
      signal,
    );
    if (response.status === 409 || response.status === 404) {
      await this.#load(policy);
      throw new RatchetError('VersionNotHeld', `${this.#url} did not hold ${policy.name}; it does now.`);
    }
    const answer = Completions.safeParse(await this.#accepted(response, '/v1/completions'));
    if (!answer.success || answer.data.choices.length !== requests.length) {
      const received = answer.success
        ? `${answer.data.choices.length} choices`
        : z.prettifyError(answer.error).slice(0, 500);
      throw new RatchetError(
        'InferenceRejected',
        `${this.#url}/v1/completions: expected ${requests.length} choices with token ids and logprobs, got ${received}. Is it Ratchet's policy server?`,
      );
    }
    const inOrder = answer.data.choices.toSorted((a, b) => a.index - b.index);
    return inOrder.map((choice) => ({
      tokenIds: choice.token_ids,
      logprobs: choice.logprobs.token_logprobs,
      ...(choice.sampling_logprobs ? { samplingLogprobs: choice.sampling_logprobs } : {}),
      finishReason: choice.finish_reason,
    }));
  }

  async #load({ name, version, folder }: ServedPolicy): Promise<void> {
    const response = await this.#post('/update_weights', {
      name,
      weight_dir: folder,
      digest: version.digest,
      ...(this.#provider === 'cpu' ? {} : { provider: this.#provider }),
    });
    await this.#accepted(response, '/update_weights');
  }

  async #post(route: string, body: unknown, signal?: AbortSignal): Promise<Response> {
    try {
      return await fetch(this.#url + route, {
        method: 'POST',
        headers: { 'content-type': 'application/json' },
        body: JSON.stringify(body),
        signal: signal ?? null,
      });
    } catch (cause) {
      signal?.throwIfAborted();
      throw new RatchetError(
        'InferenceUnavailable',
        `The policy server at ${this.#url} does not answer ${route}. Is it running? \`ratchet dev\` starts one; [inference] url names another.`,
        { cause },
      );
    }
  }

  /** The body of an answer that went well; the server's own words otherwise. */
  async #accepted(response: Response, route: string): Promise<unknown> {
    const text = await response.text().catch((cause: unknown) => {
      throw new RatchetError(
        'InferenceUnavailable',
        `The policy server at ${this.#url} broke off its answer to ${route}.`,
        { cause },
      );
    });
    if (response.ok) return parseJson(text);
    const message = `${this.#url}${route} answered ${response.status}: ${errorMessage(text)}`;
    if (response.status >= 500 && saysOutOfMemory(text)) throw new RatchetError('OutOfMemory', message);
    if (response.status === 507) throw new RatchetError('OutOfMemory', message);
    if (response.status < 500 && saysOverlong(text)) throw new RatchetError('PromptTooLong', message);
    const isRefusal = response.status === 501; // not implemented there: asking again does not help
    if ((response.status >= 500 && !isRefusal) || response.status === 429)
      throw new RatchetError('InferenceUnavailable', message);
    throw new RatchetError('InferenceRejected', message);
  }
}

interface Waiting {
  readonly request: SampleRequest;
  readonly resolve: (sample: Sample) => void;
  readonly reject: (error: unknown) => void;
}

/** A refusal that may mean one of the prompts, or their number, and not the others. */
function isOneForAll(error: unknown): boolean {
  return error instanceof RatchetError && (error.code === 'PromptTooLong' || error.code === 'OutOfMemory');
}

function isFilled(batch: readonly Waiting[]): batch is readonly [Waiting, ...Waiting[]] {
  return batch.length > 0;
}

/** One signal stops the whole request, so only those who share it share the request. */
function travelTogether(a: SampleRequest, b: SampleRequest): boolean {
  return (
    a.policy.name === b.policy.name && a.signal === b.signal && isDeepStrictEqual(samplingBody(a), samplingBody(b))
  );
}

/** vLLM's fields; what is neutral is left to the server's defaults, which are the same. */
function samplingBody(request: SampleRequest): Record<string, unknown> {
  const { topP = 1, topK = null, minP = 0, minTokens = 0, stop = [] } = request;
  const { repetitionPenalty = 1, presencePenalty = 0, frequencyPenalty = 0 } = request;
  return {
    max_tokens: request.maxTokens,
    temperature: request.temperature,
    ...(topP === 1 ? {} : { top_p: topP }),
    ...(topK === null ? {} : { top_k: topK }),
    ...(minP === 0 ? {} : { min_p: minP }),
    ...(repetitionPenalty === 1 ? {} : { repetition_penalty: repetitionPenalty }),
    ...(presencePenalty === 0 ? {} : { presence_penalty: presencePenalty }),
    ...(frequencyPenalty === 0 ? {} : { frequency_penalty: frequencyPenalty }),
    ...(minTokens === 0 ? {} : { min_tokens: minTokens }),
    ...(stop.length === 0 ? {} : { stop }),
  };
}

const Completions = z.object({
  choices: z.array(
    z.object({
      index: z.int(),
      finish_reason: z.enum(['stop', 'length']),
      token_ids: z.array(z.int()),
      logprobs: z.object({ token_logprobs: z.array(z.number()) }),
      /** Ours, where the distribution drawn from is not that of the logprobs. */
      sampling_logprobs: z.array(z.number()).nullish(),
    }),
  ),
});

function errorMessage(text: string): string {
  const parsed = z.object({ error: z.object({ message: z.string() }) }).safeParse(parseJson(text));
  return parsed.success ? parsed.data.error.message : text.slice(0, 500);
}

/** What is not JSON is text as it stands. */
function parseJson(text: string): unknown {
  try {
    return JSON.parse(text) as unknown;
  } catch {
    return text;
  }
}
