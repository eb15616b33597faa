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
import { mean, median, round } from './statistics.ts';

const metric = 'eval/reverse-text/reward/mean';
/** The defaults of `[sweep.halving]`. */
const halving: HalvingSettings = { eta: 3, rungs: 3, minSteps: null };
/** Other halvings of the same curves, to see what the choice is worth. */
const others: readonly HalvingSettings[] = [
  { eta: 2, rungs: 3, minSteps: null },
  { eta: 2, rungs: 4, minSteps: null },
  { eta: 3, rungs: 2, minSteps: null },
  { eta: 9, rungs: 2, minSteps: null },
];

/**
 * The recipe of the demo, on shorter words and in smaller batches. Level 0, so that a run's bits do not depend on time.
 */
const runFile = ({ maxSteps, batchSize, warmUpSteps, evalEvery }: Trained): string => `
model = "preset:reverse-text-0.2m"
max_steps = ${maxSteps}
batch_size = ${batchSize}
max_async_level = 0
heartbeat_timeout = 2
[sampling]
max_tokens = 8
[[env]]
id = "reverse-text"
args = { min_length = 3, max_length = 5 }
[sft]
steps = ${warmUpSteps}
batch_size = 64
learning_rate = 3e-3
[trainer]
threads = 1
advantage = "std_normalized"
clip_high = 3.0
beta2 = 0.98
[eval]
interval = ${evalEvery}
num_examples = 128
[checkpoints]
interval = 12
keep_last = 1
`;

interface Trained {
  readonly grid: Readonly<Record<string, readonly number[]>>;
  readonly maxSteps: number;
  readonly batchSize: number;
  readonly warmUpSteps: number;
  readonly evalEvery: number;
}

/**
 * The recorded sweep: nine rows around the demo's settings, with a third of its rate, its rate and three times that, and half,
 * all and double its group. There is an evaluation at each rung.
 */
const recorded: Trained = {
  grid: { learning_rate: [0.0005, 0.0015, 0.0045], rollouts_per_example: [4, 8, 16] },
  maxSteps: 36,
  batchSize: 256,
  warmUpSteps: 150,
  evalEvery: 4,
};
/** The sweep that is trained while processes are killed. Its weights are compared; how well it learns does not matter. */
const struckSize: Trained = {
  grid: { learning_rate: [0.0005, 0.0015], rollouts_per_example: [4, 8] },
  maxSteps: 9,
  batchSize: 64,
  warmUpSteps: 40,
  evalEvery: 3,
};

/** Every run trained to its end, by `--record`. */
const curvesFile = fileURLToPath(new URL('sweep-curves.json', import.meta.url));

/** Of `sweep-curves.json`. */
export interface RecordedCurves {
  readonly metric: string;
  readonly maxSteps: number;
  readonly rows: readonly SettingsRow[];
  readonly runs: readonly RecordedCurve[];
}

interface RecordedCurve {
  readonly row: number;
  readonly seed: number;
  /** The metric after each step, from step 1; null where nothing was evaluated. */
  readonly values: readonly (number | null)[];
}

/**
 * Successive halving, over curves of 27 runs that were all trained to their end (nine rows of settings, three seeds each),
 * and in a sweep of four rows that is trained here twice: undisturbed, and while its processes are killed.
 *
 * - `steps_ratio`, goal ≤ 1/3: steps of all runs with halving ÷ without.
 * - `regret_in_standard_errors`, goal ≤ 1: how much better the best row ends than the row that halving prefers, ÷ the
 *   standard error of the best row's mean over its seeds. Ends are means over all seeds.
 * - `resampled`: the same where halving sees other seeds, a thousand times: each row draws as many as it has from its own,
 *   with replacement. `within_one` is the share of them with a regret of at most one standard error.
 * - `single_seeds`: the regret of a sweep with that seed alone.
 * - `others`: these figures for other rungs and shares.
 * - `kills`: workers, policy servers, the Temporal server and the command itself, by SIGKILL.
 * - `same_winner`: the killed sweep prefers the row that the undisturbed one prefers.
 * - `same_rungs`, `same_steps`: every row has the same mean at every rung in both, and as many steps are made.
 * - `weights_equal`: every version of every run has the same digest in both, and those of the winner are those of the same
 *   run trained alone, without rungs.
 */
export const sweep = measurement('sweep', 'what halving saves and misses, and whether kills change its winner', measure)
  .option('--seed <n>', 'chooses moments and victims', Number, 1)
  .option('--seeds <n>', 'seeds of each row in the sweeps that are trained here', Number, 1)
  .option('--no-kills', 'train nothing here: the recorded curves alone')
  .option(
    '--record <folder>',
    'train all 27 runs to their end there, and keep their curves in bench/sweep-curves.json; measure nothing',
  )
  .addHelpText(
    'after',
    '\nGoals: steps_ratio ≤ 1/3, regret_in_standard_errors ≤ 1; same_winner, same_rungs, same_steps, weights_equal true.',
  );

interface Options {
  readonly seed: number;
  readonly seeds: number;
  readonly kills: boolean;
  readonly record?: string;
}

/** Two runs train at once, each on a worker of its own. */
const atOnce = 2;
const recordedSeeds = [1, 2, 3];

async function measure(bench: Bench, options: Options): Promise<Figures> {
  const { kills } = options;
  if (options.record !== undefined) return record(bench, options.record);
  const curves = await readCurves();
  if (curves === null) throw new CannotMeasure(`There is no ${curvesFile}: record it with --record FOLDER.`);
  const { winner, best, ...figures } = regretOf(curves, halving);
  const drawn = { resampled: resampledRegret(curves, halving), single_seeds: singleSeedRegrets(curves, halving) };
  const lived = kills ? await measureKills(bench, options) : { figures: {}, details: {} };
  return {
    ...figures,
    ...drawn,
    ...lived.figures,
    details: {
      winner: curves.rows[winner],
      best: curves.rows[best],
      others: others.map((other) => ({
        ...other,
        rung_steps: rungSteps(curves.maxSteps, other),
        ...ofOther(regretOf(curves, other)),
        resampled: resampledRegret(curves, other),
      })),
      ...lived.details,
    },
  };
}

function ofOther({ steps_ratio, regret_in_standard_errors }: ReturnType<typeof regretOf>) {
  return { steps_ratio, regret_in_standard_errors };
}

export async function readCurves(): Promise<RecordedCurves | null> {
  if (!existsSync(curvesFile)) return null;
  return JSON.parse(await readFile(curvesFile, 'utf8')) as RecordedCurves;
}

/**
 * The regret of halving over curves that are known to their end. `seen`: the runs that it decides by, when these are not all.
 * What its choice is worth is always the mean of all runs at their end.
 */
export function regretOf({ maxSteps, rows, runs }: RecordedCurves, halving: HalvingSettings, seen = runs) {
  const rankedAt = (step: number, of: readonly RecordedCurve[], eta: number | null) =>
    decideRung(
      of.map(({ row, seed, values }) => ({ row, seed, value: newestOf(values, step) })),
      'max',
      eta,
    );
  const steps = rungSteps(maxSteps, halving);
  let inPlay = seen;
  for (const step of steps.slice(0, -1)) {
    const { survivors } = rankedAt(step, inPlay, halving.eta);
    inPlay = inPlay.filter(({ row }) => survivors.includes(row));
  }
  const [{ row: winner }] = rankedAt(maxSteps, inPlay, null).ranking as [RowStanding];
  const { ranking } = rankedAt(maxSteps, runs, null);
  const [best] = ranking as [RowStanding];
  const regret = best.mean! - ranking.find(({ row }) => row === winner)!.mean!;
  const { halved, full } = stepsOf(rows.length, runs.length / rows.length, { steps, eta: halving.eta });
  return {
    runs: runs.length,
    steps_ratio: round(halved / full),
    regret: round(regret, 5),
    standard_error: round(best.standardError!, 5),
    regret_in_standard_errors: round(regret / best.standardError!, 2),
    winner,
    best: best.row,
  };
}

/** The newest evaluation by that step: an [eval] of a real sweep evaluates at the rung itself. */
function newestOf(values: readonly (number | null)[], step: number): number | null {
  return values.slice(0, step).findLast((value) => value !== null) ?? null;
}

const resamples = 1_000;

/** Regret in standard errors where halving sees seeds that each row draws from its own, with replacement. */
export function resampledRegret(curves: RecordedCurves, halving: HalvingSettings) {
  const byRow = curves.rows.map((_, row) => curves.runs.filter((run) => run.row === row));
  const regrets = Array.from({ length: resamples }, (_, number) => {
    const seen = byRow.flatMap((own, row) =>
      own.map((_, i) => own[Math.floor(uniform('resampled sweep', number, row, i) * own.length)]!),
    );
    return regretOf(curves, halving, seen).regret_in_standard_errors;
  }).toSorted((a, b) => a - b);
  return {
    mean: round(mean(regrets), 2),
    median: median(regrets),
    p90: regrets[Math.floor(0.9 * regrets.length)],
    within_one: round(regrets.filter((regret) => regret <= 1).length / regrets.length),
  };
}

/** Regret in standard errors of a sweep with one seed, for each. */
function singleSeedRegrets(curves: RecordedCurves, halving: HalvingSettings): number[] {
  const seeds = [...new Set(curves.runs.map(({ seed }) => seed))];
  return seeds.map((one) => {
    const seen = curves.runs.filter(({ seed }) => seed === one);
    return regretOf(curves, halving, seen).regret_in_standard_errors;
  });
}

/** Typed again after an interruption, it goes on with what is missing. */
async function record(bench: Bench, folder: string): Promise<Figures> {
  await mkdir(folder, { recursive: true });
  bench.doing('every run to its end');
  await writeSweep(folder, { name: 'full', seeds: recordedSeeds, halves: false, of: recorded });
  await runProgram(bench, process.execPath, [command, 'sweep', 'full.toml', '--no-page'], folder, ownServer());
  const { grid, maxSteps } = recorded;
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
  {
    name,
    seeds,
    halves,
    of,
  }: { readonly name: string; readonly seeds: readonly number[]; readonly halves: boolean; readonly of: Trained },
): Promise<void> {
  await writeFile(path.join(folder, 'words.toml'), runFile(of));
  const settings = Object.entries(of.grid).map(([key, values]) => `${key} = ${JSON.stringify(values)}`);
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
        await writeSweep(folder, { name: 'calm', seeds: table, halves: true, of: struckSize });
        const calm = await new TypedSweep(bench, folder, 'calm').ended;
        bench.doing('the same, and kills');
        await writeSweep(folder, { name: 'struck', seeds: table, halves: true, of: struckSize });
        const typed = new TypedSweep(bench, folder, 'struck');
        const names = sweepRuns('struck', rowsOfGrid(struckSize.grid), table).map(({ name }) => name);
        const commits = (): number => names.reduce((sum, name) => sum + newestStep(folder, name) + 1, 0);
        const kills = await killUntil(bench, stack, typed, { seed, commits });
        const struck = await typed.ended;
        bench.doing('the winner alone, without rungs');
        const winner = calm.runs.find(({ row }) => row === calm.best)!;
        await trainAlone(bench, folder, calm.rows[winner.row]!, winner.seed!);
        const differing = [
          ...(await differingVersions(folder, calm, struck)),
          ...(await differences(folder, winner.name, 'alone', struckSize.maxSteps)),
        ];
        for (const line of differing) bench.say(line);
        return {
          figures: {
            kills: Object.values(kills).reduce((sum, count) => sum + count, 0),
            same_winner: struck.best === calm.best,
            same_rungs: JSON.stringify(struck.decided) === JSON.stringify(calm.decided),
            same_steps: struck.steps.made === calm.steps.made,
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
/** From the first commit after a kill to the next kill, at most: about two steps. */
const pauseMsMax = 2_000;
const lookMs = 50;

/**
 * Kills a process, waits until the sweep has committed something since, and kills the next, until it has ended: also a busy
 * machine comes to an end. Returns how often each was killed.
 */
async function killUntil(
  bench: Bench,
  stack: Stack,
  typed: TypedSweep,
  { seed, commits }: { readonly seed: number; readonly commits: () => number },
): Promise<Readonly<Record<string, number>>> {
  const kills: Record<string, number> = {};
  const { signal } = bench;
  for (let [number, before] = [0, 0]; !typed.isOver; number++) {
    const key = ['bench sweep', seed, number] as const;
    while (!typed.isOver && commits() <= before) await delay(lookMs, undefined, { signal });
    await delay(uniform(...key, 'when') * pauseMsMax, undefined, { signal });
    // The orchestrator has the sweep's own workflow: every other kill is its.
    const among = [...Object.keys(stack.pids()).filter(isVictim), theCommand];
    const drawn = among[Math.floor(uniform(...key, 'what') * among.length)]!;
    const victim = number % 2 === 0 ? victims[0] : drawn;
    if (typed.isOver || !strike(stack, typed, victim)) continue;
    before = commits();
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
