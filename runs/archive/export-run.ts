import { createHash } from 'node:crypto';
import { type TarEntry, writeTar } from '../../host/archives/write-tar.ts';
import { encodeJson, streamOf } from '../../store/objects.ts';
import type { StoredStream } from '../../store/types.ts';
import { layout } from '../layout.ts';
import { type RunPlace, runRecordOf, storeOf } from '../run-access.ts';
import { archivedAs, isCommit, isDerived, isSeal } from './archived-keys.ts';
import {
  archiveFormat,
  archiveSumsName,
  archiveVersion,
  type ArchiveHead,
  headName,
  objectsPrefix,
} from './archive-form.ts';
import { lackOfSeal } from './whole-seals.ts';

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
 * meanwhile is missing, and a checkpoint that lacks something is not sealed in it.
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
  const object = async function* (key: string): AsyncGenerator<TarEntry> {
    const found = digests.has(key) ? null : await store.stream(key);
    if (found === null) return; // retention removed it since it was listed
    yield entry(objectsPrefix + key, found, (digest) => {
      digests.set(key, digest);
      archived.objects += 1;
      archived.bytes += found.bytes;
    });
  };

  const head: ArchiveHead = { format: archiveFormat, version: archiveVersion, run: run.name };
  yield entry(headName, streamOf(encodeJson(head)), () => undefined);
  const before = (await store.list('')).filter((key) => archivedAs(key) === 'archived');
  const seals = before.filter(isSeal);
  for (const key of before.filter(isDerived)) yield* object(key);
  yield* object(layout.metrics());
  const commits = (await store.list(layout.allLineages())).filter(isCommit);
  const all = await store.list('');
  archived.unknown = all.filter((key) => archivedAs(key) === 'unknown');
  const isFence = (key: string): boolean => isCommit(key) || isSeal(key) || isDerived(key);
  for (const key of all) if (archivedAs(key) === 'archived' && !isFence(key)) yield* object(key);
  for (const key of commits) yield* object(key);
  for (const seal of seals) {
    const lacks = await lackOfSeal(run, seal, digests);
    if (lacks === null) yield* object(seal);
    else archived.unsealed.push({ key: seal, lacks });
  }
  yield entry(archiveSumsName, streamOf(Buffer.from(sums.join(''))), () => undefined);
}

async function* hashed(content: AsyncIterable<Uint8Array>, done: (digest: string) => void): AsyncGenerator<Uint8Array> {
  const hash = createHash('sha256');
  for await (const piece of content) {
    hash.update(piece);
    yield piece;
  }
  done(hash.digest('hex'));
}
