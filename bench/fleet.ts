import { setTimeout as delay } from 'node:timers/promises';
import { fileURLToPath } from 'node:url';
import type { Client } from '@temporalio/client';
import { poolStatusQueryName, poolWorkflowId } from '../core/names.ts';
import type { PoolStatus } from '../core/fleet/pool-types.ts';
import { uniform } from '../core/random.ts';
import { auditLedger } from '../core/rl/ledger.ts';
import type { Stack } from '../workers/stack/supervisor.ts';
import { type RunEvent, statusQuery } from '../workflows/control/messages.ts';
import { type CpuUse, meterCpu } from './cpu-meter.ts';
import { answersBeyondTheFirst, type FakeRun, startFakeRun, untilStep } from './fake-run.ts';
import {
  busySeconds,
  countedSteps,
  idleAtEnds,
  idleOf,
  type Idle,
  jainOf,
  readTrace,
  stepsPossible,
  type TraceRow,
  type Window,
} from './fleet-capacity.ts';
import { type Bench, type Figures, measurement } from './measurement.ts';
import { newestStep, readCommits, withProject, withStack } from './run-project.ts';
import { round } from './statistics.ts';
import { type WorkerLife, WorkerProcesses } from './worker-processes.ts';

/**
 * Four runs of one pool on two trainers and eight rollout workers, each a process, on one Temporal server. Trainer and
 * model take the time that they are told to (`--step-ms`, `--sample-ms`) and no CPU; the weights are a hash chain over
 * what was trained. Four parts, each with runs of its own:
 *
 * 1. Turns. Runs at async level 1 take turns of `--slice` seconds for `--seconds`, from when each has made a step. A turn ends with
 *    a step that makes a checkpoint, up to two steps later: `--seconds` has several rounds of turns, or the index says where it was cut off.
 *    - `aggregate`, goal ≥ 0.95: seconds of training of both trainers ÷ their time. Only committed steps count, each once.
 *    - `jain`, goal ≥ 0.95: Jain's index of the seconds of training of the four runs.
 * 2. Preemption. Runs at level 0, and beside them runs of higher priority, one after the other.
 *    - `preempted`, goal ≥ 10: how often a trainer was taken for one of higher priority.
 *    - `lost`, goal 0: groups that are unaccounted for, steps without a commit, steps trained again, answers sampled again.
 *    - `weights_equal`, goal true: every version of each run has the digest that it has in the run alone.
 * 3. Spot capacity. Trainers and workers come and go by `spot-trace.csv`; an end is announced, as clouds do (SIGTERM and a grace).
 *    - `spot_capacity`, goal ≥ 0.95: steps ÷ what the machines that were alive could have made, each moment bound by the
 *      scarcer of trainers and rollout workers.
 * 4. Sharing. A run whose batch is 32 times larger asks for more than the rollout workers can sample; both are always sampling.
 *    - `small_share`, goal ≥ 0.5: rollouts a second of the small run ÷ its fair share, which is what it samples alone, or half of
 *      what the workers can where that is less. A chunk that plays is not interrupted, so it is less than 1.
 *
 * `details.idle` has where trainers had nothing to do: between steps of one run, and from one run to the next.
 */
export const fleet = measurement('fleet', 'what runs lose that share trainers and rollout workers', measure)
  .option('--trainers <n>', 'GPU workers', Number, 2)
  .option('--workers <n>', 'rollout workers', Number, 8)
  .option('--slots <n>', 'rollouts that a worker generates at once', Number, 4)
  .option('--step-ms <ms>', 'of a step on a trainer', Number, 8_000)
  .option('--sample-ms <ms>', 'of the longest answer; the mean is half of it', Number, 4_000)
  .option('--slice <s>', 'seconds of a turn', Number, 40)
  .option('--seconds <n>', 'of the measurement of turns', Number, 400)
  .option('--preemptions <n>', 'how often a trainer is to be taken for a run of higher priority', Number, 10)
  .option('--only <list>', 'turns, preemption, spot, sharing')
  .option('--seed <n>', 'chooses when runs of higher priority come', Number, 1)
  .addHelpText(
    'after',
    '\nGoals: aggregate, jain, spot_capacity ≥ 0.95; preempted ≥ 10; lost 0; weights_equal true; small_share ≥ 0.5.',
  );

interface Options {
  readonly trainers: number;
  readonly workers: number;
  readonly slots: number;
  readonly stepMs: number;
  readonly sampleMs: number;
  readonly slice: number;
  readonly seconds: number;
  readonly preemptions: number;
  readonly only?: string;
  readonly seed: number;
}

const pool = 'fleet';
const runNames = ['a', 'b', 'c', 'd'] as const;
const batchSize = 32;
const rolloutsPerExample = 4;
/** Steps of the runs that end by themselves, and the speeds of their parts. */
const shortSteps = 60;
const shortStepMs = 600;
const shortSampleMs = 400;
/** Steps of a run of higher priority. */
const urgentSteps = 2;
/** Sizes of the part about sharing: rollouts of a step, milliseconds of the longest answer and of a step, seconds of each measurement. */
const [largeBatch, smallBatch] = [512, 16];
const sharedSampleMs = 2_000;
const sharedStepMs = 100;
const sharedS = 60;
/** Between looks at how often a trainer was taken. */
const notedEveryMs = 1_000;
/** Longest pause before one comes. */
const pauseMsMax = 1_500;
/** One that finds a free trainer takes none: up to so many come for each that is to take one. */
const urgentOfPreemption = 3;
/** Steps of a run that is ended from outside. */
const endless = 100_000;
/** A machine has so long from the announcement of its end. */
const graceS = 30;
const trace = fileURLToPath(new URL('spot-trace.csv', import.meta.url));

async function measure(bench: Bench, options: Options): Promise<Figures> {
  const isWanted = (part: string): boolean => options.only?.split(',').includes(part) ?? true;
  return withProject(bench, (folder) =>
    withStack(
      bench,
      folder,
      async (client, stack) => {
        const machines = new Machines(bench, stack, options);
        const place = { client, folder, options, machines };
        try {
          await machines.be({ trainers: options.trainers, workers: options.workers });
          await setPool(client, options.slice);
          const turns = isWanted('turns') ? await measureTurns(bench, place) : null;
          const preemption = isWanted('preemption') ? await measurePreemption(bench, place) : null;
          // Before the machines come and go.
          const sharing = isWanted('sharing') ? await measureSharing(bench, place) : null;
          const spot = isWanted('spot') ? await measureSpot(bench, place) : null;
          return {
            ...turns?.figures,
            ...preemption?.figures,
            ...spot?.figures,
            ...sharing?.figures,
            details: {
              turns: turns?.details,
              preemption: preemption?.details,
              spot: spot?.details,
              sharing: sharing?.details,
            },
          };
        } finally {
          await machines.stop();
        }
      },
      { count: { rollout: 0, train: 0 } },
    ),
  );
}

interface Place {
  readonly client: Client;
  readonly folder: string;
  readonly options: Options;
  readonly machines: Machines;
}

interface Part {
  readonly figures: Figures;
  readonly details: Figures;
}

/** Waiting raises no priority here: it would take minutes, and the runs of higher priority are to be those that say so. */
async function setPool(client: Client, slice: number): Promise<void> {
  await client.workflow.getHandle(poolWorkflowId(pool)).executeUpdate('set', { args: [{ slice, aging: 0 }] });
}

/** The GPU workers and rollout workers of the pool. */
class Machines {
  readonly trainers: WorkerProcesses;
  readonly workers: WorkerProcesses;
  readonly #bench: Bench;
  readonly #ending = new Set<WorkerLife>();
  #starting: Promise<void> = Promise.resolve();

  constructor(bench: Bench, stack: Stack, { slots }: Options) {
    this.#bench = bench;
    const grace = ['--grace', String(graceS)];
    this.trainers = new WorkerProcesses(stack, 'train', ['--pool', pool, ...grace]);
    this.workers = new WorkerProcesses(stack, 'rollout', ['--pool', pool, '--max-rollouts', String(slots), ...grace]);
  }

  get lives(): { readonly trainers: readonly WorkerLife[]; readonly workers: readonly WorkerLife[] } {
    return { trainers: this.trainers.lives, workers: this.workers.lives };
  }

  /** Starts and ends machines until there are so many. Those to go are told at once, the oldest first; those to come begin one after the other. */
  async be({ trainers, workers }: Pick<TraceRow, 'trainers' | 'workers'>): Promise<void> {
    const wanted = [[this.trainers, trainers] as const, [this.workers, workers] as const];
    const ending = wanted.flatMap(([of, count]) => {
      const staying = this.#staying(of);
      return staying.slice(0, Math.max(0, staying.length - count)).map((life) => this.#end(of, life));
    });
    this.#starting = this.#starting.then(async () => {
      for (const [of, count] of wanted) while (this.#staying(of).length < count) await of.start();
    });
    await Promise.all([this.#starting, ...ending]);
    this.#bench.say(`${this.trainers.alive.length} trainers, ${this.workers.alive.length} rollout workers`);
  }

  #staying(of: WorkerProcesses): readonly WorkerLife[] {
    return of.alive.filter((life) => !this.#ending.has(life));
  }

  #end(of: WorkerProcesses, life: WorkerLife): Promise<void> {
    this.#ending.add(life);
    return of.end(life);
  }

  async standBy({ trainers, workers }: Pick<TraceRow, 'trainers' | 'workers'>): Promise<void> {
    await this.trainers.standBy(trainers);
    await this.workers.standBy(workers);
  }

  async stop(): Promise<void> {
    await Promise.all([this.trainers.stop(), this.workers.stop()]);
  }
}

/** Runs with a seed each, so that no two train the same. */
function startRuns(
  { client, folder, options }: Place,
  part: string,
  more: { readonly asyncLevel: number; readonly steps: number; readonly stepMs?: number; readonly sampleMs?: number },
  names: readonly string[] = runNames,
): Promise<FakeRun[]> {
  return Promise.all(
    names.map((name) =>
      startFakeRun(client, folder, {
        ...options,
        ...more,
        name: `${part}-${name}`,
        seed: runNames.indexOf(name as (typeof runNames)[number]) + 1,
        batchSize,
        rolloutsPerExample,
        checkpointInterval: 5,
        queue: `[queue]\npool = "${pool}"`,
      }),
    ),
  );
}

async function cancelAll(runs: readonly FakeRun[]): Promise<void> {
  await Promise.all(runs.map(({ handle }) => handle.cancel()));
  await Promise.allSettled(runs.map(({ handle }) => handle.result())); // cancelled
}

/** The committed steps of these runs, each as it was trained first. */
function trainedOf(folder: string, runs: readonly FakeRun[]) {
  return runs.flatMap((run) =>
    countedSteps(run.trained(), newestStep(folder, run.name)).map((line) => ({ ...line, run: run.name })),
  );
}

async function measureTurns(bench: Bench, place: Place): Promise<Part> {
  const { folder, options } = place;
  const { slice, seconds, trainers, stepMs } = options;
  const runs = await startRuns(place, 'turns', { asyncLevel: 1, steps: endless });
  bench.doing('four runs begin');
  await Promise.all(runs.map((run) => untilStep(bench, folder, run, 1)));
  bench.doing(`turns of ${slice} s for ${seconds} s`);
  const from = Date.now();
  const { cpu } = await meterCpu(() => delay(seconds * 1000, undefined, { signal: bench.signal }));
  const window = { from, to: Date.now() };
  await delay(2 * stepMs, undefined, { signal: bench.signal }); // the steps under way at the end of the window count once they are committed
  const lines = trainedOf(folder, runs);
  await cancelAll(runs);
  const shares = runs.map(({ name }) => busySeconds(lines.filter((line) => line.run === name), window)); // prettier-ignore
  const figures = {
    aggregate: round(shares.reduce((sum, one) => sum + one, 0) / (trainers * seconds)),
    jain: round(jainOf(shares)),
  };
  const details = {
    seconds_of_runs: shares.map((one) => round(one, 1)),
    idle: roundedIdle(idleOf(lines, window)),
    cpu,
  };
  bench.say(`turns: ${JSON.stringify({ ...figures, ...details })}`);
  return { figures, details };
}

function roundedIdle(idle: Idle): Idle {
  return { ...idle, within_run_s: round(idle.within_run_s, 1), between_runs_s: round(idle.between_runs_s, 1) };
}

async function measurePreemption(bench: Bench, place: Place): Promise<Part> {
  const { folder, options } = place;
  const alone = await digestsAlone(bench, place);
  bench.doing(`four runs, and others of higher priority, until ${options.preemptions} took a trainer`);
  const runs = await startRuns(place, 'shared', {
    asyncLevel: 0,
    steps: shortSteps,
    stepMs: shortStepMs,
    sampleMs: shortSampleMs,
  });
  await Promise.all(runs.map((run) => untilStep(bench, folder, run, 0)));
  const taken = new Preemptions(runs);
  const urgent = await preempt(bench, place, taken);
  await Promise.all(runs.map(({ handle }) => handle.result()));
  const lost = { groups: 0, steps: 0, trained_again: 0, sampled_again: 0 };
  const differing: string[] = [];
  for (const [i, run] of [...runs, ...urgent].entries()) {
    const steps = i < runs.length ? shortSteps : urgentSteps;
    const commits = await readCommits(folder, run.name, steps);
    const audit = auditLedger(commits.map(({ outcomes }) => outcomes));
    lost.groups += audit.holes.length + audit.duplicates.length;
    lost.steps += audit.missingSteps.length;
    lost.trained_again += run.trained().length - steps;
    lost.sampled_again += answersBeyondTheFirst(run.sampled());
    if (i >= runs.length) continue;
    const digests = commits.map(({ policy }) => policy.digest);
    if (JSON.stringify(digests) !== JSON.stringify(alone[i])) differing.push(run.name);
  }
  const sum = Object.values(lost).reduce((total, one) => total + one, 0);
  const figures = { preempted: taken.count, lost: sum, weights_equal: differing.length === 0 };
  const details = { lost, differing, urgent: urgent.length };
  bench.say(`preemption: ${JSON.stringify({ ...figures, ...details })}`);
  return { figures, details };
}

/** The digests of every version of each run, alone in the pool, without simulated waits. */
async function digestsAlone(bench: Bench, place: Place): Promise<readonly (readonly string[])[]> {
  const digests: string[][] = [];
  for (const name of runNames) {
    bench.doing(`the run ${name} alone`);
    const [run] = await startRuns(place, 'alone', { asyncLevel: 0, steps: shortSteps, stepMs: 0, sampleMs: 0 }, [name]);
    await run!.handle.result();
    const commits = await readCommits(place.folder, run!.name, shortSteps);
    digests.push(commits.map(({ policy }) => policy.digest));
  }
  return digests;
}

/** How often a trainer was taken from runs for one of higher priority. A run keeps its newest events only, so they are noted. */
class Preemptions {
  readonly #runs: readonly FakeRun[];
  readonly #noted = new Set<string>();

  constructor(runs: readonly FakeRun[]) {
    this.#runs = runs;
  }

  get count(): number {
    return this.#noted.size;
  }

  async note(): Promise<void> {
    for (const { name, handle } of this.#runs) {
      const events = await handle.query<readonly RunEvent[], [number]>('events', 0);
      for (const { sequence, text } of events)
        if (text.includes('has a higher priority')) this.#noted.add(`${name} ${sequence}`);
    }
  }
}

/** Runs of higher priority, one after the other. */
async function preempt(bench: Bench, { client, folder, options }: Place, taken: Preemptions): Promise<FakeRun[]> {
  const urgent: FakeRun[] = [];
  const most = options.preemptions * urgentOfPreemption;
  for (let i = 0; i < most && taken.count < options.preemptions; i++) {
    await delay(uniform('bench fleet', options.seed, i) * pauseMsMax, undefined, { signal: bench.signal });
    const run = await startFakeRun(client, folder, {
      name: `urgent-${i + 1}`,
      steps: urgentSteps,
      asyncLevel: 0,
      stepMs: shortStepMs,
      sampleMs: shortSampleMs,
      batchSize,
      rolloutsPerExample,
      checkpointInterval: urgentSteps,
      queue: `[queue]\npool = "${pool}"\npriority = 5`,
    });
    const ended = run.handle.result().then(() => true);
    const pause = (): Promise<false> => delay(notedEveryMs, false, { signal: bench.signal });
    do await taken.note();
    while (!(await Promise.race([ended, pause()])));
    urgent.push(run);
  }
  return urgent;
}

async function measureSharing(bench: Bench, place: Place): Promise<Part> {
  const { folder, client, options } = place;
  const start = (name: string, size: number, asyncLevel: number): Promise<FakeRun> =>
    startFakeRun(client, folder, {
      name,
      batchSize: size,
      asyncLevel,
      rolloutsPerExample,
      steps: endless,
      stepMs: sharedStepMs,
      sampleMs: sharedSampleMs,
      checkpointInterval: 1_000,
      queue: `[queue]\npool = "${pool}"`,
    });
  const rateOf = async (run: FakeRun): Promise<number> => {
    const before = run.sampled().length;
    const from = performance.now();
    await delay(sharedS * 1000, undefined, { signal: bench.signal });
    return (run.sampled().length - before) / ((performance.now() - from) / 1000);
  };
  bench.doing('the small run alone');
  const small = await start('sharing-small', smallBatch, 0);
  await untilStep(bench, folder, small, 1);
  const alone = await rateOf(small);
  bench.doing('the small run beside one that asks for more than there is');
  const large = await start('sharing-large', largeBatch, 1);
  await untilStep(bench, folder, large, 1);
  const [beside, ofLarge] = await Promise.all([rateOf(small), rateOf(large)]);
  await cancelAll([small, large]);
  const capacity = (options.workers * options.slots) / (sharedSampleMs / 2 / 1000);
  const figures = { small_share: round(beside / Math.min(alone, capacity / 2)) };
  const details = {
    alone_per_s: round(alone, 1),
    beside_per_s: round(beside, 1),
    large_per_s: round(ofLarge, 1),
    workers_can_per_s: round(capacity, 1),
  };
  bench.say(`sharing: ${JSON.stringify({ ...figures, ...details })}`);
  return { figures, details };
}

async function measureSpot(bench: Bench, place: Place): Promise<Part> {
  const { client, folder, options, machines } = place;
  const rows = readTrace(trace);
  const runs = await startRuns(place, 'spot', { asyncLevel: 1, steps: endless });
  bench.doing('four runs begin');
  await Promise.all(runs.map((run) => untilStep(bench, folder, run, 1)));
  await machines.standBy(mostStarted(rows));
  bench.doing('machines come and go');
  const from = Date.now();
  const changing: Promise<void>[] = [];
  const { cpu } = await meterCpu(async () => {
    for (const row of rows) {
      await delay(Math.max(0, from + row.second * 1000 - Date.now()), undefined, { signal: bench.signal });
      changing.push(machines.be(row));
    }
  });
  const window: Window = { from, to: Date.now() };
  await Promise.all(changing);
  await delay(2 * options.stepMs, undefined, { signal: bench.signal });
  const lines = trainedOf(folder, runs);
  const { trainers } = await client.workflow.getHandle(poolWorkflowId(pool)).query<PoolStatus>(poolStatusQueryName);
  const again = runs.reduce((sum, run) => sum + run.trained().length - new Set(run.trained().map(({ step }) => step)).size, 0); // prettier-ignore
  const recoveries = await Promise.all(
    runs.map(async ({ handle }) => (await handle.query(statusQuery)).lost.recoveries),
  );
  await cancelAll(runs);
  const stepS = options.stepMs / 1000;
  const meanS = options.sampleMs / 2 / 1000;
  const speeds = { stepS, stepsOfWorker: options.slots / meanS / batchSize };
  const possible = stepsPossible(machines.lives, speeds, window);
  const made = busySeconds(lines, window) / stepS;
  const figures = { spot_capacity: round(made / possible) };
  const details = {
    steps: round(made, 1),
    possible: round(possible, 1),
    idle: roundedIdle(idleOf(lines, window)),
    idle_at_ends_s: round(idleAtEnds(lines, machines.lives.trainers, window), 1),
    trained_again: again,
    recoveries: recoveries.reduce((sum, one) => sum + one, 0),
    sampled_again: runs.reduce((sum, run) => sum + answersBeyondTheFirst(run.sampled()), 0),
    trainers_of_pool: trainers.length,
    machines: { trainers: machines.trainers.lives.length, workers: machines.workers.lives.length },
    cpu: cpu satisfies CpuUse | null,
  };
  bench.say(`spot: ${JSON.stringify({ ...figures, ...details })}`);
  return { figures, details };
}

/** How many machines a trace starts. */
function mostStarted(rows: readonly TraceRow[]): Pick<TraceRow, 'trainers' | 'workers'> {
  const started = (of: 'trainers' | 'workers'): number =>
    rows.slice(1).reduce((sum, row, i) => sum + Math.max(0, row[of] - rows[i]![of]), 0);
  return { trainers: started('trainers'), workers: started('workers') };
}
