import type { EvaluatedServer } from '../../core/eval/evaluation.ts';
import { taskQueues } from '../../core/names.ts';
import type { LoadedEvaluations } from '../../load/evaluations/load-evaluations.ts';
import { linesOfStore, resolveStoreUri } from '../../store/index.ts';
import type { evaluate } from '../../workflows/evaluate.ts';
import { uiLine, withProcesses } from '../start/processes.ts';
import { grantNamed, namedByEnvironments } from '../../load/grants/grant.ts';
import { keyVariablesOf, requireKeys } from '../start/server-keys.ts';
import { askForVersions, typedByModels } from './subject/named-models.ts';
import { openReporter } from '../output/reporter.ts';
import { whenLeft } from '../follow/watch-run.ts';
import { describePlan } from './plan-lines.ts';
import { poolOf } from '../typed/pool-option.ts';
import { evalRunCommand, type EvalRunOptions, settingsOf } from './run-options.ts';
import { type EvaluationLine, watchEvaluation } from './watch-evaluation.ts';
import { withoutModel, serve, askedAt } from './subject/local-subject.ts';
import { prepare, refuseOtherInput } from './prepare.ts';
import { load, isFile } from './subject/load-subject.ts';

const help = `
Examples:
  npx ratchet-rl eval run reverse-text -m gpt-4.1-mini -p openai -n 20     an API; its key is in OPENAI_API_KEY
  npx ratchet-rl eval run reverse-text -m my-model -b http://localhost:8000/v1
  npx ratchet-rl eval run configs/eval/suite.toml                          every [[eval]] and [[ablation]] of a file
  npx ratchet-rl eval run reverse-text --run my-run --step 50              a checkpoint of a run
  npx ratchet-rl eval run reverse-text -m ./models/small                   a folder with a model: it is served meanwhile;
                                                                           results name its weights by their sha256

What is finished is never sampled again. The same command continues with an evaluation that was interrupted; --resume also with one
that has failed rollouts or wants more examples. Without -b and -p the model is looked for in the endpoints file, else it is asked at
Prime Inference if PRIME_API_KEY is set. Beside a file, options apply to each of its evaluations.
`;

/** `ratchet eval run`. */
export const runCommand = evalRunCommand()
  .addHelpText('after', help)
  .action(async (what, options) => {
    process.exitCode = await run(what, options);
  });

async function run(what: string, options: EvalRunOptions): Promise<number> {
  const projectFolder = process.cwd();
  const reporter = openReporter<EvaluationLine>(options);
  const settings = settingsOf(options);
  const loaded = await load(what, await withoutModel(settings, options), options, projectFolder);
  for (const line of loaded.warnings) reporter.say(`warning: ${line}`);
  for (const { said } of loaded.evaluations) if (said !== null) reporter.say(said);
  if (options.dryRun) {
    for (const line of describePlan(loaded.evaluations)) reporter.say(line);
    return 0;
  }
  const models = loaded.evaluations.map(({ input }) => input.model);
  if (options.serve === undefined) await askForVersions(models, [], options);
  grantNamed(projectFolder, [
    ...(isFile(what) ? [what] : []),
    ...loaded.evaluations.map(({ spec }) => spec.model.endpointsPath),
    ...namedByEnvironments(loaded.evaluations.map(({ input }) => input.environment)),
  ]);
  const keys = keyVariablesOf(serversOf(loaded));
  await requireKeys(keys, projectFolder);
  const left = whenLeft();
  const served = await serve(options, settings, loaded, { projectFolder, log: reporter.say });
  // A server that this command starts is named for as long as it runs (`local-model.ts`).
  if (served === null) {
    grantNamed(projectFolder, typedByModels(models, options));
  }
  const storeUri = resolveStoreUri(options.store ?? 'file:outputs', projectFolder);
  const environments = loaded.evaluations.map(({ input }) => input.environment);
  const playsOnly = loaded.evaluations.every(({ input }) => input.model.kind === 'endpoint');
  const pool = poolOf(options);
  const needs = { storeUri, workersSee: keys, environments, playsOnly, ...pool.needs };
  try {
    const exitCode = await withProcesses(
      needs,
      { say: reporter.say, part: () => '' },
      async ({ client, stack, uiUrl, interrupted, gone }) => {
        const evaluations =
          served === null ? loaded.evaluations : loaded.evaluations.map((one) => askedAt(one, served));
        const prepared = await prepare(what, evaluations, { options, projectFolder, client });
        const inputs = 'inputs' in prepared.input ? prepared.input.inputs : [prepared.input];
        grantNamed(
          projectFolder,
          inputs.flatMap(({ results }) => linesOfStore(results.store)),
        );
        const handle = await client.workflow.start<typeof evaluate>('evaluate', {
          workflowId: prepared.workflowId,
          taskQueue: taskQueues.orchestrator,
          args: [prepared.input],
          ...pool.start,
          // A server that this command started is another one each time.
          workflowIdConflictPolicy: served === null && !prepared.asksElsewhere ? 'USE_EXISTING' : 'TERMINATE_EXISTING',
          workflowIdReusePolicy: 'ALLOW_DUPLICATE',
          workflowTaskTimeout: '5s',
          staticSummary: prepared.summary,
        });
        await refuseOtherInput(client, prepared);
        if (prepared.goesOn) reporter.say(`continues${prepared.asksElsewhere ? ', with the servers named now' : ''}`);
        else if (options.resume === true)
          reporter.say('nothing here has anything left to do with these settings: a new one begins');
        if (uiUrl) reporter.say(uiLine(uiUrl, handle));
        return watchEvaluation(handle, {
          reporter,
          hasOwnStack: stack !== null,
          endsWithUs: served !== null,
          interrupted: interrupted.signal,
          gone,
          abbreviated: options.abbreviatedSummary === true,
          toPlayAgain: 'the same command with --resume',
        });
      },
      left,
    );
    return exitCode ?? 130;
  } finally {
    await served?.stop();
  }
}

function serversOf({ evaluations }: LoadedEvaluations): EvaluatedServer[] {
  return evaluations.flatMap(({ input: { model } }) => (model.kind === 'endpoint' ? model.servers : []));
}
