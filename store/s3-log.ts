import { randomUUID } from 'node:crypto';
import { RatchetError } from '../core/errors.ts';
import { isTailPart, offsetOf, tailKey, tailOf } from './log-tail.ts';
import { sha256 } from './file-store.ts';
import { deleteObjects, headObject, listObjects } from './s3-download.ts';
import { inParallel, type S3Requests } from './s3-requests.ts';
import { asksMax, getSound, untilAskedAgain } from './s3-sound.ts';
import { metadataNames, putObject } from './s3-upload.ts';

/**
 * A growing log in a store whose objects cannot grow: its body, and a tail of small objects named by their offset in the log,
 *
 *     metrics.jsonl   metrics.jsonl.tail/000000000004096   metrics.jsonl.tail/000000000004711   …
 *
 * A line costs one small request. A long tail is folded into the body. Offsets show which parts the body already holds, so a
 * fold that was killed half-way, or two at once, lose nothing and repeat nothing. Readers see body and tail as one key.
 */
const tailPartsMax = 64;

/** Known ends of logs are checked again after this time: another writer may have appended. */
const viewMs = 5_000;
const triesMax = 20;

interface LogView {
  /** Length of body and tail in bytes. */
  length: number;
  parts: number;
  seenAt: number;
  /**
   * Parts that this process wrote since the last fold, by offset: they need not be read again. At most `tailPartsMax`.
   */
  readonly own: Map<number, Uint8Array>;
}

/** Logs this process appends to; lines of one log are written one after another. */
const writers = new WeakMap<S3Requests, Map<string, { view: LogView | null; writing: Promise<void> }>>();

export async function appendToLog(requests: S3Requests, key: string, line: string | Uint8Array): Promise<void> {
  const bytes = Buffer.from(line);
  if (bytes.byteLength === 0) return;
  const logs = writers.get(requests) ?? new Map<string, { view: LogView | null; writing: Promise<void> }>();
  writers.set(requests, logs);
  const log = logs.get(key) ?? { view: null, writing: Promise.resolve() };
  logs.set(key, log);
  const writing = log.writing.then(async () => {
    try {
      log.view = await appendAfter(requests, key, bytes, log.view);
    } catch (error) {
      log.view = null;
      throw error;
    }
  });
  log.writing = writing.catch(() => undefined); // the caller gets the error; the next line is tried all the same
  return writing;
}

/** Forgets what is known of removed logs. */
export function forgetLogs(requests: S3Requests, prefix: string): void {
  for (const [key, log] of writers.get(requests) ?? []) if (key.startsWith(prefix)) log.view = null;
}

/** The whole log, given its body. */
export async function joinLog(
  requests: S3Requests,
  key: string,
  body: Uint8Array,
  known: ReadonlyMap<number, Uint8Array> = new Map(),
): Promise<Uint8Array> {
  for (let ask = 1; ; ask++) {
    try {
      return await joinOnce(requests, key, body, known);
    } catch (error) {
      // A listing may be older than the objects.
      const isHole = error instanceof RatchetError && error.code === 'CheckpointDamaged';
      if (!isHole || ask === asksMax) throw error;
      await untilAskedAgain(requests, ask);
    }
  }
}

async function joinOnce(
  requests: S3Requests,
  key: string,
  body: Uint8Array,
  known: ReadonlyMap<number, Uint8Array>,
): Promise<Uint8Array> {
  const parts = await listTail(requests, key);
  const fresh = parts.filter(({ offset }) => offset >= body.byteLength);
  const contents: Uint8Array[] = [];
  await inParallel(fresh, requests.limits.requestsMax, async (part, index) => {
    const found = known.get(part.offset) ?? (await getSound(requests, part.key, { isThere: true }))?.content;
    contents[index] = found ?? new Uint8Array();
  });
  let at = body.byteLength;
  for (const [index, { offset }] of fresh.entries()) {
    if (offset !== at || contents[index]!.byteLength === 0) {
      const what = `byte ${at}, found the next part at ${offset}`;
      throw new RatchetError('CheckpointDamaged', `${tailOf(key)} in ${requests.place} has a hole: expected ${what}.`);
    }
    at += contents[index]!.byteLength;
  }
  return Buffer.concat([body, ...contents]);
}

async function appendAfter(
  requests: S3Requests,
  key: string,
  bytes: Uint8Array,
  known: LogView | null,
): Promise<LogView> {
  let view = known && performance.now() - known.seenAt < viewMs ? known : null;
  for (let attempt = 1; attempt <= triesMax; attempt++) {
    view ??= await look(requests, key);
    if (!view) {
      if (await createObject(requests, key, bytes, ofLog(bytes))) {
        return { length: bytes.byteLength, parts: 0, seenAt: performance.now(), own: new Map() };
      }
      continue;
    }
    if (await createObject(requests, tailKey(key, view.length), bytes, { [metadataNames.sha256]: sha256(bytes) })) {
      const { length, own } = view;
      own.set(length, bytes);
      const parts = view.parts + 1;
      const after = { length: length + bytes.byteLength, seenAt: performance.now() };
      if (parts < tailPartsMax) return { ...after, parts, own };
      // The line is stored; a failed fold is retried with the next one.
      const isFolded = await fold(requests, key, own).then(
        () => true,
        () => false,
      );
      return isFolded ? { ...after, parts: 0, own: new Map() } : { ...after, parts, own };
    }
    view = null;
  }
  throw new RatchetError(
    'StoreUnavailable',
    `${key} in ${requests.place}: others appended at every one of ${triesMax} tries.`,
  );
}

/** The end of a log; null when there is none. A body without our mark (a copied run) gets it. */
async function look(requests: S3Requests, key: string): Promise<LogView | null> {
  const head = await headObject(requests, key);
  if (!head) return null;
  if (head.metadata[metadataNames.log] === undefined) {
    await fold(requests, key);
    return look(requests, key);
  }
  const parts = (await listTail(requests, key)).filter(({ offset }) => offset >= head.bytes);
  const length = parts.reduce((at, part) => (part.offset === at ? at + part.bytes : at), head.bytes);
  return { length, parts: parts.length, seenAt: performance.now(), own: new Map() };
}

/** Body and tail become the body. Parts are removed one fold later: a writer that knows only the body before cannot slip in below it. */
async function fold(requests: S3Requests, key: string, own?: ReadonlyMap<number, Uint8Array>): Promise<void> {
  const body = await getSound(requests, key);
  if (!body) return;
  const joined = await joinLog(requests, key, body.content, own);
  const stored = await putObject(requests, {
    key,
    bytes: joined,
    metadata: ofLog(joined),
    onlyIf: { etag: body.etag },
  });
  if (!stored) return; // another writer folds
  const old = (await listTail(requests, key)).filter(({ offset }) => offset < body.content.byteLength);
  await deleteObjects(
    requests,
    old.map((part) => part.key),
  );
}

/** Metadata with the sha256 of the current body, which is always written as a whole. */
function ofLog(body: Uint8Array): Record<string, string> {
  return { [metadataNames.log]: '1', [metadataNames.sha256]: sha256(body) };
}

/** Creates an object if there is none. Also true when the answer to our own write was lost. */
export async function createObject(
  requests: S3Requests,
  key: string,
  bytes: Uint8Array,
  metadata: Readonly<Record<string, string>>,
): Promise<boolean> {
  const writer = randomUUID();
  const withWriter = { ...metadata, [metadataNames.writer]: writer };
  if (await putObject(requests, { key, bytes, metadata: withWriter, onlyIf: { absent: true } })) return true;
  return (await headObject(requests, key))?.metadata[metadataNames.writer] === writer;
}

async function listTail(
  requests: S3Requests,
  key: string,
): Promise<{ readonly key: string; readonly offset: number; readonly bytes: number }[]> {
  const prefix = tailOf(key);
  const parts = (await listObjects(requests, prefix)).filter((part) => isTailPart(part.key));
  return parts.map((part) => ({ ...part, offset: offsetOf(part.key) })).sort((a, b) => a.offset - b.offset);
}
