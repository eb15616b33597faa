import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import { availableParallelism, tmpdir } from 'node:os';
import path from 'node:path';
import { setTimeout as delay } from 'node:timers/promises';
import { fileURLToPath } from 'node:url';
import type { TrainSample } from '../core/rl/learning/batch.ts';
import { EngineOptimizer, type LoraConfig } from '../engine/index.ts';
import { isDisturbed, meterCpu, waitForQuiet } from './cpu-meter.ts';
import { type ModelShape, modelShapes, writeRandomModel } from './engine-shapes.ts';
import { measurement, type Bench, type Figures } from './measurement.ts';
import { findTorchPython, PeerProcess } from './peer-process.ts';
import { median, round } from './statistics.ts';
import { everyLayer, randomBatch, requireSameWork, Step, takeStep, trainOptions } from './train-steps.ts';

const peerProgram = fileURLToPath(new URL('peers/torch_train.py', import.meta.url));

/**
 * One optimizer step beside eager PyTorch's: the same weights, the same batch, the same CISPO loss with entropy, clipping and
 * AdamW, in turn. Before anything is timed both sides take three steps, and loss, entropy and gradient norm must agree.
 *
 * - `ratio_small`: our time ÷ PyTorch's, 0.8 M parameters, 128 rows of 32 tokens. `ratio_m10`: 8.7 M, 16 rows of 64.
 *   `ratio_lora`: adapters (r = 16 on every linear layer) on the latter, beside PEFT on transformers' model.
 *   Medians over pairs of one step each, with as many threads as the machine has cores; below 1 = ours is faster.
 * - `…_1_thread`: the same with one thread. `…_min`: our fastest step ÷ their fastest. `…_cpu`: the same as the ratio in CPU
 *   time, which company on the machine disturbs less (idle threads that spin count in it, so read it at one thread).
 *
 * The peer of full training is written by hand, without Hugging Face's code around it; AdamW is fused in both. `pairs_disturbed` counts the pairs
 * in which others took more than a twentieth of the machine; they are in the medians all the same.
 */
export const engineTrain = measurement('engine-train', 'an optimizer step beside PyTorch’s, in turn', measure)
  .option('--shape <name>', 'only this one: small, m10 or lora', readCase)
  .option('--pairs <n>', 'steps of each side', Number, 20)
  .option('--threads <n>', 'only with so many threads', Number)
  .option('--patience <seconds>', 'how long to wait for a quiet machine before each shape', Number, 60)
  .addHelpText('after', '\nRATCHET_TORCH_PYTHON names a Python with PyTorch; see bench/peers/README.md');

interface Options {
  readonly shape?: CaseName;
  readonly pairs: number;
  readonly threads?: number;
  readonly patience: number;
}

interface Case {
  readonly model: ModelShape;
  readonly rows: number;
  /** Tokens fed per row. */
  readonly length: number;
  readonly lora: LoraConfig | null;
}

const cases = {
  small: { model: modelShapes.small, rows: 128, length: 32, lora: null },
  m10: { model: modelShapes.m10, rows: 16, length: 64, lora: null },
  lora: {
    model: modelShapes.m10,
    rows: 16,
    length: 64,
    lora: everyLayer,
  },
} as const satisfies Record<string, Case>;
type CaseName = keyof typeof cases;

function readCase(name: string): CaseName {
  if (name in cases) return name as CaseName;
  throw new Error(`--shape: expected one of ${Object.keys(cases).join(', ')}, got ${name}`);
}

async function measure(bench: Bench, { shape, pairs, threads, patience }: Options): Promise<Figures> {
  const python = await findTorchPython(bench, [
    'torch',
    'safetensors',
    ...(shape === 'lora' || !shape ? ['transformers', 'peft'] : []),
  ]);
  const cores = availableParallelism();
  const figures: Record<string, number> = {};
  const details: Record<string, unknown> = {};
  let pairs_disturbed = 0;
  for (const threadCount of threads === undefined ? [...new Set([cores, 1])] : [threads]) {
    for (const name of shape === undefined ? (Object.keys(cases) as CaseName[]) : [shape]) {
      const suffix = threadCount === cores ? '' : `_${threadCount}_thread${threadCount === 1 ? '' : 's'}`;
      const key = `${name}${suffix}`;
      await waitForQuiet(bench, patience);
      const result = await measureCase(bench, { name, pairs, threads: threadCount, python });
      bench.say(`${key}: ${JSON.stringify(result.figures)}`);
      figures[`ratio_${key}`] = result.figures.ratio;
      figures[`ratio_${key}_min`] = result.figures.ratio_min;
      figures[`ratio_${key}_cpu`] = result.figures.ratio_cpu;
      details[key] = result;
      pairs_disturbed += result.figures.pairs_disturbed;
    }
  }
  return { ...figures, pairs_disturbed, details };
}

interface CaseOptions {
  readonly name: CaseName;
  readonly pairs: number;
  readonly threads: number;
  readonly python: string;
}

interface Pair {
  readonly ours: Step;
  readonly theirs: Step;
  readonly disturbed: boolean;
}

const stepsInPassing = 3;

async function measureCase(bench: Bench, { name, pairs, threads, python }: CaseOptions) {
  const { model, rows, length, lora }: Case = cases[name];
  bench.doing(`${name}, ${threads} threads: opening both sides`);
  const folder = await mkdtemp(path.join(tmpdir(), 'ratchet-bench-'));
  const [base, adapter, batchFile] = ['base', 'adapter', 'batch.json'].map((part) => path.join(folder, part));
  const batch = randomBatch({ rows, length, vocabulary: model.vocab_size });
  await writeRandomModel(base!, model);
  await writeFile(batchFile!, JSON.stringify(batch));
  const trainer = await EngineOptimizer.open(base!, { threads, lora });
  if (lora) await trainer.exportWeights(adapter!);
  const args = [peerProgram, '--model', base!, '--batch', batchFile!, '--threads', String(threads)];
  if (lora) args.push('--lora', adapter!);
  const peer = new PeerProcess(bench, python, args, { ...process.env, OMP_NUM_THREADS: String(threads) });
  const takePair = (): Promise<{ ours: Step; theirs: Step }> => inTurn(trainer, peer, batch);
  try {
    for (let i = 0; i < stepsInPassing; i++) requireSameWork(await takePair());
    const measured: Pair[] = [];
    bench.doing(`${name}, ${threads} threads: ${pairs} pairs`);
    while (measured.length < pairs) {
      bench.signal.throwIfAborted();
      const { result, cpu } = await meterCpu(takePair);
      measured.push({ ...result, disturbed: isDisturbed(cpu) });
    }
    return summarize(measured);
  } finally {
    await peer.close();
    await trainer.close();
    await rm(folder, { recursive: true, force: true });
  }
}

/** So long a side is left to let its idle threads go to sleep before the other's turn. */
const pauseMs = 20;

async function inTurn(
  trainer: EngineOptimizer,
  peer: PeerProcess,
  samples: readonly TrainSample[],
): Promise<{ ours: Step; theirs: Step }> {
  await delay(pauseMs);
  const theirs = Step.parse(await peer.ask({ do: 'step', learning_rate: trainOptions.learningRate }));
  await delay(pauseMs);
  return { ours: await takeStep(trainer, samples), theirs };
}

function summarize(pairs: readonly Pair[]) {
  const ours = pairs.map(({ ours }) => ours.wall_s);
  const theirs = pairs.map(({ theirs }) => theirs.wall_s);
  const milliseconds = (seconds: number): number => round(seconds * 1000, 1);
  return {
    figures: {
      ratio: round(median(pairs.map(({ ours, theirs }) => ours.wall_s / theirs.wall_s))),
      ratio_min: round(Math.min(...ours) / Math.min(...theirs)),
      ratio_cpu: round(median(pairs.map(({ ours, theirs }) => ours.cpu_s / theirs.cpu_s))),
      pairs_disturbed: pairs.filter(({ disturbed }) => disturbed).length,
    },
    ours_ms: { min: milliseconds(Math.min(...ours)), median: milliseconds(median(ours)) },
    torch_ms: { min: milliseconds(Math.min(...theirs)), median: milliseconds(median(theirs)) },
  };
}
