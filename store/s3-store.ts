import path from 'node:path';
import { RatchetError } from '../core/errors.ts';
import type { ObjectRef } from '../core/rl/run-state.ts';
import { outside, requireSha256, sha256, sha256OfFile } from './file-store.ts';
import { isTailPart, tailOf } from './log-tail.ts';
import { streamOf } from './objects.ts';
import { checkS3 } from './s3-check.ts';
import { deleteObjects, getObjectRange, headObject, listFolders, listObjects, listPages } from './s3-download.ts';
import { copiesFolder, copyFolder, copyLimits, type CopyLimits, forgetCopy } from './s3-local-copies.ts';
import { appendToLog, createObject, forgetLogs, joinLog } from './s3-log.ts';
import { openS3Requests, s3Limits, type S3Limits, type S3Requests } from './s3-requests.ts';
import { asksMax, getPieces, getSound, namedAs, untilAskedAgain } from './s3-sound.ts';
import { cutOffUploads } from './s3-uploads.ts';
import { abort, metadataNames, sourceOfBytes, upload, withFileSource } from './s3-upload.ts';
import type { S3Location } from './store-uri.ts';
import type { Store, StoredSize, StoredStream, Uploads } from './types.ts';

export interface S3StoreOptions {
  readonly limits?: Partial<S3Limits>;
  readonly copies?: Partial<CopyLimits>;
}

/** Attempts to create a key; the winner may change meanwhile, when others remove the key. */
const createsMax = 5;

/** A prefix of a bucket as a store. Objects copied to a folder, or back, are the same run. */
export class S3Store implements Store {
  readonly uri: string;
  readonly uploads: Uploads;
  readonly #prefix: string;
  readonly #copies: string;
  readonly #copyLimits: CopyLimits;
  readonly #requests: S3Requests;

  /** `location` is the place of all runs. */
  constructor(location: S3Location, run: string, { limits, copies }: S3StoreOptions = {}) {
    this.#requests = openS3Requests(location, { ...s3Limits, ...limits });
    this.#prefix = `${location.prefix}${run}/`;
    this.#copies = path.join(copiesFolder(location), run);
    this.#copyLimits = { ...copyLimits, ...copies };
    this.uri = `s3://${location.bucket}/${this.#prefix}`;
    this.uploads = {
      cutOff: (olderThanMs) => cutOffUploads(this.#requests, this.#prefix, olderThanMs),
      abort: ({ key, id }) => abort(this.#requests, this.#inside(key), id),
    };
  }

  async put(key: string, bytes: Uint8Array): Promise<ObjectRef> {
    const source = sourceOfBytes(bytes);
    await upload(this.#requests, this.#inside(key), source, namedAs(key));
    return { key, sha256: source.sha256, bytes: source.bytes };
  }

  async putFile(key: string, file: string, within = [path.dirname(file)]): Promise<ObjectRef> {
    const target = this.#inside(key);
    return withFileSource(file, within, async (source) => {
      await upload(this.#requests, target, source, namedAs(key));
      return { key, sha256: source.sha256, bytes: source.bytes };
    });
  }

  async putIfAbsent(key: string, bytes: Uint8Array): Promise<{ stored: boolean; bytes: Uint8Array }> {
    const target = this.#inside(key);
    const metadata = { ...namedAs(key), [metadataNames.sha256]: sha256(bytes) };
    for (let ask = 1; ask <= createsMax; ask++) {
      if (await createObject(this.#requests, target, bytes, metadata)) return { stored: true, bytes };
      const found = await getSound(this.#requests, target, { isThere: true, name: key });
      if (found) return { stored: false, bytes: found.content };
    }
    throw new RatchetError('StoreUnavailable', `${key} in ${this.uri} is written and removed all the time by others.`);
  }

  async get(ref: ObjectRef): Promise<Uint8Array> {
    const found = await getSound(this.#requests, this.#inside(ref.key), { isThere: true, sha256: ref.sha256 });
    requireSha256(ref, this.uri, found && found.sha256);
    return found!.content;
  }

  async verify(ref: ObjectRef): Promise<void> {
    for (let ask = 1; ; ask++) {
      const folder = await this.localFolder(path.posix.dirname(ref.key));
      const found = await sha256OfFile(path.join(folder, path.posix.basename(ref.key)));
      if (found === ref.sha256) return;
      // The copy was checked against the bucket's sha256 on download, so two tries are enough. A missing object may still appear.
      if (ask === asksMax || (found !== null && ask > 1)) return requireSha256(ref, this.uri, found);
      await forgetCopy(folder); // the local copy may be the damaged one
      if (found === null) await untilAskedAgain(this.#requests, ask);
    }
  }

  async read(key: string): Promise<Uint8Array | null> {
    const target = this.#inside(key);
    const found = await getSound(this.#requests, target, { name: key });
    if (!found) return null;
    if (found.metadata[metadataNames.log] === undefined) return found.content;
    return joinLog(this.#requests, target, found.content);
  }

  async list(prefix: string): Promise<string[]> {
    const objects = await listObjects(this.#requests, this.#inside(prefix));
    return objects
      .map(({ key }) => key)
      .filter((key) => !isTailPart(key))
      .map((key) => key.slice(this.#prefix.length))
      .sort();
  }

  async *sizes(prefix: string): AsyncGenerator<StoredSize> {
    for await (const page of listPages(this.#requests, this.#inside(prefix)))
      for (const { key, ...about } of page) yield { key: key.slice(this.#prefix.length), ...about };
  }

  async stream(key: string): Promise<StoredStream | null> {
    const target = this.#inside(key);
    const head = await headObject(this.#requests, target);
    const isWhole = head === null || head.bytes <= this.#requests.limits.partBytes;
    if (!isWhole && head.metadata[metadataNames.log] === undefined)
      return { bytes: head.bytes, content: getPieces(this.#requests, target, head) };
    const bytes = await this.read(key);
    return bytes && streamOf(bytes);
  }

  async removeAll(prefix: string): Promise<void> {
    const target = this.#inside(prefix);
    const below = target.endsWith('/') ? target : `${target}/`;
    const isMeant = (key: string): boolean => key === target || key.startsWith(below) || key.startsWith(tailOf(target));
    const keys = (await listObjects(this.#requests, target)).map(({ key }) => key).filter(isMeant);
    await deleteObjects(this.#requests, keys);
    forgetLogs(this.#requests, target);
  }

  async readFrom(key: string, offset: number): Promise<Uint8Array | null> {
    const whole = await this.read(key);
    return whole === null || whole.byteLength < offset ? null : whole.subarray(offset);
  }

  async readRange(key: string, offset: number, bytes: number): Promise<Uint8Array | null> {
    const target = this.#inside(key);
    for (let ask = 1; ; ask++) {
      const found = await getObjectRange(this.#requests, target, offset, bytes);
      if (found || ask === asksMax || (await headObject(this.#requests, target)) === null) return found;
      await untilAskedAgain(this.#requests, ask);
    }
  }

  async append(key: string, line: string | Uint8Array): Promise<void> {
    await appendToLog(this.#requests, this.#inside(key), line);
  }

  async localFolder(prefix: string): Promise<string> {
    const target = this.#inside(prefix).replace(/\/$/, '');
    const folder = path.join(this.#copies, target.slice(this.#prefix.length));
    const { uri } = this;
    await copyFolder({ requests: this.#requests, prefix: `${target}/`, folder, uri, limits: this.#copyLimits });
    return folder;
  }

  /** A key in the bucket; throws for one that leads out of the run's prefix. */
  #inside(key: string): string {
    const plain = path.posix.normalize(key === '' ? '.' : key);
    if (plain === '.' || plain === './') return this.#prefix;
    if (plain === '..' || plain.startsWith('../') || plain.startsWith('/')) throw outside(key, this.uri);
    return this.#prefix + plain;
  }
}

/** Names of what lies directly below the place of all runs. */
export async function foldersInS3(location: S3Location): Promise<string[]> {
  return listFolders(openS3Requests(location, s3Limits), location.prefix);
}

/** Throws unless the server accepts writes below the prefix and honours conditional writes. */
export async function checkS3Store(location: S3Location, limits: Partial<S3Limits> = {}): Promise<void> {
  await checkS3(openS3Requests(location, { ...s3Limits, ...limits }), location.prefix);
}
