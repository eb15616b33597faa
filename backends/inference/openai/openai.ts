import type { PoolMember } from '../pool-member.ts';
import type { ServerPool } from '../pool.ts';
import type {
  ChatRequest,
  ChatSample,
  CompareRequest,
  HoldOutcome,
  Inference,
  PromptScoreRequest,
  Sample,
  SampleRequest,
  ScoreRequest,
  ServerDrift,
} from '../types.ts';
import type { ServedPolicy } from '../../../core/rl/run-state.ts';
import { askFor, bringAll, compareAll, holdAll, releaseAll, scoreAll } from '../all-servers.ts';
import {
  changesDistribution,
  chatBody,
  promptLogprobsIn,
  samplesIn,
  samplingBody,
  withTokenIds,
} from './openai-bodies.ts';
import { turnIn } from './chat-answer.ts';
import { requireLogprobsAt } from './raw-logprobs.ts';

interface OpenAiOptions {
  /**
   * Called before a turn is requested from a server. The returned function is called after the answer, and reports the
   * weights that were used.
   */
  readonly watchTurn?: (member: PoolMember, policy: ServedPolicy) => () => Promise<ServedSteps>;
}

type ServedSteps = Pick<Sample, 'servedStep' | 'servedThrough'>;

/**
 * OpenAI-compatible servers, one request for each turn. Turns of training are token ids in, token ids out
 * (`/v1/completions` of vLLM and of our own server); messages go to `/v1/chat/completions`, which any server has.
 *
 * A vLLM with `--logprobs-mode processed_logprobs` reports the sampler's logprobs, after temperature, truncation and
 * penalties. If either of the last two is used, the policy's are not reported. Without that flag its logprobs are those
 * before the temperature, which is refused for training unless the temperature is 1.
 */
export class OpenAiInference implements Inference {
  readonly #pool: ServerPool;
  readonly #watchTurn: NonNullable<OpenAiOptions['watchTurn']>;

  constructor(pool: ServerPool, { watchTurn = () => () => Promise.resolve({}) }: OpenAiOptions = {}) {
    this.#pool = pool;
    this.#watchTurn = watchTurn;
  }

  sample(request: SampleRequest): Promise<Sample> {
    return askFor(this.#pool, request.policy, request, async (member, model) => {
      if (request.isTrained) await requireLogprobsAt(request.temperature, member.server, model);
      const servedSteps = this.#watchTurn(member, request.policy);
      const sample = await complete(member, model, request);
      return { ...sample, ...(await servedSteps()) };
    });
  }

  chat(request: ChatRequest): Promise<ChatSample> {
    const { signal, session } = request;
    return askFor(this.#pool, request.policy, request, async ({ server }, model) => {
      const answer = await server.post('/v1/chat/completions', chatBody(request, model), { signal, session });
      return turnIn(answer, request, server.root);
    });
  }

  score(request: ScoreRequest): Promise<readonly number[]> {
    return scoreAll(this.#pool, request, (to) => this.scoreAt(to, request));
  }

  compare(request: CompareRequest): Promise<readonly ServerDrift[]> {
    return compareAll(this.#pool, request, (to) => this.scoreAt(to, request));
  }

  protected async scoreAt(to: PoolMember | null, { policy, tokenIds, positions }: ScoreRequest): Promise<number[]> {
    const call = to ? { to, isOnlyThere: true } : {};
    return Promise.all(
      positions.map((position) =>
        askFor(this.#pool, policy, call, async (member, model) => {
          const prompt = { policy, promptTokenIds: tokenIds.slice(0, position), maxTokens: 1, temperature: 1, seed: 0 };
          // One forced token: its logprob is still that of the whole vocabulary.
          const sample = await complete(member, model, prompt, { allowed_token_ids: [tokenIds[position]!] });
          return sample.logprobs![0]!;
        }),
      ),
    );
  }

  promptLogprobs({ policy, prompts, signal }: PromptScoreRequest): Promise<number[][]> {
    const call = { size: prompts.length, signal };
    return askFor(this.#pool, policy, call, async ({ server }, model) => {
      const body = { model, prompt: prompts, max_tokens: 1, temperature: 1, prompt_logprobs: 0 };
      return promptLogprobsIn(await server.post('/v1/completions', body, { signal }), prompts, server.root);
    });
  }

  bringTo(policy: ServedPolicy): Promise<void> {
    return bringAll(this.#pool, policy);
  }

  hold(policy: ServedPolicy, holder: string, seconds: number): Promise<HoldOutcome> {
    return holdAll(this.#pool, policy, holder, seconds);
  }

  release(policy: ServedPolicy, holder: string): Promise<void> {
    return releaseAll(this.#pool, policy, holder);
  }

  silence(): string | null {
    return this.#pool.silence();
  }

  close(): void {
    this.#pool.close();
  }
}

async function complete(
  { server }: PoolMember,
  model: string,
  request: SampleRequest,
  more: Readonly<Record<string, unknown>> = {},
): Promise<Sample> {
  const { promptTokenIds, seed, policy, signal, session } = request;
  const body = {
    model,
    prompt: promptTokenIds,
    ...samplingBody(request),
    seed,
    ...withTokenIds,
    // Keys and values of one version must never serve another; the name contains run, lineage and step.
    cache_salt: policy.name,
    ...more,
  };
  const answer = await server.post('/v1/completions', body, { signal, session });
  const [sample] = samplesIn(answer, { count: 1, root: server.root, tellsSamplers: changesDistribution(request) });
  return sample!;
}
