import type { FileHandle } from 'node:fs/promises';
import { RatchetError } from '../../core/errors.ts';
import { ggufHeaderBytesMax } from '../limits.ts';
import { type ModelConfig, parseModelConfig } from '../model/config.ts';
import { requireMemory } from '../model/memory.ts';
import { assembleModel, type ModelFolder } from '../model/model-folder.ts';
import { parameterCount, type ParameterSpec } from '../model/parameter-layout.ts';
import { Parameters } from '../model/parameters.ts';
import { damagedFile } from '../model/safetensors.ts';
import { readFully } from '../model/safetensors-file.ts';
import { openRegular } from '../../host/regular-file.ts';
import { decodeGgufHeader, type GgufHeader, type GgufTensor, HeaderIsLonger } from './header.ts';
import { ggufPlaceOf, reorderRows } from './families.ts';
import { textsOfGguf } from './hugging-face.ts';
import { otherPackings, type Packing, packings } from './quants.ts';

/** Bytes read first; most headers are shorter. */
const headerBytesAtFirst = 1 << 20;
/** Bytes unpacked at a time. */
const chunkBytes = 1 << 22;
/** Larger than in any known model. */
const headSizeMax = 4096;

/**
 * Reads a model from a GGUF file, with weights of 32-bit floats as in llama.cpp. No code of the file is run. Before any
 * weight is read, throws `CheckpointDamaged` for a file that is no GGUF or is cut off, and `ModelUnsupported` for a
 * model that the engine does not support.
 */
export async function readGguf(
  path: string,
  onTensor: (done: number, of: number) => void = () => undefined,
): Promise<ModelFolder> {
  const file = await openRegular(path);
  try {
    const { size } = await file.stat();
    const header = await readHeader(file, size, path);
    const files = textsOfGguf(header, path, await rotaryFactorsOf(file, header, { size, path }));
    const config = parseModelConfig(files['config.json']!, path);
    requireMemory(parameterCount(config), 1, 'holding it');
    const parameters = new Parameters(config);
    const { layout } = parameters;
    const places = layout.map((spec) => placeOf(spec, { config, header, size, path }));
    for (const [i, { name, shape }] of layout.entries()) {
      const { heads, addsOne, from } = places[i]!;
      const values = parameters.view(name);
      await unpack(file, from, values);
      if (heads !== null) reorderRows(values, { heads, shape, to: 'halves' });
      if (addsOne) for (let j = 0; j < values.length; j++) values[j]! -= 1;
      onTensor(i + 1, layout.length);
    }
    return assembleModel(files, parameters);
  } finally {
    await file.close();
  }
}

async function rotaryFactorsOf(
  file: FileHandle,
  header: GgufHeader,
  { size, path }: { readonly size: number; readonly path: string },
): Promise<Float32Array | null> {
  const name = 'rope_freqs.weight';
  const tensor = header.tensors.get(name);
  if (!tensor) return null;
  const [count = 0, ...more] = tensor.shape;
  if (more.length > 0 || count > headSizeMax)
    throw damagedFile(path, `at most ${headSizeMax} factors in "${name}"`, tensor.shape.join(' × '));
  const factors = new Float32Array(count);
  await unpack(file, packedOf(tensor, { size, first: 0, count, where: `${path}: "${name}"` }), factors);
  return factors;
}

async function readHeader(file: FileHandle, size: number, path: string): Promise<GgufHeader> {
  for (let length = headerBytesAtFirst; ; length *= 4) {
    const bytes = new Uint8Array(Math.min(length, size, ggufHeaderBytesMax));
    await readFully(file, bytes, 0, path);
    try {
      return decodeGgufHeader(bytes, path);
    } catch (error) {
      if (!(error instanceof HeaderIsLonger)) throw error;
      if (bytes.length < Math.min(size, ggufHeaderBytesMax)) continue;
      const expected = bytes.length === size ? 'a whole file' : `a header of at most ${ggufHeaderBytesMax} bytes`;
      throw damagedFile(path, expected, `${bytes.length} bytes, and its header goes on`);
    }
  }
}

/** A tensor's packed weights in a file. */
interface Packed {
  readonly packing: Packing;
  /** Offset of the first byte in the file. */
  readonly start: number;
  /** The file, and the tensor's name there. */
  readonly where: string;
}

/** Finds a parameter's weights. Throws for a missing tensor, another shape or an unsupported packing. */
function placeOf(
  { name, shape, length: count }: ParameterSpec,
  {
    config,
    header,
    size,
    path,
  }: { readonly config: ModelConfig; readonly header: GgufHeader; readonly size: number; readonly path: string },
): { readonly heads: number | null; readonly addsOne: boolean; readonly from: Packed } {
  const { name: inFile, heads, addsOne, expert } = ggufPlaceOf(config, name);
  const tensor = header.tensors.get(inFile);
  if (!tensor) throw damagedFile(path, `a tensor "${inFile}"`, 'none');
  const whole = expert === null ? shape : [config.experts!.count, ...shape];
  if (tensor.shape.join() !== whole.join()) {
    throw damagedFile(path, `"${inFile}" of the shape [${whole.join(', ')}]`, `[${tensor.shape.join(', ')}]`);
  }
  const range = { size, first: (expert ?? 0) * count, count, where: `${path}: "${inFile}"` };
  return { heads, addsOne, from: packedOf(tensor, range) };
}

/** Weights of a tensor from the `first` on, which begins a row. `size`: bytes of the file. */
function packedOf(
  tensor: GgufTensor,
  {
    size,
    first,
    count,
    where,
  }: { readonly size: number; readonly first: number; readonly count: number; readonly where: string },
): Packed {
  const packing = packings[tensor.type];
  if (!packing) {
    const known = Object.values(packings).map(({ name }) => name);
    throw new RatchetError(
      'ModelUnsupported',
      `${where}: expected weights as ${known.join(', ')}, got ${otherPackings[tensor.type] ?? `ggml type ${tensor.type}`}. ` +
        'Take a file of the same model in one of these, such as Q8_0 or Q4_K_M.',
    );
  }
  const { weights, bytes } = packing;
  if (tensor.shape.at(-1)! % weights !== 0)
    throw damagedFile(where, `rows of whole blocks of ${weights}`, String(tensor.shape.at(-1)));
  const start = tensor.start + (first / weights) * bytes;
  const end = start + (count / weights) * bytes;
  if (end > size) throw damagedFile(where, `a file of at least ${end} bytes`, `${size} bytes`);
  return { packing, start, where };
}

async function unpack(file: FileHandle, { packing, start, where }: Packed, target: Float32Array): Promise<void> {
  const { weights, bytes } = packing;
  const blocks = Math.max(1, Math.floor(chunkBytes / bytes));
  for (let done = 0; done < target.length; done += blocks * weights) {
    const part = target.subarray(done, done + blocks * weights);
    const packed = new Uint8Array((part.length / weights) * bytes);
    await readFully(file, packed, start + (done / weights) * bytes, where);
    packing.unpack(packed, part);
  }
}
