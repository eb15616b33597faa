import { stat } from 'node:fs/promises';
import path from 'node:path';
import { loadRunConfig } from '../load/load-run-config.ts';
import { layout } from '../runs/layout.ts';
import { firstLineage } from '../core/names.ts';
import { meterCpu, type CpuUse } from './cpu-meter.ts';
import { measurement, type Bench, type Figures } from './measurement.ts';
import {
  committedAt,
  demoConfig,
  readCommits,
  readEvaluation,
  runFolder,
  trainWithCli,
  withProject,
} from './run-project.ts';
import { trainOnShuffledRewards, type ControlResult, type Score } from './shuffled-control.ts';
import { round } from './statistics.ts';

/** Held-out words an evaluation must have at least: with 500 of them a share is known to about ±0.02. */
const evaluatedMin = 500;

/**
 * Does the demo learn, and from its rewards? Whole runs of configs/rl/reverse-text.toml by the command a user types, one per
 * seed, at async level 1 as the file has it. Measured on 512 held-out words, at temperature 1 unless a name says greedy.
 *
 * - `level0_reward_min`, `level1_reward_min`, `level0_exact_min`, `level1_exact_min`: after RL at async level 0 and 1, the worst seed; goals
 *   ≥ 0.97 and ≥ 0.9 on seeds that the recipe was not chosen on. `exact_before_max`: after the warm-up, the best seed.
 * - `control_gain`: the largest gain in reward of the same recipe on shuffled rewards, from the same warmed-up policy. It
 *   should not be above 0: what such rewards teach is not the task.
 * - `sft_only_exact`: the best exact match of supervised training alone, on the same imperfect demonstrations, for as long as
 *   warm-up and RL took together. RL should be far above it.
 * - `seconds_max`: the longest run, from the command to its end.
 * - `level0_greedy_exact_min`, `level1_greedy_exact_min`: of the same policies, decoded greedily.
 */
export const demoLearning = measurement('demo-learning', 'does the demo learn, and from its rewards', measure)
  .option('--seeds <list>', 'seeds, separated by commas', readSeeds, [0, 1, 2, 3, 4])
  .option('--steps <n>', 'RL steps instead of the config’s; for a quick look only', Number)
  .option('--runs-only', 'neither the control nor supervised training alone: a third of the time')
  .addHelpText('after', '\nGoals: rewards ≥ 0.97, exact ≥ 0.9 at both levels; control_gain ≤ 0.');

interface Options {
  readonly seeds: readonly number[];
  readonly steps?: number;
  readonly runsOnly?: true;
}

function readSeeds(text: string): number[] {
  const seeds = text.split(',').map(Number);
  if (seeds.every((seed) => Number.isSafeInteger(seed) && seed >= 0)) return seeds;
  throw new Error(`--seeds: expected integers ≥ 0 separated by commas, got ${text}`);
}

async function measure(bench: Bench, options: Options): Promise<Figures> {
  const results: SeedResult[] = [];
  for (const seed of options.seeds) {
    const result = await withProject(bench, (folder) => measureSeed(bench, { folder, seed, options }));
    bench.say(`seed ${seed}: ${JSON.stringify(result)}`);
    results.push(result);
  }
  const least = (of: (result: SeedResult) => number): number => round(Math.min(...results.map(of)));
  const most = (of: (result: SeedResult) => number): number => round(Math.max(...results.map(of)));
  return {
    level0_reward_min: least(({ level0 }) => level0.after.reward),
    level1_reward_min: least(({ after }) => after.reward),
    level0_exact_min: least(({ level0 }) => level0.after.exact),
    level1_exact_min: least(({ after }) => after.exact),
    level0_greedy_exact_min: least(({ level0 }) => level0.afterGreedy.exact),
    level1_greedy_exact_min: least(({ afterGreedy }) => afterGreedy.exact),
    exact_before_max: most(({ before }) => before.exact),
    ...(options.runsOnly
      ? {}
      : {
          control_gain: most(({ comparison }) => comparison!.control.after.reward - comparison!.control.before.reward),
          sft_only_exact: most(({ comparison }) => comparison!.sftOnly.exact),
        }),
    seconds_max: most(({ seconds }) => seconds),
    seeds: options.seeds,
    details: results,
  };
}

interface SeedResult {
  readonly seed: number;
  readonly before: Score;
  readonly after: Score;
  readonly afterGreedy: Score;
  readonly seconds: number;
  /** Warm-up and RL, the start of the processes left out. */
  readonly training_s: number;
  readonly level0: { readonly after: Score; readonly afterGreedy: Score; readonly seconds: number };
  /** The same time of training without the rewards; null with --runs-only. */
  readonly comparison: Comparison | null;
  readonly cpu: CpuUse | null;
}

interface Comparison {
  readonly control: ControlResult;
  readonly sftOnly: Score & { readonly steps: number; readonly training_s: number };
}

async function measureSeed(
  bench: Bench,
  { folder, seed, options }: { folder: string; seed: number; options: Options },
): Promise<SeedResult> {
  const steps = options.steps === undefined ? [] : ['--max-steps', String(options.steps)];
  const atLevel = (level: 0 | 1): string[] => ['--seed', String(seed), '--max-async-level', String(level), ...steps];
  const run = `seed-${seed}`;
  bench.doing(`seed ${seed}: the run`);
  const { result, cpu } = await meterCpu(() => trainWithCli(bench, { folder, run, overrides: atLevel(1) }));
  const { spec } = await loadRunConfig(demoConfig, {
    projectFolder: folder,
    run,
    overrides: { seed: String(seed), ...(options.steps === undefined ? {} : { max_steps: String(options.steps) }) },
  });
  const commits = await readCommits(folder, run, spec.maxSteps);
  const openedAt = await runOpenedAt(folder, run);
  const training_s = (committedAt(commits.at(-1)!) - openedAt) / 1000;
  const warmup_s = (committedAt(commits[0]!) - openedAt) / 1000;

  bench.doing(`seed ${seed}: the run at async level 0`);
  const run0 = `${run}-level-0`;
  const { seconds: seconds0 } = await trainWithCli(bench, { folder, run: run0, overrides: atLevel(0) });

  const compare = async (): Promise<Comparison> => {
    bench.doing(`seed ${seed}: the same recipe on shuffled rewards`);
    const v0 = path.join(runFolder(folder, run), layout.weights(firstLineage, 0));
    const control = await trainOnShuffledRewards(spec, v0, bench.say);

    bench.doing(`seed ${seed}: supervised training alone for ${Math.round(training_s)} s`);
    const stepsGuess = (spec.sft!.steps * training_s) / warmup_s;
    return { control, sftOnly: await trainSupervised(bench, { folder, seed, budget_s: training_s, stepsGuess }) };
  };
  const comparison = options.runsOnly ? null : await compare();
  const last = spec.maxSteps;
  return {
    seed,
    before: await score(folder, run, 0),
    after: await score(folder, run, last),
    afterGreedy: await score(folder, run, last, 'greedy'),
    seconds: round(result.seconds, 1),
    training_s: round(training_s, 1),
    level0: {
      after: await score(folder, run0, last),
      afterGreedy: await score(folder, run0, last, 'greedy'),
      seconds: round(seconds0, 1),
    },
    comparison,
    cpu,
  };
}

/** It got this share of the time or more, or it is done again with more steps. */
const budgetShareMin = 0.9;
const attemptsMax = 3;

/**
 * A run that is nearly all warm-up: its v0 is the supervised policy. The learning rate has to know from the start how many
 * steps there will be, so their number is guessed from the pace so far.
 */
async function trainSupervised(
  bench: Bench,
  { folder, seed, budget_s, stepsGuess }: { folder: string; seed: number; budget_s: number; stepsGuess: number },
): Promise<Comparison['sftOnly']> {
  let steps = Math.round(stepsGuess);
  for (let attempt = 1; ; attempt++) {
    const run = `sft-only-${seed}.${attempt}`;
    const settings = ['--sft.steps', String(steps), '--max-steps', '1', '--trainer.warmup_steps', '0'];
    await trainWithCli(bench, { folder, run, overrides: ['--seed', String(seed), ...settings] });
    const [v0] = await readCommits(folder, run, 0);
    const training_s = (committedAt(v0!) - (await runOpenedAt(folder, run))) / 1000;
    if (training_s >= budgetShareMin * budget_s || attempt === attemptsMax) {
      return { ...(await score(folder, run, 0)), steps, training_s: round(training_s, 1) };
    }
    bench.say(`${steps} steps took ${round(training_s, 1)} s of ${round(budget_s, 1)} s: again with more`);
    steps = Math.ceil((steps * budget_s) / training_s);
  }
}

/** The first thing a run does is to write down what it is. */
async function runOpenedAt(folder: string, run: string): Promise<number> {
  return (await stat(path.join(runFolder(folder, run), layout.run()))).mtimeMs;
}

async function score(
  folder: string,
  run: string,
  step: number,
  decoding: 'sampled' | 'greedy' = 'sampled',
): Promise<Score> {
  const { rollouts, [decoding]: found } = await readEvaluation(folder, run, step);
  if (rollouts < evaluatedMin)
    throw new Error(`${run}: v${step} was evaluated on ${rollouts} words, expected ≥ ${evaluatedMin}`);
  if (found.reward === null) throw new Error(`${run}: no rollout of v${step} was scored`);
  return { reward: found.reward, exact: found.exact ?? 0 };
}
