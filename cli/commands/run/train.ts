import { Command } from '@commander-js/extra-typings';
import type { RunSpec } from '../../../config/run-spec.ts';
import { readRunFile } from '../../../load/load-run-config.ts';
import { untilOthersEnd } from '../../follow/others-here.ts';
import {
  type Audience,
  chooseTelling,
  openAudience,
  type TellingOptions,
  tellingOptions,
} from '../../follow/audience.ts';
import { besideDryRun, dryRun, type DryRunFlags, dryRunOptions } from '../../start/dry-run.ts';
import { type ConfigLine, readConfigLine } from '../../typed/config-line.ts';
import { placeInLaunch } from '../../start/place-in-launch.ts';
import { needsOf, uiLine, withProcesses } from '../../start/processes.ts';
import { typedDialect } from '../../typed/typed-dialect.ts';
import { trainAgain, withoutResume } from '../../typed/typed-command.ts';
import { StoredRollouts } from '../../view/stored-rollouts.ts';
import { watchRun } from '../../follow/watch-run.ts';
import { openTraining } from '../../start/load-for-training.ts';
import { attachOrStart, refuseTakenName, tellOthers } from '../../start/start-run.ts';
import { sayNext } from '../../follow/say-next.ts';

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
export function trainingCommand(name: string, description: string) {
  const command = new Command(name)
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
      'get what is not here: Python environments, of the project or the Environments Hub (ratchet env install), and the model (ratchet model get); and train where a step takes hours',
    )
    .option('--dialect <name>', 'the words that the file is written in; default: as its keys show')
    .option(...dryRunOptions.dryRun)
    .option(...dryRunOptions.modelConfig)
    .option(...dryRunOptions.import)
    .option(...tellingOptions.plain)
    .option(...tellingOptions.json)
    .option('--no-page', 'without the page of the run, which is served on this machine alone')
    .addHelpText('after', filesHelp + resumeHelp)
    .allowUnknownOption()
    .action(async (file, rest, options) => {
      process.exitCode = await train(readConfigLine([file, ...rest]), { ...options, command: name });
    });
  return besideDryRun(command);
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
  readonly page?: boolean;
  /** Name of the command, for its messages. */
  readonly command?: string;
}

/** Trains or attaches until the run ends; the exit code. `rewind`: in a new lineage from this step on. */
export async function train(
  { file, over, overrides: typedOverrides }: ConfigLine,
  options: TrainOptions & Pick<Parameters<typeof openTraining>[2], 'allow'> & { readonly rewind?: number },
): Promise<number> {
  const projectFolder = process.cwd();
  const read = await readRunFile(file, { projectFolder, over });
  const dialect = typedDialect(read.toml, { ...options, isAlone: over.length === 0 });
  const named = { over, ...dialect };
  if (options.dryRun) {
    const run = options.name === undefined ? {} : { run: options.name };
    return dryRun(file, { projectFolder, overrides: typedOverrides, read, ...named, ...run }, options);
  }
  const audience = openAudience(chooseTelling(options, process.env, process.stdout));
  const placed = await placeInLaunch(file, { projectFolder, overrides: typedOverrides, read, ...named });
  if (placed === null) return 0;
  const load = { projectFolder, read, ...named, ...placed };
  const opened = await openTraining(file, load, options, audience.say);
  const { spec, run, isDefaultName, resumeStep, sent, overrides } = opened;
  const command = { file, ...named, name: isDefaultName ? null : run, overrides };

  const goOn = trainAgain(command);
  await refuseTakenName(spec, projectFolder);
  const exitCode = await withProcesses(needsOf(spec), audience, async ({ client, stack, uiUrl, interrupted, gone }) => {
    const page = options.page === false ? null : await openPage(spec, run, projectFolder, audience);
    try {
      if (stack) warnOfMissingKey(spec, audience);
      const rewind = options.rewind === undefined ? {} : { rewind: options.rewind };
      const layers = over.length === 0 ? {} : { over };
      const again = { config: file, ...layers, ...dialect, overrides, run, sent };
      const typed = { ...again, ...rewind };
      const isAlone = stack !== null && stack.uiUrl !== null;
      const wanted = { spec, resumeStep, projectFolder, again: goOn, isAlone };
      const { handle, isAttached } = await attachOrStart(client, typed, wanted, audience);
      if (uiUrl) audience.say(`${uiLine(uiUrl, handle)}      kill any process and watch`);
      await tellOthers(client, handle.workflowId, audience);
      const ended = await watchRun(handle, {
        run,
        audience,
        stack,
        wasRunning: isAttached,
        rollouts: () => new StoredRollouts({ name: run, store: spec.store.uri }),
        known: { maxSteps: spec.maxSteps, store: `${spec.store.uri}${run}/` },
        // A rewind applies only to the execution it was requested for, so the new start goes without it.
        ...(isAttached && { startAnew: async () => (await attachOrStart(client, again, wanted, audience)).handle }),
        goOn,
        goOnPlainly: trainAgain(withoutResume(command)),
        interrupted,
        gone,
        sayNext: () => sayNext(command, spec, audience, stack && interrupted.signal),
      });
      // Runs at a server elsewhere may have workers elsewhere.
      if (stack && stack.uiUrl !== null) await untilOthersEnd(client, handle.workflowId, audience, interrupted.signal);
      return ended;
    } finally {
      await page?.close();
    }
  });
  if (exitCode === null) audience.say(`stopped. The run ${run} is not lost: ${goOn} continues it`);
  return exitCode ?? 130;
}

/** Loads the page's code only when it is wanted. */
async function openPage(
  { store }: RunSpec,
  run: string,
  projectFolder: string,
  { say }: Pick<Audience, 'say'>,
): Promise<{ readonly close: () => Promise<void> }> {
  const { openRunPage } = await import('../../page/run-page.ts');
  return openRunPage({ store: store.uri, run }, projectFolder, say);
}

function warnOfMissingKey({ gepa }: RunSpec, audience: Pick<Audience, 'say'>): void {
  const key = gepa?.apiKeyVar ?? null;
  if (gepa === undefined || key === null || (process.env[key] ?? '') !== '') return;
  audience.say(
    `warning: ${key} is not set here, the key of ${gepa.reflectionModel}: branches that look for a better prompt will fail, and the run continues without`,
  );
}
