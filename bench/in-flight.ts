import { readdirSync, readFileSync } from 'node:fs';
import { writeFile } from 'node:fs/promises';
import path from 'node:path';
import { setTimeout as delay } from 'node:timers/promises';
import { pathToFileURL } from 'node:url';
import type { Client } from '@temporalio/client';
import type { Stack } from '../workers/stack/supervisor.ts';
import { type BigBatch, measureBigBatch } from './big-batch.ts';
import { type CpuUse, meterCpu } from './cpu-meter.ts';
import { type FakeRun, startWaitingRun, untilStep } from './fake-run.ts';
import { type Bench, CannotMeasure, type Figures, measurement } from './measurement.ts';
import { WorkerProcesses, usageOf } from './worker-processes.ts';
import { withProject, withStack } from './run-project.ts';
import { median, round } from './statistics.ts';

/**
 * Memory while very many rollouts are in flight, and for a very large batch.
 *
 * One rollout worker serves a run whose environment works for `--work` milliseconds after each of five turns and takes
 * no CPU; the model answers
 * at once. Groups of 8.
 * - `in_flight`: rollouts that the worker generated at once: turns a second × seconds of a turn. `--rollouts`, 10,000, is wanted.
 * - `memory_mb`, goal < 1500: the most resident memory that the worker had, in MiB.
 * - `cpu_ms_per_turn`, goal < 2: of the worker, all its threads.
 * - `orchestrator_growth`, goal ≤ 1.2: heap of the orchestrator with 4,096 groups in flight ÷ with 16, groups of 2. A fresh stack each time.
 *   It is what its threads hold after a full collection, all together. `orchestrator_rss_growth` is of resident memory (medians), with garbage.
 * - `big_batch_mb`, goal < 3000: the most memory that a process has while 8,192 rollouts of 32,768 tokens are packed, planned and handed to a
 *   trainer that only counts them; null where that fails. `details.big_batch` has smaller batches beside it, and why one failed.
 */
export const inFlight = measurement('in-flight', 'what is held while very many rollouts are in flight', measure)
  .option('--rollouts <n>', 'in flight on the worker', Number, 10_000)
  .option('--groups <list>', 'in flight, where the orchestrator is looked at', '16,4096')
  .option('--work <ms>', 'of the environment after each turn', Number, 20_000)
  .option('--seconds <n>', 'of each measurement', Number, 40)
  .option('--big <list>', 'rollouts of a large batch, the last of which is the figure', '256,512,2048,8192')
  .option('--tokens <n>', 'of each of them', Number, 32_768)
  .option('--max-rollouts <n>', 'of the worker, as its option says; 0 = the option is not given', Number, 10_000)
  .option('--only <part>', 'worker, orchestrator or batch')
  .addHelpText(
    'after',
    '\nGoals: memory_mb < 1500, cpu_ms_per_turn < 2, orchestrator_growth ≤ 1.2, big_batch_mb < 3000.',
  );

interface Options {
  readonly rollouts: number;
  readonly groups: string;
  readonly work: number;
  readonly seconds: number;
  readonly big: string;
  readonly tokens: number;
  readonly maxRollouts: number;
  readonly only?: string;
}

const turns = 5;

async function measure(bench: Bench, options: Options): Promise<Figures> {
  if (process.platform !== 'linux')
    throw new CannotMeasure('in-flight reads the memory of processes in /proc: it needs Linux.');
  const isWanted = (part: string): boolean => options.only === undefined || options.only === part;
  const worker = isWanted('worker') ? await measureWorker(bench, options) : null;
  const orchestrators: Held[] = [];
  if (isWanted('orchestrator')) {
    for (const groups of options.groups.split(',').map(Number)) {
      orchestrators.push(await measureOrchestrator(bench, options, groups));
    }
  }
  const batches = isWanted('batch') ? await measureBatches(bench, options) : [];
  const [few, many] = [orchestrators.at(0), orchestrators.at(-1)];
  const last = batches.at(-1);
  return {
    ...(worker && {
      in_flight: worker.in_flight,
      memory_mb: worker.worker_mb,
      cpu_ms_per_turn: worker.cpu_ms_per_turn,
    }),
    ...(few && many
      ? {
          orchestrator_growth: round(many.orchestrator_heap_mb / few.orchestrator_heap_mb),
          orchestrator_rss_growth: round(many.orchestrator_mb / few.orchestrator_mb),
        }
      : {}),
    ...(last && { big_batch_mb: last.train_mb === null ? null : Math.max(last.pack_mb!, last.train_mb) }),
    details: { worker, orchestrators, big_batch: batches },
  };
}

/** Smaller ones first: where one fails, larger ones would too. */
async function measureBatches(bench: Bench, { big, tokens }: Options): Promise<BigBatch[]> {
  const batches: BigBatch[] = [];
  for (const rollouts of big.split(',').map(Number)) {
    batches.push(await withProject(bench, (folder) => measureBigBatch(bench, folder, { rollouts, tokens })));
    if (batches.at(-1)!.failed !== undefined) break;
  }
  return batches;
}

interface Held {
  readonly in_flight: number;
  readonly turns_per_s: number;
  /** Maximum. */
  readonly worker_mb: number;
  readonly cpu_ms_per_turn: number;
  /** Median resident memory. */
  readonly orchestrator_mb: number;
  /** Heap of all its threads, after a full collection. */
  readonly orchestrator_heap_mb: number;
  readonly orchestrator_cpu_s: number;
  readonly cpu: CpuUse | null;
}

const rolloutsOfGroup = { worker: 8, orchestrator: 2 };
/** The window holds a batch more than the level says. */
const level = 8;

/** The worker's own limit decides: the window has twice as many. */
function measureWorker(bench: Bench, options: Options): Promise<Held> {
  const rolloutsPerExample = rolloutsOfGroup.worker;
  const groupsOfBatch = Math.ceil((options.rollouts * 2) / (level + 1) / rolloutsPerExample);
  return measureHeld(bench, options, {
    name: `${options.rollouts} rollouts`,
    batchSize: groupsOfBatch * rolloutsPerExample,
    rolloutsPerExample,
  });
}

/** The window decides: the worker takes more. */
function measureOrchestrator(bench: Bench, options: Options, groups: number): Promise<Held> {
  const rolloutsPerExample = rolloutsOfGroup.orchestrator;
  const batchSize = Math.max(1, Math.round(groups / (level + 1))) * rolloutsPerExample;
  return measureHeld(bench, options, { name: `${groups} groups`, batchSize, rolloutsPerExample });
}

function measureHeld(
  bench: Bench,
  options: Options,
  { name, ...size }: { readonly name: string; readonly batchSize: number; readonly rolloutsPerExample: number },
): Promise<Held> {
  bench.doing(name);
  const { maxRollouts, work } = options;
  const run = async (client: Client, stack: Stack, folder: string): Promise<Held> => {
    const processes = new WorkerProcesses(
      stack,
      'rollout',
      maxRollouts === 0 ? [] : ['--max-rollouts', String(maxRollouts)],
    );
    try {
      await processes.start();
      const asked = { ...size, name: name.replace(' ', '-'), asyncLevel: level, work, turns };
      const started = await startWaitingRun(client, folder, asked);
      await untilStep(bench, folder, started, 0);
      // Until rollouts begin and end at any moment.
      await delay(work * turns, undefined, { signal: bench.signal });
      const watched = await watch(bench, options, { run: started, stack, processes });
      const held = { ...watched, orchestrator_heap_mb: await askHeap(folder, stack.pids()['orchestrator worker']!) };
      bench.say(`${name}: ${JSON.stringify(held)}`);
      await started.handle.terminate('measured');
      return held;
    } finally {
      await processes.stop();
    }
  };
  return withProject(bench, async (folder) => {
    const probe = path.join(folder, 'heap-probe.mjs');
    await writeFile(probe, heapProbe);
    const variables = { NODE_OPTIONS: `${process.env['NODE_OPTIONS'] ?? ''} --import=${pathToFileURL(probe).href}` };
    return withStack(bench, folder, (client, stack) => run(client, stack, folder), {
      count: { rollout: 0 },
      variables,
    });
  });
}

/**
 * Runs in each thread of each process. When `heap-PID` appears beside it, where PID is its process, it collects all garbage and writes the bytes
 * that are left to `heap-PID-THREAD`.
 */
const heapProbe = `
import { existsSync, writeFileSync } from 'node:fs';
import { fileURLToPath } from 'node:url';
import { getHeapStatistics, setFlagsFromString } from 'node:v8';
import { runInNewContext } from 'node:vm';
import { threadId } from 'node:worker_threads';

const file = fileURLToPath(new URL('heap-' + process.pid, import.meta.url));
const timer = setInterval(() => {
  if (!existsSync(file)) return;
  clearInterval(timer);
  setFlagsFromString('--expose-gc');
  const collect = runInNewContext('gc');
  collect();
  collect();
  writeFileSync(file + '-' + threadId, String(getHeapStatistics().used_heap_size));
}, 500);
timer.unref();
`;

/** MiB of a process with the probe. */
async function askHeap(folder: string, pid: number): Promise<number> {
  await writeFile(path.join(folder, `heap-${pid}`), '');
  await delay(5_000); // each thread looks twice a second
  const answers = readdirSync(folder).filter((name) => name.startsWith(`heap-${pid}-`));
  if (!answers.includes(`heap-${pid}-0`))
    throw new Error(`the orchestrator, process ${pid}, did not answer for its heap`);
  return round(
    answers.reduce((sum, name) => sum + Number(readFileSync(path.join(folder, name), 'utf8')), 0) / 2 ** 20,
    1,
  );
}

async function watch(
  bench: Bench,
  { seconds, work }: Options,
  { run, stack, processes }: { run: FakeRun; stack: Stack; processes: WorkerProcesses },
): Promise<Omit<Held, 'orchestrator_heap_mb'>> {
  const worker = processes.alive[0]!.pid;
  const orchestrator = stack.pids()['orchestrator worker']!;
  const memory: { worker: number; orchestrator: number }[] = [];
  const before = { worker: usageOf(worker)!, orchestrator: usageOf(orchestrator)! };
  const from = Date.now();
  const { cpu } = await meterCpu(async () => {
    while (Date.now() - from < seconds * 1000) {
      await delay(500, undefined, { signal: bench.signal });
      memory.push({ worker: usageOf(worker)!.rss_mb, orchestrator: usageOf(orchestrator)!.rss_mb });
    }
  });
  const to = Date.now();
  const after = { worker: usageOf(worker)!, orchestrator: usageOf(orchestrator)! };
  const taken = run.sampled().filter(({ time }) => Date.parse(time) >= from && Date.parse(time) < to).length;
  const perSecond = (taken * 1000) / (to - from);
  return {
    in_flight: Math.round((perSecond * work) / 1000),
    turns_per_s: round(perSecond, 1),
    worker_mb: Math.max(...memory.map((one) => one.worker)),
    cpu_ms_per_turn: round(((after.worker.cpu_s - before.worker.cpu_s) * 1000) / taken),
    orchestrator_mb: median(memory.map((one) => one.orchestrator)),
    orchestrator_cpu_s: round(after.orchestrator.cpu_s - before.orchestrator.cpu_s, 1),
    cpu,
  };
}
