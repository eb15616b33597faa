import type { FileHandle } from 'node:fs/promises';
import path from 'node:path';
import type { ModelFolder } from '../model/model-folder.ts';
import type { ParameterSpec } from '../model/parameter-layout.ts';
import { writeAtOnce } from '../model/write-at-once.ts';
import { ggufTensorOf, reorderRows } from './families.ts';
import { fileTypes, packers, type Packer, type PackingName } from './pack.ts';
import { rotaryFactors } from './rotary-factors.ts';
import { valuesOfModel } from './values-of-model.ts';
import { aligned, encodeGgufHeader, type WrittenTensor } from './write-header.ts';

export type GgufType = PackingName;
export const ggufTypes = Object.keys(packers) as readonly GgufType[];

/** Weights are packed in about so many at a time. */
const chunkWeights = 1 << 20;

/** A tensor as it will lie in the file, and where its values come from. */
interface Source extends WrittenTensor {
  readonly packer: Packer;
  readonly values: () => Float32Array;
}

/**
 * Writes a model as one GGUF file that llama.cpp loads: weights, tokenizer and chat template. The file is whole or absent. Throws `ModelUnsupported`,
 * before any weight is written, for what GGUF has no name for.
 */
export async function writeGguf(
  model: Omit<ModelFolder, 'tokenizer'>,
  file: string,
  {
    type,
    onTensor = () => undefined,
  }: { readonly type: GgufType; readonly onTensor?: (done: number, of: number) => void },
): Promise<void> {
  const name = path.basename(file, '.gguf');
  const values = valuesOfModel(model, { name, fileType: fileTypes[type] });
  const sources = [...rotarySources(model), ...model.parameters.layout.map((spec) => sourceOf(spec, model, type))];
  const header = encodeGgufHeader(values, sources);
  await writeAtOnce(file, async (handle) => {
    await handle.writeFile(header);
    for (const [i, source] of sources.entries()) {
      await writeTensor(handle, source);
      onTensor(i + 1, sources.length);
    }
  });
}

function sourceOf(spec: ParameterSpec, { config, parameters }: Omit<ModelFolder, 'tokenizer'>, type: GgufType): Source {
  const { name, heads } = ggufTensorOf(config, spec.name);
  const packer = packerFor(spec.shape, type);
  const values = (): Float32Array => {
    if (heads === null) return parameters.view(spec.name);
    const copy = parameters.view(spec.name).slice();
    reorderRows(copy, { heads, shape: spec.shape, to: 'pairs' });
    return copy;
  };
  return {
    name,
    shape: spec.shape,
    type: packer.type,
    bytes: (spec.length / packer.weights) * packer.bytes,
    packer,
    values,
  };
}

function rotarySources({ config }: Pick<ModelFolder, 'config'>): Source[] {
  const factors = rotaryFactors(config);
  if (factors === null) return [];
  const { f32: packer } = packers;
  const of = { name: 'rope_freqs.weight', shape: [factors.length], type: packer.type, bytes: factors.byteLength };
  return [{ ...of, packer, values: () => factors }];
}

/** Norms and biases are 32-bit floats in every file; rows that are no whole blocks are halves, as llama.cpp has them. */
function packerFor(shape: readonly number[], type: GgufType): Packer {
  if (shape.length === 1) return packers.f32;
  return shape.at(-1)! % packers[type].weights === 0 ? packers[type] : packers.f16;
}

async function writeTensor(file: FileHandle, { name, bytes, packer, values }: Source): Promise<void> {
  const all = values();
  for (let done = 0; done < all.length; done += chunkWeights) {
    await file.writeFile(packer.pack(all.subarray(done, done + chunkWeights), name));
  }
  await file.writeFile(new Uint8Array(aligned(bytes) - bytes));
}
