import { randomBytes } from 'node:crypto';
import { layout } from '../runs/layout.ts';
import { RatchetError } from '../core/errors.ts';
import { getMissing } from './get-missing.ts';
import type { RunSpec } from '../config/run-spec.ts';
import { examineRunFile } from '../backends/configs/examine-run-file.ts';
import { type ConfigLayer, loadRunConfig, type LoadOptions } from '../backends/configs/load-run-config.ts';
import { openRunStore } from '../backends/store/index.ts';
import { grantNamed, namedIn } from '../backends/configs/grant.ts';
import { refuseUnfit, saidBefore } from './fit-to-train.ts';
import { chooseSampler, type ChosenSampler, notYetBeside } from './choose-sampler.ts';
import { readAsLines } from './read-as.ts';
import { runOfFile } from './run-of-file.ts';
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
  const typed = { file, over: asked.over, dialect: asked.dialect, overrides: asked.overrides ?? {} };
  const meant = fresh || name !== undefined ? null : await runOfFile(usual.spec, typed);
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
    return { ...loaded, ...(await saidBefore(loaded.spec)) };
  } catch (error) {
    const report = await examineRunFile(file, options, toldWhenSlow).catch(() => null);
    if (!report?.loaded || report.problems.length > 0 || report.obstacles.length < 2) throw error;
    const lines = report.obstacles.flatMap(obstacleLines).map((line) => `  ${line}`);
    throw new RatchetError('ConfigInvalid', [`${file}: in the way of training here:`, ...lines].join('\n'), {
      cause: error,
    });
  }
}
