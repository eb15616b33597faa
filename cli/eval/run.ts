import { existsSync } from 'node:fs';
import path from 'node:path';
import { fileURLToPath } from 'node:url';
import type { Client } from '@temporalio/client';
import type { Command } from 'commander';
import { RatchetError } from '../../core/errors.ts';
import { canonical } from '../../core/eval/same-evaluation.ts';
import type { EvaluatedServer, EvaluationInput, EvaluationsInput } from '../../core/eval/evaluation.ts';
import { taskQueues } from '../../core/names.ts';
import type { JsonValue } from '../../config/run-spec.ts';
import { choosePlace, evaluationsIn, newEvaluationId, placeName } from '../../backends/configs/evaluation-folders.ts';
import {
  type LoadedEvaluations,
  loadEvaluationFile,
  loadEvaluations,
  type PlannedEvaluation,
} from '../../backends/configs/load-evaluations.ts';
import { variablesFor } from '../../backends/environments/variables.ts';
import { resolveStoreUri } from '../../backends/store/index.ts';
import type { evaluate } from '../../workflows/evaluate.ts';
import { uiLine, withProcesses } from '../processes.ts';
import { grantNamed, namedByEnvironments } from '../../backends/configs/grant.ts';
import { keyVariablesOf, requireKeys } from '../server-keys.ts';
import { namedByModels } from './named-models.ts';
import { openTeller } from '../teller.ts';
import { whenLeft } from '../watch-run.ts';
import { describePlan } from './plan-lines.ts';
import {
  folderOfVersion,
  isModelFolder,
  nameOfFolder,
  type ServedModel,
  serveModel,
  versionOfRun,
} from './local-model.ts';
import { evalRunCommand, type EvalRunOptions, settingsOf } from './run-options.ts';
import { type EvaluationLine, isRunning, watchEvaluation } from './watch-evaluation.ts';

const help = `
Examples:
  ratchet eval run reverse-text -m gpt-4.1-mini -p openai -n 20     an API; its key is in OPENAI_API_KEY
  ratchet eval run reverse-text -m my-model -b http://localhost:8000/v1
  ratchet eval run configs/eval/suite.toml                          every [[eval]] and [[ablation]] of a file
  ratchet eval run reverse-text --run my-run --step 50              a checkpoint of a run
  ratchet eval run reverse-text -m ./models/small                   a folder with a model: it is served meanwhile;
                                                                    results name its weights by their sha256

What is finished is never sampled again. The same command continues with an evaluation that was interrupted; --resume also with one
that has failed rollouts or wants more examples. Without -b and -p the model is looked for in the endpoints file, else it is asked at
Prime Inference if PRIME_API_KEY is set. Beside a file, options apply to each of its evaluations.
`;

/** `ratchet eval run`. */
export const runCommand: Command = evalRunCommand()
  .addHelpText('after', help)
  .action(async (what: string, options: EvalRunOptions) => {
    process.exitCode = await run(what, options);
  });

/** What is evaluated, ready to be handed to a workflow. */
interface Prepared {
  readonly workflowId: string;
  readonly summary: string;
  readonly input: EvaluationInput | EvaluationsInput;
  readonly goesOn: boolean;
  /** Whether the workflow that may be at work on it asks other servers than were named now. */
  readonly asksElsewhere: boolean;
}

async function run(what: string, options: EvalRunOptions): Promise<number> {
  const projectFolder = process.cwd();
  const teller = openTeller<EvaluationLine>(options);
  const settings = settingsOf(options);
  const loaded = await load(what, await withoutModel(settings, options), options, projectFolder);
  for (const line of loaded.warnings) teller.say(`warning: ${line}`);
  for (const { said } of loaded.evaluations) if (said !== null) teller.say(said);
  if (options.dryRun) {
    for (const line of describePlan(loaded.evaluations)) teller.say(line);
    return 0;
  }
  grantNamed(projectFolder, [
    ...(isFile(what) ? [what] : []),
    ...loaded.evaluations.map(({ spec }) => spec.model.endpointsPath),
    ...namedByEnvironments(loaded.evaluations.map(({ input }) => input.environment)),
  ]);
  const keys = keyVariablesOf(serversOf(loaded));
  await requireKeys(keys, projectFolder);
  const left = whenLeft();
  const served = await serve(options, settings, loaded, { projectFolder, log: teller.say });
  // A server that this command starts is named for as long as it runs (`local-model.ts`).
  if (served === null) {
    grantNamed(projectFolder, await namedByModels(loaded.evaluations.map(({ input }) => input.model)));
  }
  const storeUri = resolveStoreUri(options.store ?? 'file:outputs', projectFolder);
  const environmentsSee = loaded.evaluations.map(({ input }) => variablesFor(input.environment));
  const playsOnly = loaded.evaluations.every(({ input }) => input.model.kind === 'endpoint');
  const needs = { storeUri, workersSee: keys, environmentsSee, playsOnly };
  try {
    const exitCode = await withProcesses(
      needs,
      { say: teller.say, part: () => '' },
      async ({ client, stack, uiUrl, interrupted, gone }) => {
        const evaluations =
          served === null ? loaded.evaluations : loaded.evaluations.map((one) => askedAt(one, served));
        const prepared = await prepare(what, evaluations, { options, projectFolder, client });
        const handle = await client.workflow.start<typeof evaluate>('evaluate', {
          workflowId: prepared.workflowId,
          taskQueue: taskQueues.orchestrator,
          args: [prepared.input],
          // A server that this command started is another one each time.
          workflowIdConflictPolicy: served === null && !prepared.asksElsewhere ? 'USE_EXISTING' : 'TERMINATE_EXISTING',
          workflowIdReusePolicy: 'ALLOW_DUPLICATE',
          workflowTaskTimeout: '5s',
          staticSummary: prepared.summary,
        });
        if (prepared.goesOn) teller.say(`continues${prepared.asksElsewhere ? ', with the servers named now' : ''}`);
        else if (options.resume === true)
          teller.say('nothing here has anything left to do with these settings: a new one begins');
        if (uiUrl) teller.say(uiLine(uiUrl, handle));
        return watchEvaluation(handle, {
          teller,
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

/** A file, or one or several environments by their ids. */
async function load(
  what: string,
  over: Record<string, JsonValue>,
  options: EvalRunOptions,
  projectFolder: string,
): Promise<LoadedEvaluations> {
  const reading = { projectFolder, over, builtin: options.builtin === true };
  if (isFile(what)) return loadEvaluationFile(what, reading);
  const ids = what
    .split(',')
    .map((id) => id.trim())
    .filter((id) => id !== '');
  const text = ids.map((id) => `[[eval]]\nid = ${JSON.stringify(id)}\n`).join('\n');
  const loaded = await loadEvaluations(text, 'command line', reading);
  if (options.run === undefined) return loaded;
  const fields = (loaded.evaluations[0]!.input.model as { sampling: Record<string, JsonValue> }).sampling;
  const model = await versionOfRun(options.run, { step: options.step, store: options.store, sampling: fields });
  if (options.serve !== undefined)
    return withModel(loaded, ({ input }) => ({ ...input, model: servedLater(input, model.model) }));
  return withModel(loaded, ({ input }) => ({ ...input, model }));
}

function isFile(what: string): boolean {
  return what.endsWith('.toml');
}

function withModel(
  { evaluations, warnings }: LoadedEvaluations,
  change: (one: PlannedEvaluation) => PlannedEvaluation['input'],
): LoadedEvaluations {
  return { warnings, evaluations: evaluations.map((one) => ({ ...one, input: change(one) })) };
}

function servedLater(input: PlannedEvaluation['input'], model: string): EvaluationInput['model'] {
  return { ...(input.model as Extract<EvaluationInput['model'], { kind: 'endpoint' }>), model, servers: [] };
}

/** A model of this machine is asked at a server that does not run yet, a run's at its own: neither is looked for among APIs. */
async function withoutModel(
  settings: Record<string, JsonValue>,
  options: EvalRunOptions,
): Promise<Record<string, JsonValue>> {
  const folder = options.run === undefined ? localFolder(options) : null;
  if (options.run === undefined && folder === null) return settings;
  if (settings['api_base_url'] !== undefined || settings['provider'] !== undefined) {
    throw new RatchetError(
      'ConfigInvalid',
      `${options.run === undefined ? 'a folder with a model' : '--run'} is evaluated on servers of this machine: -b and -p name others. Leave one of them out.`,
    );
  }
  // What is no model is refused when it is served, by what it lacks.
  const named = folder !== null && isModelFolder(folder) ? await nameOfFolder(folder) : (folder ?? options.run!);
  return { ...settings, model: path.basename(named), provider: 'local' };
}

/** The folder that is to be served: of `--serve FOLDER`, or of `-m FOLDER` where nobody else is named. */
function localFolder({ serve, model, apiBaseUrl, provider }: EvalRunOptions): string | null {
  if (typeof serve === 'string') return serve;
  if (model === undefined || apiBaseUrl !== undefined || provider !== undefined) return null;
  if (isModelFolder(model)) return model;
  if (!/^(\.{0,2}\/|~\/)/.test(model)) return null;
  throw new RatchetError(
    'ConfigInvalid',
    `-m ${model}: expected a folder with a model (config.json and safetensors); ${existsSync(model) ? 'there is no config.json in it' : `there is no ${path.resolve(model)}`}.`,
  );
}

async function serve(
  options: EvalRunOptions,
  settings: Record<string, JsonValue>,
  loaded: LoadedEvaluations,
  around: { readonly projectFolder: string; readonly log: (line: string) => void },
): Promise<ServedModel | null> {
  const name = loaded.evaluations[0]!.input.model.model;
  if (options.run !== undefined) {
    if (options.serve === undefined) return null;
    const version = await versionOfRun(options.run, { step: options.step, store: options.store, sampling: {} });
    return serveModel(await folderOfVersion(version), name, around);
  }
  const folder = localFolder(options);
  if (folder !== null) return serveModel(folder, name, around);
  if (options.serve === undefined) return null;
  const said = settings['model'] === undefined ? '' : `, and -m ${JSON.stringify(settings['model'])} is none`;
  throw new RatchetError(
    'ConfigInvalid',
    `--serve: expected a folder with a model (config.json and safetensors)${said}; or --run RUN with --step N.`,
  );
}

function askedAt(one: PlannedEvaluation, { url, model }: ServedModel): PlannedEvaluation {
  const { model: before } = one.input;
  if (before.kind !== 'endpoint') return one;
  const servers = [{ model, baseUrl: url, apiKeyVar: null, headers: {} }];
  return { ...one, input: { ...one.input, model: { ...before, model, servers } } };
}

function serversOf({ evaluations }: LoadedEvaluations): EvaluatedServer[] {
  return evaluations.flatMap(({ input: { model } }) => (model.kind === 'endpoint' ? model.servers : []));
}

/** Each evaluation at its place; several under one workflow. */
async function prepare(
  what: string,
  planned: readonly PlannedEvaluation[],
  around: { readonly options: EvalRunOptions; readonly projectFolder: string; readonly client: Client },
): Promise<Prepared> {
  const { options, projectFolder, client } = around;
  const goOn = options.fresh ? 'never' : options.resume === undefined ? 'interrupted' : 'unfinished';
  const stem = path
    .basename(what, '.toml')
    .replaceAll(/[^\w.-]+/g, '-')
    .slice(0, 100);
  const together = `eval.${stem}${options.fresh ? `.${newEvaluationId()}` : ''}`;
  const inputs: EvaluationInput[] = [];
  let goesOn = false;
  let asksElsewhere = false;
  for (const one of planned) {
    const chosen = await choosePlace(one, {
      projectFolder,
      goOn,
      newId: newEvaluationId(),
      taken: new Set(inputs.map(({ results }) => placeName(results))),
      isHeld: async (holder) => planned.length > 1 && !holder.startsWith(together) && isRunning(client, holder),
    });
    goesOn ||= chosen.goesOn;
    const input = { ...one.input, results: chosen.place };
    asksElsewhere ||= chosen.goesOn && (await hasOtherServers(input));
    inputs.push(input);
  }
  const [first] = inputs as [EvaluationInput];
  if (inputs.length > 1) {
    const title = `${inputs.length} evaluations of ${what}`;
    return { workflowId: together, summary: title, input: { inputs, title }, goesOn, asksElsewhere };
  }
  const { environment, model, results } = first;
  const own = `eval.${environment.name}.${model.model.replaceAll(/[^\w.@-]+/g, '-')}.${results.name}`;
  const holder = await holderOf(first, client);
  return {
    workflowId: holder ?? own,
    summary: `${environment.name} · ${model.model}`,
    input: first,
    goesOn,
    asksElsewhere,
  };
}

/** Whether its newest attempt was begun with other servers, or other headers for them. */
export async function hasOtherServers({ results, model }: EvaluationInput): Promise<boolean> {
  const found = (await evaluationsIn(fileURLToPath(results.store))).find(({ id }) => id === results.name);
  const before = found?.stored?.input.model;
  if (before?.kind !== 'endpoint' || model.kind !== 'endpoint') return false;
  return canonical(before.servers) !== canonical(model.servers);
}

/** The workflow that is at work on it, whatever its name: it is attached to. */
async function holderOf({ results }: EvaluationInput, client: Client): Promise<string | null> {
  const folder = fileURLToPath(results.store);
  const found = (await evaluationsIn(folder)).find(({ id }) => id === results.name);
  const holder = found?.stored?.request.split('/', 1)[0];
  return holder !== undefined && (await isRunning(client, holder)) ? holder : null;
}
