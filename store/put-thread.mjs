/**
 * Puts objects into opened folders, one after the other, in a thread of its own: temp file, fsync, rename or link, fsync of
 * the folder. As promises these calls would cross between threads nine times, and wait each time for what else the process
 * does.
 */
import { createHash, randomUUID } from 'node:crypto';
import {
  closeSync,
  fsyncSync,
  linkSync,
  openSync,
  readSync,
  renameSync,
  rmdirSync,
  unlinkSync,
  writeSync,
} from 'node:fs';
import { parentPort } from 'node:worker_threads';

/** @typedef {import('./put-threads.ts').Put} Put */
/** @typedef {import('./put-threads.ts').PutEnd} PutEnd */

/** Bytes of a file in memory while it is copied. */
const copyBytes = 1024 * 1024;

// oxlint-disable-next-line unicorn/require-post-message-target-origin -- a worker thread, not a window
parentPort?.on('message', (/** @type {Put} */ put) => parentPort?.postMessage(ended(put)));

/** @param {Put} put @returns {PutEnd} */
function ended(put) {
  try {
    return putNow(put);
  } catch (error) {
    // Copies between threads lose the code of an error.
    if (!(error instanceof Error) || !('code' in error)) throw error;
    const { message, code, errno, syscall } = /** @type {NodeJS.ErrnoException} */ (error);
    return { failure: { message, code, errno, syscall } };
  }
}

/** Throws as Node's functions for files do. @param {Put} put @returns {import('./put-threads.ts').PutDone} */
export function putNow({ at, folder, name, ifAbsent, content }) {
  const temporary = `${at}/.tmp-${randomUUID()}`;
  const target = `${at}/${name}`;
  const hash = createHash('sha256');
  let bytes = 0;
  let isStored = true;
  try {
    const file = openSync(temporary, 'wx');
    try {
      for (const chunk of typeof content === 'number' ? chunksOf(content) : [content]) {
        if (!ifAbsent) hash.update(chunk);
        for (let from = 0; from < chunk.length;) from += writeSync(file, chunk, from);
        bytes += chunk.length;
      }
      fsyncSync(file);
    } finally {
      closeSync(file);
    }
    if (ifAbsent) isStored = isLinked(temporary, target);
    else replace(temporary, target);
  } catch (error) {
    removeLeftover(temporary);
    throw error;
  }
  try {
    if (isStored) fsyncSync(folder);
  } finally {
    if (ifAbsent) removeLeftover(temporary);
  }
  return { isStored, bytes, sha256: ifAbsent ? '' : hash.digest('hex') };
}

/** @param {number} file */
function* chunksOf(file) {
  const chunk = Buffer.allocUnsafe(copyBytes);
  for (let at = 0; ;) {
    const read = readSync(file, chunk, 0, copyBytes, at);
    if (read === 0) return;
    at += read;
    yield chunk.subarray(0, read);
  }
}

/** @param {string} temporary @param {string} target */
function isLinked(temporary, target) {
  try {
    linkSync(temporary, target);
    return true;
  } catch (error) {
    if (codeOf(error) === 'EEXIST') return false;
    throw error;
  }
}

/** @param {string} temporary @param {string} target */
function replace(temporary, target) {
  try {
    renameSync(temporary, target);
  } catch (error) {
    if (codeOf(error) !== 'EISDIR') throw error;
    rmdirSync(target); // one that holds nothing; asking again would not move it away
    renameSync(temporary, target);
  }
}

/**
 * Whatever becomes of it, the object is stored or it is not: one that stays, as after a crash, is among the store's
 * leftovers, which `ratchet gc` removes.
 *
 * @param {string} file
 */
function removeLeftover(file) {
  try {
    unlinkSync(file);
  } catch (error) {
    if (codeOf(error) === undefined) throw error;
  }
}

/** @param {unknown} error */
function codeOf(error) {
  return error instanceof Error && 'code' in error ? error.code : undefined;
}
