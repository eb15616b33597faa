import { createHash } from 'node:crypto';
import { open, readFile, rename, rm, writeFile } from 'node:fs/promises';
import path from 'node:path';
import { z } from 'zod';
import { byCodeUnits } from '../../engine/model/safetensors.ts';
import { copySafetensors, SafetensorsReader } from '../../engine/model/safetensors-file.ts';

/** Files of PEFT. */
export const adapterFile = 'adapter_model.safetensors';
export const adapterConfigFile = 'adapter_config.json';

interface WeightsSeen {
  /** sha256 over all tensors by name, so that it does not depend on how a server divides or orders its files. */
  readonly digest: string;
  /** Name of the first tensor with a number that is not finite; null if there is none. */
  readonly strange: string | null;
}

/** Reads all tensors once, in the order of their names, in pieces. */
export async function inspectWeights(folder: string, files: readonly string[]): Promise<WeightsSeen> {
  const readers: SafetensorsReader[] = [];
  try {
    for (const name of files.filter((file) => file.endsWith('.safetensors')))
      readers.push(await SafetensorsReader.open(path.join(folder, name)));
    const tensors = readers.flatMap((reader) => [...reader.header.entries].map(([name, entry]) => ({ reader, name, ...entry }))); // prettier-ignore
    const hash = createHash('sha256');
    let strange: string | null = null;
    for (const { reader, name, shape, code } of tensors.toSorted((a, b) => byCodeUnits(a.name, b.name))) {
      hash.update(`${name} ${shape.join('x')} ${arrayNames[code]}\n`);
      for await (const piece of reader.pieces(name)) {
        hash.update(new Uint8Array(piece.buffer, piece.byteOffset, piece.byteLength));
        if (piece instanceof Float32Array && !piece.every(Number.isFinite)) strange ??= name;
      }
    }
    return { digest: hash.digest('hex'), strange };
  } finally {
    for (const reader of readers) await reader.close();
  }
}

/** What a tensor's numbers are read as, which its digest names. */
const arrayNames = {
  F32: 'Float32Array',
  F16: 'Float32Array',
  BF16: 'Float32Array',
  I32: 'Int32Array',
  I64: 'BigInt64Array',
};

/**
 * Makes a downloaded adapter one for readers of PEFT files: fills in the adapted layers, which SkyRL leaves open and the
 * names of its tensors show; and puts tensors in one order, so that equal adapters are equal files. Returns its alpha.
 */
export async function makePeft(folder: string): Promise<number | null> {
  const [weights, config] = [path.join(folder, adapterFile), path.join(folder, adapterConfigFile)];
  const found = z.record(z.string(), z.unknown()).parse(JSON.parse(await readFile(config, 'utf8')));
  const reader = await SafetensorsReader.open(weights);
  const sorted = `${weights}.sorted`;
  try {
    const names = [...reader.header.entries.keys()].toSorted(byCodeUnits);
    const modules = names.flatMap((name) => /\.([^.]+)\.lora_A\./.exec(name)?.[1] ?? []);
    const complete = {
      ...found,
      target_modules: found['target_modules'] ?? [...new Set(modules)].sort(),
      task_type: found['task_type'] ?? 'CAUSAL_LM',
    };
    const file = await open(sorted, 'wx');
    try {
      await copySafetensors(file, reader, { format: 'pt' });
    } finally {
      await file.close();
    }
    await rm(config);
    await writeFile(config, `${JSON.stringify(complete, null, 2)}\n`);
  } finally {
    await reader.close();
  }
  await rename(sorted, weights);
  return typeof found['lora_alpha'] === 'number' ? found['lora_alpha'] : null;
}
