import { execFile } from 'node:child_process';
import { setTimeout as delay } from 'node:timers/promises';
import { promisify } from 'node:util';
import type { Client } from '@temporalio/client';
import { encodeJson } from '../store/objects.ts';
import type { StepCommit } from '../core/rl/run-state.ts';
import type { Stack } from '../workers/stack/supervisor.ts';
import { answersBeyondTheFirst, startFakeRun } from './fake-run.ts';
import { measurement, type Bench, type Figures } from './measurement.ts';
import { newestStep, readCommits, stepSeconds, withProject, withStack } from './run-project.ts';
import { median, round } from './statistics.ts';

/** Parts of the run: its second tenth, when compilers and caches are warm, is compared with the last. */
const parts = 10;
const memoryIntervalMs = 2_000;
const runName = 'long';
const rolloutsPerExample = 4;

/**
 * Whether a run of thousands of steps stays as it was at its beginning: real server, workers and store, with a model and a
 * trainer that cost nothing, so that what grows is ours. Async level 1, the default.
 *
 * - `continue_as_new`, goal ≥ 10: how often the workflow went on in a new execution.
 * - `time_drift`, goal < 0.1: |median seconds of a step in the last tenth ÷ in the second tenth − 1|.
 * - `memory_drift`, goal < 0.1: the same of the resident memory of all workers together.
 * - `state_bytes_max`, goal < 16 KiB: the largest RunState in a commit.
 * - `regenerated`, goal 0: rollouts that were sampled more than once.
 */
export const longRun = measurement(
  'long-run',
  'whether thousands of steps stay as quick and small as the first',
  measure,
)
  .option('--steps <n>', 'steps of the run', Number, 2_000)
  .addHelpText(
    'after',
    '\nGoals with 2,000 steps: continue_as_new ≥ 10, time_drift and memory_drift < 0.1, state_bytes_max < 16384, regenerated 0.',
  );

async function measure(bench: Bench, { steps }: { readonly steps: number }): Promise<Figures> {
  if (!(steps >= 100)) throw new Error(`--steps: expected at least 100, got ${steps}`);
  return withProject(bench, (folder) =>
    withStack(bench, folder, async (client, stack) => {
      bench.doing(`${steps} steps of 16 rollouts with a model and a trainer that cost nothing`);
      const memory = watchMemory(stack);
      const run = await startFakeRun(client, folder, {
        name: runName,
        steps,
        batchSize: 16,
        rolloutsPerExample,
        asyncLevel: 1,
        sampleMs: 0,
        stepMs: 0,
        checkpointInterval: 50,
      });
      const ending = new AbortController();
      void sayProgress(bench, folder, ending.signal);
      const summary = await run.handle.result().finally(() => ending.abort());
      const samples = await memory.end();
      if (!summary.ledger.isSound) throw new Error(`the ledger is not sound: ${JSON.stringify(summary.ledger)}`);
      const commits = await readCommits(folder, runName, steps);
      const seconds = stepSeconds(commits);
      const memoryMib = memoryByProcess(samples);
      return {
        steps: summary.step,
        continue_as_new: (await countExecutions(client)) - 1,
        time_drift: round(driftOf(seconds)),
        memory_drift: round(driftOf(samples.map(({ workers }) => workers))),
        state_bytes_max: Math.max(...commits.map(stateBytes)),
        regenerated: answersBeyondTheFirst(run.sampled()),
        details: {
          step_s: {
            second_tenth: round(median(tenth(seconds, 1))),
            last_tenth: round(median(tenth(seconds, parts - 1))),
          },
          memory_mib: memoryMib,
          groups: summary.ledger.counts,
        },
      };
    }),
  );
}

function stateBytes({ state }: StepCommit): number {
  return encodeJson(state).byteLength;
}

/** Relative difference between the last tenth and the second: 0 = nothing changed. */
export function driftOf(values: readonly number[]): number {
  return Math.abs(median(tenth(values, parts - 1)) / median(tenth(values, 1)) - 1);
}

function tenth(values: readonly number[], index: number): number[] {
  const at = (part: number): number => Math.floor((part * values.length) / parts);
  return values.slice(at(index), at(index + 1));
}

async function countExecutions(client: Client): Promise<number> {
  let count = 0;
  for await (const _ of client.workflow.list({ query: `WorkflowId = '${runName}'` })) count += 1;
  return count;
}

async function sayProgress(bench: Bench, folder: string, ending: AbortSignal): Promise<void> {
  for (;;) {
    await delay(30_000, undefined, { signal: ending }).catch(() => undefined);
    if (ending.aborted) return;
    bench.say(`step ${newestStep(folder, runName)}`);
  }
}

/** Resident memory in bytes: of the workers together, and of each process by its name. */
interface MemorySample {
  readonly workers: number;
  readonly processes: Readonly<Record<string, number>>;
}

function watchMemory(stack: Stack): { end(): Promise<MemorySample[]> } {
  const samples: MemorySample[] = [];
  const ending = new AbortController();
  const watching = (async () => {
    while (!ending.signal.aborted) {
      samples.push(await sampleMemory(stack));
      await delay(memoryIntervalMs, undefined, { signal: ending.signal }).catch(() => undefined);
    }
    return samples;
  })();
  return {
    end: () => {
      ending.abort();
      return watching;
    },
  };
}

async function sampleMemory(stack: Stack): Promise<MemorySample> {
  const processes: Record<string, number> = {};
  for (const [name, pid] of Object.entries(stack.pids())) {
    if (pid === null) throw new Error(`the ${name} died while it was measured`);
    const { stdout } = await promisify(execFile)('ps', ['-o', 'rss=', '-p', String(pid)]);
    processes[name] = Number(stdout) * 1024;
  }
  const workers = Object.entries(processes).filter(([name]) => name.endsWith('worker'));
  return { workers: workers.reduce((sum, [, bytes]) => sum + bytes, 0), processes };
}

/** MiB in the second and in the last tenth. */
function memoryByProcess(samples: readonly MemorySample[]): Record<string, readonly [number, number]> {
  const names = Object.keys(samples[0]!.processes);
  const mib = (name: string, part: number): number =>
    round(
      median(
        tenth(
          samples.map(({ processes }) => processes[name]!),
          part,
        ),
      ) /
        2 ** 20,
      1,
    );
  return Object.fromEntries(names.map((name) => [name, [mib(name, 1), mib(name, parts - 1)] as const]));
}
