import { existsSync, readdirSync, readFileSync } from 'node:fs';
import { writeFile } from 'node:fs/promises';
import path from 'node:path';
import { setTimeout as delay } from 'node:timers/promises';
import { fileURLToPath } from 'node:url';
import type { Client, WorkflowHandle } from '@temporalio/client';
import { heartbeatTimeoutDefaultS } from '../core/limits.ts';
import { decodeRows } from '../store/objects.ts';
import { taskQueues } from '../core/names.ts';
import type { ScoredGroup } from '../core/rl/rollout/rollout.ts';
import type { SampledLine } from '../test/faults/fake-inference.ts';
import type { TrainedLine } from '../test/faults/fake-trainer.ts';
import { fakeRun } from '../test/faults/fake-run.ts';
import type { trainRun } from '../workflows/train-run.ts';
import type { Bench } from './measurement.ts';
import { newestStep, runFolder } from './run-project.ts';

/** A run that costs nothing for models: the trainer's weights are a hash chain, and the inference answers by hash. */
export interface FakeRunOptions {
  readonly name: string;
  readonly steps: number;
  readonly batchSize: number;
  readonly rolloutsPerExample: number;
  readonly asyncLevel: number;
  /** Limit for rollouts in flight; none by default. */
  readonly maxConcurrent?: number;
  /** The longest answer; others take a part of it. */
  readonly sampleMs: number;
  readonly stepMs: number;
  readonly heartbeatTimeoutS?: number;
  readonly checkpointInterval: number;
  /** In place of short words to be written backwards: `model`, and `[[env]]`. */
  readonly model?: string;
  readonly environment?: string;
  /** `[inference]` in place of the one of a few lines, and `[eval]`. */
  readonly inference?: string;
  readonly evaluation?: string;
  /** `[queue]`. */
  readonly queue?: string;
  readonly seed?: number;
}

export interface FakeRun {
  readonly name: string;
  readonly rolloutsPerExample: number;
  readonly handle: WorkflowHandle<typeof trainRun>;
  /** Every answer the inference gave, in the order of their ends. */
  sampled(): SampledLine[];
  /** Every step the trainer trained, in the order of their ends. */
  trained(): TrainedLine[];
}

export async function startFakeRun(client: Client, folder: string, options: FakeRunOptions): Promise<FakeRun> {
  const { name } = options;
  const log = path.join(folder, `${name}.sampled`);
  const trained = path.join(folder, `${name}.trained`);
  await writeFile(
    path.join(folder, `${name}.toml`),
    fakeRun({ heartbeatTimeoutS: heartbeatTimeoutDefaultS, ...options, log, trained }),
  );
  const handle = await client.workflow.start<typeof trainRun>('trainRun', {
    workflowId: name,
    taskQueue: taskQueues.orchestrator,
    // The same timeout as in `ratchet train`: how long a killed orchestrator's workflow task delays others.
    workflowTaskTimeout: '5s',
    args: [`${name}.toml`],
  });
  return {
    name,
    rolloutsPerExample: options.rolloutsPerExample,
    handle,
    sampled: () => readLines<SampledLine>(log),
    trained: () => readLines<TrainedLine>(trained),
  };
}

/** The same without end, whose environment works for a while after each turn (`waiting-environment.ts`), and whose model answers at once. */
export function startWaitingRun(
  client: Client,
  folder: string,
  options: Pick<FakeRunOptions, 'name' | 'batchSize' | 'rolloutsPerExample' | 'asyncLevel'> & {
    /** Mean milliseconds. */
    readonly work: number;
    /** Milliseconds of CPU; absent = none. */
    readonly burn?: number;
    readonly turns: number;
  },
): Promise<FakeRun> {
  const { work, burn = 0, turns, name, batchSize, rolloutsPerExample, asyncLevel } = options;
  const environment = fileURLToPath(new URL('waiting-environment.ts', import.meta.url));
  return startFakeRun(client, folder, {
    name,
    batchSize,
    rolloutsPerExample,
    asyncLevel,
    steps: 100_000,
    sampleMs: 0,
    stepMs: 100,
    checkpointInterval: 100,
    model: 'preset:chars-0.4m',
    environment: `[[env]]\nid = ${JSON.stringify(environment)}\nargs = { turns = ${turns}, work_ms = ${work}, burn_ms = ${burn} }`,
  });
}

/** Waits for a step of a run. One that came to its end will not make it. */
export async function untilStep(bench: Bench, folder: string, run: FakeRun, step: number): Promise<void> {
  const failed = run.handle.result().then(() => Promise.reject(new Error(`${run.name} came to its end`)));
  const reached = (async () => {
    while (newestStep(folder, run.name) < step) await delay(200, undefined, { signal: bench.signal });
  })();
  await Promise.race([reached, failed]);
}

/** Answers beyond the first at a place (group, rollout, turn): each place has a seed of its own. */
export function answersBeyondTheFirst(sampled: readonly SampledLine[]): number {
  return sampled.length - new Set(sampled.map(({ seed }) => seed)).size;
}

/** Rollouts that are not in the store: of those that were sampled, or of all whose groups were issued. */
export function countInFlight(folder: string, run: FakeRun, of: 'sampled' | 'issued'): number {
  const { name, rolloutsPerExample } = run;
  const rollouts = path.join(runFolder(folder, name), 'rollouts');
  const stored = new Set<string>();
  const rounds = new Map<string, number>();
  for (const file of filesBelow(rollouts)) {
    const [round, first, last] = /groups_(\d+)-(\d+)/.exec(file) ?? [];
    if (file.endsWith('.scored.jsonl.gz')) {
      const groups = decodeRows<ScoredGroup>(readFileSync(file), file);
      for (const { group, index } of groups.flatMap((one) => one.rollouts)) stored.add(`${group}/${index}`);
    }
    if (round !== undefined) rounds.set(round, (Number(last) - Number(first) + 1) * rolloutsPerExample);
    if (!/chunk_[^/]*\.jsonl$|part_\d+\.jsonl$/.test(file)) continue;
    for (const { group, index } of readLines<{ group: number; index: number }>(file)) stored.add(`${group}/${index}`);
  }
  const played =
    of === 'sampled'
      ? new Set(run.sampled().map(({ seed }) => seed)).size
      : [...rounds.values()].reduce((sum, rollouts) => sum + rollouts, 0);
  return played - stored.size;
}

function filesBelow(folder: string): string[] {
  if (!existsSync(folder)) return [];
  return readdirSync(folder, { recursive: true, withFileTypes: true })
    .filter((entry) => entry.isFile())
    .map((entry) => path.join(entry.parentPath, entry.name));
}

function readLines<T>(file: string): T[] {
  if (!existsSync(file)) return [];
  return readFileSync(file, 'utf8')
    .split('\n')
    .filter((line) => line !== '')
    .map((line) => JSON.parse(line) as T);
}
