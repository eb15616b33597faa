/** `[inference] kind = "module"`: asks the model of `bench agents` (agents-model-server.mjs), which may be away. Options: { url }. */
import { RatchetError } from '../core/errors.ts';
import type { Inference, Sample } from '../backends/inference/types.ts';

type Answer = Pick<Sample, 'tokenIds' | 'logprobs'>;

export default function createInference({ url }: { readonly url: string }): Inference {
  return {
    async sample({ policy, session, promptTokenIds, seed, signal }) {
      const body = JSON.stringify({ digest: policy.version.digest, session, promptTokenIds, seed });
      const answer = await ask(url, body, signal);
      return { ...answer, finishReason: 'stop' };
    },
    bringTo: () => Promise.resolve(),
    hold: () => Promise.resolve('held'),
  };
}

async function ask(url: string, body: string, signal: AbortSignal | undefined): Promise<Answer> {
  try {
    const response = await fetch(url, { method: 'POST', body, signal: signal ?? null });
    return (await response.json()) as Answer;
  } catch (cause) {
    signal?.throwIfAborted();
    throw new RatchetError('InferenceUnavailable', `The model at ${url} did not answer.`, { cause });
  }
}
