import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { setTimeout as delay } from 'node:timers/promises';
import { fileURLToPath } from 'node:url';
import { z } from 'zod';
import { getPackagedModel } from '../backends/hub/packaged-models.ts';
import {
  loadModelFolder,
  type ModelFolder,
  parameterCount,
  type Quantization,
  Sampler,
  writeGguf,
} from '../engine/index.ts';
import { Graph } from '../engine/onnx/graph.ts';
import { linear } from '../engine/onnx/operators.ts';
import { floats, openSession } from '../engine/onnx/session.ts';
import { isDisturbed, meterCpu, waitForQuiet } from './cpu-meter.ts';
import { findLlama } from './find-llama.ts';
import { type Bench, type Figures, measurement } from './measurement.ts';
import { findTorchPython, PeerProcess } from './peer-process.ts';
import { median, round } from './statistics.ts';

const peer = (name: string): string => fileURLToPath(new URL(`peers/${name}`, import.meta.url));
const model = 'smollm2-135m-instruct';

/**
 * Greedy sampling of SmolLM2-135M beside llama.cpp and transformers, in turn: chat prompts of about 40 tokens, 32 new tokens of each row.
 *
 * - `ratio_1`, `ratio_16`: our tokens a second ÷ llama.cpp's, for one row and 16, at the same bits: weights of 8 bits here (`quantize = "int8"`) and in its
 *   file (Q8_0). Medians over pairs of one batch each; above 1 = ours is faster. Before anything is timed, most rows must begin with the same token.
 *   `--gguf FILE` for a file in Q4_1: `ratio_1_int4`, `ratio_16_int4` likewise, 4 bits on both sides.
 * - `transformers_16`: the same beside transformers' generate, both in 32-bit floats, 16 different prompts. `transformers_16_int8`: ours in 8 bits.
 *   `transformers_groups`: two prompts eight times, as GRPO asks for them; ours computes a prompt once.
 * - `bound_64`: our tokens a second of 64 rows in 32-bit floats ÷ what the processor's arithmetic allows, at the pace of a large product of matrices, which is
 *   timed in turn: twice the parameters of operations for every new token, and for every token of a prompt without the output layer. Attention is not counted.
 * - `…_cpu`: the same in CPU time, which company on the machine disturbs less: with one thread it says the same. No thread of either side spins: with
 *   one thread there is none that waits, and PyTorch's are as many as it is told.
 *
 * `pairs_disturbed` counts the pairs in which others took more than a twentieth of the machine; they are in the medians all the same.
 */
export const smollm2Decode = measurement('smollm2-decode', 'sampling of a real model beside llama.cpp’s', measure)
  .option('--pairs <n>', 'batches of each side', Number, 5)
  .option('--threads <n>', 'of each side', Number, 1)
  .option('--gguf <file>', 'the same model in Q4_1, for 4 bits beside llama.cpp')
  .option('--patience <seconds>', 'how long to wait for a quiet machine', Number, 60)
  .addHelpText(
    'after',
    '\nRATCHET_TORCH_PYTHON names a Python with PyTorch and transformers, RATCHET_LLAMA_CPP a folder where node-llama-cpp is; see bench/peers/README.md',
  );

interface Options {
  readonly pairs: number;
  readonly threads: number;
  readonly gguf?: string;
  readonly patience: number;
}

const newTokens = 32;

async function measure(bench: Bench, { pairs, threads, gguf, patience }: Options): Promise<Figures> {
  const python = await findTorchPython(bench, ['torch', 'transformers']);
  const llama = await findLlama();
  const { folder } = await getPackagedModel(model, { say: bench.say });
  const loaded = await loadModelFolder(folder);
  const work = await mkdtemp(path.join(tmpdir(), 'ratchet-bench-'));
  try {
    const file = path.join(work, 'q8_0.gguf');
    await writeGguf(loaded, file, { type: 'q8_0' });
    await waitForQuiet(bench, patience);
    const options = { loaded, threads, pairs };
    const llamaOf = (weights: string, rows: number): Side => ({
      program: process.execPath,
      args: [peer('llama-cpp.mjs'), llama, weights, String(threads), String(rows)],
    });
    const transformers = {
      program: python,
      args: [peer('transformers_generate.py'), '--model', folder, '--threads', String(threads)],
    };
    const found: Record<string, Summary> = {
      ratio_1: await compare(bench, llamaOf(file, 1), { ...options, rows: 1, quantize: 'int8' }),
      ratio_16: await compare(bench, llamaOf(file, 16), { ...options, rows: 16, quantize: 'int8' }),
      bound_64: await compareWithBound(bench, options),
      transformers_16: await compare(bench, transformers, { ...options, rows: 16 }),
      transformers_16_int8: await compare(bench, transformers, { ...options, rows: 16, quantize: 'int8' }),
      transformers_groups: await compare(bench, transformers, { ...options, rows: 16, groupSize: 8 }),
    };
    if (gguf !== undefined) {
      for (const rows of [1, 16]) {
        const quantized = { ...options, rows, quantize: 'int4' } as const;
        found[`ratio_${rows}_int4`] = await compare(bench, llamaOf(path.resolve(gguf), rows), quantized);
      }
    }
    const named = Object.entries(found);
    return {
      ...Object.fromEntries(named.map(([name, { ratio }]) => [name, ratio])),
      ...Object.fromEntries(named.map(([name, { ratio_cpu }]) => [`${name}_cpu`, ratio_cpu])),
      threads,
      pairs_disturbed: named.reduce((sum, [, { pairs_disturbed }]) => sum + pairs_disturbed, 0),
      details: found,
    };
  } finally {
    await rm(work, { recursive: true, force: true });
  }
}

const Batch = z.object({ tokens: z.array(z.array(z.int())), wall_s: z.number(), cpu_s: z.number() });
type Batch = z.infer<typeof Batch>;
type Times = Pick<Batch, 'wall_s' | 'cpu_s'>;

interface Side {
  readonly program: string;
  readonly args: readonly string[];
}

interface Measured {
  readonly loaded: ModelFolder;
  readonly threads: number;
  readonly pairs: number;
}

interface Rows {
  readonly rows: number;
  /** Rows that share a prompt; 1 unless given. */
  readonly groupSize?: number;
  readonly quantize?: Quantization;
}

async function compare(
  bench: Bench,
  { program, args }: Side,
  { loaded, threads, pairs, rows, groupSize, quantize }: Measured & Rows,
): Promise<Summary> {
  bench.doing(`opening both sides, ${rows} rows, ${path.basename(args[0]!)}`);
  const theirs = new PeerProcess(bench, program, args, { ...process.env, OMP_NUM_THREADS: String(threads) });
  const sampler = await Sampler.open(loaded.config, { threads, quantize });
  const takePair = async (turn: number) => {
    const prompts = promptsOf(loaded, { rows, groupSize, turn });
    const peerBatch = Batch.parse(await theirs.ask({ prompts, new_tokens: newTokens }));
    return { ours: await sample(sampler, loaded, prompts), theirs: peerBatch };
  };
  try {
    // Versions are packed and prompts are compiled for: the first batch is not like the others.
    let equal = 0;
    for (const turn of [-2, -1]) {
      const { ours, theirs } = await takePair(turn);
      equal += ours.tokens.filter((tokens, row) => tokens[0] === theirs.tokens[row]?.[0]).length;
    }
    if (equal < rows) throw new Error(`Of ${2 * rows} rows ${equal} begin as the peer's do: expected most of them.`);
    return summarize(await inPairs(bench, pairs, takePair), rows * newTokens);
  } finally {
    await theirs.close();
    await sampler.release();
  }
}

async function inPairs<Pair>(bench: Bench, pairs: number, takePair: (turn: number) => Promise<Pair>) {
  const measured: (Pair & { disturbed: boolean })[] = [];
  while (measured.length < pairs) {
    bench.signal.throwIfAborted();
    bench.doing(`pair ${measured.length + 1} of ${pairs}`);
    await delay(pauseMs);
    const { result, cpu } = await meterCpu(() => takePair(measured.length));
    measured.push({ ...result, disturbed: isDisturbed(cpu) });
  }
  return measured;
}

/** So long idle threads are left to go to sleep before the next turn. */
const pauseMs = 20;

async function sample(
  sampler: Sampler,
  { parameters }: ModelFolder,
  prompts: readonly (readonly number[])[],
): Promise<Batch> {
  const requests = prompts.map((prompt) => ({
    promptTokenIds: [...prompt],
    maxTokens: newTokens,
    temperature: 0,
    seed: 0,
    stopTokenIds: [],
  }));
  const { result, ...times } = await timed(() => sampler.generate(parameters, requests));
  return { tokens: result.map(({ tokenIds }) => tokenIds), ...times };
}

async function timed<Result>(work: () => Promise<Result>): Promise<Times & { result: Result }> {
  const [wall, cpu] = [performance.now(), process.cpuUsage()];
  const result = await work();
  const { user, system } = process.cpuUsage(cpu);
  return { result, wall_s: (performance.now() - wall) / 1000, cpu_s: (user + system) / 1e6 };
}

/** Another question in every row and turn: a prompt that was computed before would cost nothing. */
function promptsOf(
  { tokenizer }: ModelFolder,
  { rows, groupSize = 1, turn }: { rows: number; groupSize?: number | undefined; turn: number },
): number[][] {
  return Array.from({ length: rows }, (_, row) => {
    const group = Math.floor(row / groupSize);
    const [a, b] = [10 + group, 100 + 7 * turn + group];
    return [...tokenizer.renderChat([{ role: 'user', content: `Tell me a story of ${a} sheep and ${b} wolves.` }])];
  });
}

async function compareWithBound(bench: Bench, { loaded, threads, pairs }: Measured): Promise<Summary> {
  bench.doing('64 rows beside a product of matrices');
  const rows = 64;
  const sampler = await Sampler.open(loaded.config, { threads });
  const product = await openProduct(threads);
  const takePair = async (turn: number) => {
    const prompts = promptsOf(loaded, { rows, turn });
    const one = await timed(product.run);
    const scale = operationsOf(loaded, prompts) / product.operations;
    const theirs = { wall_s: one.wall_s * scale, cpu_s: one.cpu_s * scale };
    return { ours: await sample(sampler, loaded, prompts), theirs };
  };
  try {
    await takePair(-1);
    return summarize(await inPairs(bench, pairs, takePair), rows * newTokens);
  } finally {
    await sampler.release();
    await product.release();
  }
}

/**
 * Operations of the matrix products that sampling needs. A tied output layer shares the table of embeddings, whose
 * lookup costs nothing.
 */
function operationsOf({ config }: ModelFolder, prompts: readonly (readonly number[])[]): number {
  const outputLayer = config.vocabularySize * config.hiddenSize;
  const layers = parameterCount(config) - (config.tiedEmbeddings ? 1 : 2) * outputLayer;
  const promptTokens = prompts.reduce((sum, { length }) => sum + length, 0);
  // The first new token comes with the prompt's last one.
  const steps = prompts.length * (newTokens - 1);
  return 2 * (layers * (promptTokens + steps) + outputLayer * prompts.length * newTokens);
}

/** A product of matrices that keeps the processor's arithmetic busy, as the engine computes it. */
async function openProduct(threads: number) {
  const size = 1536;
  const graph = new Graph();
  const shape = [size, size];
  const x = graph.input('x', 'float32', shape);
  const weight = graph.input('weight', 'float32', shape);
  graph.output('y', linear(x, weight));
  const ones = floats(new Float32Array(size * size).fill(1), shape);
  const session = await openSession(graph, { threads }, { tensors: { weight: ones } });
  return {
    operations: 2 * size ** 3,
    run: () => session.run({ x: ones }),
    release: () => session.release(),
  };
}

type Summary = ReturnType<typeof summarize>;

function summarize(pairs: readonly { ours: Times; theirs: Times; disturbed: boolean }[], tokens: number) {
  const perSecond = (side: 'ours' | 'theirs', time: keyof Times): number =>
    round(tokens / median(pairs.map((pair) => pair[side][time])), 1);
  const ratioOf = (time: keyof Times): number =>
    round(median(pairs.map(({ ours, theirs }) => theirs[time] / ours[time])));
  return {
    ratio: ratioOf('wall_s'),
    ratio_cpu: ratioOf('cpu_s'),
    pairs_disturbed: pairs.filter(({ disturbed }) => disturbed).length,
    ours: { tokens_per_s: perSecond('ours', 'wall_s'), tokens_per_cpu_s: perSecond('ours', 'cpu_s') },
    theirs: { tokens_per_s: perSecond('theirs', 'wall_s'), tokens_per_cpu_s: perSecond('theirs', 'cpu_s') },
  };
}
