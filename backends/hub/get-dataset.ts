import { existsSync, readdirSync, readFileSync, statSync } from 'node:fs';
import path from 'node:path';
import { RatchetError } from '../../core/errors.ts';
import { datasetCardBytesMax } from '../../core/limits.ts';
import { type DatasetPart, filesOfPart, missingShards } from './dataset-files.ts';
import { writeAtOnce } from '../../host/write-at-once.ts';
import { repositoryFolder, snapshotIn } from './hub-cache.ts';
import { HubClient, type HubFile } from './hub-client.ts';
import type { HubSettings } from './hub-settings.ts';
import { again, bytesOf, type HubProgress, requireRevision, requireRoom, Snapshot } from './snapshot.ts';

interface Asked extends DatasetPart {
  /** Form: OWNER/NAME. */
  readonly id: string;
  /** A branch, a tag or a commit. */
  readonly revision?: string;
  readonly onProgress?: (progress: HubProgress) => void;
}

export interface GotDataset {
  readonly folder: string;
  readonly commit: string;
  /** Files with the rows of the part, absolute, in order. */
  readonly files: readonly string[];
}

/** A part of a dataset in the Hugging Face cache; null if it is missing or incomplete. */
export function findCachedDataset(
  { cache }: Pick<HubSettings, 'cache'>,
  { id, revision, ...part }: Asked,
): GotDataset | null {
  const found = snapshotIn(repositoryFolder(cache, id, 'datasets'), revision);
  if (found === null) return null;
  try {
    const names = readdirSync(found.folder, { recursive: true }).map((name) => String(name).replaceAll(path.sep, '/'));
    const files = filesOfPart(id, names, part, cardIn(found.folder));
    if (missingShards(files).length > 0 || !isWhole(noteOf(cache, id, found.commit), part)) return null;
    return { ...found, files: files.map((name) => path.join(found.folder, ...name.split('/'))) };
  } catch (error) {
    if (error instanceof RatchetError) return null; // the present files are of another part
    throw error;
  }
}

/**
 * A part of a Hub dataset in the Hugging Face cache, fetched like models (`getModel`): existing files are not fetched
 * again, each file is verified with its digest, and interrupted downloads are continued. Throws ModelUnsupported,
 * ServerUnavailable, StoreFull, CheckpointDamaged.
 */
export async function getDataset(settings: HubSettings, asked: Asked): Promise<GotDataset> {
  const { id, revision = 'main', onProgress, ...part } = asked;
  requireRevision(revision);
  if (settings.isOffline) {
    const found = findCachedDataset(settings, asked);
    if (found) return found;
    const message = `The dataset ${id} (${partName(part)}) is not in ${settings.cache}, and HF_HUB_OFFLINE says that nothing is fetched. Unset it, or copy the cache here.`;
    throw new RatchetError('ModelUnsupported', message);
  }
  const client = new HubClient(settings, 'datasets');
  const repository = await again(() => client.repository(id, revision));
  const fileOf = async (name: string): Promise<HubFile> =>
    repository.files.get(name) ?? again(() => client.file(id, repository.commit, name));
  const into = new Snapshot(client, repositoryFolder(settings.cache, id, 'datasets'), id, repository.commit);
  if (repository.names.includes(cardName)) await into.addAll([await fileOf(cardName)]);
  const names = filesOfPart(id, repository.names, part, cardIn(into.folder));
  const wanted: HubFile[] = [];
  for (const name of names) wanted.push(await fileOf(name));
  await requireRoom(settings.cache, id, bytesOf(wanted));
  const files = await into.addAll(wanted, onProgress);
  await into.name(revision);
  await noteWhole(noteOf(settings.cache, id, repository.commit), part);
  return { folder: into.folder, commit: repository.commit, files };
}

/**
 * Records which parts were fetched whole: patterns of a card would also match files fetched for another part. Without a
 * note the cache was filled by another program, which fetched all of it.
 */
function noteOf(cache: string, id: string, commit: string): string {
  return path.join(repositoryFolder(cache, id, 'datasets'), `.parts-${commit}.json`);
}

function isWhole(note: string, part: DatasetPart): boolean {
  return !existsSync(note) || notedIn(note).includes(partName(part));
}

async function noteWhole(note: string, part: DatasetPart): Promise<void> {
  const before = existsSync(note) ? notedIn(note) : [];
  if (!before.includes(partName(part)))
    await writeAtOnce(note, Buffer.from(JSON.stringify([...before, partName(part)])));
}

function notedIn(note: string): readonly string[] {
  try {
    const parts: unknown = JSON.parse(readFileSync(note, 'utf8'));
    return Array.isArray(parts) ? parts.map(String) : [];
  } catch {
    return []; // an unreadable note means fetching again
  }
}

const cardName = 'README.md';

/** The card of a dataset in the cache; null if it has none. */
function cardIn(folder: string): string | null {
  const file = path.join(folder, cardName);
  if (!existsSync(file)) return null;
  if (statSync(file).size > datasetCardBytesMax)
    throw new RatchetError('ModelUnsupported', `${file} has more than ${datasetCardBytesMax} bytes: expected a card.`);
  return readFileSync(file, 'utf8');
}

export function partName({ subset, split }: DatasetPart): string {
  return subset === null ? `split ${split}` : `subset ${subset}, split ${split}`;
}
