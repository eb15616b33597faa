import { mkdtemp, rm } from 'node:fs/promises';
import { availableParallelism, tmpdir } from 'node:os';
import path from 'node:path';
import { setTimeout as delay } from 'node:timers/promises';
import { fileURLToPath } from 'node:url';
import { z } from 'zod';
import { hash32, randomStream } from '../core/random.ts';
import { loadParameters } from '../engine/model/model-folder.ts';
import { type Parameters, Sampler, type SequenceRequest } from '../engine/index.ts';
import { isDisturbed, meterCpu, waitForQuiet } from './cpu-meter.ts';
import { modelShapes, writeRandomModel } from './engine-shapes.ts';
import { measurement, type Bench, type Figures } from './measurement.ts';
import { findTorchPython, PeerProcess } from './peer-process.ts';
import { median, round } from './statistics.ts';

const peerProgram = fileURLToPath(new URL('peers/torch_decode.py', import.meta.url));

/**
 * Sampling beside eager PyTorch with a key-value cache: the same weights, 64 prompts of 8 tokens, 24 new tokens each at
 * temperature 1 with their log probabilities, in turn. Before anything is timed PyTorch must give the tokens we sampled the
 * log probabilities that we gave them.
 *
 * - `ratio_tiny`, `ratio_small`, `ratio_m10`: our tokens per second ÷ PyTorch's, 0.2, 0.8 and 8.7 M parameters. Medians
 *   over pairs of one batch each, with as many threads as the machine has cores; above 1 = ours is faster.
 * - `…_1_thread`: the same with one thread. `…_best`: our fastest batch and their fastest. `…_cpu`: in CPU time, which
 *   company on the machine disturbs less (idle threads that spin count in it, so read it at one thread).
 * - `group_prompt_tokens` and `group_prompt_tokens_computed`: of a group of 16 rollouts of one prompt of 512 tokens.
 *
 * Weights are inputs of our graphs, as they are in a training loop; prompts are new in each batch. `pairs_disturbed` counts the
 * pairs in which others took more than a twentieth of the machine; they are in the medians all the same.
 */
export const engineDecode = measurement('engine-decode', 'sampling beside PyTorch’s, in turn', measure)
  .option('--shape <name>', `only this one: ${Object.keys(modelShapes).join(', ')}`, readShape)
  .option('--pairs <n>', 'batches of each side', Number, 60)
  .option('--threads <n>', 'only with so many threads', Number)
  .option('--patience <seconds>', 'how long to wait for a quiet machine before each shape', Number, 60)
  .addHelpText('after', '\nRATCHET_TORCH_PYTHON names a Python with PyTorch; see bench/peers/README.md');

interface Options {
  readonly shape?: ShapeName;
  readonly pairs: number;
  readonly threads?: number;
  readonly patience: number;
}

type ShapeName = keyof typeof modelShapes;

function readShape(name: string): ShapeName {
  if (name in modelShapes) return name as ShapeName;
  throw new Error(`--shape: expected one of ${Object.keys(modelShapes).join(', ')}, got ${name}`);
}

const rows = 64;
const promptLength = 8;
const newTokens = 24;

async function measure(bench: Bench, { shape, pairs, threads, patience }: Options): Promise<Figures> {
  const python = await findTorchPython(bench, ['torch', 'safetensors']);
  const cores = availableParallelism();
  const figures: Record<string, number> = {};
  const details: Record<string, unknown> = {};
  let pairs_disturbed = 0;
  for (const threadCount of threads === undefined ? [...new Set([cores, 1])] : [threads]) {
    for (const name of shape === undefined ? (Object.keys(modelShapes) as ShapeName[]) : [shape]) {
      const suffix = threadCount === cores ? '' : `_${threadCount}_thread${threadCount === 1 ? '' : 's'}`;
      const key = `${name}${suffix}`;
      await waitForQuiet(bench, patience);
      const result = await measureShape(bench, { name, pairs, threads: threadCount, python });
      bench.say(`${key}: ${JSON.stringify(result.figures)}`);
      figures[`ratio_${key}`] = result.figures.ratio;
      figures[`ratio_${key}_best`] = result.figures.ratio_best;
      figures[`ratio_${key}_cpu`] = result.figures.ratio_cpu;
      details[key] = result;
      pairs_disturbed += result.figures.pairs_disturbed;
    }
  }
  return { ...figures, ...(await measureGroup(bench)), pairs_disturbed, details };
}

interface ShapeOptions {
  readonly name: ShapeName;
  readonly pairs: number;
  readonly threads: number;
  readonly python: string;
}

/** Seconds of one batch. */
const Batch = z.object({ wall_s: z.number(), cpu_s: z.number() });
type Batch = z.infer<typeof Batch>;

interface Pair {
  readonly ours: Batch;
  readonly theirs: Batch;
  readonly disturbed: boolean;
}

interface Sides {
  readonly sampler: Sampler;
  readonly parameters: Parameters;
  readonly peer: PeerProcess;
}

const batchesInPassing = 3;
/** So long a side is left to let its idle threads go to sleep before the other's turn. */
const pauseMs = 20;

async function measureShape(bench: Bench, { name, pairs, threads, python }: ShapeOptions) {
  bench.doing(`${name}, ${threads} threads: opening both sides`);
  return withModel(name, async (folder) => {
    const parameters = await loadParameters(folder);
    const sampler = await Sampler.open(parameters.config, { threads });
    const args = [peerProgram, '--model', folder, '--threads', String(threads)];
    const peer = new PeerProcess(bench, python, args, { ...process.env, OMP_NUM_THREADS: String(threads) });
    const sides = { sampler, parameters, peer };
    try {
      await requireSameWork(sides);
      for (let i = 0; i < batchesInPassing; i++) await inTurn(sides, -1 - i);
      const measured: Pair[] = [];
      bench.doing(`${name}, ${threads} threads: ${pairs} pairs`);
      while (measured.length < pairs) {
        bench.signal.throwIfAborted();
        const { result, cpu } = await meterCpu(() => inTurn(sides, measured.length));
        measured.push({ ...result, disturbed: isDisturbed(cpu) });
      }
      return summarize(measured);
    } finally {
      await peer.close();
      await sampler.release();
    }
  });
}

async function withModel<Result>(name: ShapeName, work: (folder: string) => Promise<Result>): Promise<Result> {
  const folder = await mkdtemp(path.join(tmpdir(), 'ratchet-bench-'));
  try {
    await writeRandomModel(folder, modelShapes[name]);
    return await work(folder);
  } finally {
    await rm(folder, { recursive: true, force: true });
  }
}

async function inTurn(sides: Sides, turn: number): Promise<{ ours: Batch; theirs: Batch }> {
  const requests = requestsOf(sides.parameters, turn);
  const prompts = requests.map(({ promptTokenIds }) => promptTokenIds);
  await delay(pauseMs);
  const theirs = Batch.parse(await sides.peer.ask({ do: 'decode', prompts, new_tokens: newTokens }));
  await delay(pauseMs);
  const wall = performance.now();
  const cpu = process.cpuUsage();
  await sides.sampler.generate(sides.parameters, requests);
  const { user, system } = process.cpuUsage(cpu);
  return { ours: { wall_s: (performance.now() - wall) / 1000, cpu_s: (user + system) / 1e6 }, theirs };
}

/** Other prompts for every turn: one that was computed before would cost nothing. */
function requestsOf({ config }: Parameters, turn: number): SequenceRequest[] {
  const random = randomStream('bench prompts', turn);
  return Array.from({ length: rows }, (_, row) => ({
    promptTokenIds: Array.from({ length: promptLength }, () => Math.floor(random() * config.vocabularySize)),
    maxTokens: newTokens,
    temperature: 1,
    seed: hash32('bench row', turn, row),
    stopTokenIds: [],
  }));
}

/** Two programs that do not compute the same thing have nothing to compare. */
async function requireSameWork({ sampler, parameters, peer }: Sides): Promise<void> {
  const requests = requestsOf(parameters, -100);
  const results = await sampler.generate(parameters, requests);
  const tokens = results.map(({ tokenIds }, row) => [...requests[row]!.promptTokenIds, ...tokenIds]);
  const Scores = z.object({ logprobs: z.array(z.array(z.number())) });
  const { logprobs } = Scores.parse(await peer.ask({ do: 'score', tokens, prompt_length: promptLength }));
  const differences = results.flatMap((result, row) =>
    result.logprobs.map((logprob, t) => Math.abs(logprob - logprobs[row]![t]!)),
  );
  const worst = Math.max(...differences);
  if (worst > 1e-4) throw new Error(`The two sides differ in a token's log probability by ${worst}.`);
}

function summarize(pairs: readonly Pair[]) {
  const perSecond = (seconds: number): number => round((rows * newTokens) / seconds, 0);
  const ours = pairs.map(({ ours }) => ours.wall_s);
  const theirs = pairs.map(({ theirs }) => theirs.wall_s);
  return {
    figures: {
      ratio: round(median(pairs.map(({ ours, theirs }) => theirs.wall_s / ours.wall_s))),
      ratio_best: round(Math.min(...theirs) / Math.min(...ours)),
      ratio_cpu: round(median(pairs.map(({ ours, theirs }) => theirs.cpu_s / ours.cpu_s))),
      pairs_disturbed: pairs.filter(({ disturbed }) => disturbed).length,
    },
    ours_tokens_per_s: { best: perSecond(Math.min(...ours)), median: perSecond(median(ours)) },
    torch_tokens_per_s: { best: perSecond(Math.min(...theirs)), median: perSecond(median(theirs)) },
  };
}

/** The prompt of a group is computed once. */
async function measureGroup(bench: Bench): Promise<Figures> {
  bench.doing('a group of 16 rollouts of a prompt of 512 tokens');
  return withModel('tiny', async (folder) => {
    const parameters = await loadParameters(folder);
    const sampler = await Sampler.open(parameters.config, { threads: 1 });
    const random = randomStream('bench group');
    const promptTokenIds = Array.from({ length: 512 }, () => Math.floor(random() * parameters.config.vocabularySize));
    const group = Array.from({ length: 16 }, (_, seed) => ({
      promptTokenIds,
      maxTokens: 4,
      temperature: 1,
      seed,
      stopTokenIds: [],
    }));
    await sampler.generate(parameters, group);
    const { promptTokensTotal, promptTokensComputed } = sampler.counters;
    await sampler.release();
    return { group_prompt_tokens: promptTokensTotal, group_prompt_tokens_computed: promptTokensComputed };
  });
}
