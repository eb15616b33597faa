import type { FileHandle } from 'node:fs/promises';
import path from 'node:path';
import type { ModelFolder } from '../model/model-folder.ts';
import type { ParameterSpec } from '../model/parameter-layout.ts';
import { writeAtOnce } from '../../host/write-at-once.ts';
import { ggufPlaceOf, type GgufPlace, reorderRows } from './families.ts';
import { fileTypes, packers, type Packer, type PackingName } from './pack.ts';
import { rotaryFactors } from './rotary-factors.ts';
import { valuesOfModel } from './values-of-model.ts';
import { aligned, encodeGgufHeader, type WrittenTensor } from './write-header.ts';

export type GgufType = PackingName;
export const ggufTypes = Object.keys(packers) as readonly GgufType[];

/** Number of weights packed at a time. */
const chunkWeights = 1 << 20;

/** A tensor of the file, and the sources whose values it holds one after another. */
interface Source extends WrittenTensor {
  readonly packer: Packer;
  readonly parts: readonly (() => Float32Array)[];
}

/**
 * Writes a model as one GGUF file that llama.cpp loads: weights, tokenizer and chat template. The file is whole or
 * absent. Before any weight is written, throws `ModelUnsupported` for features that GGUF lacks.
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
  const sources = [...rotarySources(model), ...weightSources(model, type)];
  const header = encodeGgufHeader(values, sources);
  await writeAtOnce(file, async (handle) => {
    await handle.writeFile(header);
    for (const [i, source] of sources.entries()) {
      await writeTensor(handle, source);
      onTensor(i + 1, sources.length);
    }
  });
}

function weightSources({ config, parameters }: Omit<ModelFolder, 'tokenizer'>, type: GgufType): Source[] {
  const placed = new Map<string, Placed[]>();
  for (const spec of parameters.layout) {
    const place = ggufPlaceOf(config, spec.name);
    const parts = placed.get(place.name);
    if (parts) parts.push({ spec, place });
    else placed.set(place.name, [{ spec, place }]);
  }
  return [...placed].map(([name, parts]) => {
    const { spec, place } = parts[0]!;
    const shape = place.expert === null ? spec.shape : [parts.length, ...spec.shape];
    const packer = packerFor(name, shape, type);
    const count = shape.reduce((product, size) => product * size, 1);
    return {
      name,
      shape,
      type: packer.type,
      bytes: (count / packer.weights) * packer.bytes,
      packer,
      parts: parts.map((part) => () => inFile(parameters.view(part.spec.name), part)),
    };
  });
}

interface Placed {
  readonly spec: ParameterSpec;
  readonly place: GgufPlace;
}

function inFile(values: Float32Array, { spec, place: { heads, addsOne } }: Placed): Float32Array {
  if (addsOne) return values.map((value) => value + 1);
  if (heads === null) return values;
  const copy = values.slice();
  reorderRows(copy, { heads, shape: spec.shape, to: 'pairs' });
  return copy;
}

function rotarySources({ config }: Pick<ModelFolder, 'config'>): Source[] {
  const factors = rotaryFactors(config);
  if (factors === null) return [];
  const { f32: packer } = packers;
  const of = { name: 'rope_freqs.weight', shape: [factors.length], type: packer.type, bytes: factors.byteLength };
  return [{ ...of, packer, parts: [() => factors] }];
}

/**
 * Norms, biases and routers are 32-bit floats in every file; rows that do not divide into blocks are 16-bit floats, as
 * in llama.cpp.
 */
function packerFor(name: string, shape: readonly number[], type: GgufType): Packer {
  if (shape.length === 1 || name.includes('.ffn_gate_inp.')) return packers.f32;
  return shape.at(-1)! % packers[type].weights === 0 ? packers[type] : packers.f16;
}

async function writeTensor(file: FileHandle, { name, bytes, packer, parts }: Source): Promise<void> {
  for (const part of parts) {
    const all = part();
    for (let done = 0; done < all.length; done += chunkWeights) {
      await file.writeFile(packer.pack(all.subarray(done, done + chunkWeights), name));
    }
  }
  await file.writeFile(new Uint8Array(aligned(bytes) - bytes));
}
