import { execFile } from 'node:child_process';
import { promisify } from 'node:util';
import { z } from 'zod';
import { RatchetError } from '../../core/errors.ts';
import { pythonEnvironment } from './environment.ts';

/**
 * What an installation of prime-rl is, by what its sources say: the fields of its transport have no version, and change with most releases.
 * What is not known here by name is refused.
 */
export interface Profile {
  readonly name: 'main';
  /** Its own version, for people. */
  readonly version: string | null;
  /** Fields of a micro-batch in their order. */
  readonly fields: readonly string[];
  /** File that says that a broadcast is whole. */
  readonly marker: string;
}

/** Fields of MicroBatch in the transport of prime-rl’s main branch since August 2026, in which batches come packed for each rank. */
export const mainMicroBatch: readonly string[] = [
  'input_ids',
  'loss_mask',
  'advantages',
  'inference_logprobs',
  'position_ids',
  'sequence_lengths',
  'temperatures',
  'env_names',
  'seq_lens',
  'ref_logprobs',
  'routed_experts',
  'mm_kwargs',
  'mm_token_type_ids',
  'rl_weights',
  'ce_weights',
  'ref_kl_weights',
];

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
  const fields = structs['MicroBatch'] ?? [];
  if (structs['TrainingBatch'])
    throw refuse(
      'its trainer packs batches itself, as releases until 0.8.1 do: expected the main branch of 8 August 2026 or later.',
    );
  const unknown = fields.filter((name) => !mainMicroBatch.includes(name));
  if (unknown.length > 0) throw refuse(`its MicroBatch has ${unknown.join(', ')}, which is not known here.`);
  const lost = mainMicroBatch.filter((name) => !fields.includes(name));
  if (lost.length > 0) throw refuse(`its MicroBatch lacks ${lost.join(', ')}.`);
  const marker = markers.find((name) => knownMarkers.includes(name));
  if (marker === undefined)
    throw refuse(
      `its broadcasts are marked by ${markers.join(', ') || 'no file that was found'}: expected ${knownMarkers.join(' or ')}.`,
    );
  const absent = ['loss', 'resume', 'rollout_transport', 'weight_broadcast', 'ckpt'].filter(
    (name) => settings['TrainerConfig']?.includes(name) !== true,
  );
  if (absent.length > 0) throw refuse(`its trainer has no setting ${absent.join(', ')}.`);
  return { name: 'main', version, fields, marker };
}
