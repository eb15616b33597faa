import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { setTimeout as delay } from 'node:timers/promises';
import { fileURLToPath } from 'node:url';
import { z } from 'zod';
import { getPackagedModel } from '../backends/hub/packaged-models.ts';
import { loadModelFolder, type ModelFolder, parameterCount, Sampler, writeGguf } from '../engine/index.ts';
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
 * - `transformers_16`: the same beside transformers' generate, both in 32-bit floats.
 * - `bound_64`: our tokens a second of 64 rows in 32-bit floats ÷ what the processor's arithmetic allows: twice the parameters of operations a token, at the
 *   pace of a large product of matrices, which is timed in turn.
 * - `…_cpu`: the same in CPU time, which company on the machine disturbs less: with one thread it says the same. No thread of either side spins: with
 *   one thread there is none that waits, and PyTorch's are as many as it is told.
 *
 * `pairs_disturbed` counts the pairs in which others took more than a twentieth of the machine; they are in the medians all the same.
 */
export const smollm2Decode = measurement('smollm2-decode', 'sampling of a real model beside llama.cpp’s', measure)
  .option('--pairs <n>', 'batches of each side', Number, 5)
  .option('--threads <n>', 'of each side', Number, 1)
  .option('--patience <seconds>', 'how long to wait for a quiet machine', Number, 60)
  .addHelpText(
    'after',
    '\nRATCHET_TORCH_PYTHON names a Python with PyTorch and transformers, RATCHET_LLAMA_CPP a folder where node-llama-cpp is; see bench/peers/README.md',
  );

interface Options {
  readonly pairs: number;
  readonly threads: number;
  readonly patience: number;
}

const newTokens = 32;

async function measure(bench: Bench, { pairs, threads, patience }: Options): Promise<Figures> {
  const python = await findTorchPython(bench, ['torch', 'transformers']);
  const llama = await findLlama();
  const { folder } = await getPackagedModel(model, { say: bench.say });
  const loaded = await loadModelFolder(folder);
  const work = await mkdtemp(path.join(tmpdir(), 'ratchet-bench-'));
  const file = path.join(work, 'q8_0.gguf');
  try {
    await writeGguf(loaded, file, { type: 'q8_0' });
    await waitForQuiet(bench, patience);
    const options = { loaded, threads, pairs };
    const llamaOf = (rows: number): Side => ({
      program: process.execPath,
      args: [peer('llama-cpp.mjs'), llama, file, String(threads), String(rows)],
    });
    const transformers = {
      program: python,
      args: [peer('transformers_generate.py'), '--model', folder, '--threads', String(threads)],
    };
    const one = await compare(bench, llamaOf(1), { ...options, rows: 1, quantize: 'int8' });
    const many = await compare(bench, llamaOf(16), { ...options, rows: 16, quantize: 'int8' });
    const beside = await compare(bench, transformers, { ...options, rows: 16 });
    const bound = await compareWithBound(bench, options);
    return {
      ratio_1: one.ratio,
      ratio_16: many.ratio,
      bound_64: bound.ratio,
      transformers_16: beside.ratio,
      ratio_1_cpu: one.ratio_cpu,
      ratio_16_cpu: many.ratio_cpu,
      bound_64_cpu: bound.ratio_cpu,
      transformers_16_cpu: beside.ratio_cpu,
      threads,
      pairs_disturbed: one.pairs_disturbed + many.pairs_disturbed + beside.pairs_disturbed + bound.pairs_disturbed,
      details: { one, many, beside, bound },
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

async function compare(
  bench: Bench,
  { program, args }: Side,
  { loaded, threads, pairs, rows, quantize }: Measured & { readonly rows: number; readonly quantize?: 'int8' },
) {
  bench.doing(`opening both sides, ${rows} rows, ${path.basename(args[0]!)}`);
  const theirs = new PeerProcess(bench, program, args, { ...process.env, OMP_NUM_THREADS: String(threads) });
  const sampler = await Sampler.open(loaded.config, { threads, quantize });
  const takePair = async (turn: number) => {
    const prompts = promptsOf(loaded, { rows, turn });
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
function promptsOf({ tokenizer }: ModelFolder, { rows, turn }: { rows: number; turn: number }): number[][] {
  return Array.from({ length: rows }, (_, row) => {
    const [a, b] = [10 + row, 100 + 7 * turn + row];
    return [...tokenizer.renderChat([{ role: 'user', content: `Tell me a story of ${a} sheep and ${b} wolves.` }])];
  });
}

async function compareWithBound(bench: Bench, { loaded, threads, pairs }: Measured) {
  bench.doing('64 rows beside a product of matrices');
  const rows = 64;
  const sampler = await Sampler.open(loaded.config, { threads });
  const product = await openProduct(threads);
  const operations = 2 * parameterCount(loaded.config) * rows * newTokens;
  const takePair = async (turn: number) => {
    const one = await timed(product.run);
    const scale = operations / product.operations;
    const theirs = { wall_s: one.wall_s * scale, cpu_s: one.cpu_s * scale };
    return { ours: await sample(sampler, loaded, promptsOf(loaded, { rows, turn })), theirs };
  };
  try {
    await takePair(-1);
    return summarize(await inPairs(bench, pairs, takePair), rows * newTokens);
  } finally {
    await sampler.release();
    await product.release();
  }
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
  const session = await openSession(graph, { threads }, { weight: ones });
  return {
    operations: 2 * size ** 3,
    run: () => session.run({ x: ones }),
    release: () => session.release(),
  };
}

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
