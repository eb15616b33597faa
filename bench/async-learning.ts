import { readFile, writeFile } from 'node:fs/promises';
import path from 'node:path';
import { fileURLToPath } from 'node:url';
import { decodeRanges } from '../core/rl/ledger.ts';
import { measurement, type Bench, type Figures } from './measurement.ts';
import { codeRoots, demoConfig, readCommits, readEvaluation, trainWithCli, withProject } from './run-project.ts';
import { mean, round } from './statistics.ts';

/**
 * Sample efficiency of training several steps ahead when rollouts have a tail. Whole runs of
 * configs/rl/reverse-text.toml by the command a user
 * types: as the file has it at level 0, and at `--level` with rollouts that wait log-normally (`tail-environment.ts`). Held-out words are
 * evaluated every few steps, at temperature 1.
 *
 * - `samples_ratio`, goal ≤ 1.15, the worst seed: rollouts of all groups that ended until an evaluation has `--exact`, ÷ the same at level 0.
 *   Null where one of the two runs does not get there. Both are read to the evaluations' interval.
 * - `exact_tail_min`, `exact_level0_min`: exact share of the last version.
 */
export const asyncLearning = measurement(
  'async-learning',
  'what being several steps ahead costs in samples, with a tail',
  measure,
)
  .option('--seeds <n>', 'how many, from 0', Number, 2)
  .option('--level <n>', 'max_async_level of the run with a tail', Number, 4)
  .option('--exact <share>', 'of the held-out words', Number, 0.85)
  .option('--mean <ms>', 'of what rollouts wait', Number, 2_000)
  .option('--interval <n>', 'steps from one evaluation to the next', Number, 5)
  .option('--steps <n>', 'RL steps instead of the config’s', Number, 100)
  .option(
    '--tail-settings <flags>',
    'of `ratchet train`, for the run with a tail alone, as in "--learning-rate 1e-3"',
    '',
  )
  .addHelpText('after', '\nGoal: samples_ratio ≤ 1.15.');

interface Options {
  readonly seeds: number;
  readonly level: number;
  readonly exact: number;
  readonly mean: number;
  readonly interval: number;
  readonly steps: number;
  readonly tailSettings: string;
}

const sigma = 1;

async function measure(bench: Bench, options: Options): Promise<Figures> {
  const pairs: { readonly seed: number; readonly level0: Learnt; readonly tail: Learnt }[] = [];
  for (let seed = 0; seed < options.seeds; seed++) {
    const level0 = await measureOne(bench, { seed, level: 0, meanMs: 0 }, options);
    const tail = await measureOne(bench, { seed, level: options.level, meanMs: options.mean }, options);
    pairs.push({ seed, level0, tail });
    bench.say(JSON.stringify(pairs.at(-1)));
  }
  const ratios = pairs.map(({ level0, tail }) => (tail.samples ?? NaN) / (level0.samples ?? NaN));
  const worst = Math.max(...ratios);
  return {
    samples_ratio: Number.isNaN(worst) ? null : round(worst),
    exact_tail_min: Math.min(...pairs.map(({ tail }) => tail.exact)),
    exact_level0_min: Math.min(...pairs.map(({ level0 }) => level0.exact)),
    details: { ratios: ratios.map((ratio) => round(ratio)), pairs },
  };
}

interface Learnt {
  /** Rollouts until the share was reached; null = it was not. */
  readonly samples: number | null;
  readonly exact: number;
  readonly exact_over_steps: readonly number[];
  /** Versions that trained rollouts were behind, on average. */
  readonly off_policy: number;
}

async function measureOne(
  bench: Bench,
  { seed, level, meanMs }: { readonly seed: number; readonly level: number; readonly meanMs: number },
  { exact, interval, steps, tailSettings }: Options,
): Promise<Learnt> {
  bench.doing(`seed ${seed} at level ${level}`);
  return withProject(bench, async (folder) => {
    const config = path.join(folder, 'tail.toml');
    const id = JSON.stringify(fileURLToPath(new URL('tail-environment.ts', import.meta.url)));
    const text = await readFile(demoConfig, 'utf8');
    await writeFile(
      config,
      text
        .replace('id = "reverse-text"', `name = "reverse-text"\nid = ${id}`)
        .replace('max_length = 8 }', `max_length = 8, mean_ms = ${meanMs}, sigma = ${sigma} }`),
    );
    const run = `seed-${seed}-level-${level}`;
    await trainWithCli(bench, {
      folder,
      run,
      config,
      variables: { RATCHET_CODE_ROOTS: codeRoots().join(path.delimiter) },
      overrides: [
        ...Object.entries({
          '--seed': seed,
          '--max-async-level': level,
          '--max-steps': steps,
          '--eval.interval': interval,
        }).flatMap(([name, value]) => [name, String(value)]),
        ...(meanMs === 0 ? [] : tailSettings.split(' ').filter((word) => word !== '')),
      ],
    });
    const commits = await readCommits(folder, run, steps);
    const shares: number[] = [];
    let [samples, reached]: [number, number | null] = [0, null];
    for (const { step, outcomes } of commits) {
      samples += Object.values(outcomes.ended).reduce((sum, ranges) => sum + decodeRanges(ranges ?? '').length, 0);
      if (step % interval !== 0) continue;
      const { sampled } = await readEvaluation(folder, run, step);
      shares.push(sampled.exact ?? 0);
      if (reached === null && (sampled.exact ?? 0) >= exact) reached = samples;
    }
    return {
      samples: reached === null ? null : reached * 8,
      exact: shares.at(-1) ?? 0,
      exact_over_steps: shares,
      off_policy: round(mean(commits.flatMap(({ metrics }) => metrics['off_policy/mean'] ?? []))),
    };
  });
}
