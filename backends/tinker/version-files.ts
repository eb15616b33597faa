import { createHash } from 'node:crypto';
import { mkdir, writeFile } from 'node:fs/promises';
import path from 'node:path';
import { z } from 'zod';
import { RatchetError } from '../../core/errors.ts';
import { problemsIn } from '../../core/problems-in.ts';
import { ofRepository } from '../../engine/model/model-repository.ts';
import { readRegular } from '../../host/regular-file.ts';
import { readModelText } from '../../engine/model/text-files.ts';
import { decodeSafetensors, encodeSafetensors, type NamedTensor } from '../../engine/model/safetensors.ts';

/**
 * A version trained on a Tinker server, as a folder: the adapter in PEFT's form, the model's tokenizer, and
 * `tinker.json` with the server's paths. The server's copies serve for further training and sampling; the adapter is
 * the version itself: its digest is the version's.
 */
const versionFile = 'tinker.json';
const weightsFile = 'adapter_model.safetensors';
const configFile = 'adapter_config.json';

const TinkerVersion = z.strictObject({
  format: z.literal('ratchet-tinker-1'),
  url: z.string(),
  baseModel: z.string(),
  rank: z.int().positive(),
  /** Seed of the adapter's initialization. */
  seed: z.int(),
  /** The model that owns these checkpoints on the server. */
  modelId: z.string(),
  /** Weights and optimizer, for further training. */
  trainingPath: z.string(),
  samplerPath: z.string(),
  /** Digest of the adapter: see {@link adapterDigest}. */
  digest: z.string(),
  /** Tokens that end a turn: these servers know none themselves. */
  endTokenIds: z.array(z.int()),
});
export type TinkerVersion = z.infer<typeof TinkerVersion>;

export interface VersionFolder {
  readonly version: TinkerVersion;
  readonly adapter: ReadonlyMap<string, Uint8Array>;
  /** The model's texts. */
  readonly texts: Readonly<Record<string, string>>;
}

export async function readVersion(folder: string): Promise<TinkerVersion> {
  const file = path.join(folder, versionFile);
  let text: string;
  try {
    text = await readModelText(folder, versionFile);
  } catch (cause) {
    throw new RatchetError(
      'ModelUnsupported',
      `${folder} has no ${versionFile}: its weights were not trained on a Tinker server, which can only continue from checkpoints of its own. Begin a run of its own there, or continue with the trainer that made them.`,
      { cause },
    );
  }
  const parsed = TinkerVersion.safeParse(JSON.parse(text));
  if (parsed.success) return parsed.data;
  throw new RatchetError('CheckpointDamaged', `${file}: ${problemsIn(parsed.error)}`);
}

export async function readAdapterFiles(folder: string): Promise<Map<string, Uint8Array>> {
  const names = [weightsFile, configFile];
  return new Map(
    await Promise.all(
      names.map(
        async (name) => [name, await readRegular(path.join(folder, name), undefined, ofRepository(folder))] as const,
      ),
    ),
  );
}

/** Writes the weights last: a folder that has them is whole. */
export async function writeVersion(folder: string, { version, adapter, texts }: VersionFolder): Promise<void> {
  await mkdir(folder, { recursive: true });
  for (const [name, text] of Object.entries(texts)) {
    await mkdir(path.dirname(path.join(folder, name)), { recursive: true });
    await writeFile(path.join(folder, name), text);
  }
  await writeFile(path.join(folder, versionFile), `${JSON.stringify(version, null, 2)}\n`);
  await writeFile(path.join(folder, configFile), adapter.get(configFile)!);
  await writeFile(path.join(folder, weightsFile), adapter.get(weightsFile)!);
}

/** sha256 over the adapter's tensors by name, so that it does not depend on how a server writes its files. */
export function adapterDigest(weights: Uint8Array): string {
  const hash = createHash('sha256');
  for (const [name, { shape, data }] of tensorsOf(weights)) {
    hash.update(`${name} ${shape.join('x')} ${data.constructor.name}\n`);
    hash.update(new Uint8Array(data.buffer, data.byteOffset, data.byteLength));
  }
  return hash.digest('hex');
}

/** Name of the first tensor with a number that is not finite; null if there is none. */
export function strangeTensor(weights: Uint8Array): string | null {
  const found = tensorsOf(weights).find(
    ([, { data }]) => data instanceof Float32Array && data.some((value) => !Number.isFinite(value)),
  );
  return found?.[0] ?? null;
}

/**
 * The adapter for readers of PEFT files: fills in the adapted layers, which SkyRL leaves open and the names of its
 * tensors show; and puts tensors in one order, so that equal adapters are equal files.
 */
export function asPeft(files: ReadonlyMap<string, Uint8Array>): Map<string, Uint8Array> {
  const tensors = tensorsOf(files.get(weightsFile)!);
  const config = z
    .record(z.string(), z.unknown())
    .parse(JSON.parse(Buffer.from(files.get(configFile)!).toString('utf8')));
  const modules = tensors.flatMap(([name]) => /\.([^.]+)\.lora_A\./.exec(name)?.[1] ?? []);
  const complete = {
    ...config,
    target_modules: config['target_modules'] ?? [...new Set(modules)].sort(),
    task_type: config['task_type'] ?? 'CAUSAL_LM',
  };
  return new Map([
    [weightsFile, encodeSafetensors(Object.fromEntries(tensors), { format: 'pt' })],
    [configFile, Buffer.from(`${JSON.stringify(complete, null, 2)}\n`)],
  ]);
}

function tensorsOf(weights: Uint8Array): [string, NamedTensor][] {
  return [...decodeSafetensors(weights, weightsFile).tensors].sort(([a], [b]) => (a < b ? -1 : 1));
}

const Texts = z.looseObject({ eos_token_id: z.union([z.int(), z.array(z.int())]).nullish() });

/** Tokens that end a turn, from the model's own configs. */
export function endTokensIn(texts: Readonly<Record<string, string>>): number[] {
  const found = ['config.json', 'generation_config.json'].flatMap((name) => {
    const text = texts[name];
    return text === undefined ? [] : [Texts.parse(JSON.parse(text)).eos_token_id ?? []].flat();
  });
  if (found.length > 0) return [...new Set(found)];
  throw new RatchetError(
    'ModelUnsupported',
    'The model’s folder must say which tokens end a turn: expected an eos_token_id in its config.json or generation_config.json, got none.',
  );
}
