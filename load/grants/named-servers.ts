import { readdir } from 'node:fs/promises';
import path from 'node:path';
import type { RunSpec } from '../../config/run-spec.ts';
import { RatchetError } from '../../core/errors.ts';
import { readEndpoints } from '../../backends/inference/openai/endpoints-file.ts';
import { requireModelPlace } from '../../host/trusted-files.ts';
import { type Folders, isThere, resolvePath } from '../paths.ts';
import { Refused, type Tried } from '../refused.ts';

/** Servers that a run file names by an alias, and a teacher's folder. */

/** Resolves the alias of an endpoints file: finds the file, and checks its present contents. */
export async function readServers(
  spec: RunSpec['inference'],
  folders: Folders,
  tried: Tried,
): Promise<RunSpec['inference']> {
  if (!('endpoints' in spec) || spec.endpoints === null) return spec;
  const endpoints = { ...spec.endpoints, path: resolvePath(spec.endpoints.path, folders) };
  const names = [
    ['inference', 'endpoints_path'],
    ['inference', 'endpoint_id'],
  ];
  await tried(names, () => lookAtAlias(endpoints));
  return { ...spec, endpoints };
}

/** A folder, or an alias's servers: both relative to the config's folder or the project's. */
export async function readTeacher(
  teacher: RunSpec['teacher'],
  folders: Folders,
  tried: Tried,
): Promise<RunSpec['teacher']> {
  if (teacher === null) return null;
  const { folder: written, endpoints } = teacher;
  if (written !== null) {
    const found = resolvePath(written, folders);
    requireModelPlace(found, 'The teacher');
    await tried([['teacher', 'model']], async () => {
      if (await isThere(path.join(found, 'config.json'))) return;
      if (await isThere(path.join(found, 'adapter_config.json'))) return;
      const suggestion = await adviceOnVersion(written, found);
      throw new Refused({
        expected: 'a folder of weights (config.json, …), or a url beside it: the server that has this model',
        received: JSON.stringify(written),
        ...(suggestion === null ? {} : { suggestion }),
      });
    });
    return { ...teacher, folder: found };
  }
  if (endpoints === null) return teacher;
  const there = { ...endpoints, path: resolvePath(endpoints.path, folders) };
  const names = [
    ['teacher', 'endpoints_path'],
    ['teacher', 'endpoint_id'],
  ];
  await tried(names, () => lookAtAlias(there));
  return { ...teacher, endpoints: there };
}

const versionName = /^step_(\d+)$/;

/** Suggests a version to name instead of a missing one; null when the path is not a version's. */
async function adviceOnVersion(written: string, version: string): Promise<string | null> {
  if (!versionName.test(path.basename(version))) return null;
  const names = await readdir(path.dirname(version)).catch(() => []);
  const steps = names.flatMap((name) => Number(versionName.exec(name)?.[1] ?? NaN)).filter((step) => step >= 0);
  if (steps.length === 0) return 'train the run whose version that is first';
  return `the newest version there is ${path.join(path.dirname(written), `step_${Math.max(...steps)}`)}`;
}

function lookAtAlias(endpoints: Parameters<typeof readEndpoints>[0]): Promise<unknown> {
  try {
    return Promise.resolve(readEndpoints(endpoints));
  } catch (error) {
    if (!(error instanceof RatchetError)) throw error;
    throw new Refused({ expected: 'an endpoints.toml with this alias', received: error.message }, error);
  }
}
