import { present } from '../core/present.ts';
import type { ListObjectsV2CommandOutput } from '@aws-sdk/client-s3';
import { createHash } from 'node:crypto';
import { open, type FileHandle } from 'node:fs/promises';
import type { Readable } from 'node:stream';
import { RatchetError } from '../core/errors.ts';
import { inParallel, isAbsence, type S3Requests } from './s3-requests.ts';

export interface ObjectHead {
  readonly etag: string;
  readonly bytes: number;
  readonly metadata: Readonly<Record<string, string>>;
}

export interface ListedObject {
  readonly key: string;
  readonly etag: string;
  readonly bytes: number;
  /** Now, where the server does not say it. */
  readonly putAtMs: number;
}

/** Receives the bytes of an object in any order: `chunk` starts at `offset`. */
interface Sink {
  readonly write: (chunk: Uint8Array, offset: number) => Promise<void> | void;
}

/** Reads of an object that changes meanwhile are repeated: its bytes would mix. */
const readsMax = 5;

/** An object's bytes, in parts when it is large; null when there is none. */
export async function getObject(
  requests: S3Requests,
  key: string,
): Promise<(ObjectHead & { readonly content: Uint8Array }) | null> {
  let content = new Uint8Array();
  const open = (bytes: number): Sink => {
    content = new Uint8Array(bytes);
    return { write: (chunk, offset) => content.set(chunk, offset) };
  };
  const head = await download(requests, key, open);
  return head && { ...head, content };
}

/** Requires a header that every complete answer has. A 200 without it counts as cut off, so the request is repeated. */
export function answeredWith(value: string | undefined, what: string): string {
  if (value !== undefined && value !== '') return value;
  throw new Error(`the answer has no ${what}, which every S3 server gives`);
}

/** The date replaces an ETag: a gateway over a folder has none for files that were put there by hand. */
function dateOf({ LastModified }: { readonly LastModified?: Date | undefined }): string | undefined {
  return LastModified?.toISOString();
}

/**
 * Returns up to so many bytes of an object from an offset; null if there is no object. Offset and length are checked.
 * The content is not, since the sha256 of an object covers all of it.
 */
export async function getObjectRange(
  requests: S3Requests,
  key: string,
  offset: number,
  bytes: number,
): Promise<Uint8Array | null> {
  if (bytes <= 0) return new Uint8Array();
  return requests.run<Uint8Array | null>({
    operation: 'GetObject',
    key,
    async send({ client, sdk }) {
      const Range = `bytes=${offset}-${offset + bytes - 1}`;
      const found = await client.send(new sdk.GetObjectCommand({ Bucket: requests.location.bucket, Key: key, Range }));
      answeredWith(found.ETag ?? dateOf(found), 'ETag');
      const [, start, total] = /^bytes (\d+)-\d+\/(\d+)$/.exec(found.ContentRange ?? '') ?? [];
      const content = new Uint8Array(found.ContentLength ?? 0);
      const expected = Math.min(bytes, Number(total) - offset);
      if (Number(start) !== offset || content.byteLength !== expected)
        throw new Error(
          `expected ${bytes} bytes from ${offset} on, answered ${found.ContentRange ?? 'without a range'}`,
        );
      await drain(found.Body as Readable, content.byteLength, (chunk, at) => content.set(chunk, at));
      return content;
    },
    answers({ status, code }) {
      if (isAbsence({ status, code })) return { value: null };
      return status === 416 ? { value: new Uint8Array() } : undefined; // it ends before
    },
  });
}

/**
 * Writes an object into a new file and returns its SHA-256, computed from the written file; null when there is no such
 * object.
 */
export async function getObjectToFile(
  requests: S3Requests,
  key: string,
  file: string,
): Promise<(ObjectHead & { readonly sha256: string }) | null> {
  const handle = await open(file, 'wx+');
  try {
    const head = await download(requests, key, () => ({ write: (chunk, offset) => writeAll(handle, chunk, offset) }));
    if (!head) return null;
    await handle.sync();
    const hash = createHash('sha256');
    for await (const chunk of handle.createReadStream({ autoClose: false, start: 0 })) hash.update(chunk as Buffer);
    return { ...head, sha256: hash.digest('hex') };
  } finally {
    await handle.close();
  }
}

export async function headObject(requests: S3Requests, key: string): Promise<ObjectHead | null> {
  return requests.run<ObjectHead | null>({
    operation: 'HeadObject',
    key,
    async send({ client, sdk }) {
      const found = await client.send(new sdk.HeadObjectCommand({ Bucket: requests.location.bucket, Key: key }));
      answeredWith(found.ETag ?? dateOf(found), 'ETag');
      return { etag: found.ETag ?? '', bytes: found.ContentLength ?? 0, metadata: found.Metadata ?? {} };
    },
    answers: ({ status, code }) => (isAbsence({ status, code }) ? { value: null } : undefined),
  });
}

/** All objects whose key begins with `prefix`, in byte order of their keys. */
export async function listObjects(requests: S3Requests, prefix: string): Promise<ListedObject[]> {
  const found: ListedObject[] = [];
  for await (const page of listPages(requests, prefix)) found.push(...page);
  return found;
}

/** The same, as they come. */
export async function* listPages(requests: S3Requests, prefix: string): AsyncGenerator<ListedObject[]> {
  for await (const { Contents = [] } of listAnswers(requests, prefix)) {
    // Consoles represent an empty folder by a key with a slash at its end.
    yield Contents.flatMap(({ Key, ETag = '', Size = 0, LastModified = new Date() }) =>
      Key !== undefined && !Key.endsWith('/')
        ? [{ key: Key, etag: ETag, bytes: Size, putAtMs: LastModified.getTime() }]
        : [],
    );
  }
}

/** Names of the folders directly below a prefix, without listing what is in them. */
export async function listFolders(requests: S3Requests, prefix: string): Promise<string[]> {
  const found: string[] = [];
  for await (const { CommonPrefixes = [] } of listAnswers(requests, prefix, '/'))
    for (const { Prefix = '' } of CommonPrefixes) found.push(Prefix.slice(prefix.length, -1));
  return found;
}

async function* listAnswers(
  requests: S3Requests,
  prefix: string,
  delimiter?: string,
): AsyncGenerator<ListObjectsV2CommandOutput> {
  for (let token: string | undefined; ;) {
    const page = await requests.run({
      operation: 'ListObjectsV2',
      key: prefix,
      async send({ client, sdk }) {
        const answer = await client.send(
          new sdk.ListObjectsV2Command({
            Bucket: requests.location.bucket,
            Prefix: prefix,
            ...present({ ContinuationToken: token, Delimiter: delimiter }),
          }),
        );
        if (answer.IsTruncated === undefined && answer.KeyCount === undefined) answeredWith(answer.Name, 'list');
        return answer;
      },
    });
    yield page;
    token = page.NextContinuationToken;
    if (token === undefined) return;
  }
}

/** Keys of one DeleteObjects request, by its documentation. */
const deletesMax = 1_000;

export async function deleteObjects(requests: S3Requests, keys: readonly string[]): Promise<void> {
  for (let start = 0; start < keys.length; start += deletesMax) {
    const batch = keys.slice(start, start + deletesMax);
    const Objects = batch.map((Key) => ({ Key }));
    await requests.run<void>({
      operation: `DeleteObjects (${batch.length})`,
      key: batch[0]!,
      async send({ client, sdk }) {
        const input = { Bucket: requests.location.bucket, Delete: { Objects, Quiet: true } };
        const [failed] = (await client.send(new sdk.DeleteObjectsCommand(input))).Errors ?? [];
        if (!failed) return;
        const status = failed.Code === 'AccessDenied' ? 403 : 500;
        const message = `${failed.Key}: ${failed.Message ?? failed.Code}`;
        throw Object.assign(new Error(message), {
          name: failed.Code ?? 'Unknown',
          $metadata: { httpStatusCode: status },
        });
      },
    });
  }
}

async function download(requests: S3Requests, key: string, open: (bytes: number) => Sink): Promise<ObjectHead | null> {
  const { partBytes, partsAtOnce } = requests.limits;
  for (let read = 1; read <= readsMax; read++) {
    const first = await getRange(requests, key, { start: 0, end: partBytes, etag: null, open });
    if (first === 'absent') return null;
    if (first === 'changed') continue;
    const { head, sink } = first;
    const starts = [];
    for (let start = partBytes; start < head.bytes; start += partBytes) starts.push(start);
    let isSame = true;
    await inParallel(starts, partsAtOnce, async (start) => {
      const end = Math.min(start + partBytes, head.bytes);
      const part = await getRange(requests, key, { start, end, etag: head.etag, open: () => sink });
      if (typeof part === 'string') isSame = false;
    });
    if (isSame) return head;
  }
  throw new RatchetError(
    'StoreUnavailable',
    `${key} in ${requests.place} is being written all the time; it was read ${readsMax} times.`,
  );
}

interface Range {
  readonly start: number;
  /** Exclusive. */
  readonly end: number;
  /** Refuses the bytes of another object; null = accepts any. */
  readonly etag: string | null;
  readonly open: (bytes: number) => Sink;
}

type RangeAnswer = { readonly head: ObjectHead; readonly sink: Sink } | 'absent' | 'changed';

async function getRange(requests: S3Requests, key: string, { start, end, etag, open }: Range): Promise<RangeAnswer> {
  const get = (range: string | null): Promise<RangeAnswer | 'empty'> =>
    requests.run<RangeAnswer | 'empty'>({
      operation: 'GetObject',
      key,
      async send({ client, sdk }) {
        const found = await client.send(
          new sdk.GetObjectCommand({
            Bucket: requests.location.bucket,
            Key: key,
            ...present({ Range: range ?? undefined, IfMatch: etag ?? undefined }),
          }),
        );
        answeredWith(found.ETag ?? dateOf(found), 'ETag');
        const length = found.ContentLength ?? 0;
        const total = Number(/\/(\d+)$/.exec(found.ContentRange ?? '')?.[1] ?? length);
        // Some servers answer a range request with the whole object.
        const isWhole = found.ContentRange === undefined && start === 0;
        if (!isWhole && length !== Math.min(end, total) - start)
          throw new Error(`expected bytes ${start} to ${Math.min(end, total)}, answered ${length} bytes`);
        const sink = open(total);
        await drain(found.Body as Readable, length, (chunk, offset) => sink.write(chunk, start + offset));
        return { head: { etag: found.ETag ?? '', bytes: total, metadata: found.Metadata ?? {} }, sink };
      },
      answers({ status, code }) {
        if (isAbsence({ status, code })) return { value: etag === null ? 'absent' : 'changed' };
        if (status === 412) return { value: 'changed' };
        return status === 416 ? { value: etag === null ? 'empty' : 'changed' } : undefined;
      },
    });
  const answer = await get(`bytes=${start}-${end - 1}`);
  if (answer !== 'empty') return answer;
  const whole = await get(null); // an empty object has no range
  return whole === 'empty' ? 'changed' : whole;
}

/** Reads a body to its end; a cut connection is an error even if the server closed it properly. */
async function drain(
  body: Readable,
  length: number,
  take: (chunk: Uint8Array, offset: number) => Promise<void> | void,
): Promise<void> {
  let offset = 0;
  for await (const chunk of body as AsyncIterable<Uint8Array>) {
    await take(chunk, offset);
    offset += chunk.byteLength;
  }
  if (offset !== length) throw new Error(`the answer ended after ${offset} of ${length} bytes`);
}

async function writeAll(handle: FileHandle, chunk: Uint8Array, offset: number): Promise<void> {
  for (let written = 0; written < chunk.byteLength;) {
    const { bytesWritten } = await handle.write(chunk, written, chunk.byteLength - written, offset + written);
    written += bytesWritten;
  }
}
