import { checkModel } from '../../load/checks/check-model.ts';
import { runsOfFile } from '../../load/checks/examine-run-file.ts';
import { tooSlowHere, warningsBefore } from '../../load/checks/warnings-before.ts';
import { turnsOf } from '../../load/checks/turns-of.ts';
import { type Environment, openEnvironment } from '../../backends/environments/index.ts';
import { openRunStore } from '../../store/index.ts';
import type { RunSpec } from '../../config/run-spec.ts';
import { RatchetError } from '../../core/errors.ts';
import { layout } from '../../runs/layout.ts';
import { engineObstacles } from './engine-lacks.ts';
import { obstacleLines } from '../describe/run-file.ts';

/**
 * Refuses a model that cannot be trained here; else returns warnings before a run begins. `slow`: its steps take hours
 * here, which the user must confirm.
 */
export async function saidBefore(
  spec: RunSpec,
): Promise<{ readonly before: readonly string[]; readonly slow: string | null }> {
  const model = await checkModel(spec);
  const turns = turnsOf(spec, await builtInOf(spec));
  return { before: warningsBefore(spec, model, turns), slow: tooSlowHere(spec, model, turns) };
}

/** Refuses a run that would fail, or take hours a step, before any process starts. A run that has begun continues. */
export async function refuseUnfit(
  spec: RunSpec,
  { file, slow, isMeant }: { readonly file: string; readonly slow: string | null; readonly isMeant: boolean },
): Promise<void> {
  const lacks = await engineObstacles(spec);
  if (lacks.length > 0) {
    const lines = lacks.flatMap(obstacleLines).map((line) => `  ${line}`);
    throw new RatchetError('ConfigInvalid', [`${file}: in the way of training here:`, ...lines].join('\n'));
  }
  if (slow === null || isMeant) return;
  if ((await openRunStore(spec.store.uri, spec.name).read(layout.run())) !== null) return;
  throw new RatchetError('ConfigInvalid', `${file}: ${slow} To train all the same: the same command with --yes.`);
}

/** Environments that run none of the file's code: how many turns they have is known before anything is granted. */
async function builtInOf({ environments }: RunSpec): Promise<Map<string, Environment>> {
  const own = environments.filter((entry) => runsOfFile(entry) === null);
  const opened = await Promise.all(
    own.map(async (entry) => [entry.name, await openEnvironment({ ...entry, variables: undefined })] as const),
  );
  return new Map(opened);
}
