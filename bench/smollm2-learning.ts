import { mkdir } from 'node:fs/promises';
import path from 'node:path';
import { loadRunConfig } from '../load/load-run-config.ts';
import {
  killInTheMiddle,
  type KilledRun,
  learn,
  type LearningRun,
  once,
  type Place,
  runOf,
  taskOf,
} from './learning-parts.ts';
import { learnWithTrl, type TrlRun } from './learning-trl.ts';
import { type Bench, type Figures, measurement } from './measurement.ts';
import { type ControlResult, trainOnShuffledRewards } from './shuffled-control.ts';
import { round } from './statistics.ts';
import { findTrlPython } from './trl.ts';

const partNames = ['run', 'control', 'killed', 'trl'] as const;
type Part = (typeof partNames)[number];

/**
 * Does a real chat model learn the tasks that come for it, and from their rewards? Whole runs of configs/rl/smollm2-TASK.toml by the command a user types, one
 * per task and seed. Measured on held-out examples, at the run's temperature.
 *
 * - `gain_min`: reward after − before, the least of all runs; goal ≥ 0.15. `tasks`: how many tasks gain as much with every seed; goal ≥ 2.
 * - `control_max`: the largest gain of the same recipe on shuffled rewards; goal ≤ 0.02.
 * - `minutes_max`: the longest run, from the command to its end, evaluations among it; goal ≤ 15. `cpu_minutes_max`: the most CPU time of a run ÷ 2, which is
 *   what two cores need that have nothing else to do; company disturbs it less.
 * - `killed_equal`: a few steps at level 0, killed within the second, end with the same adapter to the last bit.
 * - `trl_time_ratio`: our time ÷ TRL's to the same held-out score, both from the start of a process to the end of an evaluation; goal ≤ 0.7.
 *   If TRL has not reached our score in as many steps, its whole time counts, and `trl_reached` is false. `trl_time_ratio_cpu`: in CPU time.
 *
 * Figures of parts that were left out are null. `--folder` keeps what was found and all runs: typed again, the measurement continues with what is missing.
 */
export const smollm2Learning = measurement('smollm2-learning', 'does a real chat model learn, beside TRL', measure)
  .requiredOption('--folder <path>', 'where runs and results are kept; outside of this checkout')
  .option('--tasks <list>', 'run files configs/rl/smollm2-TASK.toml; also reasoning-gym', list, [
    'number-words',
    'instructions',
  ])
  .option('--seeds <list>', 'seeds', (text: string) => list(text).map(readSeed), [0, 1, 2])
  .option('--parts <list>', partNames.join(','), readParts, [...partNames])
  .option('--steps <n>', 'steps instead of the file’s; for a quick look only', Number)
  .option('--kill-steps <n>', 'steps of the run that is killed', Number, 2)
  .option('--threads <n>', 'of TRL', Number, 2)
  .addHelpText('after', '\nRATCHET_TRL_PYTHON names a Python with TRL and PEFT; see bench/peers/README.md');

interface Options {
  readonly folder: string;
  readonly tasks: readonly string[];
  readonly seeds: readonly number[];
  readonly parts: readonly Part[];
  readonly steps?: number;
  readonly killSteps: number;
  readonly threads: number;
}

function list(text: string): string[] {
  return text.split(',');
}

function readSeed(text: string): number {
  const seed = Number(text);
  if (Number.isSafeInteger(seed) && seed >= 0) return seed;
  throw new Error(`--seeds: expected integers ≥ 0 separated by commas, got ${text}`);
}

function readParts(text: string): Part[] {
  return list(text).map((name) => {
    const part = partNames.find((known) => known === name);
    if (part) return part;
    throw new Error(`--parts: expected some of ${partNames.join(',')}, got ${name}`);
  });
}

async function measure(bench: Bench, options: Options): Promise<Figures> {
  const python = options.parts.includes('trl') ? await findTrlPython(bench) : '';
  const results: Result[] = [];
  for (const task of options.tasks.map(taskOf)) {
    for (const seed of options.seeds) {
      const overrides = options.steps === undefined ? [] : ['--max-steps', String(options.steps)];
      const folder = path.resolve(options.folder);
      await mkdir(folder, { recursive: true });
      const result = await measureOne(bench, { folder, task, seed, overrides }, { ...options, python });
      bench.say(`${task.name}, seed ${seed}: ${JSON.stringify(result)}`);
      results.push(result);
    }
  }
  return summarize(results);
}

interface Result {
  readonly task: string;
  readonly seed: number;
  readonly run: LearningRun | null;
  readonly control: ControlResult | null;
  readonly killed: KilledRun | null;
  readonly trl: TrlRun | null;
}

async function measureOne(
  bench: Bench,
  place: Place,
  { parts, killSteps, threads, python, steps }: Options & { readonly python: string },
): Promise<Result> {
  const { folder, task, seed } = place;
  const part = async <Found>(name: Part, work: () => Promise<Found>): Promise<Found | null> => {
    if (!parts.includes(name)) return null;
    bench.doing(`${task.name}, seed ${seed}: ${name}`);
    return once(folder, `${runOf(place)}.${name}`, work);
  };
  const settings = { seed: String(seed), ...(steps === undefined ? {} : { max_steps: String(steps) }) };
  const specOf = async () => (await loadRunConfig(task.config, { projectFolder: folder, overrides: settings })).spec;
  return {
    task: task.name,
    seed,
    run: await part('run', () => learn(bench, place)),
    control: await part('control', async () => {
      const spec = await specOf();
      return trainOnShuffledRewards(spec, spec.model, bench.say);
    }),
    killed: await part('killed', () => killInTheMiddle(bench, place, killSteps)),
    trl: await part('trl', async () => {
      const spec = await specOf();
      return learnWithTrl(bench, { spec, model: spec.model, python, threads });
    }),
  };
}

const gainWanted = 0.15;

export function summarize(results: readonly Result[]): Figures {
  const runs = results.flatMap(({ task, run }) =>
    run ? [{ task, run, gain: run.after.reward - run.before.reward }] : [],
  );
  const controls = results.flatMap(({ control }) => (control ? [control.after.reward - control.before.reward] : []));
  const killed = results.flatMap((result) => result.killed ?? []);
  const beside = results.flatMap(({ run, trl }) => (run && trl ? [besideTrl(run, trl)] : []));
  const tasks = [...new Set(runs.map(({ task }) => task))].filter((name) =>
    runs.every(({ task, gain }) => task !== name || gain >= gainWanted),
  );
  const most = (values: readonly number[]): number | null => (values.length === 0 ? null : round(Math.max(...values)));
  return {
    tasks: tasks.length,
    gain_min: runs.length === 0 ? null : round(Math.min(...runs.map(({ gain }) => gain))),
    control_max: most(controls),
    minutes_max: most(runs.map(({ run }) => run.seconds / 60)),
    cpu_minutes_max: most(runs.flatMap(({ run }) => (run.cpu ? [run.cpu.own_s / 120] : []))),
    killed_equal: killed.length === 0 ? null : killed.every(({ isEqual }) => isEqual),
    trl_time_ratio: most(beside.map(({ ratio }) => ratio)),
    trl_time_ratio_cpu: most(beside.flatMap(({ ratioCpu }) => ratioCpu ?? [])),
    trl_reached: beside.length === 0 ? null : beside.every(({ isReached }) => isReached),
    details: results,
  };
}

function besideTrl({ after, seconds, cpu }: LearningRun, { evaluations }: TrlRun) {
  const reached = evaluations.find(({ reward }) => reward >= after.reward);
  const theirs = reached ?? evaluations.at(-1)!;
  return {
    isReached: reached !== undefined,
    ratio: seconds / theirs.wall_s,
    ratioCpu: cpu === null ? null : cpu.own_s / theirs.cpu_s,
  };
}
