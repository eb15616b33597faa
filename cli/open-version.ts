import { RatchetError } from '../core/errors.ts';
import { verifyVersion } from '../backends/store/version-files.ts';
import { weightsFolder } from '../backends/store/weights-folder.ts';
import { loadModelFolder, type ModelFolder, type ModelLoadOptions } from '../engine/index.ts';
import { requireCommit, storeOf } from '../runs/run-access.ts';
import { lineageOfStep } from './run-records.ts';

interface Place {
  readonly name: string;
  readonly store: string;
}

/** The model of a committed step. */
export async function openVersion(place: Place, step: number, options: ModelLoadOptions): Promise<ModelFolder> {
  return loadModelFolder(await versionFolder(place, step), options);
}

/** The folder on this machine with the weights of a committed step, each compared with its sha256. */
export async function versionFolder(place: Place, step: number): Promise<string> {
  const store = storeOf(place);
  const { commit } = await requireCommit({ ...place, lineage: await lineageOfStep(place, step) }, step).catch(
    (cause: unknown) => {
      throw new RatchetError(
        'RunNotFound',
        `Step ${step} of ${place.name} is not committed. \`npx ratchet status ${place.name}\` says how far it is.`,
        { cause },
      );
    },
  );
  const { weights, file } = commit.policy;
  if (!(await store.list(weights)).includes(file.key)) {
    const steps = (await store.list('weights/')).flatMap(
      (key) => /^weights\/step_(\d+)\/.*\.safetensors$/.exec(key)?.[1] ?? [],
    );
    const there = steps
      .map(Number)
      .sort((a, b) => a - b)
      .join(', ');
    throw new RatchetError(
      'RunNotFound',
      `The weights of step ${step} are not in ${store.uri} (any more, or yet). Those that are: ${there || 'none'}. [checkpoints] keep_interval keeps some for good.`,
    );
  }
  await verifyVersion(store, commit.policy); // a byte of it may have changed since it was stored
  return weightsFolder(store, weights);
}
