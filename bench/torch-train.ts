import { mkdtemp, readFile, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { setTimeout as delay } from 'node:timers/promises';
import { fileURLToPath } from 'node:url';
import { z } from 'zod';
import { getPackagedModel } from '../backends/hub/packaged-models.ts';
import { planOf, writePreset } from '../backends/testing/material.ts';
import { TorchGroup } from '../backends/torch/group.ts';
import { TorchTrainer } from '../backends/trainer/torch.ts';
import { batchOf, type TrainSample } from '../core/rl/learning/batch.ts';
import { loraModules } from '../config/settings/optimizer.ts';
import { inTemporaryFolder } from '../host/temporary-folder.ts';
import { isDisturbed, meterCpu, waitForQuiet } from './cpu-meter.ts';
import { measurement, type Bench, type Figures } from './measurement.ts';
import { findTorchPython, PeerProcess } from './peer-process.ts';
import { runProgram } from './run-project.ts';
import { median, round } from './statistics.ts';
import { everyLayer, randomBatch, trainOptions } from './train-steps.ts';

const peerProgram = fileURLToPath(new URL('peers/trl_step.py', import.meta.url));
const model = 'smollm2-135m-instruct';
const vocabulary = 49_152; // of this model

/**
 * A step of kind "torch" beside one of TRL's GRPOTrainer, in turn: an adapter on every linear layer of SmolLM2-135M, rows of one length, the same
 * precision, threads and checkpointing. Neither generates, and neither scores a reference: a run's step also reports the distance to it, which `--reference` adds.
 *
 * - `step_ratio_trl`: our time ÷ theirs, from the rows in memory to the updated adapter; medians over pairs of one step each. `step_ratio_trl_cpu`: in
 *   CPU time of the processes that train, which company disturbs less.
 * - `memory_ratio_trl`: the most memory of our rank ÷ the most of their process.
 * - `ranks2_memory_ratio`: what a rank of two holds of all weights and their optimizer's state after a step ÷ what one rank alone holds (Linux only).
 * - `adapter_overhead`: what our adapter adds to the step of the ranks: writing columns, the wire, reading them, the digest; as a share of it.
 *
 * `pairs_disturbed` counts the pairs in which others took more than a twentieth of the machine; they are in the medians all the same.
 */
export const torchTrain = measurement('torch-train', "a step of kind torch beside TRL's GRPOTrainer", measure)
  .option('--pairs <n>', 'steps of each side, after one in passing', Number, 3)
  .option('--threads <n>', 'of each side', Number, 1)
  .option('--rows <n>', 'rows of a batch; for a quick look only', Number, 32)
  .option('--length <n>', 'tokens of a row; for a quick look only', Number, 512)
  .option('--micro <n>', 'rows that TRL computes at once; its own default is 8', Number, 8)
  .option('--dtype <name>', 'float32 or bfloat16', 'float32')
  .option('--random-weights', 'of the same shape, in place of the real ones; no figure depends on them')
  .option('--reference', 'our step also scores some rows by the reference, as those of runs do')
  .option('--no-checkpointing', 'keep all activations; TRL’s own default is to compute them again')
  .option('--patience <seconds>', 'how long to wait for a quiet machine', Number, 60)
  .addHelpText('after', '\nRATCHET_TORCH_PYTHON names a Python with PyTorch, PEFT and TRL; see bench/peers/README.md');

interface Options {
  readonly pairs: number;
  readonly threads: number;
  readonly rows: number;
  readonly length: number;
  readonly micro: number;
  readonly dtype: string;
  readonly randomWeights?: boolean;
  readonly reference?: boolean;
  readonly checkpointing: boolean;
  readonly patience: number;
}

/** The part of a row that carries no loss. */
const promptShare = 1 / 4;

async function measure(bench: Bench, options: Options): Promise<Figures> {
  const python = await findTorchPython(bench, ['torch', 'transformers', 'peft', 'trl', 'datasets']);
  if (!options.randomWeights) {
    const { folder } = await getPackagedModel(model, { say: bench.say });
    return measureOn(folder, python, bench, options);
  }
  return inTemporaryFolder('bench-model', async (folder) => {
    await writePreset(folder); // for its tokenizer, which turns nothing into tokens here
    await runProgram(bench, python, ['-c', writeShape, folder], process.cwd());
    return measureOn(folder, python, bench, options);
  });
}

/** SmolLM2-135M with weights of chance. */
const writeShape = `
import sys, torch, transformers
torch.manual_seed(1)
config = transformers.LlamaConfig(vocab_size=${vocabulary}, hidden_size=576, intermediate_size=1536, num_hidden_layers=30, num_attention_heads=9,
    num_key_value_heads=3, max_position_embeddings=8192, rms_norm_eps=1e-5, rope_theta=100000.0, tie_word_embeddings=True)
transformers.LlamaForCausalLM(config).save_pretrained(sys.argv[1])
`;

async function measureOn(folder: string, python: string, bench: Bench, options: Options): Promise<Figures> {
  const beside = await compare(bench, python, folder, options);
  bench.say(JSON.stringify(beside));
  const held: (number | null)[] = [];
  for (const ranks of [1, 2]) {
    bench.doing(`all weights on ${ranks} rank${ranks === 1 ? '' : 's'}`);
    held.push(await heldByRank(python, folder, ranks));
  }
  const [one, two] = held;
  const { ratios, pairs_disturbed, ...details } = beside;
  return {
    ...ratios,
    ranks2_memory_ratio: one == null || two == null ? null : round(two / one, 3),
    rows: options.rows,
    threads: options.threads,
    dtype: options.dtype,
    pairs_disturbed,
    details: { ...details, held_mb: held.map((bytes) => bytes && round(bytes / 2 ** 20, 0)) },
  };
}

const TheirStep = z.object({
  wall_s: z.number(),
  cpu_s: z.number(),
  peak_mb: z.number(),
  loss: z.number(),
  grad_norm: z.number(),
});
type Step = z.infer<typeof TheirStep>;
type OurStep = Step & { readonly ranks_s: number };

const adapter = { ...everyLayer, targetModules: [...loraModules] };
const clip = { type: 'grpo', clipLow: 0.8, clipHigh: 1.2, aggregation: 'token' } as const;

async function compare(bench: Bench, python: string, folder: string, options: Options) {
  const { pairs, threads, rows, length, micro, dtype, checkpointing, patience } = options;
  const place = await mkdtemp(path.join(tmpdir(), 'ratchet-bench-'));
  const prompt = Math.round(length * promptShare);
  scoresReference = options.reference === true;
  const trainer = new TorchTrainer({
    python,
    ranks: 1,
    threads,
    dtype,
    ...(checkpointing ? { ac_freq: 1 } : {}),
  });
  let peer: PeerProcess | null = null;
  try {
    bench.doing('opening our side');
    await trainer.open(folder, { lora: adapter, seed: 1 });
    const drawn = randomBatch({ rows, length: length - 1, vocabulary, prompt });
    const samples = await asPolicySampled(trainer, drawn);
    const file = path.join(place, 'batch.json');
    await writeFile(file, JSON.stringify(samples));
    bench.doing('opening their side');
    const args = Object.entries({ model: folder, batch: file, folder: place, dtype, threads, prompt, micro });
    peer = new PeerProcess(
      bench,
      python,
      [
        peerProgram,
        ...args.flatMap(([name, value]) => [`--${name}`, String(value)]),
        '--rank',
        String(everyLayer.r),
        ...(checkpointing ? ['--checkpointing'] : []),
      ],
      { ...process.env, OMP_NUM_THREADS: String(threads) },
    );
    await peer.hear();
    const takePair = async () => {
      const theirs = TheirStep.parse(await peer!.ask({ do: 'step' }));
      return { ours: await ourStep(trainer, samples, folder), theirs };
    };
    bench.doing('a step of each side in passing');
    bench.say(JSON.stringify(await takePair()));
    const measured = [];
    while (measured.length < pairs) {
      bench.signal.throwIfAborted();
      await waitForQuiet(bench, patience);
      bench.doing(`pair ${measured.length + 1} of ${pairs}`);
      const { result, cpu } = await meterCpu(takePair);
      bench.say(JSON.stringify(result));
      measured.push({ ...result, disturbed: isDisturbed(cpu) });
    }
    return summarize(measured);
  } finally {
    await peer?.close();
    await trainer.close();
    await rm(place, { recursive: true, force: true });
  }
}

/** Rows whose log probabilities are the policy's own, as those of a batch on policy are. */
async function asPolicySampled(trainer: TorchTrainer, rows: readonly TrainSample[]): Promise<TrainSample[]> {
  const logprobs = await trainer.logprobs(rows, 1);
  return rows.map((row, r) => ({ ...row, behaviorLogprobs: [...logprobs[r]!] }));
}

/** The time of the ranks alone is in their answer, which the adapter passes over. Without a reference in the request, none is scored. */
let ranksSeconds = 0;
let scoresReference = false;
const { call } = TorchGroup.prototype as { call: (this: TorchGroup, op: string, args?: object) => Promise<unknown> };
TorchGroup.prototype.call = async function (this: TorchGroup, op, args) {
  const asked = op === 'train_step' && !scoresReference ? { ...args, reference: null } : args;
  const answer = await call.call(this, op, asked);
  if (op === 'train_step') ranksSeconds = z.looseObject({ seconds: z.number() }).parse(answer).seconds;
  return answer;
};

async function ourStep(trainer: TorchTrainer, samples: readonly TrainSample[], folder: string): Promise<OurStep> {
  const [pid] = await trainer.pids();
  const before = await processSeconds(pid!);
  const startedAt = performance.now();
  const plan = planOf({ loss: { ...trainOptions.loss, ...clip }, learningRate: 1e-4 });
  const { metrics, applied } = await trainer.trainStep({ plan, batch: batchOf(samples), referenceFolder: folder });
  if (!applied) throw new Error('Our step was refused.');
  return {
    wall_s: (performance.now() - startedAt) / 1000,
    cpu_s: (await processSeconds(pid!)) - before,
    ranks_s: ranksSeconds,
    peak_mb: (await kilobytes(pid!, 'status', 'VmHWM')) / 1024,
    loss: metrics['loss']!,
    grad_norm: metrics['grad_norm']!,
  };
}

function summarize(pairs: readonly { ours: OurStep; theirs: Step; disturbed: boolean }[]) {
  const medians = (side: 'ours' | 'theirs') => ({
    wall_s: round(median(pairs.map((pair) => pair[side].wall_s)), 2),
    cpu_s: round(median(pairs.map((pair) => pair[side].cpu_s)), 2),
    peak_mb: round(Math.max(...pairs.map((pair) => pair[side].peak_mb)), 0),
  });
  const [ours, theirs] = [medians('ours'), medians('theirs')];
  return {
    ratios: {
      step_ratio_trl: round(median(pairs.map(({ ours, theirs }) => ours.wall_s / theirs.wall_s)), 3),
      step_ratio_trl_cpu: round(median(pairs.map(({ ours, theirs }) => ours.cpu_s / theirs.cpu_s)), 3),
      memory_ratio_trl: round(ours.peak_mb / theirs.peak_mb, 3),
      adapter_overhead: round(median(pairs.map(({ ours }) => ours.wall_s / ours.ranks_s - 1)), 4),
    },
    pairs_disturbed: pairs.filter(({ disturbed }) => disturbed).length,
    ours,
    theirs,
  };
}

/** Bytes that opening a model and taking a step added to a rank, the largest of them; null where the system does not say. */
async function heldByRank(python: string, folder: string, ranks: number): Promise<number | null> {
  const trainer = new TorchTrainer({ python, ranks, threads: 1 });
  try {
    const pids = await trainer.pids();
    const own = () => Promise.all(pids.map((pid) => kilobytes(pid, 'smaps_rollup', 'Private_Dirty')));
    const before = await own();
    await trainer.open(folder, { lora: null, seed: 1 });
    const rows = randomBatch({ rows: 2, length: 16, vocabulary });
    await trainer.sftStep({ samples: rows, learningRate: 1e-6, optimizer: trainOptions.optimizer });
    const after = await settled(own);
    return Math.max(...after.map((size, rank) => size - before[rank]!)) * 1024;
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === 'ENOENT') return null;
    throw error;
  } finally {
    await trainer.close();
  }
}

/** The first rank answers while others may still be freeing what they had: sizes that stay as they are for two seconds. */
async function settled(read: () => Promise<number[]>): Promise<number[]> {
  for (let before = await read(); ;) {
    await delay(2_000);
    const now = await read();
    if (now.every((size, rank) => size === before[rank])) return now;
    before = now;
  }
}

async function kilobytes(pid: number, file: string, name: string): Promise<number> {
  const text = await readFile(`/proc/${pid}/${file}`, 'utf8');
  return Number(new RegExp(`^${name}:\\s+(\\d+) kB`, 'm').exec(text)![1]);
}

/** CPU seconds of a process, all its threads. */
async function processSeconds(pid: number): Promise<number> {
  const text = await readFile(`/proc/${pid}/stat`, 'utf8');
  const [user, system] = text
    .slice(text.lastIndexOf(')') + 2)
    .split(' ')
    .slice(11, 13)
    .map(Number);
  return (user! + system!) / ticksPerSecond;
}

/** USER_HZ, which is 100 on every Linux that Node runs on. */
const ticksPerSecond = 100;
