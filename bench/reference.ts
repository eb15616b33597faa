import { createHash } from 'node:crypto';
import { readdir, readFile, writeFile } from 'node:fs/promises';
import path from 'node:path';
import { fileURLToPath } from 'node:url';
import { setTimeout as delay } from 'node:timers/promises';
import { firstLineage } from '../core/names.ts';
import type { PackedBatch, StepPlan } from '../core/rl/run-state.ts';
import { layout } from '../runs/layout.ts';
import type { Stack } from '../workers/stack/supervisor.ts';
import { measurement, type Bench, type Figures } from './measurement.ts';
import { command, newestStep, readCommits, runFolder, runProgram, withProject, withStack } from './run-project.ts';

/**
 * Whether runs at level 0 still end with the same bits. Three short runs: the demo, two environments, tools.
 *
 * - Each run's name: the sha256 of its final weights, and of the weights and the batch of each step.
 * - `killed`: with `--kill`, the processes that were killed in the middle of the runs. The digests must not change.
 * - `differ`: with `--compare FILE`, the parts that are not as in that file; goal: none.
 *
 * Digests hold for one processor: another one may sum in another order.
 */
export const reference = measurement('reference', 'whether short runs at level 0 end with the same bits', measure)
  .option('--kill', 'kill a worker in the middle of each run')
  .option('--compare <file>', 'figures of an earlier measurement')
  .addHelpText('after', '\nGoal: differ = [].');

interface Options {
  readonly kill?: true;
  readonly compare?: string;
}

interface ShortRun {
  /** The text of its run file. */
  readonly config: () => Promise<string>;
  readonly steps: number;
  readonly overrides: readonly string[];
  /** The process that `--kill` kills after the first step. */
  readonly victim: string;
}

/** A model of this size takes minutes to learn the tools of `configs/rl/`; these words it learns in seconds. */
const tools = `
model = "preset:chars-0.4m"
batch_size = 32
rollouts_per_example = 8
learning_rate = 5e-4
[sampling]
max_tokens = 80
[[env]]
id = ${JSON.stringify(fileURLToPath(new URL('tool-environment.ts', import.meta.url)))}
[sft]
steps = 60
batch_size = 8
learning_rate = 3e-3
[trainer]
threads = 1
advantage = "std_normalized"
[eval]
interval = 2
num_examples = 8
`;

const shortRuns: Readonly<Record<string, ShortRun>> = {
  demo: {
    config: () => shipped('reverse-text.toml'),
    steps: 5,
    overrides: ['--batch-size', '64', '--sft.steps', '120', '--eval.num-examples', '16', '--eval.interval', '3'],
    victim: 'train worker',
  },
  two_environments: {
    config: () => shipped('two-environments.toml'),
    steps: 5,
    overrides: ['--batch-size', '64', '--sft.steps', '120', '--eval.num-examples', '16', '--eval.interval', '3'],
    victim: 'rollout worker',
  },
  tools: {
    config: async () => tools,
    steps: 4,
    overrides: [],
    victim: 'orchestrator worker',
  },
};

interface Digests {
  /** sha256 of each file of the final weights, by name. */
  readonly weights: Readonly<Record<string, string>>;
  readonly steps: readonly { readonly step: number; readonly policy: string; readonly batch: string | null }[];
}

async function measure(bench: Bench, { kill, compare }: Options): Promise<Figures> {
  const digests: Record<string, Digests> = {};
  const killed: string[] = [];
  await withProject(bench, (folder) =>
    withStack(
      bench,
      folder,
      async (_client, stack) => {
        for (const [name, run] of Object.entries(shortRuns)) {
          bench.doing(`${name}: ${run.steps} steps`);
          const training = train(bench, folder, name, run);
          if (kill) killed.push(await killAfterFirstStep(training, { folder, stack, name, victim: run.victim }));
          await training;
          digests[name] = await digestsOf(folder, name, run.steps);
        }
      },
      { mayRestart: kill === true },
    ),
  );
  const earlier = compare === undefined ? undefined : (JSON.parse(await readFile(compare, 'utf8')) as Figures);
  return {
    ...digests,
    ...(kill ? { killed } : {}),
    ...(earlier
      ? { differ: Object.entries(digests).flatMap(([name, one]) => differences(name, earlier[name], one)) }
      : {}),
  };
}

function shipped(file: string): Promise<string> {
  return readFile(new URL(`../configs/rl/${file}`, import.meta.url), 'utf8');
}

async function train(bench: Bench, folder: string, name: string, run: ShortRun): Promise<void> {
  await writeFile(path.join(folder, `${name}.toml`), await run.config());
  const settings = ['--max-steps', String(run.steps), '--max-async-level', '0', '--checkpoints.keep-last', '2'];
  const args = [command, 'train', `${name}.toml`, '--name', name, ...settings, ...run.overrides];
  const env = { ...process.env };
  delete env['TEMPORAL_ADDRESS'];
  await runProgram(bench, process.execPath, args, folder, env);
}

async function killAfterFirstStep(
  training: Promise<void>,
  { folder, stack, name, victim }: { folder: string; stack: Stack; name: string; victim: string },
): Promise<string> {
  const ended = new AbortController();
  const end = (): void => ended.abort();
  void training.then(end, end);
  while (!ended.signal.aborted && newestStep(folder, name) < 1) await delay(50);
  const pid = stack.pids()[victim];
  if (ended.signal.aborted || !pid) throw new Error(`${name}: no ${victim} was there to kill`);
  process.kill(pid, 'SIGKILL');
  return `${victim} of ${name} after step ${newestStep(folder, name)}`;
}

async function digestsOf(folder: string, name: string, last: number): Promise<Digests> {
  const place = runFolder(folder, name);
  const weights = path.join(place, layout.weights(firstLineage, last));
  const files = (await readdir(weights)).filter((file) => file.endsWith('.safetensors')).sort();
  if (files.length === 0) throw new Error(`${name}: no weights in ${weights}`);
  const commits = await readCommits(folder, name, last);
  return {
    weights: Object.fromEntries(
      await Promise.all(files.map(async (file) => [file, sha256(await readFile(path.join(weights, file)))] as const)),
    ),
    steps: await Promise.all(
      commits.map(async ({ step, policy, plan }) => ({
        step,
        policy: policy.digest,
        batch: plan && sha256(await readRows(place, plan.key)),
      })),
    ),
  };
}

/** The rows that a step was trained on, in their order, without the names of their objects. */
async function readRows(place: string, plan: string): Promise<Buffer> {
  const { packed } = JSON.parse(await readFile(path.join(place, plan), 'utf8')) as StepPlan;
  const { rows } = JSON.parse(await readFile(path.join(place, packed.key), 'utf8')) as PackedBatch;
  return Buffer.concat(await Promise.all(rows.parts.map(({ key }) => readFile(path.join(place, key)))));
}

/** Names the values in which two measurements of one run differ. */
function differences(name: string, earlier: unknown, now: Digests): string[] {
  const before = earlier as Digests | undefined;
  if (before === undefined) return [`${name}: not measured before`];
  const steps = now.steps.flatMap((one, i) => {
    const other = before.steps[i];
    const parts = (['batch', 'policy'] as const).filter((part) => other?.[part] !== one[part]);
    return parts.map((part) => `${name}: ${part} of step ${one.step}`);
  });
  const weights = JSON.stringify(before.weights) === JSON.stringify(now.weights) ? [] : [`${name}: final weights`];
  return [...steps, ...weights];
}

function sha256(bytes: Buffer): string {
  return createHash('sha256').update(bytes).digest('hex');
}
