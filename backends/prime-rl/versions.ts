import { createHash } from 'node:crypto';
import { createReadStream } from 'node:fs';
import { mkdir, readdir, readFile, rm, writeFile } from 'node:fs/promises';
import path from 'node:path';
import { RatchetError } from '../../core/errors.ts';
import type { LoraSpec } from '../../config/run-spec.ts';
import { decodeSafetensors, encodeSafetensors, readTextFiles } from '../../engine/index.ts';
import { linkFile, linkFolder } from './link-files.ts';
import { packingCost } from './packing-cost.ts';

/** Weights as prime-rl leaves them, and as others read them. */

const adapterFile = 'adapter_model.safetensors';
const adapterConfig = 'adapter_config.json';
/** What PEFT has before the name of a module; prime-rl leaves it out. */
const peftPrefix = 'base_model.model.';

/** sha256 over the weights of a folder: its safetensors files with their names. */
export async function digestOf(folder: string): Promise<string> {
  const names = weightFilesIn(await readdir(folder));
  if (names.length === 0)
    throw new RatchetError('ModelUnsupported', `${folder} holds no weights: expected safetensors files.`);
  const whole = createHash('sha256');
  for (const name of names) {
    const hash = createHash('sha256');
    for await (const chunk of createReadStream(path.join(folder, name))) hash.update(chunk as Buffer);
    whole.update(`${hash.digest('hex')}  ${name}\n`);
  }
  return whole.digest('hex');
}

function weightFilesIn(names: readonly string[]): string[] {
  return names.filter((name) => name.endsWith('.safetensors')).sort();
}

/** The files of a model or an adapter in a folder that stays: prime-rl reads them at each start, and a run removes those of its warm-up. */
export async function holdFiles(from: string, folder: string): Promise<void> {
  const names = await readdir(from);
  const others = names.filter((name) => name.endsWith('.safetensors.index.json') || name === adapterConfig);
  await linkFolder(from, folder, [...weightFilesIn(names), ...others]);
  for (const [name, text] of Object.entries(await readTextFiles(from))) {
    await mkdir(path.dirname(path.join(folder, name)), { recursive: true });
    await writeFile(path.join(folder, name), text);
  }
}

/** Takes a version from a broadcast, which prime-rl removes two steps later. */
export async function takeVersion(broadcast: string, folder: string, lora: LoraSpec | null): Promise<void> {
  await rm(folder, { recursive: true, force: true });
  await mkdir(folder, { recursive: true });
  const names = await readdir(broadcast);
  const weights = names.filter((name) => name.endsWith('.safetensors') || name.endsWith('.safetensors.index.json'));
  if (lora === null) {
    if (weights.length === 0)
      throw new RatchetError('EngineDied', `${broadcast} is marked as whole, and holds no weights.`);
    return linkFolder(broadcast, folder, weights);
  }
  if (!names.includes(adapterFile))
    throw new RatchetError('EngineDied', `${broadcast} is marked as whole, and holds no adapter.`);
  const file = path.join(broadcast, adapterFile);
  const { tensors, metadata } = decodeSafetensors(await readFile(file), file);
  const renamed = [...tensors].map(
    ([name, tensor]) => [name.startsWith(peftPrefix) ? name : peftPrefix + name, tensor] as const,
  );
  await writeFile(path.join(folder, adapterFile), encodeSafetensors(Object.fromEntries(renamed), metadata), {
    mode: 0o600,
  });
  await linkFile(path.join(broadcast, adapterConfig), path.join(folder, adapterConfig));
}

/** Writes a version beside the texts of the model that it is of. `base`: a path from that folder to the base of its adapters. */
export async function writeVersion(
  from: string,
  folder: string,
  {
    texts,
    base,
    isAdapter,
    dtype,
  }: { readonly texts: string; readonly base: string; readonly isAdapter: boolean; readonly dtype: string | null },
): Promise<void> {
  await mkdir(folder, { recursive: true });
  for (const [name, text] of Object.entries(await readTextFiles(texts))) {
    if (isAdapter && name === 'config.json') continue; // beside an adapter it would promise missing weights
    await mkdir(path.dirname(path.join(folder, name)), { recursive: true });
    const told = name === 'config.json' && dtype !== null ? withDtype(text, dtype) : text;
    await writeFile(path.join(folder, name), told);
  }
  if (isAdapter) {
    const config = JSON.parse(await readFile(path.join(from, adapterConfig), 'utf8')) as Record<string, unknown>;
    const own = { ...config, base_model_name_or_path: base, inference_mode: true };
    await writeFile(path.join(folder, adapterConfig), `${JSON.stringify(own, null, 2)}\n`);
  }
  const names = await readdir(from);
  const index = names.filter((name) => name.endsWith('.safetensors.index.json'));
  for (const name of [...weightFilesIn(names), ...index])
    await linkFile(path.join(from, name), path.join(folder, name));
}

/** Servers compute in the precision that the config names. */
function withDtype(text: string, dtype: string): string {
  const config = JSON.parse(text) as Record<string, unknown>;
  const name = 'dtype' in config && !('torch_dtype' in config) ? 'dtype' : 'torch_dtype';
  return `${JSON.stringify({ ...config, [name]: dtype }, null, 2)}\n`;
}

/** What of a model's config decides how a batch for it is checked and packed. */
export async function modelFacts(
  folder: string,
): Promise<{ vocabulary: number; cost: ReturnType<typeof packingCost> }> {
  const config = JSON.parse(await readFile(path.join(folder, 'config.json'), 'utf8')) as {
    readonly vocab_size?: unknown;
    readonly text_config?: { readonly vocab_size?: unknown };
  };
  const size = config.vocab_size ?? config.text_config?.vocab_size;
  if (typeof size === 'number') return { vocabulary: size, cost: packingCost(config) };
  throw new RatchetError('ModelUnsupported', `${folder}/config.json: expected vocab_size, got ${String(size)}.`);
}
