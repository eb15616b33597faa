import { randomBytes } from 'node:crypto';
import { layout } from '../../runs/layout.ts';
import { RatchetError } from '../../core/errors.ts';
import { getMissing, installLacking } from './get-missing.ts';
import type { RunSpec } from '../../config/run-spec.ts';
import { examineRunFile } from '../../load/checks/examine-run-file.ts';
import { type LoadedConfig, loadRunConfig, type LoadOptions, requireWhole } from '../../load/load-run-config.ts';
import type { ConfigLayer } from '../../core/config-layer.ts';
import { openRunStore } from '../../store/index.ts';
import { grantNamed, namedIn } from '../../load/grants/grant.ts';
import { refuseUnfit, saidBefore } from './fit-to-train.ts';
import { chooseSampler, type ChosenSampler } from './choose-sampler.ts';
import { readAsLines } from './read-as.ts';
import { runOfFile } from './run-of-file.ts';
import { obstacleLines } from '../describe/run-file.ts';
import { toldWhenSlow } from '../output/told-when-slow.ts';

interface Asked {
  readonly name?: string;
  readonly fresh?: boolean;
  readonly yes?: boolean;
  /** Asks about the things that an untyped file names, and grants them. */
  readonly allow?: ((spec: RunSpec) => Promise<void>) | undefined;
}

/** Reads a run file that can be trained here, under the requested name, and grants what it names. */
export async function openTraining(
  file: string,
  asked: LoadOptions & { readonly over: readonly ConfigLayer[] },
  { name, fresh, yes, allow }: Asked,
  say: (line: string) => void,
): Promise<
  LoadedConfig & Pick<ChosenSampler, 'overrides'> & { readonly run: string; readonly isDefaultName: boolean }
> {
  const look = (): Promise<LoadedConfig> => loadRunConfig(file, { ...asked, isOnlyLookedAt: true });
  // Before anything of it is downloaded, or a program that it names is looked up.
  await allow?.((await look()).spec);
  const here = await look();
  const isFetched = await getMissing(here, asked.projectFolder, yes === true);
  const named = fresh ? null : name;
  let sampler = await chooseSampler(file, asked, isFetched ? await look() : here, named);
  if (yes && (await installLacking(sampler))) sampler = await chooseSampler(file, asked, await look(), named);
  const load = { ...asked, overrides: sampler.overrides };
  const asNamed = await loadForTraining(file, load, sampler.looked);
  const defaultName = asNamed.spec.name;
  const typed = { file, over: asked.over, dialect: asked.dialect, overrides: asked.overrides ?? {} };
  const meant = fresh || name !== undefined ? null : await runOfFile(asNamed.spec, typed);
  const run = fresh ? await freshName(name, asNamed.spec) : (meant?.run ?? name ?? defaultName);
  const loaded = run === defaultName ? asNamed : await loadRunConfig(file, { ...load, run });
  for (const line of readAsLines(file, loaded.readAs)) say(line);
  for (const line of [sampler.says, sampler.trainerSays]) if (line !== null) say(line);
  if (meant !== null && meant.says !== null) say(meant.says);
  await refuseUnfit(loaded.spec, { file, slow: asNamed.slow, isMeant: yes === true });
  if (asNamed.slow !== null) say(`warning: ${asNamed.slow}`);
  for (const warning of asNamed.before) say(`warning: ${warning}`);
  if (allow) await allow(loaded.spec);
  else grantNamed(load.projectFolder, [file, ...load.over.map((layer) => layer.file), ...namedIn(loaded.spec)]);
  return { ...loaded, run, isDefaultName: run === defaultName, overrides: sampler.overrides };
}

/** A given name is kept if it is free. */
async function freshName(given: string | undefined, { name, store }: RunSpec): Promise<string> {
  if (given !== undefined && (await openRunStore(store.uri, given).read(layout.run())) === null) return given;
  return `${given ?? name}-${randomBytes(2).toString('hex')}`;
}

/** A run file that can be trained here. Throws with all obstacles at once. */
async function loadForTraining(
  file: string,
  options: LoadOptions,
  looked: LoadedConfig | null,
): Promise<LoadedConfig & { readonly before: readonly string[]; readonly slow: string | null }> {
  try {
    const loaded = await requireWhole(looked, file, options);
    return { ...loaded, ...(await saidBefore(loaded.spec)) };
  } catch (error) {
    const report = await examineRunFile(file, { ...options, looked }, toldWhenSlow).catch(() => null);
    if (!report?.loaded || report.problems.length > 0 || report.obstacles.length < 2) throw error;
    const lines = report.obstacles.flatMap(obstacleLines).map((line) => `  ${line}`);
    throw new RatchetError('ConfigInvalid', [`${file}: in the way of training here:`, ...lines].join('\n'), {
      cause: error,
    });
  }
}
