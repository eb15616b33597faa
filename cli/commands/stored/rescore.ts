import { Command } from '@commander-js/extra-typings';
import { taskQueues } from '../../../core/names.ts';
import type { RescoreInput } from '../../../core/eval/rescore.ts';
import { grantNamed, namedByEnvironments } from '../../../load/grants/grant.ts';
import { linesOfStore } from '../../../store/index.ts';
import type { rescore } from '../../../workflows/rescore.ts';
import { tellingOptions } from '../../follow/audience.ts';
import { linesOfFoundStore } from '../../eval/subject/named-models.ts';
import { openReporter } from '../../output/reporter.ts';
import { refuseInPlace } from '../../rescore/rescore-environments.ts';
import { readRescore, type RescoreOptions } from '../../rescore/rescore-input.ts';
import { type RescoreLine, watchRescore } from '../../rescore/watch-rescore.ts';
import { askGrants } from '../../start/ask-grants.ts';
import { uiLine, withProcesses } from '../../start/processes.ts';
import { isTypedStore } from '../../stored/run-place.ts';
import { grantOption, storeOption } from '../../typed/store-option.ts';

const help = `
Examples:
  npx ratchet-rl rescore my-run                              by its environments' own rubrics, as they are now
  npx ratchet-rl rescore my-run --rubric strict.ts --steps 10-20
  npx ratchet-rl rescore outputs/evals/gsm8k--gpt-4.1/1a2b3c4d --rubric my-package
  npx ratchet-rl rescore my-run --failed-judges              only rollouts whose judge failed
  npx ratchet-rl fork my-run --step 20 --name again --rewards ID

No token is sampled, and nothing that is stored changes: the other rewards are below the run or evaluation, in rescores/ID.
The same command continues one that was interrupted, and shows one that has ended; --fresh begins another.
A rubric that reads a sandbox or a live state cannot score what is stored, and is refused.
`;

export const rescoreCommand = new Command('rescore')
  .description('another rubric on the stored rollouts of a run or an evaluation, without sampling')
  .argument('<run|evaluation>', "a run's name, or the folder of an evaluation")
  .option(
    '--rubric <file|env>',
    'a TypeScript file with a rubric, or an environment whose rubric is used (default: their own, as it is now)',
  ) // prettier-ignore
  .option('--args <json>', "the arguments of the rubric's environment")
  .option('--steps <range>', "a run's steps alone: 10-20, or 10- (default: all)")
  .option('--failed-judges', 'only rollouts that have no reward because their judge failed')
  .option('--max-judge-calls <n>', 'ask judges at most so often; the same command continues, with as many again')
  .option('--max-judge-tokens <n>', 'the same of tokens, those of prompts included')
  .option('--fresh', 'again, where the same was rescored before')
  .option(...storeOption)
  .option(...grantOption)
  .option(...tellingOptions.json)
  .addHelpText('after', help)
  .action(async (what, options) => {
    process.exitCode = await run(what, options);
  });

async function run(what: string, options: RescoreOptions): Promise<number> {
  const reporter = openReporter<RescoreLine>(options);
  const projectFolder = process.cwd();
  const { input, place, isRun, mayFork } = await readRescore(what, options);
  const { environments, rubric, results } = input;
  const lines = [...namedByEnvironments(environments), ...linesOfFoundStore(place, options.store)];
  await askGrants(place, { lines: isRun ? lines : namedByEnvironments(environments), environments }, options);
  grantNamed(projectFolder, [
    ...(rubric === null ? [] : namedByEnvironments([rubric])),
    ...(!isRun || isTypedStore(place, options.store) ? linesOfStore(results.store) : []),
  ]);
  await refuseInPlace(input);
  const scoring = rubric === null ? environments : [...environments, rubric];
  const needs = {
    storeUri: results.store,
    workersSee: [],
    environments: scoring,
    playsOnly: true,
  };
  const exitCode = await withProcesses(
    needs,
    { say: reporter.say, part: () => '' },
    async ({ client, stack, uiUrl, interrupted, gone }) => {
      const handle = await client.workflow.start<typeof rescore>('rescore', {
        workflowId: workflowIdOf(input),
        taskQueue: taskQueues.orchestrator,
        args: [input],
        workflowIdConflictPolicy: 'USE_EXISTING',
        workflowIdReusePolicy: 'ALLOW_DUPLICATE',
        workflowTaskTimeout: '5s',
        staticSummary: `rescore ${what}`,
      });
      if (uiUrl) reporter.say(uiLine(uiUrl, handle));
      return watchRescore(handle, { reporter, hasOwnStack: stack !== null, interrupted: interrupted.signal, gone }, { mayFork }); // prettier-ignore
    },
  );
  return exitCode ?? 130;
}

/** One at a time for each id: the same command comes back to it. */
function workflowIdOf({ results: { name, prefix } }: RescoreInput): string {
  return `rescore.${name}.${prefix.split('/').at(-2)!}`;
}
