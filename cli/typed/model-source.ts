import path from 'node:path';
import { packagedFolder } from '../../backends/hub/packaged-models.ts';
import { RatchetError } from '../../core/errors.ts';
import { isHubId } from '../../core/names.ts';
import { loadModelFolder, type ModelFolder } from '../../engine/index.ts';
import { isModelFolder, namedVersion, openRunVersion } from '../stored/open-version.ts';

/** A model that a command line names. */
export interface ModelSource {
  /** Name for people. */
  readonly name: string;
  readonly folder: string;
  /** Public name of the base; null when it is only a folder. */
  readonly baseName: string | null;
  readonly load: () => Promise<ModelFolder>;
}

/**
 * Finds a model by a folder, a packaged model's name, a run, or RUN@STEP; an existing folder takes precedence over a
 * run of that name.
 */
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
    // A warm-up changes the base's weights, so it has no public name.
    baseName: spec.sft === null && isHubId(spec.model) ? spec.model : null,
    load: () => load(weights),
  };
}
