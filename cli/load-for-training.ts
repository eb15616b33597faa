import { randomBytes } from 'node:crypto';
import { layout } from '../runs/layout.ts';
import { RatchetError } from '../core/errors.ts';
import { getMissing } from './get-missing.ts';
import type { RunSpec } from '../config/run-spec.ts';
import { checkModel } from '../backends/configs/check-model.ts';
import { examineRunFile, warningsBefore } from '../backends/configs/examine-run-file.ts';
import { type ConfigLayer, loadRunConfig, type LoadOptions } from '../backends/configs/load-run-config.ts';
import { openRunStore } from '../backends/store/index.ts';
import { grantNamed, namedIn } from '../backends/configs/grant.ts';
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
  if (sampler.says !== null) say(sampler.says);
  if (meant !== null && meant.says !== null) say(meant.says);
  for (const field of notYetBeside(loaded.notYet, sampler)) say(`not yet honoured: ${notYetLine(field)}`);
  for (const warning of usual.before) say(`warning: ${warning}`);
  if (allow) await allow(loaded.spec);
  else grantNamed(load.projectFolder, [file, ...load.over.map((layer) => layer.file), ...namedIn(loaded.spec)]);
  return { ...loaded, run, isUsualName: run === usualName, overrides: sampler.overrides };
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
): Promise<LoadedRunConfig & { readonly before: readonly string[] }> {
  try {
    const loaded = await loadRunConfig(file, options);
    const model = await checkModel(loaded.spec);
    return { ...loaded, before: warningsBefore(loaded.spec, model) };
  } catch (error) {
    const report = await examineRunFile(file, options, toldWhenSlow).catch(() => null);
    if (!report?.loaded || report.problems.length > 0 || report.obstacles.length < 2) throw error;
    const lines = report.obstacles.flatMap(obstacleLines).map((line) => `  ${line}`);
    throw new RatchetError('ConfigInvalid', [`${file}: in the way of training here:`, ...lines].join('\n'), {
      cause: error,
    });
  }
}
