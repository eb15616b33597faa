import { randomBytes } from 'node:crypto';
import { isDeepStrictEqual } from 'node:util';
import type { Client } from '@temporalio/client';
import type { TrainRunInput } from '../../activities/index.ts';
import { Command } from 'commander';
import { layout } from '../../runs/layout.ts';
import { taskQueues } from '../../core/names.ts';
import { describeSolved, solvedShare } from '../../core/rl/left-to-learn.ts';
import { RatchetError } from '../../core/errors.ts';
import type { RunSpec } from '../../config/run-spec.ts';
import { slowStepWarning } from '../../config/step-cost.ts';
import { refuseOtherRun } from '../../runs/run-identity.ts';
import { checkModel } from '../../backends/configs/check-model.ts';
import { examineRunFile } from '../../backends/configs/examine-run-file.ts';
import { loadRunConfig, type LoadOptions, readRunFile } from '../../backends/configs/load-run-config.ts';
import { untilOthersEnd } from '../others-here.ts';
import { untilSent } from '../until-sent.ts';
import { grantNamed, namedIn } from '../../backends/configs/grant.ts';
import { openRunStore } from '../../backends/store/index.ts';
import type { trainRun } from '../../workflows/train-run.ts';
import { type Audience, chooseTelling, openAudience, type TellingOptions, tellingOptions } from '../audience.ts';
import { dryRun, type DryRunFlags, dryRunOptions } from '../dry-run.ts';
import { notYetLine, obstacleLines } from '../describe-run-file.ts';
import { findRunning, startedWith, temporalHere } from '../connection.ts';
import { type ConfigLine, readConfigLine } from '../config-line.ts';
import { installEnvironment } from '../python-environments/install.ts';
import { refuseOtherKind } from '../other-kinds.ts';
import { toldWhenSlow } from '../told-when-slow.ts';
import { needsOf, uiLine, withProcesses } from '../processes.ts';
import { readAsLines } from '../read-as.ts';
import { stepRecords } from '../run-records.ts';
import { goOnWith, standOfRun } from '../stored-runs.ts';
import { trainAgain, type TypedCommand, withoutResume } from '../typed-command.ts';
import { StoredRollouts } from '../view/stored-rollouts.ts';
import { type RunWorkflow, watchRun } from '../watch-run.ts';
import { print } from '../print.ts';

const resumeHelp = `
A run continues from its newest commit. To continue from another committed step, in a new lineage: --resume.step 50
(also --ckpt.resume-step 50, --trainer.ckpt.resume-step 50, and [ckpt] resume_step in the file; -1 = the latest).

An environment OWNER/NAME is looked for in ./environments and among installed Python packages. With --builtin (in the
file: builtin = true) it is the environment of that name that comes with Ratchet.
`;

const filesHelp = `
Further files are laid over the first from left to right: @ mine.toml; lists are replaced. --trainer @ t.toml is a file for
one table. --ckpt turns a table on with its defaults, --no-wandb takes it away. Settings are in the file's words, or in
Ratchet's.
`;

/** A command that trains: `train`, and the same under the names that other trainers gave it. */
export function trainingCommand(name: string, description: string): Command {
  return new Command(name)
    .description(description)
    .argument('<file>', 'run file (TOML), in any of the dialects; also "@ FILE"')
    .argument(
      '[settings...]',
      'any setting of the file: --max-steps 5 --sampling.temperature 0.7; further files: @ FILE',
    )
    .option('--name <run>', "the run's name; default: the file's name")
    .option('--fresh', 'start over under a new name; with --name, under that one if it is free')
    .option(
      '--yes',
      'install Python environments that are not here, of the project or the Environments Hub (ratchet env install)',
    )
    .option('--dialect <name>', 'the words that the file is written in; default: as its keys show')
    .option(...dryRunOptions.dryRun)
    .option(...dryRunOptions.modelConfig)
    .option(...dryRunOptions.import)
    .option(...tellingOptions.plain)
    .option(...tellingOptions.json)
    .addHelpText('after', filesHelp + resumeHelp)
    .allowUnknownOption()
    .action(async (file: string, rest: string[], options: TrainOptions) => {
      process.exitCode = await train(readConfigLine([file, ...rest]), options);
    });
}

export const trainCommand = trainingCommand(
  'train',
  'train with a run file; continues the run if it exists, or attaches to it if it is running',
);

interface TrainOptions extends TellingOptions, Omit<DryRunFlags, 'json'> {
  readonly name?: string;
  readonly fresh?: boolean;
  readonly yes?: boolean;
  readonly dialect?: string;
  readonly dryRun?: boolean;
}

/** Trains or attaches until the run ends; the exit code. `rewind`: in a new lineage from this step on. */
export async function train(
  { file, over, overrides }: ConfigLine,
  options: TrainOptions & { readonly rewind?: number },
): Promise<number> {
  const projectFolder = process.cwd();
  const read = await readRunFile(file, { projectFolder, over });
  if (over.length === 0 && options.dialect === undefined) refuseOtherKind(read.toml);
  const dialect = options.dialect === undefined ? {} : { dialect: options.dialect };
  const named = { over, ...dialect };
  if (options.dryRun) {
    const run = options.name === undefined ? {} : { run: options.name };
    return dryRun(file, { projectFolder, overrides, read, ...named, ...run }, options);
  }
  const audience = openAudience(chooseTelling(options, process.env, process.stdout));
  const load = { projectFolder, overrides, read, ...named };
  if (options.yes === true) await installMissing(file, load);
  const usual = await loadForTraining(file, load);
  const usualName = usual.spec.name;
  const given = options.name ?? usualName;
  const run = options.fresh ? await freshName(options.name, usual.spec) : given;
  const loaded = run === usualName ? usual : await loadRunConfig(file, { ...load, run });
  const { spec, resumeStep, readAs, notYet, sent } = loaded;
  for (const line of readAsLines(file, readAs)) audience.say(line);
  for (const field of notYet) audience.say(`not yet honoured: ${notYetLine(field)}`);
  if (usual.slow !== null) audience.say(`warning: ${usual.slow}`);
  grantNamed(projectFolder, [file, ...over.map((layer) => layer.file), ...namedIn(spec)]);
  const command = { file, ...named, name: run === usualName ? null : run, overrides };

  const goOn = trainAgain(command);
  // Asked before anything starts: a name that is taken must not leave a failed workflow under it.
  if ((await temporalHere(projectFolder)) === null) await refuseOtherRun(spec);
  const exitCode = await withProcesses(needsOf(spec), audience, async ({ client, stack, uiUrl, interrupted, gone }) => {
    if (stack) warnOfMissingKey(spec, audience);
    const attached = await attach(client, run, overrides, audience);
    if (attached) tellOfRewind(run, resumeStep, audience);
    if (!attached) await refuseOtherRun(spec);
    const rewind = options.rewind === undefined ? {} : { rewind: options.rewind };
    const layers = over.length === 0 ? {} : { over };
    const typed = { config: file, ...layers, ...dialect, overrides, run, sent, ...rewind };
    const handle = attached ?? (await start(client, typed, spec));
    if (uiUrl) audience.say(`${uiLine(uiUrl, handle)}      kill any process and watch`);
    await tellOthers(client, handle.workflowId, audience);
    const ended = await watchRun(handle, {
      run,
      audience,
      stack,
      wasRunning: attached !== null,
      rollouts: () => new StoredRollouts(openRunStore(spec.store.uri, run)),
      known: { maxSteps: spec.maxSteps, store: `${spec.store.uri}${run}/` },
      goOn,
      goOnPlainly: trainAgain(withoutResume(command)),
      interrupted,
      gone,
      sayNext: async () => {
        if (stack) await untilSent(spec, audience, interrupted.signal);
        await sayNext(command, spec, audience);
      },
    });
    // Runs at a server elsewhere may have workers elsewhere.
    if (stack && stack.uiUrl !== null) await untilOthersEnd(client, handle.workflowId, audience, interrupted.signal);
    return ended;
  });
  if (exitCode === null) audience.say(`stopped. The run ${run} is not lost: ${goOn} continues it`);
  return exitCode ?? 130;
}

function tellOfRewind(run: string, step: number | null, audience: Pick<Audience, 'say'>): void {
  if (step === null || step < 0) return;
  audience.say(`to take the running run back to step ${step}: npx ratchet rewind ${run} --step ${step}`);
}

function warnOfMissingKey({ gepa }: RunSpec, audience: Pick<Audience, 'say'>): void {
  const key = gepa?.apiKeyVar ?? null;
  if (gepa === undefined || key === null || (process.env[key] ?? '') !== '') return;
  audience.say(
    `warning: ${key} is not set here, the key of ${gepa.reflectionModel}: branches that look for a better prompt will fail, and the run continues without`,
  );
}

/** Starts the workflow of a run, or finds the one that goes on under its name. */
function start(
  client: Client,
  input: Exclude<TrainRunInput, string> & { readonly run: string },
  { model, environments, maxSteps }: RunSpec,
): Promise<RunWorkflow> {
  const steps = maxSteps === 0 ? 'supervised' : `${maxSteps} steps`;
  return client.workflow.start<typeof trainRun>('trainRun', {
    workflowId: input.run,
    taskQueue: taskQueues.orchestrator,
    args: [input],
    workflowIdConflictPolicy: 'USE_EXISTING',
    workflowIdReusePolicy: 'ALLOW_DUPLICATE',
    // A killed orchestrator's unfinished workflow task is waited for no longer than this.
    workflowTaskTimeout: '5s',
    staticSummary: `${[model, ...environments.map(({ name }) => name)].join(' · ')} · ${steps}`,
  });
}

/** A name that somebody gives stays as it is where nothing has it. */
async function freshName(given: string | undefined, { name, store }: RunSpec): Promise<string> {
  if (given !== undefined && (await openRunStore(store.uri, given).read(layout.run())) === null) return given;
  return `${given ?? name}-${randomBytes(2).toString('hex')}`;
}

/** A run file that can be trained here. Everything that is in the way is said at once. */
async function loadForTraining(
  file: string,
  options: LoadOptions,
): Promise<Awaited<ReturnType<typeof loadRunConfig>> & { readonly slow: string | null }> {
  try {
    const loaded = await loadRunConfig(file, options);
    const model = await checkModel(loaded.spec);
    return { ...loaded, slow: model && slowStepWarning(loaded.spec, model) };
  } catch (error) {
    const report = await examineRunFile(file, options, toldWhenSlow).catch(() => null);
    if (!report?.loaded || report.problems.length > 0 || report.obstacles.length < 2) throw error;
    const lines = report.obstacles.flatMap(obstacleLines).map((line) => `  ${line}`);
    throw new RatchetError('ConfigInvalid', [`${file}: in the way of training here:`, ...lines].join('\n'), {
      cause: error,
    });
  }
}

/** Installs the environments that the file names and that are not here. What is still missing then is refused as ever. */
async function installMissing(file: string, options: LoadOptions): Promise<void> {
  const { missing } = await loadRunConfig(file, { ...options, isOnlyLookedAt: true });
  const wanted = new Set(missing.flatMap(({ install }) => install ?? []));
  const log = print;
  for (const environment of wanted)
    await installEnvironment(environment, { projectFolder: options.projectFolder, log });
}

/** Runs that were interrupted go on as soon as there are processes again, and hold the one trainer in turn. */
async function tellOthers(client: Client, ours: string, clock: Pick<Audience, 'say'>): Promise<void> {
  const others: string[] = [];
  const query = "WorkflowType='trainRun' AND ExecutionStatus='Running'";
  for await (const { workflowId } of client.workflow.list({ query, pageSize: 10 })) {
    if (workflowId !== ours && others.length < 5) others.push(workflowId);
  }
  if (others.length === 0) return;
  clock.say(
    `also running here: ${others.join(', ')}   a GPU worker trains one run at a time; end one with: npx ratchet stop ${others[0]}`,
  );
}

/** The run's workflow if it is running already, here or started by hand under an id of its own. */
async function attach(
  client: Client,
  run: string,
  overrides: Readonly<Record<string, string>>,
  clock: Pick<Audience, 'say'>,
): Promise<RunWorkflow | null> {
  const running = await findRunning(client, run);
  if (!running) return null;
  if (running.workflowId !== run)
    clock.say(`the run ${run} is running as workflow ${running.workflowId}; attached to it`);
  if (Object.keys(overrides).length > 0 && !isDeepStrictEqual(await startedWith(running), overrides)) {
    clock.say(
      `the run continues with the settings it was started with. To change some: npx ratchet set ${run} learning_rate=… (or stop_after=…), or end it with npx ratchet stop ${run} and train again`,
    );
  }
  return running;
}

/** What a person may type next: more steps only where these would find something to learn. */
async function sayNext(typed: TypedCommand, { name, maxSteps, store }: RunSpec, { say }: Audience): Promise<void> {
  const command = withoutResume(typed);
  const place = { name, store: store.uri };
  const afresh = `${trainAgain(command)} --fresh`;
  if (maxSteps === 0) return say(`next    afresh: ${afresh}`);
  const stand = (await standOfRun(place)) ?? { maxSteps, state: 'finished' };
  const steps = await stepRecords(place);
  const solved = solvedShare(steps.map(({ metrics }) => metrics));
  if (stand.state !== 'finished') {
    say(`next    to continue: ${goOnWith(command, stand)}`);
  } else if (solved === null) {
    say(`next    further: ${goOnWith(command, stand)}`);
  } else {
    say(`next    ${describeSolved(solved)}; look at them:`);
    say(`        npx ratchet rollouts ${name} --step ${steps.at(-1)?.step ?? stand.maxSteps}`);
  }
  say(`        afresh: ${afresh}`);
}
