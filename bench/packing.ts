import { execFile } from 'node:child_process';
import { mkdtemp, readFile, rm, stat } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { fileURLToPath } from 'node:url';
import { promisify } from 'node:util';
import { GivenBatches } from '../backends/prime-rl/given-batches.ts';
import { mainForm } from '../backends/prime-rl/forms.ts';
import { mainMicroBatch } from '../backends/prime-rl/micro-batch-wire.ts';
import { faultOf, policyBatch } from '../backends/prime-rl/step-rows.ts';
import { lossOf, planOf } from '../backends/testing/index.ts';
import { randomStream } from '../core/random.ts';
import { batchOf, type TrainBatch, type TrainSample } from '../core/rl/learning/batch.ts';
import { type Bench, type Figures, measurement } from './measurement.ts';
import { median, round } from './statistics.ts';

/**
 * What it takes to give prime-rl's trainer a batch: rows become columns, are checked, packed into micro-batches for 8 ranks, and written with their
 * sha256, through to the disk. Each size is measured in a process of its own; rows are made when they are read.
 *
 * - `ms_200k`, goal < 250: of a batch of 200,000 tokens, the median of 5 times.
 * - `cpu_ms_200k`: the processor time of the same, which a busy machine does not change.
 * - `memory_ratio`, goal < 3: how much the process grew at most for a batch of 2,000,000 tokens, ÷ the batch's columns (13 bytes a token).
 * - `bytes_per_token`: written.
 */
export const packing = measurement('packing', 'what it takes to pack and write a batch for prime-rl', measure)
  .option('--times <n>', 'batches of 200,000 tokens', Number, 5)
  .addHelpText('after', '\nGoals: ms_200k < 250, memory_ratio < 3.');

const options = { seqLen: 8_192, ranks: 8 };
const columnBytes = 4 + 1 + 4 + 4;
const vocabulary = 150_000;

interface Stage {
  readonly ms: number;
  readonly cpuMs: number;
  readonly tokens: number;
  readonly grown: number;
  readonly written: number;
}

async function measure(bench: Bench, { times }: { readonly times: number }): Promise<Figures> {
  bench.doing(`${times} batches of 200,000 tokens`);
  const small = await stage(bench, 200_000, times);
  bench.doing('a batch of 2,000,000 tokens');
  const [large] = await stage(bench, 2_000_000, 1);
  return {
    ms_200k: round(median(small.map(({ ms }) => ms)), 0),
    cpu_ms_200k: round(median(small.map(({ cpuMs }) => cpuMs)), 0),
    memory_ratio: round(large!.grown / (large!.tokens * columnBytes), 2),
    bytes_per_token: round(large!.written / large!.tokens, 1),
    ms_2m: round(large!.ms, 0),
  };
}

async function stage(bench: Bench, tokens: number, times: number): Promise<Stage[]> {
  const program = fileURLToPath(import.meta.url);
  // The same flag as in `workers/main.ts`.
  const args = [
    '--heap-growing-percent=50',
    '--import',
    import.meta.resolve('tsx'),
    program,
    String(tokens),
    String(times),
  ];
  const { stdout } = await promisify(execFile)(process.execPath, args, { signal: bench.signal });
  return JSON.parse(stdout) as Stage[];
}

/** Rows of 200 to 4,000 tokens, a third of each a prompt. */
function batchOfTokens(total: number): TrainBatch {
  const random = randomStream('packing', total);
  const lengths: number[] = [];
  for (let left = total; left > 0; left -= lengths.at(-1)!)
    lengths.push(Math.min(left, 200 + Math.floor(random() * 3_800)));
  const rowAt = (row: number): TrainSample => {
    const [own, count] = [randomStream('packing row', row), lengths[row]!];
    const prompt = Math.ceil(count / 3);
    const values = (value: () => number): number[] =>
      Array.from({ length: count }, (_, t) => (t < prompt ? 0 : value()));
    return {
      tokenIds: Array.from({ length: count }, () => Math.floor(own() * vocabulary)),
      lossMask: values(() => 1),
      behaviorLogprobs: values(() => -own()),
      advantages: values(() => own() - 0.5),
    };
  };
  const rows = lengths.map((tokens) => {
    const counted = tokens - Math.ceil(tokens / 3);
    return { tokens, counted, weight: counted };
  });
  return batchOf({ rows, read: (places) => Promise.resolve(places.map(rowAt)) });
}

async function run(total: number, times: number): Promise<Stage[]> {
  const folder = await mkdtemp(path.join(tmpdir(), 'ratchet-packing-'));
  try {
    const given = new GivenBatches(folder);
    const batch = batchOfTokens(total);
    const held = total <= 200_000 ? batchOf(await batch.read([...batch.rows.keys()])) : batch;
    await give(given, batchOfTokens(20_000), 0);
    const stages: Stage[] = [];
    for (let step = 1; step <= times; step++) {
      const before = await memory('VmRSS');
      const startedAt = performance.now();
      const cpu = process.cpuUsage();
      const written = await give(given, held, step);
      const { user, system } = process.cpuUsage(cpu);
      stages.push({
        ms: performance.now() - startedAt,
        cpuMs: (user + system) / 1000,
        tokens: total,
        grown: (await memory('VmHWM')) - before,
        written,
      });
    }
    return stages;
  } finally {
    await rm(folder, { recursive: true, force: true });
  }
}

async function give(given: GivenBatches, batch: TrainBatch, step: number): Promise<number> {
  const columns = await policyBatch(planOf({ loss: lossOf('dppo') }), batch);
  const fault = faultOf(columns, { ...options, vocabulary });
  if (fault !== null) throw new Error(fault);
  const made = mainForm.batch(columns, { fields: mainMicroBatch, ...options, cp: 1, step });
  const { folder, files } = await given.write(step, made.files, { learning_rate: 1e-6, weight_decay: 0 });
  const sizes = await Promise.all(files.map(async ({ name }) => (await stat(path.join(folder, name))).size));
  return sizes.reduce((sum, size) => sum + size, 0);
}

/** In bytes, from the kernel. */
async function memory(name: 'VmRSS' | 'VmHWM'): Promise<number> {
  const status = await readFile('/proc/self/status', 'utf8');
  return Number(new RegExp(`^${name}:\\s*(\\d+) kB`, 'm').exec(status)![1]) * 1024;
}

if (process.argv[1] === fileURLToPath(import.meta.url)) {
  const [total, times] = process.argv.slice(2).map(Number);
  process.stdout.write(JSON.stringify(await run(total!, times!)));
}
