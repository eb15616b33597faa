import { existsSync } from 'node:fs';
import path from 'node:path';
import { packagedFolder } from '../backends/hub/packaged-models.ts';
import { RatchetError } from '../core/errors.ts';
import { isHubId } from '../core/names.ts';
import { loadModelFolder, type ModelFolder, withChatTemplate } from '../engine/index.ts';
import { begunAtOf } from '../runs/run-access.ts';
import { storedSpec } from '../runs/stored-spec.ts';
import { storedTemplate } from '../runs/stored-template.ts';
import { versionFolder } from './open-version.ts';
import { findRunFolder, readStep } from './run-place.ts';
import { headStep } from './run-records.ts';

/** A model that a command line names. */
export interface ModelSource {
  /** For people. */
  readonly name: string;
  readonly folder: string;
  /** A name by which others know the base; null where it is a folder alone. */
  readonly baseName: string | null;
  readonly load: () => Promise<ModelFolder>;
}

/** By the name of a folder, of a model that comes as a package, or of a run; a folder that is there goes before a run of that name. */
export async function findModel(
  what: string,
  { step, store }: { readonly step?: string; readonly store?: string },
): Promise<ModelSource> {
  const folder = packagedFolder(what) ?? path.resolve(what);
  if (['config.json', 'adapter_config.json'].some((file) => existsSync(path.join(folder, file)))) {
    if (step !== undefined)
      throw new RatchetError('ConfigInvalid', `--step is of a run; ${what} is a folder, which holds one version.`);
    return { name: what, folder, baseName: null, load: () => loadModelFolder(folder) };
  }
  const place = await findRunFolder(what, store);
  const at = step === undefined ? await headStep(place) : readStep(step);
  const { spec } = await storedSpec(place);
  const weights = await versionFolder(place, at);
  return {
    name: `${what} v${at}`,
    folder: weights,
    // A warm-up has made other weights of it.
    baseName: spec.sft === null && isHubId(spec.model) ? spec.model : null,
    load: async () => {
      const { begunAt: templateTime } = await begunAtOf(place);
      const model = await loadModelFolder(weights, { templateTime });
      const template = await storedTemplate(place, spec);
      return template === null ? model : withChatTemplate(model, template, { templateTime });
    },
  };
}
