import { z } from 'zod';
import { RatchetError } from '../../../core/errors.ts';
import { OpenAiInference } from '../openai/openai.ts';
import type { PoolMember } from '../pool-member.ts';
import type { ServerPool } from '../pool.ts';
import type { ScoreRequest } from '../types.ts';
import { askFor, leaveAll } from '../all-servers.ts';
import { VllmServer } from './vllm-server.ts';

/**
 * vLLM servers: turns over their OpenAI routes, versions by {@link VllmServer}. Logprobs are those of the temperature
 * (`--logprobs-mode processed_logprobs`); the canary's are of the prompt, which vLLM always gives before it.
 */
export class VllmInference extends OpenAiInference {
  readonly #servers: ServerPool;

  constructor(pool: ServerPool) {
    super(pool, {
      watchTurn: ({ server }, policy) => {
        if (!(server instanceof VllmServer)) return () => Promise.resolve({});
        const begun = server.stepFor(policy);
        return async () => {
          await server.lookAfterTurn(policy);
          const ended = server.stepFor(policy);
          return {
            ...(begun === policy.version.step ? {} : { servedStep: begun }),
            ...(ended > begun ? { servedThrough: ended } : {}),
          };
        };
      },
    });
    this.#servers = pool;
  }

  async floatType(): Promise<string | null> {
    const here = this.#servers.members.filter(({ away }) => away === null);
    const types = await Promise.all(
      here.map(({ server }) => (server instanceof VllmServer ? server.floatType() : Promise.resolve(null))),
    );
    const lesser = types.find((type) => type !== null && type !== 'float32');
    if (lesser !== undefined) return lesser;
    return types.length > 0 && types.every((type) => type === 'float32') ? 'float32' : null;
  }

  leave(run: string): Promise<void> {
    return leaveAll(this.#servers, run);
  }

  protected override scoreAt(to: PoolMember | null, request: ScoreRequest): Promise<number[]> {
    const call = to ? { to, isOnlyThere: true } : {};
    return askFor(this.#servers, request.policy, call, (member, model) => score(member, model, request));
  }
}

const PromptLogprobs = z.object({
  choices: z
    .array(z.object({ prompt_logprobs: z.array(z.record(z.string(), z.object({ logprob: z.number() })).nullable()) }))
    .length(1),
});

/** Scores all positions in one request: the logprobs of a prompt, plus one generated token that is ignored. */
async function score(
  { server }: PoolMember,
  model: string,
  { tokenIds, positions, policy }: ScoreRequest,
): Promise<number[]> {
  const last = Math.max(...positions);
  const prompt = tokenIds.slice(0, last + 1);
  const body = { model, prompt, max_tokens: 1, temperature: 1, prompt_logprobs: 0, cache_salt: policy.name };
  const read = PromptLogprobs.safeParse(await server.post('/v1/completions', body));
  const of = read.success ? read.data.choices[0]!.prompt_logprobs : [];
  return positions.map((position) => {
    const logprob = of[position]?.[String(tokenIds[position])]?.logprob;
    if (logprob !== undefined) return logprob;
    throw new RatchetError(
      'InferenceRejected',
      `${server.root}/v1/completions gave no prompt_logprobs for token ${position} of a prompt of ${prompt.length}: expected one for each, as vLLM gives them.`,
    );
  });
}
