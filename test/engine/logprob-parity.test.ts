/** The log probability at which a token was sampled is the one that training computes for it, whatever was sampled beside it. */
import assert from 'node:assert/strict';
import { type TestContext, test } from 'node:test';
import { fileURLToPath } from 'node:url';
import { randomStream } from '../../core/random.ts';
import { EngineOptimizer, Sampler, type SequenceRequest, type SampleResult } from '../../engine/index.ts';
import { copyModel } from './golden/gradients/read-gradients.ts';
import { temporaryFolder } from './models.ts';

const tolerance = 1e-4;
const temperatures = [0.3, 0.7, 1, 1.5];
/** Requests that change what is drawn: the log probability that counts is still that of softmax(logits / temperature). */
const modified: Partial<SequenceRequest> = { topP: 0.8, topK: 7, repetitionPenalty: 1.3, presencePenalty: 0.4 };

for (const name of ['qwen3', 'qwen2', 'llama']) {
  test(`sampled logprobs of ${name} are training's at every temperature, in groups with ragged prompts`, async (t) => {
    const trainer = await openTrainer(t, name);
    const sampler = await Sampler.open(trainer.model.config, { threads: 1 });
    let worst = 0;
    try {
      for (const temperature of temperatures) {
        const requests = randomRequests(trainer.model.config.vocabularySize, temperature);
        for (const change of [{}, modified]) {
          const changed = requests.map((request) => ({ ...request, ...change }));
          const results = await sampler.generate(trainer.model.parameters, changed);
          const difference = await largestDifference(trainer, changed, results);
          worst = Math.max(worst, difference);
          const isModified = results.some(({ logprobs, samplingLogprobs }) => samplingLogprobs !== logprobs);
          assert.equal(isModified, change === modified);
          assert.ok(difference <= tolerance, `at temperature ${temperature} they differ by ${difference}`);
        }
      }
      t.diagnostic(`largest difference ${worst.toExponential(1)}`);
    } finally {
      await sampler.release();
      await trainer.close();
    }
  });
}

async function openTrainer(t: TestContext, name: string): Promise<EngineOptimizer> {
  const golden = fileURLToPath(new URL(`./golden/gradients/${name}`, import.meta.url));
  const folder = await copyModel(golden, await temporaryFolder(t));
  return EngineOptimizer.open(folder, { threads: 1 });
}

/** Nine prompts of 1 to 17 tokens, each asked four times. */
function randomRequests(vocabularySize: number, temperature: number): SequenceRequest[] {
  const random = randomStream('logprob parity', temperature);
  return Array.from({ length: 9 }, (_, group) => {
    const length = 1 + 2 * group;
    const promptTokenIds = Array.from({ length }, () => Math.floor(random() * vocabularySize));
    return Array.from({ length: 4 }, (_, index) => ({
      promptTokenIds,
      maxTokens: 14,
      temperature,
      seed: 100 * group + index,
      stopTokenIds: [1],
    }));
  }).flat();
}

async function largestDifference(
  trainer: EngineOptimizer,
  requests: readonly SequenceRequest[],
  results: readonly SampleResult[],
): Promise<number> {
  const temperature = requests[0]!.temperature;
  const samples = results.map(({ tokenIds }, i) => {
    const { promptTokenIds } = requests[i]!;
    return {
      tokenIds: [...promptTokenIds, ...tokenIds],
      lossMask: [...promptTokenIds.map(() => 0), ...tokenIds.map(() => 1)],
    };
  });
  const scored = await trainer.forwardLogprobs(samples, { temperature });
  let largest = 0;
  results.forEach(({ logprobs }, i) => {
    const start = requests[i]!.promptTokenIds.length;
    assert.equal(scored[i]!.length, start + logprobs.length);
    logprobs.forEach((logprob, t) => {
      largest = Math.max(largest, Math.abs(logprob - scored[i]![start + t]!));
    });
  });
  return largest;
}
