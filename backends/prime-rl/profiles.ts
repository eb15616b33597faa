import { execFile } from 'node:child_process';
import { promisify } from 'node:util';
import { z } from 'zod';
import { RatchetError } from '../../core/errors.ts';
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

const knownMarkers: readonly string[] = ['STABLE'];

const Names = z.array(z.string());
/** As python/ratchet_prime_rl/look.py says it. */
const Installation = z.looseObject({
  version: z.string().nullable(),
  missing: Names,
  structs: z.record(z.string(), Names),
  markers: Names,
  settings: z.record(z.string(), Names),
});
export type Installation = z.infer<typeof Installation>;

const lookingMs = 120_000;

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
