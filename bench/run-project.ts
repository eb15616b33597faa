import { spawn } from 'node:child_process';
import { existsSync } from 'node:fs';
import { mkdir, mkdtemp, readFile, rm } from 'node:fs/promises';
import os from 'node:os';
import path from 'node:path';
import { createInterface } from 'node:readline';
import { fileURLToPath } from 'node:url';
import type { Client } from '@temporalio/client';
import type { EvaluationSummary } from '../activities/index.ts';
import { cacheFolder } from '../host/cache-folder.ts';
import { connect } from '../workers/temporal/client.ts';
import { layout } from '../runs/layout.ts';
import { firstLineage } from '../core/names.ts';
import type { StepCommit } from '../core/rl/run-state.ts';
import { choosePolicyPort, localRoles, policyUrlAt, type RoleOptions } from '../workers/stack/roles.ts';
import { type Role, startStack, type Stack } from '../workers/stack/supervisor.ts';
import { localTemporal } from '../workers/temporal/temporal-settings.ts';
import type { Bench } from './measurement.ts';

/** The run that all measurements are made of. */
export const demoConfig = fileURLToPath(new URL('../configs/rl/reverse-text.toml', import.meta.url));

/** `ratchet`, of this checkout. */
export const command = fileURLToPath(new URL('../cli/ratchet.mjs', import.meta.url));

/** Work in a project folder of its own, under the system's temporary folder. Removed afterwards; kept when the work fails. */
export async function withProject<T>(bench: Bench, work: (folder: string) => Promise<T>): Promise<T> {
  const folder = await mkdtemp(path.join(os.tmpdir(), 'ratchet-bench-'));
  try {
    const result = await work(folder);
    await rm(folder, { recursive: true, force: true });
    return result;
  } catch (error) {
    bench.say(`failed; its files are kept in ${folder}`);
    throw error;
  }
}

export interface CliRun {
  /** Milliseconds of the system clock, as the commits have it. */
  readonly startedAt: number;
  /** From the command to its end. */
  readonly seconds: number;
}

/** `ratchet train` on the demo, as a user would type it, in a project folder where nothing runs yet. */
export async function trainWithCli(
  bench: Bench,
  {
    folder,
    run,
    overrides,
    config = demoConfig,
    variables = {},
  }: {
    folder: string;
    run: string;
    overrides: readonly string[];
    config?: string;
    variables?: Readonly<Record<string, string>>;
  },
): Promise<CliRun> {
  const env = { ...process.env, ...variables };
  delete env['TEMPORAL_ADDRESS']; // what is measured is the embedded server
  const startedAt = Date.now();
  await runProgram(bench, process.execPath, [command, 'train', config, '--name', run, ...overrides], folder, env);
  return { startedAt, seconds: (Date.now() - startedAt) / 1000 };
}

/** Runs a program, its lines as progress. Returns what it wrote to stdout; anything but exit 0 throws. */
export async function runProgram(
  bench: Bench,
  program: string,
  args: readonly string[],
  folder: string,
  env: NodeJS.ProcessEnv = process.env,
): Promise<string> {
  const child = spawn(program, args, { cwd: folder, env, signal: bench.signal, stdio: ['ignore', 'pipe', 'pipe'] });
  const out: string[] = [];
  const last: string[] = [];
  for (const stream of [child.stdout, child.stderr]) {
    createInterface({ input: stream }).on('line', (line) => {
      if (stream === child.stdout) out.push(line);
      last.splice(0, last.length - 20, ...last.slice(-20), line);
      bench.say(`  ${line}`);
    });
  }
  const code = await new Promise<number | null>((resolve, reject) => child.on('error', reject).on('close', resolve));
  if (code !== 0) throw new Error(`${program} ${args.join(' ')} ended with ${code}:\n${last.join('\n')}`);
  return out.join('\n');
}

export interface StackNeeds {
  /** Allows restarts, for measurements that kill processes. */
  readonly mayRestart?: boolean;
  /** Variables for its processes, in addition to our own. */
  readonly variables?: Readonly<Record<string, string>>;
  /** Processes of a role; one by default. */
  readonly count?: RoleOptions['count'];
  /** Without policy server and GPU worker: nothing there could sample. */
  readonly playsOnly?: boolean;
  /** Changes how a role's processes are started; by default they stay as they are. */
  readonly changeRole?: (role: Role) => Role;
}

/** A running stack to start runs on directly, for measurements that look into Temporal's history. */
export async function withStack<T>(
  bench: Bench,
  folder: string,
  work: (client: Client, stack: Stack) => Promise<T>,
  { mayRestart = false, variables = {}, count = {}, playsOnly = false, changeRole = (role) => role }: StackNeeds = {},
): Promise<T> {
  const outputs = path.join(folder, 'outputs');
  await mkdir(outputs);
  const policyPort = await choosePolicyPort();
  const environment: NodeJS.ProcessEnv = {
    ...process.env,
    RATCHET_CODE_ROOTS: codeRoots().join(path.delimiter),
    ...variables,
  };
  delete environment['TEMPORAL_ADDRESS'];
  const stack = await startStack({
    projectFolder: folder,
    ...(playsOnly ? { playsOnly } : { policyUrl: policyUrlAt(policyPort) }),
    roles: localRoles({ weightRoots: [outputs], policyPort, count, playsOnly }).map(changeRole),
    log: bench.say,
    signal: bench.signal,
    environment,
  });
  try {
    const { client, close } = await connect(localTemporal(stack.temporalAddress));
    try {
      const result = await client.withAbortSignal(bench.signal, () => work(client, stack));
      const restarted = mayRestart ? [] : Object.entries(stack.restarts()).filter(([, count]) => count > 0);
      if (restarted.length > 0) throw new Error(`processes died while measuring: ${JSON.stringify(restarted)}`);
      return result;
    } catch (error) {
      bench.say(error instanceof Error ? (error.stack ?? error.message) : String(error)); // what is cut off by the end may throw, too
      throw error;
    } finally {
      await close();
    }
  } finally {
    await stack.stop();
  }
}

/**
 * The measurements' environments, trainers and servers are outside the project, and so is the Python that they install.
 */
export function codeRoots(): string[] {
  const here = (folder: string): string => fileURLToPath(new URL(folder, import.meta.url));
  return [here('.'), here('../test/faults'), path.join(cacheFolder(), 'python')];
}

export function runFolder(folder: string, run: string): string {
  return path.join(folder, 'outputs', run);
}

/** The last committed step of a run; −1 before its first version. */
export function newestStep(folder: string, run: string): number {
  let step = -1;
  while (existsSync(path.join(runFolder(folder, run), layout.commit(firstLineage, step + 1)))) step += 1;
  return step;
}

/** The commits of steps 0 … `last`. */
export async function readCommits(folder: string, run: string, last: number): Promise<StepCommit[]> {
  return Promise.all(
    Array.from({ length: last + 1 }, (_, step) => readJson<StepCommit>(folder, run, layout.commit(firstLineage, step))),
  );
}

/** Results of an evaluation; of the demo's environment by default. */
export async function readEvaluation(
  folder: string,
  run: string,
  step: number,
  environment = 'reverse-text',
): Promise<Pick<EvaluationSummary, 'rollouts' | 'sampled' | 'greedy'>> {
  const read = async (variant: string) => {
    const prefix = layout.evaluation(firstLineage, environment, run, step, { variant });
    return readJson<ResultMetadata>(folder, run, `${prefix}metadata.json`);
  };
  const [sampled, greedy] = [await read(''), await read('greedy')];
  const headline = ({ avg_reward: reward, avg_metrics }: ResultMetadata) => ({
    reward,
    exact: avg_metrics['exact_match'] ?? null,
  });
  return {
    rollouts: sampled.num_examples * sampled.rollouts_per_example,
    sampled: headline(sampled),
    greedy: headline(greedy),
  };
}

/** Fields read from `metadata.json`. */
interface ResultMetadata {
  readonly num_examples: number;
  readonly rollouts_per_example: number;
  readonly avg_reward: number;
  readonly avg_metrics: Readonly<Record<string, number>>;
}

async function readJson<T>(folder: string, run: string, key: string): Promise<T> {
  return JSON.parse(await readFile(path.join(runFolder(folder, run), key), 'utf8')) as T;
}

/** When a step was committed, milliseconds. */
export function committedAt(commit: StepCommit): number {
  return Date.parse(commit.committedAt);
}

/** Wall time of each step: seconds from the commit before to its own, so nothing between steps is left out. */
export function stepSeconds(commits: readonly StepCommit[]): number[] {
  return commits.slice(1).map((commit, i) => (committedAt(commit) - committedAt(commits[i]!)) / 1000);
}
