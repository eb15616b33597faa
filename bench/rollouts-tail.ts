import { setTimeout as delay } from 'node:timers/promises';
import type { Client } from '@temporalio/client';
import { decodeRanges } from '../core/rl/ledger.ts';
import type { StepCommit } from '../core/rl/run-state.ts';
import type { Stack } from '../workers/stack/supervisor.ts';
import type { RunStatus } from '../workflows/control/messages.ts';
import { type CpuUse, meterCpu } from './cpu-meter.ts';
import { type FakeRun, startFakeRun } from './fake-run.ts';
import { countEvents, countTasksLost, durationsOf, historiesOf } from './history.ts';
import { type Bench, type Figures, measurement } from './measurement.ts';
import { type MockOptions, type MockServer, startMockServer } from './mock-model-server.ts';
import { usageOf } from './worker-processes.ts';
import { newestStep, readCommits, stepSeconds, withProject, withStack } from './run-project.ts';
import { mean, median, round } from './statistics.ts';

/**
 * Loss of a run to slow rollouts. A server answers after a log-normal latency of `--mean` seconds (keyed by the seed of the
 * request, any number at once), the trainer waits for `--train` seconds a step; server, workers, store and workflow are real. A batch is
 * 512 rollouts in 64 groups, of one short turn each.
 *
 * A figure is what a step might take at best ÷ what the steps after the third took on average, from commit to commit.
 * At best a step takes the longer of
 * - the trainer's time, and
 * - mean latency × rollouts of a batch ÷ rollouts in flight (Little's law), with as many in flight all the time as `max_concurrent` allows,
 *   512 here: one batch. Latencies of 2 s make that 2 s a step.
 *
 * The run may be 0, 1 or 2 steps ahead, but at no level may it have more in flight than one batch, so all figures have the same bound.
 * Latencies count as they were asked of the server: their mean over the seeds of a run differs by a few per cent. Rollouts that were
 * sampled and not trained make a figure smaller.
 *
 * - `utilisation_s1`, goal ≥ 0.9: level 2, σ = 1 (one answer in a hundred takes more than 12 s).
 * - `utilisation_s05`, goal ≥ 0.85: level 1, σ = 0.5.
 * - `utilisation_hang`: level 2, σ = 1, and 2 % of the answers take 60 s. They count in the mean, which is then 3.16 s.
 * - `rounds_s1`: level 0, σ = 1, where a step waits for the slowest of its rollouts, and the next one for its weights.
 * - `utilisation_fresh`, and `off_policy_fresh`, how many versions its trained groups are behind on average: level 8, σ = 1, without `max_concurrent`, latencies of a
 *   quarter of `--mean` and twice the trainer's time. A fraction of a batch in flight keeps the trainer busy; groups sampled further ahead wait and become stale.
 * - `utilisation_window`: as `utilisation_s1` without `max_concurrent`. The window is then 3 batches at most, and the trainer's time is the bound.
 */
export const rolloutsTail = measurement('rollouts-tail', 'what a run loses to rollouts that take long', measure)
  .option('--steps <n>', 'steps that are measured, after the first three', Number, 12)
  .option('--mean <s>', 'of the latencies', Number, 2)
  .option('--train <s>', 'a step of the trainer', Number, 1)
  .option('--batch <n>', 'rollouts', Number, 512)
  .option('--only <figure>', 'one of the figures, by its name')
  .addHelpText('after', '\nGoals: utilisation_s1 ≥ 0.9, utilisation_s05 ≥ 0.85.');

interface Options {
  readonly steps: number;
  readonly mean: number;
  readonly train: number;
  readonly batch: number;
  readonly only?: string;
}

interface Kind {
  readonly level: number;
  readonly sigma: number;
  /** Rollouts that may be in flight are a batch; where not, as many as the window has. */
  readonly isUnbounded?: boolean;
  readonly hangShare?: number;
  /** Factors for `--mean` and for `--train`. */
  readonly meanShare?: number;
  readonly trainShare?: number;
  /** Factor for the number of measured steps. */
  readonly stepsShare?: number;
}

const hangS = 60;
const kinds: Readonly<Record<string, Kind>> = {
  utilisation_s1: { level: 2, sigma: 1 },
  utilisation_s05: { level: 1, sigma: 0.5 },
  utilisation_hang: { level: 2, sigma: 1, hangShare: 0.02 },
  rounds_s1: { level: 0, sigma: 1, stepsShare: 0.5 },
  utilisation_window: { level: 2, sigma: 1, isUnbounded: true },
  utilisation_fresh: { level: 8, sigma: 1, isUnbounded: true, meanShare: 0.25, trainShare: 2 },
};

/** The first steps fill the window, and measure the duration of the rollouts. */
const stepsSkipped = 3;
const rolloutsPerExample = 8;
/** How often a run is looked at. */
const lookMs = 5_000;

async function measure(bench: Bench, options: Options): Promise<Figures> {
  const { only } = options;
  if (only !== undefined && !(only in kinds)) {
    throw new Error(`--only: expected one of ${Object.keys(kinds).join(', ')}, got ${only}`);
  }
  const measured: (readonly [string, Measured | Paused])[] = [];
  for (const [name, kind] of Object.entries(kinds)) {
    if (only !== undefined && only !== name) continue;
    const one = await measureOne(bench, name, kind, options);
    bench.say(`${name}: ${JSON.stringify(one)}`);
    measured.push([name, one]);
  }
  return {
    ...Object.fromEntries(measured.map(([name, { utilisation }]) => [name, utilisation])),
    ...Object.fromEntries(measured.flatMap(([name, one]) => offPolicyOf(name, one))),
    details: Object.fromEntries(measured),
  };
}

interface Measured {
  readonly utilisation: number;
  readonly bound_s: number;
  readonly step_s: number;
  readonly step_worst_s: number;
  /** Mean number of requests at the server. */
  readonly in_flight: number;
  /** Mean latency of its answers. */
  readonly latency_s: number;
  /** Answers for each rollout that was trained. */
  readonly answers_per_trained: number;
  readonly ended: Readonly<Record<string, number>>;
  /** How many versions trained groups were behind, on average. */
  readonly off_policy: number;
  /** Share of the window in flight, as the run reports it. */
  readonly window: number;
  /** In the histories of all workflows. */
  readonly events_per_step: number;
  readonly events_per_group: number;
  /** Workflow tasks that ended late or failed, and executions (continue-as-new plus one), since the workflow began. */
  readonly tasks_lost: number;
  readonly executions: number;
  /** CPU seconds of each process for a step. */
  readonly cpu_s_of_step: Readonly<Record<string, number>>;
  readonly cpu: CpuUse | null;
}

/** Why there is no figure: the run would have stood for ever. */
interface Paused {
  readonly utilisation: null;
  readonly paused: string;
}

function offPolicyOf(name: string, one: Measured | Paused): [string, number][] {
  return name === 'utilisation_fresh' && 'off_policy' in one ? [['off_policy_fresh', one.off_policy]] : [];
}

async function measureOne(bench: Bench, name: string, kind: Kind, options: Options): Promise<Measured | Paused> {
  const { level, sigma, isUnbounded = false, hangShare = 0, stepsShare = 1, meanShare = 1, trainShare = 1 } = kind;
  const { batch } = options;
  const [meanS, train] = [options.mean * meanShare, options.train * trainShare];
  const last = stepsSkipped + Math.ceil(options.steps * stepsShare);
  bench.doing(`${name}: ${last} steps of ${batch} rollouts, level ${level}, σ = ${sigma}`);
  const latency: MockOptions = { delayMs: meanS * 1000, sigma, hangShare, hangMs: hangS * 1000, bySeed: true };
  const mock = await startMockServer(latency);
  try {
    return await withProject(bench, (folder) =>
      withStack(bench, folder, async (client, stack) => {
        const run = await startFakeRun(client, folder, {
          name,
          // Near its end a run samples less.
          steps: last + 50,
          batchSize: batch,
          rolloutsPerExample,
          asyncLevel: level,
          ...(isUnbounded ? {} : { maxConcurrent: batch }),
          sampleMs: 0,
          stepMs: train * 1000,
          checkpointInterval: 100,
          inference: `[inference]\nkind = "openai"\nurl = ${JSON.stringify(mock.url)}`,
        });
        const during = await Promise.race([
          countDuring(bench, { client, stack, folder, run, mock, last }),
          run.handle.result().then(() => Promise.reject(new Error(`${name} came to its end before it was measured`))),
          untilPaused(bench, run, mock),
        ]);
        const histories = await historiesOf(client, name);
        await run.handle.terminate('measured');
        if ('paused' in during) return during;
        const commits = await readCommits(folder, name, last);
        reportWaits(bench, histories);
        const bound_s = boundOf({
          trainS: train,
          latencyS: meanS * (1 - hangShare) + hangS * hangShare,
          batch,
          inFlight: isUnbounded ? batch * (level + 1) : batch,
        });
        const measured = commits.slice(stepsSkipped + 1);
        const ended = countEnded(measured);
        return {
          ...utilisationOf(commits, bound_s),
          ...during,
          answers_per_trained: round(during.answers / ((last - stepsSkipped) * batch)),
          ended,
          off_policy: round(mean(measured.map(({ metrics }) => metrics['off_policy/mean'] ?? 0))),
          window: round(mean(measured.map(({ metrics }) => metrics['window/utilisation'] ?? 0))),
          tasks_lost: sum(histories.map(countTasksLost)),
          executions: histories.length,
          events_per_group: round((during.events_per_step * measured.length) / sum(Object.values(ended)), 2),
        };
      }),
    );
  } finally {
    await mock.close();
  }
}

/** Seconds that a step takes at best. */
export function boundOf(run: {
  readonly trainS: number;
  /** Mean. */
  readonly latencyS: number;
  readonly batch: number;
  readonly inFlight: number;
}): number {
  return Math.max(run.trainS, (run.latencyS * run.batch) / run.inFlight);
}

export function utilisationOf(
  commits: readonly StepCommit[],
  bound_s: number,
): Pick<Measured, 'utilisation' | 'bound_s' | 'step_s' | 'step_worst_s'> {
  const seconds = stepSeconds(commits).slice(stepsSkipped);
  return {
    utilisation: round(bound_s / mean(seconds)),
    bound_s: round(bound_s),
    step_s: round(mean(seconds)),
    step_worst_s: round(Math.max(...seconds)),
  };
}

type During = Pick<Measured, 'in_flight' | 'latency_s' | 'events_per_step' | 'cpu_s_of_step' | 'cpu'> & {
  readonly answers: number;
};

/** Counts at the server and the machine from the third commit to the last. */
async function countDuring(
  bench: Bench,
  measured: { client: Client; stack: Stack; folder: string; run: FakeRun; mock: MockServer; last: number },
): Promise<During> {
  const { client, stack, folder, run, mock, last } = measured;
  const until = async (step: number): Promise<Seen> => {
    let seen = -1;
    for (;;) {
      const newest = newestStep(folder, run.name);
      if (newest > seen) bench.say(`${run.name}: step ${newest}`);
      seen = newest;
      if (newest >= step) break;
      await delay(100, undefined, { signal: bench.signal });
    }
    const { prompts, waited_s, cpu_s } = await mock.counts();
    return { prompts, waited_s, events: await countEvents(client), cpu_s: { ...cpuOf(stack), 'mock server': cpu_s } };
  };
  const before = await until(stepsSkipped);
  const startedAt = performance.now();
  const { result: after, cpu } = await meterCpu(() => until(last));
  const seconds = (performance.now() - startedAt) / 1000;
  const waited_s = after.waited_s - before.waited_s;
  const answers = after.prompts - before.prompts;
  const steps = last - stepsSkipped;
  const perStep = Object.entries(after.cpu_s).map(([name, used]) => [name, (used - (before.cpu_s[name] ?? 0)) / steps]);
  return {
    in_flight: round(waited_s / seconds, 1),
    latency_s: round(waited_s / answers),
    answers,
    events_per_step: round((after.events - before.events) / steps, 1),
    cpu_s_of_step: Object.fromEntries(perStep.map(([name, used]) => [name, round(Number(used))])),
    cpu,
  };
}

interface Seen {
  readonly prompts: number;
  readonly waited_s: number;
  readonly events: number;
  /** CPU seconds by process. */
  readonly cpu_s: Readonly<Record<string, number>>;
}

/** CPU seconds of the stack's processes by now. */
function cpuOf(stack: Stack): Record<string, number> {
  const used = Object.entries(stack.pids()).map(([name, pid]) => [name, pid === null ? 0 : (usageOf(pid)?.cpu_s ?? 0)]);
  return Object.fromEntries(used) as Record<string, number>;
}

/** Looks at what a run says of itself. Never ends while it works. */
async function untilPaused(bench: Bench, { name, handle }: FakeRun, mock: MockServer): Promise<Paused> {
  for (;;) {
    await delay(lookMs, undefined, { signal: bench.signal });
    const { pausedBecause, waitingOn } = await handle.query<RunStatus>('status');
    const { inFlight } = await mock.counts();
    bench.say(`${name}: ${inFlight} in flight; waits for ${waitingOn.map(({ what }) => what).join('; ')}`);
    if (pausedBecause !== null) return { utilisation: null, paused: pausedBecause };
  }
}

function sum(values: readonly number[]): number {
  return values.reduce((total, value) => total + value, 0);
}

/** Number of groups by fate. */
function countEnded(commits: readonly StepCommit[]): Record<string, number> {
  const counts: Record<string, number> = {};
  for (const { outcomes } of commits) {
    for (const [state, ordinals] of Object.entries(outcomes.ended)) {
      counts[state] = (counts[state] ?? 0) + decodeRanges(ordinals ?? '').length;
    }
  }
  return counts;
}

/** How long activities and workflow tasks of the run waited for a worker, and how long they took. */
function reportWaits(bench: Bench, histories: Awaited<ReturnType<typeof historiesOf>>): void {
  const all: Record<string, number[]> = {};
  for (const events of histories) {
    for (const [name, ms] of Object.entries(durationsOf(events))) (all[name] ??= []).push(...ms);
  }
  for (const [name, ms] of Object.entries(all)) {
    const most = Math.max(...ms).toFixed(0);
    bench.say(`  ${name.padEnd(34)} median ${median(ms).toFixed(0)} ms, most ${most}  × ${ms.length}`);
  }
}
