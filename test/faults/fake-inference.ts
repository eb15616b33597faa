/**
 * An inference that answers at once, by hash: the same version, prompt and seed give the same tokens, right in about half of
 * their places, so that groups differ. Every answer is noted in `log`, a line each, by process: what was sampled twice shows.
 * `[inference] kind = "module"`; options: { log, sampleMs, holdsOne }.
 */
import { appendFileSync } from 'node:fs';
import { setTimeout as delay } from 'node:timers/promises';
import type { Inference, Sample, SampleRequest } from '../../backends/inference/types.ts';
import { hash32, uniform } from '../../core/random.ts';

/** One answer. The seed is that of its place in the run: group, rollout, turn. */
export interface SampledLine {
  readonly policy: string;
  readonly seed: number;
  readonly temperature?: number;
  /** Digest of the prompt's tokens; a search asks for one place under several prompts. */
  readonly prompt?: number;
  readonly pid: number;
  /** ISO. */
  readonly time: string;
}

interface Args {
  /** A file; missing = nothing is noted. */
  readonly log?: string;
  readonly sampleMs?: number;
  /** Like servers that sample from one version at a time. */
  readonly holdsOne?: boolean;
}

/** Tokens of the preset's vocabulary: <bos>, <eos>, <sep>, <pad>, then the letters. */
const endToken = 1;
const letterMin = 4;
const letters = 26;
/** Token of other characters. Each of them in a system prompt makes an answer better. */
const markToken = 0;

export default function createInference({ log, sampleMs = 0, holdsOne = false }: Args): Inference {
  return {
    async sample(request) {
      const { policy, seed, temperature, promptTokenIds, signal } = request;
      await delay(sampleMs * uniform('pace', seed), undefined, signal ? { signal } : {});
      if (log !== undefined) {
        const line: SampledLine = {
          policy: policy.name,
          seed,
          temperature,
          prompt: hash32(...promptTokenIds),
          pid: process.pid,
          time: new Date().toISOString(),
        };
        appendFileSync(log, `${JSON.stringify(line)}\n`);
      }
      return answer(request);
    },
    bringTo: () => Promise.resolve(),
    hold: () => Promise.resolve(holdsOne ? 'single' : 'held'),
  };
}

function answer({ policy, promptTokenIds, seed, maxTokens }: SampleRequest): Sample {
  const place = [policy.version.digest, seed] as const;
  const word = promptTokenIds.filter((token) => token >= letterMin);
  const share = 0.5 + 0.1 * promptTokenIds.filter((token) => token === markToken).length;
  const right = [...word.toReversed(), endToken].slice(0, maxTokens);
  const tokenIds = right.map((token, i) =>
    token === endToken || uniform(...place, i) < share ? token : letterMin + (hash32(...place, i) % letters),
  );
  return {
    tokenIds,
    logprobs: tokenIds.map((_, i) => -0.1 - uniform(...place, 'logprob', i)),
    finishReason: tokenIds.at(-1) === endToken ? 'stop' : 'length',
  };
}
