import { RatchetError } from '../../../core/errors.ts';
import type { ModelServer } from '../model-server.ts';
import { samplesIn, withTokenIds } from './openai-bodies.ts';

/** Any tokens will do: only the shape of the answer matters. */
const promptTokenIds = [1, 2, 3];
/** Largest difference of one token's log probabilities under equal distributions. */
const sameLogprob = 1e-4;

/**
 * Whether a server's log probabilities are those before the temperature, as vLLM's are without `--logprobs-mode
 * processed_logprobs`; samples two tokens. Throws `InferenceRejected` if it gives no token ids.
 */
export async function hasRawLogprobs(server: ModelServer, model: string): Promise<boolean> {
  const likeliest = async (temperature: number): Promise<{ token: number; logprob: number }> => {
    const body = { model, prompt: promptTokenIds, max_tokens: 1, temperature, top_k: 1, seed: 0, ...withTokenIds };
    const [sample] = samplesIn(await server.post('/v1/completions', body), { count: 1, root: server.root });
    return { token: sample!.tokenIds[0]!, logprob: sample!.logprobs![0]! };
  };
  const [cold, plain] = [await likeliest(0.5), await likeliest(1)];
  // The temperature changes the probability of the likeliest token. If top_k is applied as well, it is certain at both.
  const isTold = cold.token === plain.token && plain.logprob < -sameLogprob;
  return isTold && Math.abs(cold.logprob - plain.logprob) < sameLogprob;
}

/** Servers that were found to be fit for training at every temperature. */
const sound = new WeakSet<ModelServer>();

/** Refuses a server whose log probabilities do not belong to its sampling distribution at this temperature. */
export async function requireLogprobsAt(temperature: number, server: ModelServer, model: string): Promise<void> {
  if (temperature === 1 || sound.has(server)) return;
  if (!(await hasRawLogprobs(server, model))) return void sound.add(server);
  throw new RatchetError(
    'Unsupported',
    `${server.root} gives log probabilities before the temperature, and this run samples at ${temperature}: expected those of the sampling temperature. Start that vLLM with --logprobs-mode processed_logprobs, or train at temperature = 1 in [sampling].`,
  );
}
