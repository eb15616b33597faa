import path from 'node:path';
import { packagedFolder } from '../backends/hub/packaged-models.ts';
import { RatchetError } from '../core/errors.ts';
import { isHubId } from '../core/names.ts';
import { loadModelFolder, type ModelFolder } from '../engine/index.ts';
import { isModelFolder, namedVersion, openRunVersion } from './open-version.ts';

/** A model that a command line names. */
export interface ModelSource {
  /** For people. */
  readonly name: string;
  readonly folder: string;
  /** A name by which others know the base; null where it is a folder alone. */
  readonly baseName: string | null;
  readonly load: () => Promise<ModelFolder>;
}

/** By the name of a folder, of a model that comes as a package, of a run, or RUN@STEP; a folder that is there goes before a run of that name. */
export async function findModel(
  what: string,
  { step, store }: { readonly step?: string; readonly store?: string },
): Promise<ModelSource> {
  const folder = packagedFolder(what) ?? path.resolve(what);
  if (isModelFolder(folder)) {
    if (step !== undefined)
      throw new RatchetError('ConfigInvalid', `--step is of a run; ${what} is a folder, which holds one version.`);
    return { name: what, folder, baseName: null, load: () => loadModelFolder(folder) };
  }
  const version = namedVersion(what, step);
  const { step: at, spec, folder: weights, load } = await openRunVersion(version.run, { step: version.step, store });
  return {
    name: `${version.run} v${at}`,
    folder: weights,
    // A warm-up has made other weights of it.
    baseName: spec.sft === null && isHubId(spec.model) ? spec.model : null,
    load: () => load(weights),
  };
}
