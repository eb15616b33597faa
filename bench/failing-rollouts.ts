import { fileURLToPath } from 'node:url';
import { startFakeRun } from './fake-run.ts';
import { type Bench, type Figures, measurement } from './measurement.ts';
import { stepSeconds, readCommits, withProject, withStack } from './run-project.ts';
import { mean, round } from './statistics.ts';

/**
 * Loss of a run when a share of its rollouts fails through the environment's infrastructure, after the model has
 * answered. Server, workers, store and workflow are real;
 * the model and the trainer cost nothing. Groups are of 8.
 *
 * - `steps`, goal: all of them. A run that pauses, or that waits for groups for ever, does not end.
 * - `groups_lost`, goal ≤ 0.03: groups that ended as failed ÷ groups that ended, where a failed rollout fails again with the same chance.
 * - `groups_lost_for_good`, goal ≤ 0.03: the same where it fails however often it is retried.
 * - `rollouts_trained`: of the rollouts of trained groups, the share with a reward; `…_for_good` likewise.
 */
export const failingRollouts = measurement('failing-rollouts', 'what a run loses to rollouts that fail', measure)
  .option('--steps <n>', 'steps of a run', Number, 200)
  .option('--share <p>', 'of the rollouts that fail', Number, 0.1)
  .option('--level <n>', 'max_async_level', Number, 2)
  .addHelpText('after', '\nGoals: groups_lost, groups_lost_for_good ≤ 0.03 with all steps made.');

interface Options {
  readonly steps: number;
  readonly share: number;
  readonly level: number;
}

const rolloutsPerExample = 8;

async function measure(bench: Bench, options: Options): Promise<Figures> {
  const passing = await measureOne(bench, 'failing', false, options);
  const forGood = await measureOne(bench, 'failing-for-good', true, options);
  return {
    steps: Math.min(passing.steps, forGood.steps),
    groups_lost: passing.lost,
    groups_lost_for_good: forGood.lost,
    rollouts_trained: passing.trained,
    rollouts_trained_for_good: forGood.trained,
    details: { passing, forGood },
  };
}

interface Measured {
  readonly steps: number;
  readonly lost: number;
  readonly trained: number;
  readonly ended: Readonly<Record<string, number>>;
  readonly step_s: number;
}

async function measureOne(bench: Bench, name: string, isForGood: boolean, options: Options): Promise<Measured> {
  const { steps, share, level } = options;
  bench.doing(`${steps} steps, ${share * 100} % of the rollouts fail${isForGood ? ' for good' : ''}`);
  const environment = fileURLToPath(new URL('failing-environment.ts', import.meta.url));
  return withProject(bench, (folder) =>
    withStack(bench, folder, async (client) => {
      const run = await startFakeRun(client, folder, {
        name,
        steps,
        batchSize: 64,
        rolloutsPerExample,
        asyncLevel: level,
        sampleMs: 20,
        stepMs: 0,
        checkpointInterval: 50,
        model: 'preset:chars-0.4m',
        environment: `[[env]]\nid = ${JSON.stringify(environment)}\nargs = { fail_share = ${share}, for_good = ${isForGood} }`,
      });
      const { step, ledger } = await run.handle.result();
      if (!ledger.isSound) throw new Error(`the ledger is not sound: ${JSON.stringify(ledger)}`);
      const commits = await readCommits(folder, name, steps);
      const { counts } = ledger;
      const ended = Object.values(counts).reduce((sum, count) => sum + count, 0);
      const lost = Object.entries(counts).reduce(
        (sum, [state, count]) => sum + (state.startsWith('failed') ? count : 0),
        0,
      );
      const measured = {
        steps: step,
        lost: round(lost / ended, 4),
        trained: round(1 - mean(commits.flatMap(({ metrics }) => metrics['train/agg/all/has_error/mean'] ?? []))),
        ended: counts,
        step_s: round(mean(stepSeconds(commits))),
      };
      bench.say(`${name}: ${JSON.stringify(measured)}`);
      return measured;
    }),
  );
}
