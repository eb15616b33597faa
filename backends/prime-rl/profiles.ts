import { execFile } from 'node:child_process';
import { existsSync, readdirSync, readFileSync } from 'node:fs';
import path from 'node:path';
import { fileURLToPath } from 'node:url';
import { promisify } from 'node:util';
import { z } from 'zod';
import { environmentForAll, selectEnvironment } from '../../core/child-environment.ts';
import { RatchetError } from '../../core/errors.ts';
import { jsonOrNull } from '../../core/json-or-null.ts';
import { answerOf } from '../../host/child-progress.ts';
import { pythonEnvironment } from './environment.ts';
import { mainForm, olderForm, type TrainerForm } from './forms.ts';
import { mainMicroBatch } from './micro-batch-wire.ts';
import { olderBatch, olderSample } from './training-batch-wire.ts';

/**
 * What an installation of prime-rl is, by what its sources say: the fields of its transport have no version, and change with most releases.
 * What is not known here by name is refused.
 */
export interface Profile {
  readonly form: TrainerForm;
  /** Its own version, for people. */
  readonly version: string | null;
  /** Fields of a micro-batch, or of a sample, in their order. */
  readonly fields: readonly string[];
  /** File that says that a broadcast is whole. */
  readonly marker: string;
}

/** `.finished` is of a branch that was not merged in August 2026. */
const knownMarkers: readonly string[] = ['STABLE', '.finished'];

const Names = z.array(z.string());
/** As python/ratchet_prime_rl/look.py says it. */
const Installation = z.looseObject({
  version: z.string().nullable(),
  missing: Names,
  structs: z.record(z.string(), Names),
  markers: Names,
  settings: z.record(z.string(), Names),
  /** Fields of each class of settings that is known as a whole, with the classes that a table there may be. */
  types: z.record(z.string(), z.record(z.string(), Names)).default({}),
  /** Words in texts of the settings’ sources. */
  mentioned: Names.default([]),
});
export type Installation = z.infer<typeof Installation>;

const lookingMs = 120_000;
const lookProgram = fileURLToPath(new URL('../../python/ratchet_prime_rl/look.py', import.meta.url));

/** Asks a Python what its prime-rl is. */
export async function installationOf(python: string): Promise<Installation> {
  try {
    const { stdout } = await promisify(execFile)(python, ['-m', 'ratchet_prime_rl.look'], {
      env: pythonEnvironment(),
      timeout: lookingMs,
      maxBuffer: 16 * 1024 * 1024,
    });
    return Installation.parse(JSON.parse(stdout.trim().split('\n').at(-1) ?? ''));
  } catch (cause) {
    const { stderr = '', message } = cause as { readonly stderr?: string; readonly message: string };
    throw new RatchetError(
      'ServerUnavailable',
      `[trainer] program: ${python} could not be asked for its prime-rl: ${stderr.trim().split('\n').at(-1) || message}`,
      { cause },
    );
  }
}

/**
 * Reads the sources of a program’s prime-rl by any Python, which runs nothing of it. Null where they are not found, or no Python here reads them.
 */
export async function sourcesOf(program: string, python: string): Promise<Installation | null> {
  const folders = sourceFolders(program, python);
  if (folders.length === 0) return null;
  const answer = await answerOf('python3', ['-I', lookProgram, ...folders], selectEnvironment(environmentForAll, process.env)); // prettier-ignore
  const found = Installation.safeParse(jsonOrNull(answer ?? ''));
  return found.success && found.data.missing.length === 0 ? found.data : null;
}

/** Folders named prime_rl: in a checkout, or among the packages of a virtual environment and what its .pth files name. */
function sourceFolders(program: string, python: string): string[] {
  const library = path.join(path.dirname(path.dirname(python)), 'lib');
  const packages = existsSync(library)
    ? readdirSync(library).map((name) => path.join(library, name, 'site-packages'))
    : [];
  const named = packages.filter((folder) => existsSync(folder)).flatMap(pathsIn);
  const places = ['src', 'packages/prime-rl-configs/src'].map((name) => path.join(program, name));
  const folders = [...places, ...packages, ...named].map((folder) => path.join(folder, 'prime_rl'));
  return [...new Set(folders)].filter((folder) => existsSync(folder));
}

function pathsIn(packages: string): string[] {
  const files = readdirSync(packages).filter((name) => name.endsWith('.pth'));
  const lines = files.flatMap((name) => readFileSync(path.join(packages, name), 'utf8').split('\n'));
  return lines.map((line) => line.trim()).filter((line) => path.isAbsolute(line));
}

/** The profile of an installation; throws with the names that are not known. */
export function profileOf({ version, missing, structs, markers, settings }: Installation, python: string): Profile {
  const what = `prime-rl${version === null ? '' : ` ${version}`} of ${python}`;
  const refuse = (why: string): RatchetError =>
    new RatchetError('Unsupported', `[trainer] program: ${what} cannot be driven: ${why}`);
  if (missing.length > 0)
    throw refuse(
      `it lacks ${missing.join(', ')}. Install prime-rl as its own documents say (ratchet engine install prime-rl repeats it), and name its Python.`,
    );
  const isOlder = structs['TrainingBatch'] !== undefined;
  const [struct, known] = isOlder ? ['TrainingSample', olderSample] : ['MicroBatch', mainMicroBatch];
  const fields = structs[struct] ?? [];
  requireNames(struct, fields, known, refuse);
  if (isOlder) requireNames('TrainingBatch', structs['TrainingBatch']!, olderBatch, refuse);
  const marker = markers.find((name) => knownMarkers.includes(name));
  if (marker === undefined)
    throw refuse(
      `its broadcasts are marked by ${markers.join(', ') || 'no file that was found'}: expected ${knownMarkers.join(' or ')}.`,
    );
  const needed = ['loss', 'rollout_transport', 'weight_broadcast', 'ckpt', ...(isOlder ? ['scheduler'] : ['resume'])];
  const absent = needed.filter(
    (name) => settings[isOlder ? 'RLTrainerConfig' : 'TrainerConfig']?.includes(name) !== true,
  );
  if (absent.length > 0) throw refuse(`its trainer has no setting ${absent.join(', ')}.`);
  return { form: isOlder ? olderForm : mainForm, version, fields, marker };
}

/** Refuses fields by name that are not known here, and a struct without one that is. */
function requireNames(
  struct: string,
  found: readonly string[],
  known: readonly string[],
  refuse: (why: string) => RatchetError,
): void {
  const unknown = found.filter((name) => !known.includes(name));
  if (unknown.length > 0) throw refuse(`its ${struct} has ${unknown.join(', ')}, which is not known here.`);
  const lost = known.filter((name) => !found.includes(name));
  if (lost.length > 0) throw refuse(`its ${struct} lacks ${lost.join(', ')}.`);
}
