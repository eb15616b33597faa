import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { setTimeout as delay } from 'node:timers/promises';
import { fileURLToPath } from 'node:url';
import { z } from 'zod';
import { getPackagedModel } from '../backends/hub/packaged-models.ts';
import type { TrainSample } from '../core/rl/learning/batch.ts';
import { isDisturbed, meterCpu, waitForQuiet } from './cpu-meter.ts';
import { measurement, type Bench, type Figures } from './measurement.ts';
import { findTorchPython, PeerProcess } from './peer-process.ts';
import { median, round } from './statistics.ts';
import { randomBatch, requireSameWork, Step, trainOptions } from './train-steps.ts';

const peerProgram = fileURLToPath(new URL('peers/torch_train.py', import.meta.url));
const ourProgram = fileURLToPath(new URL('train-process.ts', import.meta.url));
const model = 'smollm2-135m-instruct';

/**
 * An optimizer step of an adapter (r = 16 on every linear layer) of SmolLM2-135M beside PyTorch's with PEFT on transformers' model: the same weights,
 * the same batch, the same CISPO loss with entropy, clipping and AdamW, in turn, each side in a process of its own. Before anything is timed, loss,
 * entropy and gradient norm of two steps must agree.
 *
 * - `time_ratio`: our time ÷ theirs for 32 rows of 128 tokens that have nothing in common; medians over pairs of one step each. `time_ratio_cpu`: in
 *   CPU time, which company on the machine disturbs less: with one thread it says the same.
 * - `group_time_ratio`, `group_time_ratio_cpu`: for rows as RL has them, in groups of 8 with the same first 96 tokens, which carry no loss.
 * - `memory_ratio`: the most memory of our process ÷ theirs, for rows that have nothing in common.
 * - `s2048_gb`: the most memory of our process when it trains two rows of 2,048 tokens.
 *
 * `pairs_disturbed` counts the pairs in which others took more than a twentieth of the machine; they are in the medians all the same.
 */
export const smollm2Train = measurement('smollm2-train', 'a LoRA step of a real model beside PEFT’s', measure)
  .option('--pairs <n>', 'steps of each side, after two in passing', Number, 3)
  .option('--threads <n>', 'of each side', Number, 1)
  .option('--rows <n>', 'rows of a batch; for a quick look only', Number, 32)
  .option('--patience <seconds>', 'how long to wait for a quiet machine', Number, 60)
  .addHelpText('after', '\nRATCHET_TORCH_PYTHON names a Python with PyTorch and PEFT; see bench/peers/README.md');

interface Options {
  readonly pairs: number;
  readonly threads: number;
  readonly rows: number;
  readonly patience: number;
}

const length = 128;
const vocabulary = 49_152; // of this model

async function measure(bench: Bench, { pairs, threads, rows, patience }: Options): Promise<Figures> {
  const python = await findTorchPython(bench, ['torch', 'transformers', 'peft']);
  const { folder } = await getPackagedModel(model, { say: bench.say });
  const sides = { folder, python, threads };
  await waitForQuiet(bench, patience);
  const apart = await compare(bench, randomBatch({ rows, length, vocabulary }), { ...sides, pairs });
  bench.say(`rows with nothing in common: ${JSON.stringify(apart)}`);
  const groups = randomBatch({ rows, length, vocabulary, group: 8, prompt: 96 });
  const grouped = await compare(bench, groups, { ...sides, pairs });
  bench.say(`groups: ${JSON.stringify(grouped)}`);
  bench.doing('two rows of 2,048 tokens');
  const long = await withOurs(bench, randomBatch({ rows: 2, length: 2048, vocabulary }), sides, ({ step }) => step());
  return {
    time_ratio: apart.ratio,
    time_ratio_cpu: apart.ratio_cpu,
    group_time_ratio: grouped.ratio,
    group_time_ratio_cpu: grouped.ratio_cpu,
    memory_ratio: apart.memory_ratio,
    s2048_gb: round(long.peak_mb / 1024, 2),
    threads,
    pairs_disturbed: apart.pairs_disturbed + grouped.pairs_disturbed,
    details: { apart, grouped, long },
  };
}

const OurStep = Step.extend({ peak_mb: z.number() });
type OurStep = z.infer<typeof OurStep>;

interface Sides {
  readonly folder: string;
  readonly python: string;
  readonly threads: number;
}

interface Ours {
  readonly step: () => Promise<OurStep>;
  /** Folder with the adapter as it began. */
  readonly adapter: string;
  readonly batch: string;
}

async function withOurs<Result>(
  bench: Bench,
  samples: readonly TrainSample[],
  { folder, threads }: Sides,
  work: (ours: Ours) => Promise<Result>,
): Promise<Result> {
  const place = await mkdtemp(path.join(tmpdir(), 'ratchet-bench-'));
  const [batch, adapter] = [path.join(place, 'batch.json'), path.join(place, 'adapter')];
  await writeFile(batch, JSON.stringify(samples));
  const args = ['--import', 'tsx', ourProgram, folder, batch, adapter, String(threads)];
  const ours = new PeerProcess(bench, process.execPath, args, process.env);
  try {
    await ours.hear();
    return await work({ step: async () => OurStep.parse(await ours.ask({ do: 'step' })), adapter, batch });
  } finally {
    await ours.close();
    await rm(place, { recursive: true, force: true });
  }
}

/**
 * Greatest difference between the sides at each step. Adam's first step moves every number by the learning rate, even
 * where its gradient is only rounding, so the second step begins from different weights.
 */
const tolerances = [1e-3, 2e-2];

async function compare(bench: Bench, samples: readonly TrainSample[], sides: Sides & { readonly pairs: number }) {
  const { folder, python, threads, pairs } = sides;
  bench.doing(`opening both sides, ${samples.length} rows`);
  return withOurs(bench, samples, sides, async ({ step, adapter, batch }) => {
    const args = [peerProgram, '--model', folder, '--batch', batch, '--threads', String(threads), '--lora', adapter];
    const peer = new PeerProcess(bench, python, args, { ...process.env, OMP_NUM_THREADS: String(threads) });
    const takePair = async () => {
      const theirs = OurStep.parse(await peer.ask({ do: 'step', learning_rate: trainOptions.learningRate }));
      await delay(pauseMs);
      return { ours: await step(), theirs };
    };
    try {
      for (const [i, tolerance] of tolerances.entries()) {
        bench.doing(`step ${i + 1} of each side, to compare what they compute`);
        const pair = await takePair();
        bench.say(JSON.stringify(pair));
        requireSameWork(pair, tolerance);
      }
      const measured = [];
      while (measured.length < pairs) {
        bench.signal.throwIfAborted();
        bench.doing(`pair ${measured.length + 1} of ${pairs}`);
        const { result, cpu } = await meterCpu(takePair);
        measured.push({ ...result, disturbed: isDisturbed(cpu) });
      }
      return summarize(measured);
    } finally {
      await peer.close();
    }
  });
}

/** So long a side is left to let its idle threads go to sleep before the other's turn. */
const pauseMs = 20;

function summarize(pairs: readonly { ours: OurStep; theirs: OurStep; disturbed: boolean }[]) {
  const medians = (side: 'ours' | 'theirs') => ({
    wall_s: round(median(pairs.map((pair) => pair[side].wall_s)), 2),
    cpu_s: round(median(pairs.map((pair) => pair[side].cpu_s)), 2),
    peak_mb: round(Math.max(...pairs.map((pair) => pair[side].peak_mb)), 0),
  });
  const [ours, theirs] = [medians('ours'), medians('theirs')];
  return {
    ratio: round(median(pairs.map(({ ours, theirs }) => ours.wall_s / theirs.wall_s))),
    ratio_cpu: round(median(pairs.map(({ ours, theirs }) => ours.cpu_s / theirs.cpu_s))),
    memory_ratio: round(ours.peak_mb / theirs.peak_mb),
    pairs_disturbed: pairs.filter(({ disturbed }) => disturbed).length,
    ours,
    theirs,
  };
}
