import { createHash } from 'node:crypto';
import { type TarEntry, writeTar } from '../../host/archives/write-tar.ts';
import { encodeJson, streamOf } from '../../store/objects.ts';
import type { StoredStream } from '../../store/types.ts';
import { layout, lineageOf, stepOf } from '../layout.ts';
import { type RunPlace, runRecordOf, storeOf } from '../run-access.ts';
import { archivedAs, checkpointOf, isCommit, isDerived, isSeal } from './archived-keys.ts';
import {
  archiveFormat,
  archiveSumsName,
  archiveVersion,
  type ArchiveHead,
  headName,
  objectsPrefix,
} from './archive-form.ts';
import { lackOf, needsOfSeal } from './whole-seals.ts';

/** What an archive holds, and what not. */
export interface ArchivedRun {
  readonly objects: number;
  readonly bytes: number;
  /** Keys in the run's folder that no run stores. They are not in it. */
  readonly unknown: readonly string[];
  /** Sealed checkpoints that are not in it as such, each with what it lacks. */
  readonly unsealed: readonly { readonly key: string; readonly lacks: string }[];
}

/**
 * A run as an archive, in pieces; `told` gets what is in it, at the end. The run may be open: all that a commit or a
 * checkpoint of the archive needs was stored before it, and is listed and read after it. What retention removes
 * meanwhile is missing, and a checkpoint that lacks something is not in it.
 */
export async function* archiveOfRun(run: RunPlace, told: (archived: ArchivedRun) => void): AsyncGenerator<Uint8Array> {
  await runRecordOf(run); // there is such a run
  const digests = new Map<string, string>();
  const archived = { objects: 0, bytes: 0, unknown: [] as string[], unsealed: [] as { key: string; lacks: string }[] };
  yield* writeTar(entriesOf(run, digests, archived));
  told(archived);
}

interface Archived {
  objects: number;
  bytes: number;
  unknown: string[];
  readonly unsealed: { key: string; lacks: string }[];
}

async function* entriesOf(run: RunPlace, digests: Map<string, string>, archived: Archived): AsyncGenerator<TarEntry> {
  const store = storeOf(run);
  const sums: string[] = [];
  const entry = (name: string, { bytes, content }: StoredStream, done: (digest: string) => void): TarEntry => ({
    is: 'file',
    name,
    mode: 0o644,
    modifiedS: 0, // equal runs give equal archives
    size: bytes,
    content: hashed(content, (digest) => {
      sums.push(`${digest}  ${name}\n`);
      done(digest);
    }),
  });
  const stored = async function* (key: string, found: StoredStream): AsyncGenerator<TarEntry> {
    yield entry(objectsPrefix + key, found, (digest) => {
      digests.set(key, digest);
      archived.objects += 1;
      archived.bytes += found.bytes;
    });
  };
  const object = async function* (key: string): AsyncGenerator<TarEntry> {
    const found = digests.has(key) ? null : await store.stream(key);
    if (found !== null) yield* stored(key, found); // null: retention removed it since it was listed
  };
  // What it needs is read before its parts: retention removes a checkpoint while they are written, which takes long.
  const checkpoint = async function* (seal: string, parts: readonly string[]): AsyncGenerator<TarEntry, string | null> {
    const sealing = await store.read(seal);
    if (sealing === null) return `${seal} is gone.`;
    const needs = await needsOfSeal(run, seal);
    if (typeof needs === 'string') return needs;
    const lacks = lackOf(
      needs.filter(({ key }) => !parts.includes(key)),
      digests,
    );
    if (lacks !== null) return lacks;
    for (const part of parts) yield* object(part);
    const lacksPart = lackOf(needs, digests);
    if (lacksPart === null) yield* stored(seal, streamOf(sealing));
    return lacksPart;
  };

  const head: ArchiveHead = { format: archiveFormat, version: archiveVersion, run: run.name };
  yield entry(headName, streamOf(encodeJson(head)), () => undefined);
  for (const key of await store.list('')) if (isDerived(key) && isWanted(key)) yield* object(key);
  yield* object(layout.metrics());
  const commits = (await store.list(layout.allLineages())).filter(isCommit);
  const newest = new Map<string, number>();
  for (const key of commits) newest.set(lineageOf(key), Math.max(newest.get(lineageOf(key)) ?? 0, stepOf(key) ?? 0));
  const isMade = (seal: string): boolean => stepOf(seal)! <= (newest.get(lineageOf(seal)) ?? -1);
  const seals = (await store.list('')).filter((key) => isSeal(key) && isMade(key));
  const all = await store.list('');
  archived.unknown = all.filter((key) => archivedAs(key) === 'unknown');
  const partsOf = new Map(seals.map((seal) => [checkpointOf(seal), new Array<string>()]));
  for (const key of all) {
    if (!isWanted(key) || isCommit(key) || isSeal(key) || isDerived(key)) continue;
    const parts = partsOf.get(checkpointOf(key));
    if (parts === undefined) yield* object(key);
    else parts.push(key);
  }
  for (const key of commits) yield* object(key);
  for (const seal of seals) {
    const lacks = yield* checkpoint(seal, partsOf.get(checkpointOf(seal))!);
    if (lacks !== null) archived.unsealed.push({ key: seal, lacks });
  }
  yield entry(archiveSumsName, streamOf(Buffer.from(sums.join(''))), () => undefined);
}

function isWanted(key: string): boolean {
  return archivedAs(key) === 'archived';
}

async function* hashed(content: AsyncIterable<Uint8Array>, done: (digest: string) => void): AsyncGenerator<Uint8Array> {
  const hash = createHash('sha256');
  for await (const piece of content) {
    hash.update(piece);
    yield piece;
  }
  done(hash.digest('hex'));
}
