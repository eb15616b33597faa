import { copyFile, link, mkdir, readdir, realpath, writeFile } from 'node:fs/promises';
import path from 'node:path';
import { z } from 'zod';
import { RatchetError } from '../../core/errors.ts';
import { problemsIn } from '../../core/problems-in.ts';
import { ofRepository } from '../../engine/model/model-repository.ts';
import { openRegular } from '../../host/regular-file.ts';
import { readModelText } from '../../engine/model/text-files.ts';
import { ServerFacts } from './server-facts.ts';
import { adapterConfigFile, adapterFile } from './weight-files.ts';

/**
 * A version trained on a Tinker server, as a folder: the weights, an adapter in PEFT's form or all of them in Hugging
 * Face's; the model's tokenizer; and `tinker.json` with the server's paths. The server's copies serve for further
 * training and sampling; the weights are the version itself: their digest is the version's.
 */
const versionFile = 'tinker.json';

const TinkerVersion = z.strictObject({
  format: z.literal('ratchet-tinker-1'),
  url: z.string(),
  baseModel: z.string(),
  /** Of the adapter; 0 = all weights are trained. */
  rank: z.int().min(0),
  /** Seed of the adapter's initialization. */
  seed: z.int(),
  /** The model that owns these checkpoints on the server. */
  modelId: z.string(),
  /** Weights and optimizer, for further training. */
  trainingPath: z.string(),
  samplerPath: z.string(),
  /** Digest of the weights: see `inspectWeights`. */
  digest: z.string(),
  /** Tokens that end a turn: these servers know none themselves. */
  endTokenIds: z.array(z.int()),
  /** What the server was found to do; absent in versions of before it was measured, and on the hosted service. */
  server: ServerFacts.optional(),
});
export type TinkerVersion = z.infer<typeof TinkerVersion>;

/**
 * Name of a version's checkpoints on the server, with its place in the order of versions that one model had: a server
 * that samples from its latest weights only is asked by it which ones these are.
 */
export function nextName(before: string | null, id: string): string {
  return `ratchet-${(before === null ? -1 : orderOf(before)) + 1}-${id}`;
}

/** The place in the order, from a path or name of {@link nextName}; 0 for names of before there were any. */
export function orderOf(checkpoint: string): number {
  return Number(/(?:^|\/)ratchet-(\d+)-[0-9a-f]{8}-/.exec(checkpoint)?.[1] ?? 0);
}

/** The name of the sampler's checkpoint of a version, whatever model saves it. */
export function samplerName(trainingPath: string): string {
  return `${path.posix.basename(trainingPath)}-sampler`;
}

/** A version in work: its weights are files of a folder on this machine. */
export interface VersionFolder {
  readonly version: TinkerVersion;
  /** Folder with the weights' files. */
  readonly weights: string;
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

/** Names of the files that hold a version's weights, those of the base left out. */
export async function weightFilesOf(folder: string): Promise<string[]> {
  const names = (await readdir(folder)).toSorted();
  if (names.includes(adapterFile)) return [adapterConfigFile, adapterFile];
  return names.filter((name) => name.endsWith('.safetensors') || name.endsWith('.safetensors.index.json'));
}

/** Brings the weights' files of a version into another folder. */
export async function takeWeights(from: string, to: string): Promise<void> {
  await mkdir(to, { recursive: true });
  for (const name of await weightFilesOf(from)) await linkOrCopy(path.join(from, name), path.join(to, name));
}

/** Writes the weights last: a folder that has them is whole. */
export async function writeVersion(folder: string, { version, weights, texts }: VersionFolder): Promise<void> {
  await mkdir(folder, { recursive: true });
  const isAdapter = (await weightFilesOf(weights)).includes(adapterFile);
  for (const [name, text] of Object.entries(texts)) {
    if (isAdapter && name === 'config.json') continue; // beside an adapter it would promise weights that are missing
    await mkdir(path.dirname(path.join(folder, name)), { recursive: true });
    await writeFile(path.join(folder, name), text);
  }
  await writeFile(path.join(folder, versionFile), `${JSON.stringify(version, null, 2)}\n`);
  await takeWeights(weights, folder);
}

/** A second name for the same bytes where the file system allows it; nothing changes a file of weights in place. */
async function linkOrCopy(from: string, to: string): Promise<void> {
  await (await openRegular(from, ofRepository(path.dirname(from)))).close(); // refuses a link that leads out of the folder
  const real = await realpath(from);
  try {
    await link(real, to);
  } catch (error) {
    const { code } = error as NodeJS.ErrnoException;
    if (code === 'EEXIST' || code === 'EXDEV' || code === 'EPERM' || code === 'EMLINK') await copyFile(real, to);
    else throw error;
  }
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
