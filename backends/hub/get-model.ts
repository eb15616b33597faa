import { rmdir } from 'node:fs/promises';
import path from 'node:path';
import { RatchetError } from '../../core/errors.ts';
import { readModelText, requiredFiles } from '../../engine/model/text-files.ts';
import { findCached, repositoryFolder } from './hub-cache.ts';
import { HubClient, type HubFile, type HubRepositoryAt } from './hub-client.ts';
import type { HubSettings } from './hub-settings.ts';
import { again, bytesOf, type HubProgress, requireRoom, requireRevision, Snapshot } from './snapshot.ts';
import { type ModelParts, shardsOf, textFilesOf, weightsIndex, wholeWeights } from './model-files.ts';

interface Asked {
  /** Form: OWNER/NAME. */
  readonly id: string;
  /** A branch, a tag or a commit. */
  readonly revision?: string;
  readonly parts: ModelParts;
  /** Checks config.json before anything large is fetched; it may throw. */
  readonly accept?: (config: string) => void;
  readonly onProgress?: (progress: HubProgress) => void;
}

interface GotModel {
  readonly folder: string;
  readonly commit: string;
  /** Its files, including those that existed. */
  readonly files: readonly string[];
  readonly bytes: number;
  /** Nothing was fetched. */
  readonly wasHere: boolean;
}

/**
 * A Hub model in the Hugging Face cache, where other tools find it: fetched if missing, each file verified with its
 * digest. May be interrupted at any time and repeated; of two concurrent processes one waits for the other. Throws
 * ModelUnsupported, ServerUnavailable, StoreFull, and CheckpointDamaged for another digest.
 */
export async function getModel(settings: HubSettings, asked: Asked): Promise<GotModel> {
  const { id, revision = 'main', parts } = asked;
  requireRevision(revision);
  if (settings.isOffline) return fromCache(settings, asked);
  const client = new HubClient(settings);
  const model = await again(() => client.repository(id, revision));
  const into = new Snapshot(client, repositoryFolder(settings.cache, id), id, model.commit);
  requireTexts(id, model);
  const before = findCached(settings.cache, id, parts, model.commit);
  const wasHere = before !== null && before.missing.length === 0;
  const first = await fileOf(client, id, model, 'config.json');
  await addConfig(into, first, repositoryFolder(settings.cache, id));
  asked.accept?.(await readModelText(into.folder, 'config.json'));
  const wanted: HubFile[] = [];
  const names = [...textFilesOf(model.names), ...(parts === 'texts' ? [] : await weightNames(client, into, id, model))];
  for (const name of names) wanted.push(await fileOf(client, id, model, name));
  const bytes = bytesOf(wanted);
  if (!wasHere) await requireRoom(settings.cache, id, bytes);
  await into.addAll(wanted, asked.onProgress);
  await into.name(revision);
  return { folder: into.folder, commit: model.commit, files: names, bytes, wasHere };
}

/** Fetches the first file. A refused model leaves no folder: other tools take one without a snapshot for damaged. */
async function addConfig(into: Snapshot, file: HubFile, repository: string): Promise<string> {
  try {
    return await into.add(file, () => undefined);
  } catch (error) {
    // A non-empty folder stays.
    for (const folder of [path.join(repository, 'blobs'), repository]) await rmdir(folder).catch(() => undefined);
    throw error;
  }
}

function fromCache({ cache }: HubSettings, { id, revision, parts, accept }: Asked): Promise<GotModel> {
  const found = findCached(cache, id, parts, revision);
  if (found === null || found.missing.length > 0) {
    const lacks = found === null ? `is not in ${cache}` : `lacks ${found.missing.join(', ')} in ${found.folder}`;
    const message = `${id} ${lacks}, and HF_HUB_OFFLINE says that nothing is fetched. Unset it, or copy the cache here.`;
    return Promise.reject(new RatchetError('ModelUnsupported', message));
  }
  const { folder, commit } = found;
  const got = { folder, commit, files: [], bytes: 0, wasHere: true };
  return readModelText(folder, 'config.json').then((config) => {
    accept?.(config);
    return got;
  });
}

function requireTexts(id: string, { names, commit }: HubRepositoryAt): void {
  const missing = requiredFiles.filter((name) => !names.includes(name));
  if (missing.length === 0) return;
  const message = `${id} at ${commit.slice(0, 8)} has no ${missing.join(', ')}. Expected a model with its tokenizer (${requiredFiles.join(', ')}).`;
  throw new RatchetError('ModelUnsupported', message);
}

/** One file, or the index and its files. */
async function weightNames(client: HubClient, into: Snapshot, id: string, model: HubRepositoryAt): Promise<string[]> {
  if (model.names.includes(wholeWeights)) return [wholeWeights];
  if (!model.names.includes(weightsIndex)) {
    const others = model.names.filter((name) => /\.(?:bin|pt|pth|gguf|onnx|safetensors)$/.test(name));
    const has =
      others.length === 0 ? 'no weights' : `${others.slice(0, 3).join(', ')}${others.length > 3 ? ', …' : ''}`;
    const message = `${id}: expected its weights as safetensors (${wholeWeights}, or ${weightsIndex}), got ${has}. Files of other formats may run code when they are opened, and are not fetched.`;
    throw new RatchetError('ModelUnsupported', message);
  }
  await into.add(await fileOf(client, id, model, weightsIndex), () => undefined);
  const shards = shardsOf(await readModelText(into.folder, weightsIndex));
  if (shards !== null) return [weightsIndex, ...shards];
  throw new RatchetError('ModelUnsupported', `${id}: ${weightsIndex} is no index of safetensors files.`);
}

async function fileOf(
  client: HubClient,
  id: string,
  { files, names, commit }: HubRepositoryAt,
  name: string,
): Promise<HubFile> {
  if (!names.includes(name)) throw new RatchetError('ModelUnsupported', `${id} has no ${name}, which its index names.`);
  return files.get(name) ?? again(() => client.file(id, commit, name));
}
