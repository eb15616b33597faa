import { setTimeout as delay } from 'node:timers/promises';
import { fileURLToPath } from 'node:url';
import type { Client } from '@temporalio/client';
import { poolStatusQueryName, poolWorkflowId } from '../core/names.ts';
import type { PoolStatus } from '../core/fleet/pool-types.ts';
import type { Stack } from '../workers/stack/supervisor.ts';
import { type CpuUse, meterCpu } from './cpu-meter.ts';
import { type FakeRun, startFakeRun } from './fake-run.ts';
import { busySeconds, countedSteps, jainOf, type Window } from './fleet-capacity.ts';
import { countTasksLost, historiesOf, stepsOfHistory } from './history.ts';
import { type Bench, CannotMeasure, type Figures, measurement } from './measurement.ts';
import { newestStep, withProject, withStack } from './run-project.ts';
import { median, round } from './statistics.ts';
import { usageOf, WorkerProcesses } from './worker-processes.ts';

/**
 * Very many runs and workers on one Temporal server, beside few of them. Machines are simulated: workers share a few
 * processes, each polls by itself. There is one orchestrator, as everywhere; runs, store and pool are real.
 * Two of 25 workers are trainers. With five workers for each run, 2.5 runs take turns with each trainer.
 *
 * - `cost_ratio`, goal ≤ 1.2: CPU seconds of a step with the most runs ÷ with the fewest, of all processes together.
 * - `starved`, goal 0: runs without a committed step in the window, which is longer than it takes for each to have a turn.
 * - `jain`: Jain's index of the steps of the runs.
 * - `aggregate`: seconds of training of all trainers ÷ their time.
 * - `events_ratio`: events of a step in its run's history, the most runs ÷ the fewest.
 */
export const fleetScale = measurement('fleet-scale', 'what very many runs and workers cost each other', measure)
  .option('--runs <list>', 'how many, the first is what the last is compared with', '10,200')
  .option('--workers-of-run <n>', 'simulated workers for each run', Number, 5)
  .option('--step-ms <ms>', 'of a step on a trainer', Number, 80_000)
  .option('--slice <s>', 'seconds of a turn, which ends with the step under way', Number, 60)
  .option('--seconds <n>', 'of the measurement: longer than all turns of a trainer', Number, 260)
  .option('--per-process <n>', 'simulated workers that share a process', Number, 60)
  .addHelpText('after', '\nGoals: cost_ratio ≤ 1.2, starved 0.');

interface Options {
  readonly runs: string;
  readonly workersOfRun: number;
  readonly stepMs: number;
  readonly slice: number;
  readonly seconds: number;
  readonly perProcess: number;
}

const pool = 'fleet';
const program = fileURLToPath(new URL('simulated-machines.ts', import.meta.url));
const trainersOfWorkers = 2 / 25;
const startedAtOnce = 10;
const serverName = 'Temporal server';
const orchestratorName = 'orchestrator worker';

async function measure(bench: Bench, options: Options): Promise<Figures> {
  if (process.platform !== 'linux') throw new CannotMeasure('fleet-scale reads /proc: it needs Linux.');
  const measured: Scale[] = [];
  for (const runs of options.runs.split(',').map(Number)) measured.push(await measureScale(bench, options, runs));
  const [few, many] = [measured[0]!, measured.at(-1)!];
  return {
    runs: many.runs,
    workers: many.workers,
    cost_ratio: round(many.cpu_s_per_step / few.cpu_s_per_step),
    starved: many.starved,
    jain: many.jain,
    aggregate: many.aggregate,
    events_ratio: round(many.events_per_step / few.events_per_step),
    details: measured,
  };
}

interface Scale {
  readonly runs: number;
  readonly workers: number;
  readonly trainers: number;
  readonly steps: number;
  readonly starved: number;
  readonly jain: number;
  readonly aggregate: number;
  readonly cpu_s_per_step: number;
  readonly server_cpu_s_per_step: number;
  readonly orchestrator_cpu_s_per_step: number;
  readonly events_per_step: number;
  /** Events in the history of the pool's workflow, in the window. */
  readonly pool_events: number;
  readonly pool_tasks_lost: number;
  readonly pool_answer_ms: number;
  readonly memory_mb: Readonly<Record<string, number>>;
  readonly cpu: CpuUse | null;
}

function measureScale(bench: Bench, options: Options, runs: number): Promise<Scale> {
  const all = runs * options.workersOfRun;
  const trainers = Math.round(all * trainersOfWorkers);
  bench.doing(`${runs} runs, ${trainers} trainers and ${all - trainers} rollout workers`);
  return withProject(bench, (folder) =>
    withStack(
      bench,
      folder,
      async (client, stack) => {
        const machines = machinesOf(stack, { trainers, workers: all - trainers, perProcess: options.perProcess });
        try {
          for (const [i, one] of machines.entries()) {
            bench.doing(`${i} of ${machines.length} processes of workers are ready`);
            await one.start();
          }
          await client.workflow.getHandle(poolWorkflowId(pool)).executeUpdate('set', { args: [{ slice: options.slice, aging: 0 }] }); // prettier-ignore
          const scale = await measureRuns(bench, { client, stack, folder, options, machines, runs, trainers });
          bench.say(JSON.stringify(scale));
          return scale;
        } finally {
          await Promise.all(machines.map((one) => one.stop()));
        }
      },
      { count: { rollout: 0, train: 0 } },
    ),
  );
}

/**
 * Processes of simulated workers. They are small: each worker has a connection, and the SDK keeps a context for it to
 * which Node 20 looks at every promise of the process.
 */
function machinesOf(
  stack: Stack,
  {
    trainers,
    workers,
    perProcess,
  }: { readonly trainers: number; readonly workers: number; readonly perProcess: number },
): readonly WorkerProcesses[] {
  const ofRole = (role: 'train' | 'rollout', count: number): WorkerProcesses[] => {
    const processes = Math.ceil(count / perProcess);
    return Array.from({ length: processes }, (_, i) => {
      const share = Math.floor(((i + 1) * count) / processes) - Math.floor((i * count) / processes);
      return new WorkerProcesses(stack, role, ['--role', role, '--count', String(share), '--pool', pool], program);
    });
  };
  return [...ofRole('train', trainers), ...ofRole('rollout', workers)];
}

interface Stage {
  readonly client: Client;
  readonly stack: Stack;
  readonly folder: string;
  readonly options: Options;
  readonly machines: readonly WorkerProcesses[];
  readonly runs: number;
  readonly trainers: number;
}

async function measureRuns(bench: Bench, stage: Stage): Promise<Scale> {
  const { client, stack, folder, options, machines, trainers } = stage;
  const runs = await startRuns(bench, stage);
  bench.doing('every run makes its first step');
  while (runs.some(({ name }) => newestStep(folder, name) < 1)) {
    await delay(2_000, undefined, { signal: bench.signal });
    const begun = runs.filter(({ name }) => newestStep(folder, name) >= 1).length;
    bench.doing(`${begun} of ${runs.length} runs have made their first step`);
  }
  bench.doing(`${options.seconds} s of ${runs.length} runs`);
  const before = runs.map(({ name }) => newestStep(folder, name));
  const poolBefore = await lengthOf(client);
  const cpuBefore = cpuOf(stack, machines);
  const from = Date.now();
  const { cpu } = await meterCpu(() => delay(options.seconds * 1000, undefined, { signal: bench.signal }));
  const window: Window = { from, to: Date.now() };
  const cpuAfter = cpuOf(stack, machines);
  const made = runs.map(({ name }, i) => newestStep(folder, name) - before[i]!);
  const steps = made.reduce((sum, one) => sum + one, 0);
  const asked = performance.now();
  await client.workflow.getHandle(poolWorkflowId(pool)).query<PoolStatus>(poolStatusQueryName);
  const answered = performance.now() - asked;
  const poolEvents = (await lengthOf(client)) - poolBefore;
  const histories = await historiesOf(client, runs[0]!.name);
  const own = histories.flatMap((events) => stepsOfHistory(events));
  const lines = runs.flatMap((run) => countedSteps(run.trained(), newestStep(folder, run.name)));
  const per = (name: string): number => round((cpuAfter[name]! - cpuBefore[name]!) / steps);
  const all = Object.keys(cpuAfter);
  return {
    runs: runs.length,
    workers: runs.length * options.workersOfRun,
    trainers,
    steps,
    starved: made.filter((one) => one === 0).length,
    jain: round(jainOf(made)),
    aggregate: round(busySeconds(lines, window) / (trainers * options.seconds)),
    cpu_s_per_step: round(all.reduce((sum, name) => sum + cpuAfter[name]! - cpuBefore[name]!, 0) / steps),
    server_cpu_s_per_step: per(serverName),
    orchestrator_cpu_s_per_step: per(orchestratorName),
    events_per_step: median(own.map(({ events }) => events)),
    pool_events: poolEvents,
    pool_tasks_lost: countTasksLost((await historiesOf(client, poolWorkflowId(pool))).flat()),
    pool_answer_ms: round(answered, 0),
    memory_mb: Object.fromEntries(pidsOf(stack, machines).map(([name, pid]) => [name, usageOf(pid)!.rss_mb])),
    cpu,
  };
}

async function startRuns(bench: Bench, { client, folder, options, runs }: Stage): Promise<FakeRun[]> {
  const started: FakeRun[] = [];
  while (started.length < runs) {
    const next = Math.min(startedAtOnce, runs - started.length);
    const more = Array.from({ length: next }, (_, i) =>
      startFakeRun(client, folder, {
        name: `run-${started.length + i + 1}`,
        seed: started.length + i,
        steps: 100_000,
        batchSize: 8,
        rolloutsPerExample: 4,
        asyncLevel: 1,
        sampleMs: 1_000,
        stepMs: options.stepMs,
        heartbeatTimeoutS: 30,
        checkpointInterval: 1, // a turn ends with any step
        queue: `[queue]\npool = "${pool}"\nteam = "team-${(started.length + i) % 5}"`,
      }),
    );
    started.push(...(await Promise.all(more)));
    bench.doing(`${started.length} of ${runs} runs are started`);
  }
  return started;
}

/** Events of the pool's workflow, in all its executions. */
async function lengthOf(client: Client): Promise<number> {
  return (await historiesOf(client, poolWorkflowId(pool))).reduce((sum, events) => sum + events.length, 0);
}

function pidsOf(stack: Stack, machines: readonly WorkerProcesses[]): [name: string, pid: number][] {
  const own = Object.entries(stack.pids()).flatMap(([name, pid]): [string, number][] => (pid === null ? [] : [[name, pid]])); // prettier-ignore
  const simulated = machines.map((one, i): [string, number] => [`machines ${i + 1}`, one.alive[0]!.pid]);
  return [...own, ...simulated];
}

/** CPU seconds of each process so far. */
function cpuOf(stack: Stack, machines: readonly WorkerProcesses[]): Readonly<Record<string, number>> {
  return Object.fromEntries(pidsOf(stack, machines).map(([name, pid]) => [name, usageOf(pid)!.cpu_s]));
}
