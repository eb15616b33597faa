import { existsSync } from 'node:fs';
import path from 'node:path';
import { fileURLToPath } from 'node:url';
import type { EvaluatedServer } from '../../core/eval/evaluation.ts';
import { promptSearchWorkflowId, taskQueues } from '../../core/names.ts';
import type { PlannedPromptSearch } from '../../load/searches/load-prompt-search.ts';
import { placeOfPromptSearch } from '../../load/searches/prompt-search-folders.ts';
import { linesOfStore, resolveStoreUri } from '../../store/index.ts';
import type { optimizePrompt } from '../../workflows/optimize-prompt.ts';
import { uiLine, withProcesses } from '../start/processes.ts';
import { grantNamed, namedBySearch } from '../../load/grants/grant.ts';
import { keyVariablesOf, requireKeys } from '../start/server-keys.ts';
import { openReporter } from '../output/reporter.ts';
import { poolOf } from '../typed/pool-option.ts';
import { gepaRunCommand, type GepaRunOptions } from './run-options.ts';
import { type PromptSearchLine, watchSearch } from './watch-search.ts';
import { planLines } from './plan-lines.ts';
import { load } from './load-search.ts';

const help = `
Examples:
  npx ratchet-rl gepa run wiki-search -m gpt-4.1-mini --provider openai       an API; its key is in OPENAI_API_KEY
  npx ratchet-rl gepa run reverse-text -m small -M large -b http://localhost:8000/v1 --eval
  npx ratchet-rl gepa run configs/gepa/wiki-search.toml -B 200                a file; options override it

A call is a rollout that is scored; reflections are counted apart, and bounded by --max-reflections. What is finished is never paid for again: the same command continues
with a search that was interrupted, and finds what it would have found. npx ratchet-rl gepa show ENV shows its result.
`;

/** `ratchet gepa run`. */
export const runCommand = gepaRunCommand()
  .addHelpText('after', help)
  .action(async (what, options) => {
    process.exitCode = await run(what, options);
  });

async function run(what: string, options: GepaRunOptions): Promise<number> {
  const projectFolder = process.cwd();
  const reporter = openReporter<PromptSearchLine>(options);
  const planned = await load(what, options, projectFolder);
  for (const line of [...planned.warnings.map((warning) => `warning: ${warning}`), ...planned.said]) reporter.say(line);
  for (const line of planLines(planned)) reporter.say(line);
  if (options.dryRun) return 0;
  grantNamed(projectFolder, [what, planned.spec.model.endpointsPath, ...namedBySearch(planned.input)]);
  const keys = keyVariablesOf(serversOf(planned));
  await requireKeys(keys, projectFolder);
  const results = await placeOfPromptSearch(planned.spec, planned.input, {
    projectFolder,
    isFresh: options.fresh === true,
  });
  grantNamed(projectFolder, linesOfStore(results.store));
  const folder = path.join(fileURLToPath(results.store), results.name);
  const goesOn = existsSync(path.join(folder, 'search', 'search.json'));
  const pool = poolOf(options);
  const needs = {
    ...pool.needs,
    storeUri: resolveStoreUri('file:outputs', projectFolder),
    workersSee: keys,
    environments: planned.input.environments,
    playsOnly: planned.input.model.kind === 'endpoint',
  };
  const { model, reflection, environments } = planned.input;
  const names = environments.map(({ name }) => name).join('+');
  const quiet = { say: reporter.say, part: () => '' };
  const exitCode = await withProcesses(needs, quiet, async ({ client, stack, uiUrl, interrupted, gone }) => {
    const handle = await client.workflow.start<typeof optimizePrompt>('optimizePrompt', {
      workflowId: promptSearchWorkflowId(names, results.name),
      taskQueue: taskQueues.orchestrator,
      args: [{ ...planned.input, results }],
      ...pool.start,
      workflowIdConflictPolicy: 'USE_EXISTING',
      workflowIdReusePolicy: 'ALLOW_DUPLICATE',
      workflowTaskTimeout: '5s',
      staticSummary: `${names} · ${model.model} · reflected on by ${reflection.model}`,
    });
    if (goesOn) reporter.say(`continues where it was interrupted: ${folder}`);
    if (uiUrl) reporter.say(uiLine(uiUrl, handle));
    return watchSearch(handle, {
      reporter,
      hasOwnStack: stack !== null,
      interrupted: interrupted.signal,
      gone,
      planned,
      typed: options,
    });
  });
  return exitCode ?? 130;
}

function serversOf({ input: { model, reflection } }: PlannedPromptSearch): EvaluatedServer[] {
  return [...(model.kind === 'endpoint' ? model.servers : []), ...reflection.servers];
}
