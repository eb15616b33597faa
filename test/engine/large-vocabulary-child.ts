/**
 * Takes a step on one long row of a model with a large vocabulary; writes the gradient, and reports its highest
 * resident memory.
 */
import { writeFile } from 'node:fs/promises';
import { randomStream } from '../../core/random.ts';
import { EngineOptimizer } from '../../engine/index.ts';
import { optimizer } from './models.ts';

const [folder, gradientFile, logitsMax] = process.argv.slice(2);
if (folder === undefined || gradientFile === undefined) throw new Error('expected a model folder and a file to write');
const trainer = await EngineOptimizer.open(folder, {
  threads: 1,
  ...(logitsMax ? { logitsMax: Number(logitsMax) } : {}),
});
const random = randomStream('large vocabulary');
const tokenIds = Array.from({ length: 1025 }, () => Math.floor(random() * trainer.model.config.vocabularySize));
const sample = {
  tokenIds,
  lossMask: tokenIds.map((_, t) => Number(t > 0)),
  behaviorLogprobs: tokenIds.map(() => -12 + random()),
  advantages: tokenIds.map(() => 2 * random() - 1),
};
const openedBytes = process.resourceUsage().maxRSS * 1024;
const { metrics } = await trainer.trainStep([sample], {
  learningRate: 1e-3,
  optimizer,
  loss: { type: 'grpo', clipLow: 0.8, clipHigh: 1.2, aggregation: 'token' },
  temperature: 1,
  klBeta: 0,
});
const trainedBytes = process.resourceUsage().maxRSS * 1024;
const { flat } = trainer.gradient;
await writeFile(gradientFile, new Uint8Array(flat.buffer, flat.byteOffset, flat.byteLength));
await trainer.close();
process.stdout.write(JSON.stringify({ loss: metrics.loss, openedBytes, trainedBytes }));
