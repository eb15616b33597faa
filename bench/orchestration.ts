import type { Client } from '@temporalio/client';
import { taskQueues } from '../core/names.ts';
import type { StepCommit } from '../core/rl/run-state.ts';
import type { trainRun } from '../workflows/train-run.ts';
import { meterCpu } from './cpu-meter.ts';
import { durationsOf, stepsOfHistory, type Durations } from './history.ts';
import { measurement, type Bench, type Figures } from './measurement.ts';
import { demoConfig, readCommits, stepSeconds, withProject, withStack } from './run-project.ts';
import { mean, median, round } from './statistics.ts';

/** The first steps pay for compilers that warm up and caches that fill. */
const stepsSkipped = 3;

/**
 * Cost of durability: seconds of a step that are neither generation nor training, and what a step adds to Temporal's
 * history. Real stack, real engine, the demo's batch of 512; three runs in one stack.
 *
 * - `overhead_s`, goal ≤ 0.6: async level 0, time between two commits − generation − training.
 * - `overhead_async1_s`, goal ≤ 0.2: async level 1, time between two commits − the longer of training this step and
 *   generating the next beside it.
 * - `events_per_step_16`, `events_per_step_512`, goal ≤ 100 and equal: history events of a step with one sampling round
 *   of 16 and of 512 rollouts. Workflow tasks, 3 events each, come in varying numbers whatever the batch: two chunks that end
 *   together cost one task, otherwise two. All other events should be equal (`workflow_task_events_per_step` tells them apart).
 * - `bytes_per_step`: history bytes of such a step at 512.
 *
 * All are medians over the steps after the third. Generation is the slower chunk's `seconds`, training `time/train`: both
 * are clocked inside their activities, so reading and storing objects there counts as model time, and everything else
 * (queues, workflow tasks, scoring, filtering, packing, committing, broadcasting) as overhead. Nothing is evaluated or
 * checkpointed between the first step and the last, and no difficulty filter asks for a second round.
 */
export const orchestration = measurement('orchestration', 'what a step costs beside generation and training', measure)
  .option('--steps <n>', 'steps of each run, the first 3 of which are not counted', Number, 23)
  .addHelpText(
    'after',
    '\nGoals: overhead_s ≤ 0.6, overhead_async1_s ≤ 0.2, events per step ≤ 100 and equal at 16 and 512.',
  );

interface Options {
  readonly steps: number;
}

async function measure(bench: Bench, { steps }: Options): Promise<Figures> {
  if (!(steps > stepsSkipped + 1)) throw new Error(`--steps: expected more than ${stepsSkipped + 1}, got ${steps}`);
  return withProject(bench, (folder) =>
    withStack(bench, folder, async (client) => {
      const train = (name: string, asyncLevel: 0 | 1, batchSize: number): Promise<MeasuredRun> =>
        trainOnce(bench, { client, folder, name, asyncLevel, batchSize, steps });
      const onPolicy = await train('level-0', 0, 512);
      const prefetched = await train('level-1', 1, 512);
      const small = await train('small', 0, 16);
      const overhead = { level0: onPolicyOverhead(onPolicy.commits), level1: prefetchedOverhead(prefetched.commits) };
      reportParts(bench, onPolicy.durations);
      return {
        overhead_s: round(median(overhead.level0)),
        overhead_async1_s: round(median(overhead.level1)),
        events_per_step_16: small.history.events,
        events_per_step_512: onPolicy.history.events,
        bytes_per_step: onPolicy.history.bytes,
        details: {
          steps_counted: { level_0: overhead.level0.length, level_1: overhead.level1.length },
          overhead_worst_s: round(Math.max(...overhead.level0)),
          overhead_async1_worst_s: round(Math.max(...overhead.level1)),
          level_0: describe(onPolicy),
          level_1: describe(prefetched),
          batch_16: describe(small),
        },
      };
    }),
  );
}

interface MeasuredRun {
  readonly commits: readonly StepCommit[];
  /** Medians over counted steps with one sampling round. */
  readonly history: { readonly events: number; readonly workflowTaskEvents: number; readonly bytes: number };
  readonly durations: Durations;
  readonly othersCpu_s: number | null;
}

async function trainOnce(
  bench: Bench,
  run: { client: Client; folder: string; name: string; asyncLevel: 0 | 1; batchSize: number; steps: number },
): Promise<MeasuredRun> {
  const { client, folder, name, asyncLevel, batchSize, steps } = run;
  bench.doing(`${name}: ${steps} steps of ${batchSize} rollouts at async level ${asyncLevel}`);
  const overrides = {
    max_steps: String(steps),
    max_async_level: String(asyncLevel),
    batch_size: String(batchSize),
    'difficulty_filter.enabled': 'false',
    'eval.skip_first_step': 'true',
    'eval.interval': String(steps),
    'checkpoints.interval': String(steps),
  };
  const handle = await client.workflow.start<typeof trainRun>('trainRun', {
    workflowId: name,
    taskQueue: taskQueues.orchestrator,
    args: [{ config: demoConfig, run: name, overrides }],
  });
  const { cpu } = await meterCpu(() => handle.result());
  const { events } = await handle.fetchHistory();
  const counted = stepsOfHistory(events ?? []).filter(
    ({ step, samplingRounds }) => step > stepsSkipped && samplingRounds === 1,
  );
  if (counted.length === 0) throw new Error(`${name}: no step had exactly one sampling round`);
  const measured: MeasuredRun = {
    commits: await readCommits(folder, name, steps),
    history: {
      events: median(counted.map(({ events }) => events)),
      workflowTaskEvents: median(counted.map(({ workflowTaskEvents }) => workflowTaskEvents)),
      bytes: median(counted.map(({ bytes }) => bytes)),
    },
    durations: durationsOf(events ?? []),
    othersCpu_s: cpu && round(cpu.others_s, 1),
  };
  bench.say(`${name}: ${JSON.stringify(describe(measured))}`);
  return measured;
}

/** Seconds of each counted step that are neither generation nor training. */
export function onPolicyOverhead(commits: readonly StepCommit[]): number[] {
  const seconds = stepSeconds(commits);
  return countedSteps(commits).map((n) => seconds[n - 1]! - generated(commits[n]!) - trained(commits[n]!));
}

/** While step n trains, the groups of step n+1 are generated; beside the last step nothing is. */
export function prefetchedOverhead(commits: readonly StepCommit[]): number[] {
  const seconds = stepSeconds(commits);
  return countedSteps(commits)
    .filter((n) => n < commits.length - 1)
    .map((n) => seconds[n - 1]! - Math.max(trained(commits[n]!), generated(commits[n + 1]!)));
}

function countedSteps(commits: readonly StepCommit[]): number[] {
  return commits.map(({ step }) => step).filter((step) => step > stepsSkipped);
}

const generated = ({ metrics }: StepCommit): number => metrics['rollout/generation_time']!;
const trained = ({ metrics }: StepCommit): number => metrics['time/train']!;

function describe({ commits, history, othersCpu_s }: MeasuredRun) {
  const counted = countedSteps(commits).map((n) => commits[n]!);
  return {
    step_s: round(median(stepSeconds(commits).slice(stepsSkipped))),
    generate_s: round(median(counted.map(generated))),
    train_s: round(median(counted.map(trained))),
    events_per_step: history.events,
    workflow_task_events_per_step: history.workflowTaskEvents,
    bytes_per_step: history.bytes,
    // over the whole run, including its warm-up
    others_cpu_s: othersCpu_s,
  };
}

/** Durations in a level-0 step, from the times in its history. */
function reportParts(bench: Bench, durations: Durations): void {
  bench.say('level-0, milliseconds in the history (median, mean, how often):');
  for (const [name, ms] of Object.entries(durations)) {
    const counted = ms.slice(stepsSkipped);
    if (counted.length < stepsSkipped) continue; // not part of every step
    bench.say(`  ${name.padEnd(34)} ${median(counted).toFixed(1)}  ${mean(counted).toFixed(1)}  × ${counted.length}`);
  }
}
