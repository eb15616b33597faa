import { stat } from 'node:fs/promises';
import { join } from 'node:path';
import { z } from 'zod';
import { RatchetError } from '../../core/errors.ts';
import { problemsIn } from '../../core/problems-in.ts';
import type { ParameterSpec } from './parameter-layout.ts';
import type { FlatTensors } from './parameters.ts';
import type { FloatType } from './safetensors.ts';
import { requireWholeSafetensors, SafetensorsReader, writeSafetensors } from './safetensors-file.ts';
import { missingFile, parseJson, readText } from './text-files.ts';
import { writeAtOnce } from '../../host/write-at-once.ts';

export const weightsFile = 'model.safetensors';
const indexFile = 'model.safetensors.index.json';
const WeightIndex = z.object({ weight_map: z.record(z.string(), z.string().regex(/^[^/\\]+$/)) });

/** Fills weights from a folder's model.safetensors, or from the files that its index names. */
export async function readWeights(weights: FlatTensors, folder: string): Promise<void> {
  await fillFrom(weights, folder, await weightFiles(folder));
}

/**
 * Fills every tensor of `target` from the named files. A tensor that is missing, has another shape, or would be left
 * over means that the files belong to another model.
 */
export async function fillFrom(target: FlatTensors, folder: string, fileNames: readonly string[]): Promise<void> {
  const specs = new Map(target.layout.map((spec) => [spec.name, spec]));
  const filled = new Set<string>();
  for (const fileName of fileNames) await fillFromFile(target, join(folder, fileName), specs, filled);
  const lacking = target.layout.filter(({ name }) => !filled.has(name));
  if (lacking.length === 0) return;
  throw new RatchetError(
    'CheckpointDamaged',
    `${folder} lacks ${lacking.length} of ${target.layout.length} tensors that its configuration implies, among them ` +
      `"${lacking[0]!.name}". Fetch the model again.`,
  );
}

/** Writes one safetensors file; it appears when it is whole. */
export async function writeWeights(
  weights: FlatTensors,
  path: string,
  options: { dtype?: FloatType; metadata?: Readonly<Record<string, string>> } = {},
): Promise<void> {
  const tensors = Object.fromEntries(
    weights.layout.map(({ name, shape }) => [name, { shape, data: weights.view(name) }]),
  );
  const { dtype = 'float32', metadata } = options;
  await writeAtOnce(path, (file) =>
    writeSafetensors(file, tensors, { dtype, metadata: { format: 'pt', ...metadata } }),
  );
}

async function fillFromFile(
  target: FlatTensors,
  path: string,
  specs: ReadonlyMap<string, ParameterSpec>,
  filled: Set<string>,
): Promise<void> {
  const reader = await SafetensorsReader.open(path);
  try {
    for (const [name, { shape, code }] of reader.header.entries) {
      const spec = specs.get(name);
      if (!spec) {
        requireNegligible(name, path);
        continue;
      }
      requireFloats({ spec, shape, code, path });
      await reader.readFloats(name, target.view(name));
      requireFinite(name, target.view(name), path);
      filled.add(name);
    }
  } finally {
    await reader.close();
  }
}

/** Throws unless transformers ignores the tensor too: a tied output layer, or a rotary table of older checkpoints. */
function requireNegligible(name: string, path: string): void {
  if (name === 'lm_head.weight' || name.endsWith('rotary_emb.inv_freq')) return;
  throw new RatchetError(
    'CheckpointDamaged',
    `${path} holds a tensor "${name}" that its configuration does not imply: it belongs to another model, and without ` +
      `this tensor the logits would be wrong. Fetch the model again.`,
  );
}

/** Weights that are not numbers sample the first token for ever and say nothing. */
function requireFinite(name: string, values: Float32Array, path: string): void {
  // A plain loop: every broadcast version passes through here, and a callback for each weight takes three times as
  // long.
  let at = 0;
  while (at < values.length && Number.isFinite(values[at])) at++;
  if (at === values.length) return;
  throw new RatchetError(
    'CheckpointDamaged',
    `${path}: expected finite numbers in tensor "${name}", got ${values[at]} at position ${at}. The training that wrote it ` +
      `diverged, or the file is damaged: take an earlier one.`,
  );
}

interface Candidate {
  readonly spec: ParameterSpec;
  readonly shape: readonly number[];
  readonly code: string;
  readonly path: string;
}

function requireFloats({ spec, shape, code, path }: Candidate): void {
  const expected = spec.shape.join();
  if (shape.join() === expected && ['F32', 'F16', 'BF16'].includes(code)) return;
  throw new RatchetError(
    'CheckpointDamaged',
    `${path}: tensor "${spec.name}" must be floats of shape [${expected}], as its configuration implies; it is ${code} ` +
      `of shape [${shape.join()}].`,
  );
}

/** The files of a folder's weights, and their index last if they have one. */
export async function weightFilesWithIndex(folder: string): Promise<string[]> {
  const files = await weightFiles(folder);
  return files.includes(weightsFile) ? files : [...files, indexFile];
}

/** Looks for the files in transformers' order. */
async function weightFiles(folder: string): Promise<string[]> {
  if (await isThere(join(folder, weightsFile))) return [weightsFile];
  const text = await readText(folder, indexFile);
  if (text === null) throw missingFile(folder, weightsFile);
  const index = WeightIndex.safeParse(parseJson(text, join(folder, indexFile), 'an index of safetensors files'));
  if (!index.success) {
    throw new RatchetError('CheckpointDamaged', `${join(folder, indexFile)}: ${problemsIn(index.error)}`);
  }
  const files = [...new Set(Object.values(index.data.weight_map))].toSorted();
  for (const file of files) if (!(await isThere(join(folder, file)))) throw missingFile(folder, file, indexFile);
  return files;
}

/**
 * Refuses a folder whose index names a file that is not there, or with a file that lacks bytes which its header promises. Only headers are read. A folder
 * without any weights passes: they may come later.
 */
export async function requireWholeWeights(folder: string): Promise<void> {
  const hasWeights = await Promise.all([weightsFile, indexFile].map((file) => isThere(join(folder, file))));
  if (!hasWeights.includes(true)) return;
  for (const file of await weightFiles(folder)) await requireWholeSafetensors(join(folder, file));
}

async function isThere(path: string): Promise<boolean> {
  return stat(path).then(
    () => true,
    () => false,
  );
}
