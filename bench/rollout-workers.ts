import { setTimeout as delay } from 'node:timers/promises';
import { hash32 } from '../core/random.ts';
import type { SampledLine } from '../test/faults/fake-inference.ts';
import type { RunStatus } from '../workflows/control/messages.ts';
import { type CpuUse, meterCpu } from './cpu-meter.ts';
import { type FakeRun, startWaitingRun, untilStep } from './fake-run.ts';
import { type Bench, type Figures, measurement } from './measurement.ts';
import { WorkerProcesses, usageOf, type WorkerLife } from './worker-processes.ts';
import { newestStep, withProject, withStack } from './run-project.ts';
import { round } from './statistics.ts';

/**
 * Distribution of the rollouts of one run over rollout workers, each a process. The environment works for `--work`
 * milliseconds after each turn
 * and takes no CPU (`waiting-environment.ts`, five turns a rollout, groups of 8); the model answers at once. A worker
 * generates `--max-rollouts` at once, and the run's window holds several times what all workers generate.
 *
 * A turn of 50 ms is 1,280 turns a second and worker, which cost more CPU than a small machine has: the default turn here takes 2 s. Given
 * `--work 50`, a machine measures the same where it has a core for every worker. `--burn` and `--batch` with few rollouts tell whether an
 * environment that computes is spread over all workers although one of them could hold the whole batch.
 *
 * - `efficiency_4`, `efficiency_16`, goals ≥ 0.9: turns a second of so many workers ÷ (their number × the turns a second of one).
 * - `share_spread`, goal ≤ 0.1: of 16, the busiest worker's turns less those of the idlest, ÷ their mean.
 * - `killed_ratio`, goal ≥ 0.85: one of 16 is killed (`kill -9`) every `--kill-every` seconds for `--seconds`, and started anew: turns in
 *   that time, each counted once, ÷ what the live workers would have generated. A worker is alive from when it is ready until it is killed.
 *   `--standby` loads workers before their start (`standby.mjs`), so that starts take less of the cores that all workers share.
 * - `replayed`, goal 0: turns that were generated again although they had ended more than two seconds before their worker was killed. Ended
 *   turns are stored within half a second.
 */
export const rolloutWorkers = measurement('rollout-workers', 'how rollouts spread over rollout workers', measure)
  .option('--workers <list>', 'how many, one figure each; the first is what the others are compared with', '1,4,16')
  .option('--work <ms>', 'of the environment after each turn', Number, 2_000)
  .option('--burn <ms>', 'of CPU that the environment takes after each turn', Number, 0)
  .option('--turns <n>', 'of a rollout', Number, 5)
  .option('--batch <n>', 'rollouts of a batch; 0 = 64 for each worker', Number, 0)
  .option('--level <n>', 'max_async_level', Number, 4)
  .option('--max-rollouts <n>', 'of a worker; 0 = the option is not given to workers', Number, 64)
  .option('--seconds <n>', 'of each measurement', Number, 30)
  .option('--kill-every <s>', 'seconds from one kill to the next; 0 = none', Number, 1)
  .option(
    '--standby <n>',
    'workers that are loaded before the kills begin, and take the places of those killed',
    Number,
    0,
  )
  .option('--seed <n>', 'chooses victims', Number, 1)
  .addHelpText(
    'after',
    '\nGoals: efficiency_4, efficiency_16 ≥ 0.9, share_spread ≤ 0.1, killed_ratio ≥ 0.85, replayed 0.',
  );

interface Options {
  readonly workers: string;
  readonly work: number;
  readonly burn: number;
  readonly turns: number;
  readonly batch: number;
  readonly level: number;
  readonly maxRollouts: number;
  readonly seconds: number;
  readonly killEvery: number;
  readonly standby: number;
  readonly seed: number;
}

const rolloutsPerExample = 8;
/** Rollouts of a batch for each worker: the window is five times what a worker generates. */
const batchOfWorker = 64;
/** Steps until the run knows the duration of its rollouts, and its window is full. */
const stepsSkipped = 4;
/** Turns are stored within half a second of their end; this leaves a busy machine more time. */
const storedAfterMs = 2_000;

async function measure(bench: Bench, options: Options): Promise<Figures> {
  const counts = options.workers.split(',').map(Number);
  const measured: Spread[] = [];
  let killed: Killed | null = null;
  for (const [i, count] of counts.entries()) {
    const isLast = i === counts.length - 1;
    await withWorkers(bench, options, count, async (play) => {
      const spread = await measureSpread(bench, options, play);
      bench.say(`${count} workers: ${JSON.stringify(spread)}`);
      measured.push(spread);
      if (isLast && options.killEvery > 0) killed = await measureKills(bench, options, play, spread);
    });
  }
  const [first] = measured;
  const efficiency = ({ workers, turns_per_s }: Spread): number =>
    round((turns_per_s * first!.workers) / (first!.turns_per_s * workers));
  return {
    ...Object.fromEntries(measured.slice(1).map((spread) => [`efficiency_${spread.workers}`, efficiency(spread)])),
    share_spread: measured.at(-1)!.share_spread,
    ...(killed as Killed | null)?.figures,
    details: { measured, killed: (killed as Killed | null)?.details ?? null },
  };
}

interface Play {
  readonly run: FakeRun;
  readonly folder: string;
  readonly processes: WorkerProcesses;
}

/** Runs with so many workers. */
async function withWorkers(
  bench: Bench,
  options: Options,
  count: number,
  work: (play: Play) => Promise<void>,
): Promise<void> {
  bench.doing(`${count} workers`);
  await withProject(bench, (folder) =>
    withStack(
      bench,
      folder,
      async (client, stack) => {
        const { maxRollouts } = options;
        const processes = new WorkerProcesses(
          stack,
          'rollout',
          maxRollouts === 0 ? [] : ['--max-rollouts', String(maxRollouts)],
        );
        try {
          // One after the other: together they would wait for each other's compiler.
          for (let i = 0; i < count; i++) await processes.start();
          bench.say(`${count} workers are ready`);
          const run = await startWaitingRun(client, folder, {
            ...options,
            name: `workers-${count}`,
            batchSize: options.batch || batchOfWorker * count,
            rolloutsPerExample,
            asyncLevel: options.level,
          });
          await work({ run, folder, processes });
          await run.handle.terminate('measured');
        } finally {
          await processes.stop();
        }
      },
      { count: { rollout: 0 } },
    ),
  );
}

interface Spread {
  readonly workers: number;
  readonly turns_per_s: number;
  /** Share of what as many workers achieve at best, each with `--max-rollouts` at once. */
  readonly of_best: number | null;
  readonly share_spread: number;
  /** Turns of each worker, lowest first. */
  readonly turns_of_workers: readonly number[];
  /** Turns of all workers, in each tenth of the time. */
  readonly turns_over_time: readonly number[];
  readonly steps: number;
  readonly memory_mb: number;
  readonly cpu_ms_per_turn: number | null;
  readonly cpu: CpuUse | null;
}

async function measureSpread(bench: Bench, options: Options, play: Play): Promise<Spread> {
  const { run, folder, processes } = play;
  const workers = processes.alive.length;
  const { work, turns, seconds, maxRollouts } = options;
  const waitMs = work * turns;
  bench.doing(`${workers} workers: the window fills`);
  await untilStep(bench, folder, run, stepsSkipped);
  await delay(waitMs, undefined, { signal: bench.signal });
  bench.doing(`${workers} workers: measured for ${seconds} s`);
  const from = Date.now();
  const { cpu } = await meterCpu(() => delay(seconds * 1000, undefined, { signal: bench.signal }));
  const to = Date.now();
  const { waitingOn } = await run.handle.query<RunStatus>('status');
  bench.say(`${run.name} waits for ${waitingOn.map(({ what }) => what).join('; ')}`);
  const taken = firstOf(run.sampled()).filter(({ at }) => at >= from && at < to);
  const perSecond = (taken.length * 1000) / (to - from);
  return {
    workers,
    turns_per_s: round(perSecond, 1),
    of_best: maxRollouts === 0 ? null : round((perSecond * work) / 1000 / (maxRollouts * workers)),
    share_spread: round(spreadOf(taken, processes.alive)),
    turns_of_workers: turnsOf(taken, processes.alive).toSorted((a, b) => a - b),
    turns_over_time: tenths(taken, from, to),
    steps: newestStep(folder, run.name),
    memory_mb: processes.alive.reduce((sum, { pid }) => sum + (usageOf(pid)?.rss_mb ?? 0), 0),
    cpu_ms_per_turn: cpu && round((cpu.own_s * 1000) / taken.length),
    cpu,
  };
}

/** An answer of the model, when it was given. */
interface Taken extends SampledLine {
  /** ms since 1970. */
  readonly at: number;
}

/** Identifies the turn of a rollout: two seeds in a hundred thousand may collide, but not with the same prompt. */
const placeOf = ({ seed, prompt = 0 }: SampledLine): string => `${seed} ${prompt}`;

/** First answer of each turn: one that was lost and generated again counts once. */
export function firstOf(lines: readonly SampledLine[]): Taken[] {
  const first = new Map<string, Taken>();
  for (const line of lines) {
    const place = placeOf(line);
    const taken = { ...line, at: Date.parse(line.time) };
    const before = first.get(place);
    if (before === undefined || taken.at < before.at) first.set(place, taken);
  }
  return [...first.values()];
}

/** The busiest worker's turns less those of the idlest, ÷ their mean. */
export function spreadOf(
  taken: readonly { readonly pid: number }[],
  workers: readonly { readonly pid: number }[],
): number {
  const counts = turnsOf(taken, workers);
  return ((Math.max(...counts) - Math.min(...counts)) * workers.length) / Math.max(1, taken.length);
}

function turnsOf(
  taken: readonly { readonly pid: number }[],
  workers: readonly { readonly pid: number }[],
): readonly number[] {
  return workers.map(({ pid }) => taken.filter((line) => line.pid === pid).length);
}

/** How many there were in each tenth of a time. */
function tenths(taken: readonly Taken[], from: number, to: number): number[] {
  const counts = Array.from({ length: 10 }, () => 0);
  for (const { at } of taken) counts[Math.floor(((at - from) * 10) / (to - from))]! += 1;
  return counts;
}

interface Killed {
  readonly figures: { readonly killed_ratio: number; readonly replayed: number };
  readonly details: Readonly<Record<string, unknown>>;
}

async function measureKills(bench: Bench, options: Options, play: Play, calm: Spread): Promise<Killed> {
  const { run, processes } = play;
  const { seconds, killEvery, standby, seed } = options;
  bench.doing(`${standby} workers stand by`);
  await processes.standBy(standby);
  bench.doing(`one of ${calm.workers} killed every ${killEvery} s`);
  const starting: Promise<unknown>[] = [];
  const from = Date.now();
  const { cpu } = await meterCpu(async () => {
    for (let kill = 0; Date.now() - from < seconds * 1000; kill++) {
      const { alive } = processes;
      const victim = alive[hash32('victim', seed, kill) % alive.length];
      if (victim) {
        processes.kill(victim);
        starting.push(processes.start());
      }
      await delay(killEvery * 1000, undefined, { signal: bench.signal });
    }
  });
  const to = Date.now();
  await Promise.all(starting);
  // leaves time to lease the work of the last killed worker again
  await delay(10_000, undefined, { signal: bench.signal });
  const lines = run.sampled();
  const taken = firstOf(lines).filter(({ at }) => at >= from && at < to);
  const alive_s = secondsAlive(processes.lives, from, to);
  const ofAlive = (alive_s * calm.turns_per_s) / calm.workers;
  return {
    figures: { killed_ratio: round(taken.length / ofAlive), replayed: replayedOf(lines, processes.lives) },
    details: {
      kills: processes.lives.filter(({ endedAt }) => endedAt >= from && endedAt < to).length,
      kill_every_s: killEvery,
      alive_mean: round((alive_s * 1000) / (to - from), 1),
      turns_over_time: tenths(taken, from, to),
      played_again: lines.length - new Set(lines.map(placeOf)).size,
      cpu,
    },
  };
}

/** Total over all workers, within an interval. */
export function secondsAlive(lives: readonly WorkerLife[], from: number, to: number): number {
  return lives.reduce((sum, { readyAt, endedAt }) => {
    return sum + Math.max(0, Math.min(endedAt, to) - Math.max(readyAt, from)) / 1000;
  }, 0);
}

/** Turns that were asked for again although they must have been stored: they had ended a while before their worker did. */
export function replayedOf(lines: readonly SampledLine[], lives: readonly WorkerLife[]): number {
  const endOf = new Map(lives.map(({ pid, endedAt }) => [pid, endedAt]));
  const mustBeStored = firstOf(lines).filter(({ pid, at }) => (endOf.get(pid) ?? Infinity) - at > storedAfterMs);
  const places = new Set(mustBeStored.map(placeOf));
  return lines.filter((line) => places.has(placeOf(line))).length - places.size;
}
