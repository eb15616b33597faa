import { randomBytes } from 'node:crypto';
import { layout } from '../runs/layout.ts';
import { RatchetError } from '../core/errors.ts';
import { getMissing } from './get-missing.ts';
import type { RunSpec } from '../config/run-spec.ts';
import { checkModel } from '../backends/configs/check-model.ts';
import { examineRunFile, runsOfFile, tooSlowHere, warningsBefore } from '../backends/configs/examine-run-file.ts';
import { type ConfigLayer, loadRunConfig, type LoadOptions } from '../backends/configs/load-run-config.ts';
import { openRunStore } from '../backends/store/index.ts';
import { grantNamed, namedIn } from '../backends/configs/grant.ts';
import { turnsOf } from '../backends/configs/turns-of.ts';
import { type Environment, openEnvironment } from '../backends/environments/index.ts';
import { cudaObstacles } from './cuda-lacks.ts';
import { chooseSampler, type ChosenSampler, notYetBeside } from './choose-sampler.ts';
import { readAsLines } from './read-as.ts';
import { runOfFile } from './run-of-file.ts';
import { trainAgain } from './typed-command.ts';
import { present } from '../core/present.ts';
import { refuseOneOfMany } from './one-of-many.ts';
import { notYetLine, obstacleLines } from './describe-run-file.ts';
import { toldWhenSlow } from './told-when-slow.ts';

type LoadedRunConfig = Awaited<ReturnType<typeof loadRunConfig>>;

interface Asked {
  readonly name?: string;
  readonly fresh?: boolean;
  readonly yes?: boolean;
  /** Asks about what an untyped file names, and grants it. */
  readonly allow?: ((spec: RunSpec) => Promise<void>) | undefined;
}

/** Reads a run file that can be trained here, under the name that was asked for. What it names may be asked from now on. */
export async function openTraining(
  file: string,
  asked: LoadOptions & { readonly over: readonly ConfigLayer[] },
  { name, fresh, yes, allow }: Asked,
  say: (line: string) => void,
): Promise<
  LoadedRunConfig & Pick<ChosenSampler, 'overrides'> & { readonly run: string; readonly isUsualName: boolean }
> {
  refuseOneOfMany(file, process.env);
  // Before anything of it is fetched, or a program that it names is looked for.
  await allow?.((await loadRunConfig(file, { ...asked, isOnlyLookedAt: true })).spec);
  await getMissing(file, asked, yes === true);
  const sampler = await chooseSampler(file, asked);
  const load = { ...asked, overrides: sampler.overrides };
  const usual = await loadForTraining(file, load);
  const usualName = usual.spec.name;
  const meant = fresh || name !== undefined ? null : await runOfFile(usual.spec, (other) => trainAgain({ file, over: load.over, name: other, overrides: load.overrides, ...present({ dialect: load.dialect }) })); // prettier-ignore
  const run = fresh ? await freshName(name, usual.spec) : (meant?.run ?? name ?? usualName);
  const loaded = run === usualName ? usual : await loadRunConfig(file, { ...load, run });
  for (const line of readAsLines(file, loaded.readAs)) say(line);
  for (const line of [sampler.says, sampler.trainerSays]) if (line !== null) say(line);
  if (meant !== null && meant.says !== null) say(meant.says);
  for (const field of notYetBeside(loaded.notYet, sampler)) say(`not yet honoured: ${notYetLine(field)}`);
  await refuseUnfit(loaded.spec, { file, slow: usual.slow, isMeant: yes === true });
  if (usual.slow !== null) say(`warning: ${usual.slow}`);
  for (const warning of usual.before) say(`warning: ${warning}`);
  if (allow) await allow(loaded.spec);
  else grantNamed(load.projectFolder, [file, ...load.over.map((layer) => layer.file), ...namedIn(loaded.spec)]);
  return { ...loaded, run, isUsualName: run === usualName, overrides: sampler.overrides };
}

/** Refuses what would fail, or take hours a step, before any process is started. A run that was begun goes on. */
async function refuseUnfit(
  spec: RunSpec,
  { file, slow, isMeant }: { readonly file: string; readonly slow: string | null; readonly isMeant: boolean },
): Promise<void> {
  const lacks = await cudaObstacles(spec);
  if (lacks.length > 0) {
    const lines = lacks.flatMap(obstacleLines).map((line) => `  ${line}`);
    throw new RatchetError('ConfigInvalid', [`${file}: in the way of training here:`, ...lines].join('\n'));
  }
  if (slow === null || isMeant) return;
  if ((await openRunStore(spec.store.uri, spec.name).read(layout.run())) !== null) return;
  throw new RatchetError('ConfigInvalid', `${file}: ${slow} To train all the same: the same command with --yes.`);
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
): Promise<LoadedRunConfig & { readonly before: readonly string[]; readonly slow: string | null }> {
  try {
    const loaded = await loadRunConfig(file, options);
    const model = await checkModel(loaded.spec);
    const turns = turnsOf(loaded.spec, await builtInOf(loaded.spec));
    return {
      ...loaded,
      before: warningsBefore(loaded.spec, model, turns),
      slow: tooSlowHere(loaded.spec, model, turns),
    };
  } catch (error) {
    const report = await examineRunFile(file, options, toldWhenSlow).catch(() => null);
    if (!report?.loaded || report.problems.length > 0 || report.obstacles.length < 2) throw error;
    const lines = report.obstacles.flatMap(obstacleLines).map((line) => `  ${line}`);
    throw new RatchetError('ConfigInvalid', [`${file}: in the way of training here:`, ...lines].join('\n'), {
      cause: error,
    });
  }
}

/** Environments that run none of the file's code: how many turns they have is known before anything is granted. */
async function builtInOf({ environments }: RunSpec): Promise<Map<string, Environment>> {
  const own = environments.filter((entry) => runsOfFile(entry) === null);
  const opened = await Promise.all(
    own.map(async ({ variables: _, ...entry }) => [entry.name, await openEnvironment(entry)] as const),
  );
  return new Map(opened);
}
