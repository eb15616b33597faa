import { createHash } from 'node:crypto';
import { setTimeout as delay } from 'node:timers/promises';
import { setImmediate as nextTurn } from 'node:timers/promises';
import { RatchetError } from '../../core/errors.ts';
import { getObject, headObject } from './s3-download.ts';
import type { S3Requests } from './s3-requests.ts';
import { metadataNames } from './s3-upload.ts';

/** An object that was compared with what is known of it. */
export interface SoundObject {
  readonly content: Uint8Array;
  readonly sha256: string;
  readonly etag: string;
  readonly metadata: Readonly<Record<string, string>>;
}

interface Known {
  /** It is there: a reference or a list names it. */
  readonly isThere?: boolean;
  /** What a reference says. */
  readonly sha256?: string;
  /** Its name in the store, which is kept with it. */
  readonly name?: string;
}

/** How often an answer that cannot be right is asked for again before it is believed. */
export const asksMax = 5;
const waitMsMax = 2_000;

/** The wait before a wrong answer is asked for again. */
export async function untilAskedAgain({ limits }: S3Requests, ask: number): Promise<void> {
  await delay(Math.min(waitMsMax, limits.backoffMs * 2 ** (ask - 1)) * (0.5 + Math.random() / 2));
}

/**
 * An object's bytes, compared with the sha256 that is kept with it and with the one that is known; null when there is none. One wrong answer
 * is not the truth: it is asked for again. Throws `CheckpointDamaged` for what stays wrong. Of an object that somebody else put there
 * without a sha256 the ETag is compared, or two answers with each other.
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
      // Somebody may have copied it to another name: the last answer counts.
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

/** What is kept with an object to know it again. */
export function namedAs(name: string): Record<string, string> {
  return { [metadataNames.key]: encodeURIComponent(name) };
}

function isNamed(metadata: Readonly<Record<string, string>>, name: string): boolean {
  const kept = metadata[metadataNames.key];
  return kept === undefined || kept === encodeURIComponent(name);
}

export function damagedOf({ place }: S3Requests, key: string, expected: string, found: string): RatchetError {
  return new RatchetError(
    'CheckpointDamaged',
    `${key} in ${place} is damaged: expected sha256 ${expected.slice(0, 12)}…, found ${found.slice(0, 12)}…, ${asksMax} times. Restore it from a copy.`,
  );
}

/** Of so many bytes at once: what else the process does is not held up. */
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
