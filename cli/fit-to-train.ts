import { checkModel } from '../backends/configs/check-model.ts';
import { runsOfFile, tooSlowHere, warningsBefore } from '../backends/configs/examine-run-file.ts';
import { turnsOf } from '../backends/configs/turns-of.ts';
import { type Environment, openEnvironment } from '../backends/environments/index.ts';
import { openRunStore } from '../backends/store/index.ts';
import type { RunSpec } from '../config/run-spec.ts';
import { RatchetError } from '../core/errors.ts';
import { layout } from '../runs/layout.ts';
import { cudaObstacles } from './cuda-lacks.ts';
import { obstacleLines } from './describe-run-file.ts';

/** Refuses a model that cannot be trained here; else what is said before a run is begun; `slow`: its steps take hours here, which somebody has to mean. */
export async function saidBefore(
  spec: RunSpec,
): Promise<{ readonly before: readonly string[]; readonly slow: string | null }> {
  const model = await checkModel(spec);
  const turns = turnsOf(spec, await builtInOf(spec));
  return { before: warningsBefore(spec, model, turns), slow: tooSlowHere(spec, model, turns) };
}

/** Refuses what would fail, or take hours a step, before any process is started. A run that was begun goes on. */
export async function refuseUnfit(
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

/** Environments that run none of the file's code: how many turns they have is known before anything is granted. */
async function builtInOf({ environments }: RunSpec): Promise<Map<string, Environment>> {
  const own = environments.filter((entry) => runsOfFile(entry) === null);
  const opened = await Promise.all(
    own.map(async (entry) => [entry.name, await openEnvironment({ ...entry, variables: undefined })] as const),
  );
  return new Map(opened);
}
