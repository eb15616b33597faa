import { createHash } from 'node:crypto';
import { setTimeout as delay } from 'node:timers/promises';
import { setImmediate as nextTurn } from 'node:timers/promises';
import { RatchetError } from '../core/errors.ts';
import { getObject, getObjectRange, headObject, type ObjectHead } from './s3-download.ts';
import type { S3Requests } from './s3-requests.ts';
import { metadataNames } from './s3-upload.ts';

/** An object that passed every comparison with what is known of it. */
interface SoundObject {
  readonly content: Uint8Array;
  readonly sha256: string;
  readonly etag: string;
  readonly metadata: Readonly<Record<string, string>>;
}

interface Known {
  /** The object must exist, because a reference or a listing names it. */
  readonly isThere?: boolean;
  readonly sha256?: string;
  /** The object's name in the store, which its metadata contains. */
  readonly name?: string;
}

/** Requests before an implausible answer is accepted. */
export const asksMax = 5;
const waitMsMax = 2_000;

/** Waits before a request with a wrong answer is repeated. */
export async function untilAskedAgain({ limits }: S3Requests, ask: number): Promise<void> {
  await delay(Math.min(waitMsMax, limits.backoffMs * 2 ** (ask - 1)) * (0.5 + Math.random() / 2));
}

/**
 * Returns an object's bytes, checked against the sha256 in its metadata and the expected one; null if there is none. A wrong answer is
 * requested again, since a server may err once. Throws `CheckpointDamaged` if it stays wrong. Objects that others stored without a sha256
 * are checked by ETag, or by two equal answers.
 */
export async function getSound(requests: S3Requests, key: string, known: Known = {}): Promise<SoundObject | null> {
  let before: string | null = null;
  for (let ask = 1; ; ask++) {
    const isLast = ask === asksMax;
    const found = await getObject(requests, key);
    if (found === null) {
      const isAbsent = known.isThere !== true && (await headObject(requests, key)) === null;
      if (isAbsent || isLast) return null;
    } else {
      const sha256 = await digestOf(found.content);
      const sound = { content: found.content, sha256, etag: found.etag, metadata: found.metadata };
      const kept = found.metadata[metadataNames.sha256];
      const expected = known.sha256 ?? kept;
      const isRight =
        expected === undefined
          ? sha256 === before || `"${md5Of(found.content)}"` === found.etag
          : sha256 === expected && (kept === undefined || kept === sha256);
      // The object may have been copied to another name, so the last answer counts.
      const isIt = known.name === undefined || isNamed(found.metadata, known.name) || isLast;
      if (isRight && isIt) return sound;
      if (isLast && expected !== undefined)
        throw damagedOf(requests, key, expected === sha256 ? kept! : expected, sha256);
      if (isLast) return sound;
      before = sha256;
    }
    await untilAskedAgain(requests, ask);
  }
}

/** An object's content part by part. Throws at its end unless it is one object's, with the sha256 that it carries. */
export async function* getPieces(
  requests: S3Requests,
  key: string,
  { bytes, etag, metadata }: ObjectHead,
): AsyncGenerator<Uint8Array> {
  const hash = createHash('sha256');
  for (let at = 0; at < bytes;) {
    const piece = await getObjectRange(requests, key, at, Math.min(requests.limits.partBytes, bytes - at));
    if (piece === null || piece.byteLength === 0) break;
    hash.update(piece);
    at += piece.byteLength;
    yield piece;
  }
  const [kept, found] = [metadata[metadataNames.sha256], hash.digest('hex')];
  if (kept === found) return;
  const isSame = (await headObject(requests, key))?.etag === etag;
  if (!isSame)
    throw new RatchetError('StoreUnavailable', `${key} in ${requests.place} was written or removed while it was read.`);
  if (kept !== undefined) throw damagedOf(requests, key, kept, found, 'once');
}

/** Metadata that identifies an object later. */
export function namedAs(name: string): Record<string, string> {
  return { [metadataNames.key]: encodeURIComponent(name) };
}

function isNamed(metadata: Readonly<Record<string, string>>, name: string): boolean {
  const kept = metadata[metadataNames.key];
  return kept === undefined || kept === encodeURIComponent(name);
}

export function damagedOf(
  { place }: S3Requests,
  key: string,
  expected: string,
  found: string,
  times = `${asksMax} times`,
): RatchetError {
  return new RatchetError(
    'CheckpointDamaged',
    `${key} in ${place} is damaged: expected sha256 ${expected.slice(0, 12)}…, found ${found.slice(0, 12)}…, ${times}. Restore it from a copy.`,
  );
}

/** Bytes hashed per turn of the event loop, so that the process stays responsive. */
const hashedAtOnce = 8 * 1024 * 1024;

async function digestOf(content: Uint8Array): Promise<string> {
  const hash = createHash('sha256');
  for (let start = 0; start < content.byteLength; start += hashedAtOnce) {
    if (start > 0) await nextTurn();
    hash.update(content.subarray(start, start + hashedAtOnce));
  }
  return hash.digest('hex');
}

function md5Of(content: Uint8Array): string {
  return createHash('md5').update(content).digest('hex');
}
