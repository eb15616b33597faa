import { access } from 'node:fs/promises';
import { fileURLToPath } from 'node:url';
import { z } from 'zod';
import { isDisturbed, meterCpu, waitForQuiet, type CpuUse } from './cpu-meter.ts';
import { CannotMeasure, measurement, type Bench, type Figures } from './measurement.ts';
import { committedAt, readCommits, runProgram, stepSeconds, trainWithCli, withProject } from './run-project.ts';
import { mean, median, round } from './statistics.ts';

const peer = fileURLToPath(new URL('peers/trl_reverse_text.py', import.meta.url));
const words = fileURLToPath(new URL('../environments/reverse-text/words.txt', import.meta.url));

/** The versions the peer was written for; bench/peers/README.md says more. */
const pip =
  'pip install trl==1.16.0 torch==2.15.0 transformers==5.23.0 accelerate==1.15.0 datasets==5.2.0 tokenizers==0.23.3';

/**
 * The demo beside TRL's GRPOTrainer: same words, shape of model, warm-up and reward, 100 steps of 64 prompts × 8 rollouts,
 * two threads, theirs and ours in turn so that both meet the same machine.
 *
 * - `step_ratio`: our time per step ÷ TRL's; below 1 = ours is faster. Medians over a run's steps; ours is the time from
 *   commit to commit, at async level 1.
 * - `run_ratio`: the same for a whole run, from the command to the last step, with warm caches and without evaluations.
 *
 * Both are medians over the pairs. Ours seals its checkpoints as every run does and TRL's saves nothing; ours leaves
 * groups without a signal out of training (`rows_trained` says how much it trained) and TRL trains on all 512 rows.
 * `cpu` beside each run shows whether the machine was its alone; `pairs_disturbed` counts the pairs in which others took
 * more than a twentieth of it. They are in the medians all the same: two threads on two cores suffer badly from company, so a
 * figure with disturbed pairs says little.
 */
export const trl = measurement('trl', "the demo beside TRL's GRPOTrainer, in turn", measure)
  .option('--pairs <n>', 'how often each side runs', Number, 2)
  .option('--steps <n>', 'RL steps of each run', Number, 100)
  .option('--patience <seconds>', 'how long to wait for a quiet machine before each run', Number, 60)
  .addHelpText('after', `\nRATCHET_TRL_PYTHON names a Python with TRL (3.11; about 6 GB): ${pip}`);

interface Options {
  readonly pairs: number;
  readonly steps: number;
  readonly patience: number;
}

interface Timed {
  readonly step_s: number;
  readonly step_mean_s: number;
  readonly run_s: number;
  readonly cpu: CpuUse | null;
}

async function measure(bench: Bench, { pairs, steps, patience }: Options): Promise<Figures> {
  const python = await findTrlPython(bench);
  bench.doing('both once in passing, so that files and compiled code are in their caches');
  await runTheirs(bench, python, { steps: 1, warmupSteps: 1 });
  await runOurs(bench, { steps: 5, overrides: ['--sft.steps', '20'] });

  const measured: { readonly trl: Timed; readonly ratchet: Timed }[] = [];
  for (let pair = 1; pair <= pairs; pair++) {
    bench.doing(`pair ${pair} of ${pairs}: TRL`);
    await waitForQuiet(bench, patience);
    const theirs = await runTheirs(bench, python, { steps });
    bench.doing(`pair ${pair} of ${pairs}: Ratchet`);
    await waitForQuiet(bench, patience);
    const ours = await runOurs(bench, { steps });
    measured.push({ trl: theirs, ratchet: ours });
    bench.say(`pair ${pair}: TRL ${JSON.stringify(theirs)}`);
    bench.say(`pair ${pair}: Ratchet ${JSON.stringify(ours)}`);
  }
  const ratio = (of: 'step_s' | 'run_s'): number =>
    round(median(measured.map(({ trl, ratchet }) => ratchet[of] / trl[of])));
  const pairs_disturbed = measured.filter(
    ({ trl, ratchet }) => isDisturbed(trl.cpu) || isDisturbed(ratchet.cpu),
  ).length;
  if (pairs_disturbed > 0)
    bench.say(`${pairs_disturbed} of ${pairs} pairs were disturbed: measure again on a quiet machine`);
  return {
    step_ratio: ratio('step_s'),
    run_ratio: ratio('run_s'),
    pairs_disturbed,
    details: { steps, pairs: measured },
  };
}

/** The Python that RATCHET_TRL_PYTHON names, once it has shown that it has TRL. */
export async function findTrlPython(bench: Bench): Promise<string> {
  const python = process.env['RATCHET_TRL_PYTHON'];
  const advice = `Make an environment with Python 3.11 (about 6 GB) and name its interpreter:\n  ${pip}\n  RATCHET_TRL_PYTHON=…/bin/python npm run bench -- NAME`;
  if (!python) throw new CannotMeasure(`RATCHET_TRL_PYTHON is not set. ${advice}`);
  try {
    await access(python);
    bench.doing(`importing TRL with ${python}`);
    await runProgram(bench, python, ['-c', 'import trl, torch, datasets'], process.cwd());
  } catch (error) {
    throw new CannotMeasure(`RATCHET_TRL_PYTHON=${python} cannot import TRL: ${String(error)}\n${advice}`);
  }
  return python;
}

/** Last output of the peer, as far as it is used here. */
const PeerFigures = z.object({
  median_step_s: z.number(),
  s_per_step: z.number(),
  run_s: z.number(),
  warmup_s: z.number(),
  import_s: z.number(),
  eval_after: z.object({ reward: z.number(), exact: z.number() }),
});

async function runTheirs(
  bench: Bench,
  python: string,
  { steps, warmupSteps }: { steps: number; warmupSteps?: number },
): Promise<Timed & Figures> {
  const args = [peer, '--words', words, '--steps', String(steps), '--threads', '2'];
  if (warmupSteps !== undefined) args.push('--sft', String(warmupSteps));
  const { result, cpu } = await meterCpu(() => runProgram(bench, python, args, process.cwd()));
  const figures = PeerFigures.parse(JSON.parse(result.split('\n').at(-1)!));
  const { median_step_s, s_per_step, run_s, warmup_s, import_s, eval_after } = figures;
  return { step_s: median_step_s, step_mean_s: s_per_step, run_s, warmup_s, import_s, eval_after, cpu };
}

async function runOurs(
  bench: Bench,
  { steps, overrides = [] }: { steps: number; overrides?: readonly string[] },
): Promise<Timed & Figures> {
  return withProject(bench, async (folder) => {
    // The one evaluation comes after the last step.
    const evaluation = ['--eval.skip_first_step', 'true', '--eval.interval', String(steps)];
    // The peer's sizes: 64 prompts × 8 rollouts a step after 400 steps of warm-up.
    const sizes = ['--batch-size', '512', '--sft.steps', '400'];
    const all = ['--max-steps', String(steps), ...sizes, ...evaluation, ...overrides];
    const { result, cpu } = await meterCpu(() => trainWithCli(bench, { folder, run: 'beside-trl', overrides: all }));
    const commits = await readCommits(folder, 'beside-trl', steps);
    const seconds = stepSeconds(commits);
    return {
      step_s: round(median(seconds), 4),
      step_mean_s: round(mean(seconds), 4),
      run_s: round((committedAt(commits.at(-1)!) - result.startedAt) / 1000, 2),
      until_first_version_s: round((committedAt(commits[0]!) - result.startedAt) / 1000, 2),
      rows_trained: round(mean(commits.slice(1).map(({ metrics }) => metrics['batch/rows']!)), 0),
      cpu,
    };
  });
}
