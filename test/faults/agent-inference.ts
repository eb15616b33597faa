/** Answers with letters of preset:chars-0.4m, by hash, and notes each answer like fake-inference.ts. `[inference] kind = "module"`; options: { log }. */
import { appendFileSync } from 'node:fs';
import type { Inference } from '../../backends/inference/types.ts';
import { hash32, uniform } from '../../core/random.ts';
import { failpoint } from '../../store/failpoints.ts';
import type { SampledLine } from './fake-inference.ts';

const [endToken, firstLetter, letters] = [1, 72, 26];
const answerLetters = 3;

export default function createInference({ log }: { readonly log: string }): Inference {
  return {
    async sample({ policy, seed, temperature, promptTokenIds }) {
      await failpoint('call.asked');
      const line: SampledLine = {
        policy: policy.name,
        seed,
        temperature,
        prompt: hash32(...promptTokenIds),
        pid: process.pid,
        time: new Date().toISOString(),
      };
      appendFileSync(log, `${JSON.stringify(line)}\n`);
      const place = [policy.version.digest, seed] as const;
      const said = Array.from({ length: answerLetters }, (_, i) => firstLetter + (hash32(...place, i) % letters));
      const tokenIds = [...said, endToken];
      const logprobs = tokenIds.map((_, i) => -0.1 - uniform(...place, 'logprob', i));
      return { tokenIds, logprobs, finishReason: 'stop' };
    },
    bringTo: () => Promise.resolve(),
    hold: () => Promise.resolve('held'),
  };
}
