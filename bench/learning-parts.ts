import { spawn } from 'node:child_process';
import { existsSync } from 'node:fs';
import { mkdir, readFile, rename, writeFile } from 'node:fs/promises';
import path from 'node:path';
import { setTimeout as delay } from 'node:timers/promises';
import { fileURLToPath } from 'node:url';
import { type CpuUse, meterCpu } from './cpu-meter.ts';
import type { Bench } from './measurement.ts';
import { command, newestStep, readCommits, readEvaluation, stepSeconds, trainWithCli } from './run-project.ts';
import type { Score } from './shuffled-control.ts';
import { round } from './statistics.ts';

/** A task that a chat model learns: its run file, and the environment in it. */
export interface Task {
  readonly name: string;
  readonly config: string;
  readonly environment: string;
}

/** `number-words` is configs/rl/smollm2-number-words.toml, `reasoning-gym` is of a verifiers environment. */
export function taskOf(name: string): Task {
  const isOfVerifiers = name === 'reasoning-gym';
  const file = `../configs/${isOfVerifiers ? 'verifiers' : 'rl'}/smollm2-${name}.toml`;
  return {
    name,
    config: fileURLToPath(new URL(file, import.meta.url)),
    environment: isOfVerifiers ? `${name}-env` : name,
  };
}

export interface Place {
  readonly folder: string;
  readonly task: Task;
  readonly seed: number;
  /** Settings on top of the run file. */
  readonly overrides: readonly string[];
}

export const runOf = ({ task, seed }: Pick<Place, 'task' | 'seed'>): string => `${task.name}-${seed}`;

/**
 * Runs a part of the measurement and stores its result in a file of the folder, so that a repeated measurement only
 * does what is missing.
 */
export async function once<Found>(folder: string, name: string, work: () => Promise<Found>): Promise<Found> {
  const file = path.join(folder, `${name}.json`);
  if (existsSync(file)) return JSON.parse(await readFile(file, 'utf8')) as Found;
  const found = await work();
  await mkdir(folder, { recursive: true });
  await writeFile(`${file}.new`, JSON.stringify(found));
  await rename(`${file}.new`, file);
  return found;
}

/** On held-out examples; `greedy` beside what was sampled at the run's temperature. */
export interface Evaluated extends Score {
  readonly greedy: number;
}

export interface LearningRun {
  readonly before: Evaluated;
  readonly after: Evaluated;
  readonly steps: number;
  /** Seconds from commit to commit, one for each step. */
  readonly step_s: readonly number[];
  /** From the command to its end, both evaluations among it. */
  readonly seconds: number;
  /** A part of it was done by a measurement before this one, which was ended: `seconds` and `cpu` are too small. */
  readonly isPartial: boolean;
  readonly cpu: CpuUse | null;
}

/** A run by the command a user types. */
export async function learn(bench: Bench, place: Place): Promise<LearningRun> {
  const { folder, task, seed, overrides } = place;
  const run = runOf(place);
  const isPartial = newestStep(folder, run) >= 0;
  const all = ['--yes', '--seed', String(seed), ...overrides];
  const { result, cpu } = await meterCpu(() =>
    trainWithCli(bench, { folder, run, overrides: all, config: task.config }),
  );
  const steps = newestStep(folder, run);
  const commits = await readCommits(folder, run, steps);
  return {
    before: await evaluationOf(place, 0),
    after: await evaluationOf(place, steps),
    steps,
    step_s: stepSeconds(commits).map((seconds) => round(seconds, 1)),
    seconds: round(result.seconds, 1),
    isPartial,
    cpu,
  };
}

async function evaluationOf(place: Place, step: number): Promise<Evaluated> {
  const { sampled, greedy } = await readEvaluation(place.folder, runOf(place), step, place.task.environment);
  if (sampled.reward === null) throw new Error(`${runOf(place)}: no rollout of v${step} was scored`);
  return { reward: sampled.reward, exact: sampled.exact ?? 0, greedy: greedy.reward ?? 0 };
}

export interface KilledRun {
  /** Digest of the adapter after the last step, undisturbed and killed. */
  readonly digest: string;
  readonly killedDigest: string;
  readonly isEqual: boolean;
  /** Steps committed when it was killed. If all are, it was killed too late, which proves nothing. */
  readonly killedAfter: number;
}

/** The same few steps at level 0 twice, once killed within the second step: `kill -9`, of the command and with it all that it started. */
export async function killInTheMiddle(bench: Bench, place: Place, steps: number): Promise<KilledRun> {
  const { folder, task, seed, overrides } = place;
  const evaluation = ['--eval.num_examples', '8', '--eval.skip_first_step', 'true'];
  const settings = ['--yes', '--seed', String(seed), ...overrides, ...evaluation];
  const all = [...settings, '--max-async-level', '0', '--max-steps', String(steps)];
  const [run, killed] = [`${runOf(place)}-undisturbed`, `${runOf(place)}-killed`];
  bench.doing(`${steps} steps at level 0`);
  await trainWithCli(bench, { folder, run, overrides: all, config: task.config });
  bench.doing('the same, killed within its second step');
  const killedAfter = await killWithin(bench, { folder, run: killed, config: task.config, overrides: all });
  bench.doing('the same, continued');
  await trainWithCli(bench, { folder, run: killed, overrides: all, config: task.config });
  const digestOf = async (name: string): Promise<string> =>
    (await readCommits(folder, name, steps)).at(-1)!.policy.digest;
  const [digest, killedDigest] = [await digestOf(run), await digestOf(killed)];
  return { digest, killedDigest, isEqual: digest === killedDigest && killedAfter < steps, killedAfter };
}

/** Starts a run and kills it when as much of its second step has passed as half of its first one took. */
async function killWithin(
  bench: Bench,
  { folder, run, config, overrides }: { folder: string; run: string; config: string; overrides: readonly string[] },
): Promise<number> {
  const child = spawn(process.execPath, [command, 'train', config, '--name', run, ...overrides], {
    cwd: folder,
    stdio: 'ignore',
    signal: bench.signal,
  });
  const ended = new Promise((resolve) => child.once('exit', resolve));
  child.on('error', () => {}); // an abort, which `bench.signal` shows
  while (newestStep(folder, run) < 1) {
    if (child.exitCode !== null) throw new Error(`${run} ended before it was killed`);
    await delay(pollMs, undefined, { signal: bench.signal });
  }
  const [seconds] = stepSeconds(await readCommits(folder, run, 1));
  await delay(seconds! * 500, undefined, { signal: bench.signal });
  const committed = newestStep(folder, run);
  child.kill('SIGKILL');
  await ended;
  return committed;
}

const pollMs = 500;
