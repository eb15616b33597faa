import { type ChildProcess, spawn } from 'node:child_process';
import { existsSync } from 'node:fs';
import { mkdir, readFile, writeFile } from 'node:fs/promises';
import path from 'node:path';
import { setTimeout as delay } from 'node:timers/promises';
import { fileURLToPath, pathToFileURL } from 'node:url';
import { uniform } from '../core/random.ts';
import { decideRung, type HalvingSettings, type RowStanding, rungSteps, stepsOf } from '../core/sweep/halving.ts';
import type { SweepResult } from '../core/sweep/sweep.ts';
import { rowsOfGrid, type SettingsRow, sweepRuns } from '../core/sweep/table.ts';
import { stepRecords } from '../runs/metrics/step-records.ts';
import type { Stack } from '../workers/stack/supervisor.ts';
import { CannotMeasure, measurement, type Bench, type Figures } from './measurement.ts';
import { command, newestStep, readCommits, runProgram, withProject, withStack } from './run-project.ts';
import { round } from './statistics.ts';

const maxSteps = 27;
const metric = 'eval/reverse-text/reward/mean';
/** Nine rows: from a rate that hardly moves to one that breaks the policy, and from noisy groups to few large ones. */
const grid = { learning_rate: [0.0003, 0.0015, 0.006], rollouts_per_example: [4, 8, 16] };
const halving: HalvingSettings = { eta: 3, rungs: 3, minSteps: null };

/** A step takes half a second. Level 0, so that a run's bits do not depend on time. */
const runFile = `
model = "preset:reverse-text-0.2m"
max_steps = ${maxSteps}
batch_size = 64
max_async_level = 0
heartbeat_timeout = 2
[sampling]
max_tokens = 8
[[env]]
id = "reverse-text"
args = { min_length = 3, max_length = 5 }
[sft]
steps = 60
batch_size = 32
learning_rate = 3e-3
[trainer]
threads = 1
advantage = "std_normalized"
[eval]
interval = 3
num_examples = 64
[checkpoints]
interval = 9
keep_last = 1
`;

/** Every run trained to its end, by `--record`. */
const curvesFile = fileURLToPath(new URL('sweep-curves.json', import.meta.url));

/** Of `sweep-curves.json`. */
export interface RecordedCurves {
  readonly metric: string;
  readonly maxSteps: number;
  readonly rows: readonly SettingsRow[];
  readonly runs: readonly {
    readonly row: number;
    readonly seed: number;
    /** The metric after each step, from step 1; null where nothing was evaluated. */
    readonly values: readonly (number | null)[];
  }[];
}

/**
 * Successive halving, over curves of 27 runs that were all trained to their end (nine rows of settings, three seeds each),
 * and in a sweep of these rows that is trained here twice: undisturbed, and while its processes are killed.
 *
 * - `steps_ratio`, goal ≤ 1/3: steps of all runs with halving ÷ without.
 * - `regret_in_standard_errors`, goal ≤ 1: how much better the best row ends than the row that halving prefers, ÷ the
 *   standard error of the best row's mean over its seeds.
 * - `kills`: workers, policy servers, the Temporal server and the command itself, by SIGKILL.
 * - `same_winner`: the killed sweep prefers the row that the undisturbed one prefers.
 * - `same_rungs`: every row has the same mean at every rung in both.
 * - `weights_equal`: every version of every run has the same digest in both, and those of the winner are those of the same
 *   run trained alone, without rungs.
 */
export const sweep = measurement('sweep', 'what halving saves and misses, and whether kills change its winner', measure)
  .option('--seed <n>', 'chooses moments and victims', Number, 1)
  .option('--seeds <n>', 'seeds of each row in the sweeps that are trained here', Number, 1)
  .option(
    '--record <folder>',
    'train all 27 runs to their end there, and keep their curves in bench/sweep-curves.json; measure nothing',
  )
  .addHelpText(
    'after',
    '\nGoals: steps_ratio ≤ 1/3, regret_in_standard_errors ≤ 1; same_winner, same_rungs, weights_equal true.',
  );

interface Options {
  readonly seed: number;
  readonly seeds: number;
  readonly record?: string;
}

/** Two runs train at once, each on a worker of its own. */
const atOnce = 2;
const recordedSeeds = [1, 2, 3];

async function measure(bench: Bench, options: Options): Promise<Figures> {
  if (options.record !== undefined) return record(bench, options.record);
  const curves = await readCurves();
  if (curves === null) throw new CannotMeasure(`There is no ${curvesFile}: record it with --record FOLDER.`);
  const { winner, best, ...figures } = regretOf(curves, halving);
  const killed = await measureKills(bench, options);
  return {
    ...figures,
    ...killed.figures,
    details: { winner: curves.rows[winner], best: curves.rows[best], ...killed.details },
  };
}

async function readCurves(): Promise<RecordedCurves | null> {
  if (!existsSync(curvesFile)) return null;
  return JSON.parse(await readFile(curvesFile, 'utf8')) as RecordedCurves;
}

/** What halving makes of curves that are known to their end. */
export function regretOf({ maxSteps, rows, runs }: RecordedCurves, halving: HalvingSettings) {
  const resultsAt = (step: number, inPlay: readonly number[]) =>
    runs
      .filter(({ row }) => inPlay.includes(row))
      .map(({ row, seed, values }) => ({ row, seed, value: values[step - 1] ?? null }));
  const steps = rungSteps(maxSteps, halving);
  let inPlay = [...rows.keys()];
  const [best] = decideRung(resultsAt(maxSteps, inPlay), 'max', null).ranking as [RowStanding];
  for (const step of steps.slice(0, -1))
    inPlay = [...decideRung(resultsAt(step, inPlay), 'max', halving.eta).survivors];
  const [chosen] = decideRung(resultsAt(maxSteps, inPlay), 'max', null).ranking as [RowStanding];
  const { halved, full } = stepsOf(rows.length, runs.length / rows.length, { steps, eta: halving.eta });
  const regret = best.mean! - chosen.mean!;
  return {
    runs: runs.length,
    steps_ratio: round(halved / full),
    regret: round(regret, 5),
    standard_error: round(best.standardError!, 5),
    regret_in_standard_errors: round(regret / best.standardError!, 2),
    winner: chosen.row,
    best: best.row,
  };
}

/** Typed again after an interruption, it goes on with what is missing. */
async function record(bench: Bench, folder: string): Promise<Figures> {
  await mkdir(folder, { recursive: true });
  bench.doing('every run to its end');
  await writeSweep(folder, { name: 'full', seeds: recordedSeeds, halves: false });
  await runProgram(bench, process.execPath, [command, 'sweep', 'full.toml', '--no-page'], folder, ownServer());
  const store = pathToFileURL(`${path.resolve(folder, 'outputs')}/`).href;
  const rows = rowsOfGrid(grid);
  const runs = sweepRuns('full', rows, recordedSeeds).map(async ({ name, row, seed }) => {
    const records = new Map((await stepRecords({ name, store })).map(({ step, metrics }) => [step, metrics]));
    const values = Array.from({ length: maxSteps }, (_, i) => records.get(i + 1)?.[metric] ?? null);
    return { row, seed, values: values.map((value) => value && round(value, 6)) };
  });
  const head = JSON.stringify({ metric, maxSteps, rows }).slice(1, -1);
  const lines = (await Promise.all(runs)).map((run) => `    ${JSON.stringify(run)}`).join(',\n');
  await writeFile(curvesFile, `{\n  ${head},\n  "runs": [\n${lines}\n  ]\n}\n`);
  return { recorded: curvesFile, runs: runs.length };
}

async function writeSweep(
  folder: string,
  { name, seeds, halves }: { readonly name: string; readonly seeds: readonly number[]; readonly halves: boolean },
): Promise<void> {
  await writeFile(path.join(folder, 'words.toml'), runFile);
  const settings = Object.entries(grid).map(([key, values]) => `${key} = ${JSON.stringify(values)}`);
  const text = [
    '[sweep]',
    'run = "words.toml"',
    `metric = ${JSON.stringify(metric)}`,
    `seeds = ${JSON.stringify(seeds)}`,
    `at_once = ${atOnce}`,
    '[sweep.settings]',
    ...settings,
    ...(halves ? ['[sweep.halving]', `eta = ${halving.eta}`, `rungs = ${halving.rungs}`] : []),
  ];
  await writeFile(path.join(folder, `${name}.toml`), `${text.join('\n')}\n`);
}

/** The stack of the folder, whatever the shell has. */
function ownServer(): NodeJS.ProcessEnv {
  const env = { ...process.env };
  delete env['TEMPORAL_ADDRESS'];
  return env;
}

async function measureKills(bench: Bench, { seed, seeds }: Options) {
  return withProject(bench, (folder) =>
    withStack(
      bench,
      folder,
      async (_client, stack) => {
        const table = sweepSeeds(seeds);
        bench.doing('an undisturbed sweep');
        await writeSweep(folder, { name: 'calm', seeds: table, halves: true });
        const calm = await new TypedSweep(bench, folder, 'calm').ended;
        bench.doing('the same, and kills');
        await writeSweep(folder, { name: 'struck', seeds: table, halves: true });
        const typed = new TypedSweep(bench, folder, 'struck');
        const kills = await killUntil(bench, stack, typed, seed);
        const struck = await typed.ended;
        bench.doing('the winner alone, without rungs');
        const winner = calm.runs.find(({ row }) => row === calm.best)!;
        await trainAlone(bench, folder, calm.rows[winner.row]!, winner.seed!);
        const differing = [
          ...(await differingVersions(folder, calm, struck)),
          ...(await differences(folder, winner.name, 'alone', maxSteps)),
        ];
        for (const line of differing) bench.say(line);
        return {
          figures: {
            kills: Object.values(kills).reduce((sum, count) => sum + count, 0),
            same_winner: struck.best === calm.best,
            same_rungs: JSON.stringify(struck.decided) === JSON.stringify(calm.decided),
            weights_equal: differing.length === 0,
          },
          details: {
            killed: kills,
            trained_here: calm.rows[calm.best!],
            steps: calm.steps,
            restarts: stack.restarts(),
          },
        };
      },
      { mayRestart: true, count: { train: atOnce } },
    ),
  );
}

function sweepSeeds(count: number): number[] {
  return recordedSeeds.slice(0, count);
}

/** `ratchet sweep FILE`, typed again whenever it is killed, until its sweep has ended. */
class TypedSweep {
  /** Its result; rejects when the command fails by itself. */
  readonly ended: Promise<SweepResult>;
  isOver = false;
  #child: ChildProcess | null = null;
  readonly #bench: Bench;
  readonly #folder: string;
  readonly #name: string;

  constructor(bench: Bench, folder: string, name: string) {
    this.#bench = bench;
    this.#folder = folder;
    this.#name = name;
    this.ended = this.#type().finally(() => (this.isOver = true));
    this.ended.catch(() => undefined); // whoever waits for it is told
  }

  /** False: it is not there at the moment. */
  kill(): boolean {
    return this.#child?.kill('SIGKILL') ?? false;
  }

  async #type(): Promise<SweepResult> {
    for (;;) {
      const { code, lines, last } = await this.#once();
      if (code === null) continue;
      const result = lines.find((line) => line.type === 'result');
      if (code === 0 && result) return result as unknown as SweepResult;
      throw new Error(`ratchet sweep ${this.#name}.toml ended with ${code}:\n${last}`);
    }
  }

  async #once() {
    const args = [command, 'sweep', `${this.#name}.toml`, '--json', '--no-page'];
    const { signal } = this.#bench;
    const child = spawn(process.execPath, args, { cwd: this.#folder, env: ownServer(), signal });
    this.#child = child;
    let [out, err] = ['', ''];
    child.stdout.setEncoding('utf8').on('data', (text: string) => (out += text));
    child.stderr.setEncoding('utf8').on('data', (text: string) => (err += text));
    const code = await new Promise<number | null>((resolve, reject) => child.on('error', reject).on('close', resolve));
    this.#child = null;
    const whole = out.split('\n').filter((line) => line.startsWith('{') && line.endsWith('}'));
    const lines = whole.map((line) => JSON.parse(line) as { readonly type: string });
    return { code, lines, last: `${err}\n${out.slice(-2_000)}` };
  }
}

const victims = ['orchestrator worker', 'train worker', 'rollout worker', 'policy server', 'Temporal server'] as const;
const theCommand = 'ratchet sweep';
/** From one kill to the next. */
const [pauseMsLeast, pauseMsMost] = [2_000, 6_000];

/** Kills one process after the other until the sweep has ended. Returns how often each was killed. */
async function killUntil(
  bench: Bench,
  stack: Stack,
  typed: TypedSweep,
  seed: number,
): Promise<Readonly<Record<string, number>>> {
  const kills: Record<string, number> = {};
  for (let number = 0; !typed.isOver; number++) {
    const key = ['bench sweep', seed, number] as const;
    await delay(pauseMsLeast + uniform(...key, 'when') * (pauseMsMost - pauseMsLeast), undefined, {
      signal: bench.signal,
    });
    // The orchestrator has the sweep's own workflow: every other kill is its.
    const among = [...Object.keys(stack.pids()).filter(isVictim), theCommand];
    const drawn = among[Math.floor(uniform(...key, 'what') * among.length)]!;
    const victim = number % 2 === 0 ? victims[0] : drawn;
    if (typed.isOver || !strike(stack, typed, victim)) continue;
    kills[victim] = (kills[victim] ?? 0) + 1;
    bench.say(`killed: ${victim}`);
  }
  return kills;
}

function isVictim(name: string): boolean {
  return victims.some((victim) => name === victim || name.startsWith(`${victim} `));
}

/** False: it is just being started. */
function strike(stack: Stack, typed: TypedSweep, victim: string): boolean {
  if (victim === theCommand) return typed.kill();
  const pid = stack.pids()[victim];
  if (pid == null) return false;
  process.kill(pid, 'SIGKILL');
  return true;
}

async function trainAlone(bench: Bench, folder: string, row: SettingsRow, seed: number): Promise<void> {
  const settings = Object.entries({ ...row, seed }).flatMap(([key, value]) => [
    `--${key.replaceAll('_', '-')}`,
    String(value),
  ]);
  const args = [command, 'train', 'words.toml', '--name', 'alone', '--no-page', ...settings];
  await runProgram(bench, process.execPath, args, folder, ownServer());
}

async function differingVersions(folder: string, calm: SweepResult, struck: SweepResult): Promise<string[]> {
  const all = calm.runs.map(({ name, row, seed, step }) => {
    const other = struck.runs.find((run) => run.row === row && run.seed === seed)!;
    return differences(folder, name, other.name, step);
  });
  return (await Promise.all(all)).flat();
}

/** Versions up to a step that one run has and the other has not, in words. */
async function differences(folder: string, one: string, other: string, last: number): Promise<string[]> {
  if (newestStep(folder, other) !== last)
    return [`${other} ends at step ${newestStep(folder, other)}, ${one} at ${last}`];
  const [a, b] = await Promise.all([readCommits(folder, one, last), readCommits(folder, other, last)]);
  return a.flatMap(({ step, policy }, i) => {
    return policy.digest === b[i]!.policy.digest ? [] : [`v${step} of ${other} is not that of ${one}`];
  });
}
