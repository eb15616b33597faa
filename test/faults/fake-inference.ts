/**
 * An inference that answers at once, by hash: the same version, prompt and seed give the same tokens, right in about half of
 * their places, so that groups differ. Every answer is noted in `log`, a line each, by process: what was sampled twice shows.
 * `[inference] kind = "module"`; options: { log, sampleMs }.
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
  readonly pid: number;
  /** ISO. */
  readonly time: string;
}

interface Args {
  /** A file; missing = nothing is noted. */
  readonly log?: string;
  readonly sampleMs?: number;
}

/** Of the preset's vocabulary: <bos>, <eos>, <sep>, <pad>, then the letters. */
const endToken = 1;
const letterMin = 4;
const letters = 26;

export default function createInference({ log, sampleMs = 0 }: Args): Inference {
  return {
    async sample(request) {
      const { policy, seed, temperature, signal } = request;
      await delay(sampleMs * uniform('pace', seed), undefined, signal ? { signal } : {});
      if (log !== undefined) {
        const line: SampledLine = {
          policy: policy.name,
          seed,
          temperature,
          pid: process.pid,
          time: new Date().toISOString(),
        };
        appendFileSync(log, `${JSON.stringify(line)}\n`);
      }
      return answer(request);
    },
    bringTo: () => Promise.resolve(),
  };
}

function answer({ policy, promptTokenIds, seed, maxTokens }: SampleRequest): Sample {
  const place = [policy.version.digest, seed] as const;
  const word = promptTokenIds.filter((token) => token >= letterMin);
  const right = [...word.toReversed(), endToken].slice(0, maxTokens);
  const tokenIds = right.map((token, i) =>
    token === endToken || uniform(...place, i) < 0.5 ? token : letterMin + (hash32(...place, i) % letters),
  );
  return {
    tokenIds,
    logprobs: tokenIds.map((_, i) => -0.1 - uniform(...place, 'logprob', i)),
    finishReason: tokenIds.at(-1) === endToken ? 'stop' : 'length',
  };
}
