import { checkConfigText } from '../backends/configs/check-model.ts';
import { loadRunConfig, type LoadOptions } from '../backends/configs/load-run-config.ts';
import { partsFor } from '../backends/configs/model-of-hub.ts';
import { getModel } from '../backends/hub/get-model.ts';
import { hubSettings } from '../backends/hub/hub-settings.ts';
import type { RunSpec } from '../config/run-spec.ts';
import { isHubId } from '../core/names.ts';
import { hubProgress } from './hub-progress.ts';
import { print } from './print.ts';
import { installEnvironment } from './python-environments/install.ts';

/** Installs the environments that the file names and fetches its model, where they are not here. What is still missing then is refused as ever. */
export async function getMissing(file: string, options: LoadOptions): Promise<void> {
  const { missing, spec } = await loadRunConfig(file, { ...options, isOnlyLookedAt: true });
  const wanted = new Set(missing.flatMap(({ install }) => install ?? []));
  const log = print;
  for (const environment of wanted)
    await installEnvironment(environment, { projectFolder: options.projectFolder, log });
  if (isHubId(spec.model)) await fetchModelOf(spec);
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
