/**
 * Our side of `smollm2-train`, in a process of its own like the peer, so that its memory is measured separately:
 * train-process.ts MODEL BATCH ADAPTER THREADS. It makes an adapter, writes it to the folder ADAPTER, and answers each
 * line of JSON on stdin with a step, as bench/peers/torch_train.py does.
 */
import { readFile } from 'node:fs/promises';
import { createInterface } from 'node:readline';
import type { TrainSample } from '../core/rl/learning/batch.ts';
import { EngineOptimizer } from '../engine/index.ts';
import { everyLayer, takeStep } from './train-steps.ts';

const [model = '', batch = '', adapter = '', threads = '1'] = process.argv.slice(2);
const samples = JSON.parse(await readFile(batch, 'utf8')) as TrainSample[]; // this program's parent wrote it
const trainer = await EngineOptimizer.open(model, { threads: Number(threads), lora: everyLayer });
await trainer.exportWeights(adapter);
process.stdout.write('{"ready": true}\n');
for await (const _ of createInterface({ input: process.stdin })) {
  const step = await takeStep(trainer, samples);
  process.stdout.write(`${JSON.stringify({ ...step, peak_mb: process.resourceUsage().maxRSS / 1024 })}\n`);
}
await trainer.close();
