import { Command, Option } from '@commander-js/extra-typings';
import { setTimeout as delay } from 'node:timers/promises';
import { RatchetError } from '../../core/errors.ts';
import type { CheckpointFigures } from '../../core/eval/checkpoint-curve.ts';
import { readSteps, type StepChoice } from '../../core/eval/select-steps.ts';
import { type CheckpointPlan, planCheckpoints } from '../../runs/evaluations/checkpoint-evaluations.ts';
import { tellingOptions } from '../follow/audience.ts';
import { findRunFolder } from '../stored/run-place.ts';
import { grantOption, storeOption } from '../typed/store-option.ts';
import { openReporter } from '../output/reporter.ts';
import { askForPlan, inputsToPlay } from './subject/named-models.ts';
import { type EvaluationStage, onStage } from './stage.ts';
import { type EvaluationLine, isRunning } from './watch-evaluation.ts';
import { type CheckpointOptions, remember, subjectOf } from './subject/checkpoint-subject.ts';
import { checkpointFigures, curveLines } from './checkpoint-figures.ts';

const help = `
Examples:
  npx ratchet-rl eval checkpoints my-run                                       as its [eval] says; what it evaluated itself is only read
  npx ratchet-rl eval checkpoints my-run --steps 10,50,100 --env gsm8k -n 200 -r 4
  npx ratchet-rl eval checkpoints my-run --backfill                            as last time, of all checkpoints: those that are new are evaluated
  npx ratchet-rl eval checkpoints my-run --env gsm8k --watcher                 until the run ends, each new one when it is sealed

Every checkpoint is evaluated once for the same settings, even if several commands ask for it; of a run that was rewound, the current lineage counts.
`;

const each = (value: string, before: readonly string[] = []): string[] => [...before, ...value.split(',')];

/** `ratchet eval checkpoints RUN`. */
export const checkpointsCommand = new Command('checkpoints')
  .description('evaluate the checkpoints of a run: a table and a curve')
  .argument('<run>')
  .option('--steps <list>', 'these alone: 10,50,100 (default: all that are sealed)')
  .option('--no-eval-base', 'leave the base model, v0, out')
  .addOption(
    new Option(
      '--env <id>',
      'the environments to evaluate on, one or several (default: as [eval] of the run)',
    ).argParser(each),
  )
  .option('-a, --env-args <json>', "the environment's arguments")
  .option('-n, --num-examples <n>', 'held-out examples, -1 = all')
  .option('-r, --rollouts-per-example <n>', 'rollouts of each')
  .option('-c, --max-concurrent <n>', 'rollouts at once, of each evaluation')
  .option('-t, --max-tokens <n>', 'tokens of each turn')
  .option('-T, --temperature <x>', 'of the sampling')
  .option('-S, --sampling-args <json>', 'further sampling parameters')
  .option('--builtin', 'OWNER/NAME is the environment NAME that comes with Ratchet')
  .option('--at-once <n>', 'checkpoints side by side; 1 where a server holds one version at a time (default: 4)')
  .option('--backfill', 'with the settings of last time')
  .option('--watcher', 'wait for further checkpoints until the run ends')
  .option(...storeOption)
  .option(...tellingOptions.json)
  .option(...grantOption)
  .option('--dry-run', 'say what would be evaluated')
  .addHelpText('after', help)
  .action(async (run, options) => {
    process.exitCode = await evaluateCheckpoints(run, options);
  });

export async function evaluateCheckpoints(run: string, options: CheckpointOptions): Promise<number> {
  const reporter = openReporter<EvaluationLine>(options);
  const place = await findRunFolder(run, options.store);
  const choice = choiceOf(options);
  const subject = await subjectOf(place, options);
  const plan = await planCheckpoints(place, choice, subject);
  if (plan.missing.length > 0) {
    throw new RatchetError(
      'RunNotFound',
      `--steps: ${run} has no sealed checkpoint of ${plan.missing.join(', ')}; it has ${plan.sealed.join(', ') || 'none yet'}.`,
    );
  }
  const title = (count: number): string => `${count} evaluations of checkpoints of ${run}`;
  if (options.dryRun) {
    reporter.say(title(plan.evaluations.length));
    for (const { environment, step, input } of plan.evaluations) {
      reporter.say(
        `  v${step} on ${environment}: ${input.numExamples < 0 ? 'all' : input.numExamples} examples × ${input.rolloutsPerExample}`,
      );
    }
    return 0;
  }
  const planned = plan.evaluations.map(({ input }) => input);
  await askForPlan(planned, subject, options);
  await remember(place, subject);
  const atOnce = options.atOnce === undefined ? undefined : readAtOnce(options.atOnce);
  const environments = planned.map(({ environment }) => environment);
  return onStage({ storeUri: place.store, environments, reporter }, async (stage) => {
    const figures = new Map<string, CheckpointFigures>();
    const told = new Set<string>();
    const isLast = async (): Promise<boolean> => !options.watcher || !(await isRunning(stage.client, run));
    for (let next: CheckpointPlan = plan; ; next = await planCheckpoints(place, choice, subject)) {
      const isOver = await isLast();
      const { fresh, left } = await notByTheRun(stage, next, figures, told, reporter.say);
      if (fresh.length > 0) {
        const input = {
          inputs: await inputsToPlay(
            fresh.map((one) => one.input),
            subject,
            options,
          ),
          names: fresh.map((one) => one.name),
          title: title(fresh.length),
          atOnce,
        };
        const typed = { isTyped: subject.isTyped, store: options.store };
        const results = await stage.evaluate(`${run}.eval.checkpoints`, input, typed);
        if (results === null) return stage.interrupted.aborted ? 130 : 1;
        for (const [i, result] of results.entries())
          figures.set(fresh[i]!.name, await checkpointFigures(fresh[i]!.step, result));
      }
      if (isOver && left === 0) break;
      await delay(left > 0 ? 1_000 : 5_000, undefined, { signal: stage.interrupted }).catch(() => undefined);
      if (stage.interrupted.aborted) break;
    }
    reporter.print(curveLines(run, [...figures.values()]).join('\n'));
    return stage.interrupted.aborted ? 130 : 0;
  });
}

/** Evaluations to do now, after waiting for those that the run itself has under way. */
async function notByTheRun(
  { client }: EvaluationStage,
  { evaluations }: CheckpointPlan,
  known: ReadonlyMap<string, CheckpointFigures>,
  told: Set<string>,
  say: (line: string) => void,
): Promise<{ readonly fresh: CheckpointPlan['evaluations']; readonly left: number }> {
  const fresh = [];
  let left = 0;
  for (const evaluation of evaluations) {
    if (known.has(evaluation.name)) continue;
    if (evaluation.online !== null && (await isRunning(client, evaluation.online))) {
      if (!told.has(evaluation.name))
        say(`v${evaluation.step} on ${evaluation.environment} is being evaluated by the run itself; it is waited for`);
      told.add(evaluation.name);
      left += 1;
      continue;
    }
    fresh.push(evaluation);
  }
  return { fresh, left };
}

export function choiceOf({ steps, evalBase }: CheckpointOptions): StepChoice {
  const listed = steps === undefined ? null : readSteps(steps);
  if (steps !== undefined && listed === null) {
    throw new RatchetError(
      'ConfigInvalid',
      `--steps: expected steps with commas between them, as in 10,50,100; got ${JSON.stringify(steps)}.`,
    );
  }
  return { steps: listed, includesBase: evalBase };
}

function readAtOnce(text: string): number {
  if (/^[1-9]\d{0,3}$/.test(text)) return Number(text);
  throw new RatchetError('ConfigInvalid', `--at-once: expected a number from 1, got ${JSON.stringify(text)}.`);
}
