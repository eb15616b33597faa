import { readFileSync } from 'node:fs';
import { SourceMap } from 'node:module';
import path from 'node:path';
import { fileURLToPath } from 'node:url';
import type { Info } from '@temporalio/activity';
import { RatchetError } from '../../core/errors.ts';
import { bugAttemptsMax } from '../../core/limits.ts';

/*
 * A TypeError in our own code is a bug: a retry fails the same way. An unexpected answer from a server can look like one, so the activity
 * is retried a few times. Then the run's attempt ends with a report. Errors from a user's module pass unchanged.
 */

const root = fileURLToPath(new URL('../../', import.meta.url));
/** Folders with our own code. Other folders may hold a user's code. */
const rooms = [
  'activities',
  'backends',
  'cli',
  'config',
  'core',
  'engine',
  'environments',
  'host',
  'learn',
  'load',
  'play',
  'runs',
  'store',
  'workers',
];
const bugs: readonly string[] = ['TypeError', 'ReferenceError', 'RangeError', 'AssertionError'];
/** V8 reports a shortage of memory as a RangeError. It is weather, not a bug. */
const saysMemory = /allocat|out of memory|invalid (?:string|typed array|array buffer) length/i;
const besidesMax = 1_000;
/** `workers/built.mjs` puts the bundles that workers run into this folder, with a source map beside each file. */
const builtFolder = path.join('node_modules', '.cache', 'ratchet') + path.sep;

/** Returns where in our code a bug is, such as `runs/layout.ts:12:3 (keyOf)`; null if the error is not a bug of ours. */
export function placeOfBug(error: unknown): string | null {
  if (!(error instanceof Error) || error instanceof RatchetError || !bugs.includes(error.name)) return null;
  if (isOfSystem(error) || isOfSystem(error.cause) || saysMemory.test(error.message)) return null;
  const frames = framesOf(error);
  if (frames.some(({ file }) => isOfUser(file))) return null;
  const thrown = frames[0];
  return thrown !== undefined && isOurs(thrown.file) ? `${path.relative(root, thrown.file)}:${thrown.at}` : null;
}

/** Node's `fetch` wraps network and system failures in a TypeError. */
function isOfSystem(error: unknown): boolean {
  if (!(error instanceof Error)) return false;
  const { code } = error as { readonly code?: unknown };
  if (/^(?:fetch failed|terminated)$/.test(error.message)) return true;
  return typeof code === 'string' && /^(?:E[A-Z]+|UND_ERR_\w+)$/.test(code);
}

/** Returns the file frames of a stack, innermost first, without Node's own. */
function framesOf({ stack = '' }: Error): Frame[] {
  return stack.split('\n').flatMap((text) => {
    const [, name, where, line, column] =
      /^\s+at (?:async )?(?:(.+) \()?((?:file:\/\/)?\/[^()]*?):(\d+):(\d+)\)?$/.exec(text) ?? [];
    if (where === undefined) return [];
    const file = where.startsWith('file://') ? fileURLToPath(where.replace(/[?#].*$/, '')) : where;
    const of = name === undefined ? '' : ` (${name})`;
    const frame = { file, at: `${line}:${column}${of}` };
    return [file.includes(builtFolder) ? sourceOf(frame, Number(line), Number(column), of) : frame];
  });
}

interface Frame {
  readonly file: string;
  /** The position as line, column and function. */
  readonly at: string;
}

/** Maps a frame of a built file to its source. Returns the frame unchanged if the map does not cover it. */
function sourceOf(frame: Frame, line: number, column: number, of: string): Frame {
  try {
    const map = new SourceMap(JSON.parse(readFileSync(`${frame.file}.map`, 'utf8')) as SourceMap['payload']);
    const found = map.findEntry(line - 1, column - 1);
    if (!('originalSource' in found)) return frame;
    const file = path.resolve(path.dirname(frame.file), found.originalSource);
    return { file, at: `${found.originalLine + 1}:${found.originalColumn + 1}${of}` };
  } catch {
    return frame; // the file is gone: a newer bundle replaced it
  }
}

function isOurs(file: string): boolean {
  const way = path.relative(root, file);
  if (file.includes(builtFolder)) return true;
  return !way.startsWith('..') && rooms.includes(way.split(path.sep, 1)[0]!);
}

function isOfUser(file: string): boolean {
  return !isOurs(file) && !file.includes(`${path.sep}node_modules${path.sep}`);
}

interface Met {
  /** How often it met a bug, with the attempts that ended elsewhere since this process saw the first: such a bug fails everywhere. */
  readonly count: number;
  /** Number of times that it was seen in this process. */
  readonly seen: number;
  /** Last attempt whose end this process knows. */
  readonly attempt: number;
}

/** Counts how often one activity met a bug. It ends when one process has seen the bug at least twice: the first may have been weather. */
export class BugCount {
  readonly #counts = new Map<string, Met>();

  /** Returns the error to throw for a bug: a retryable one, or after the last attempt the report. */
  after(error: Error, where: string, info: Info, codeVersion: string): RatchetError {
    const key = keyOf(info);
    const before = this.#counts.get(key);
    const { attempt } = info;
    const count = before ? before.count + Math.max(1, attempt - before.attempt) : 1;
    const met: Met = { count, seen: (before?.seen ?? 0) + 1, attempt };
    this.forget(info);
    const isLast = count >= bugAttemptsMax;
    if (!isLast) this.#counts.set(key, met);
    for (const oldest of this.#counts.keys()) {
      if (this.#counts.size <= besidesMax) break;
      this.#counts.delete(oldest);
    }
    const said = `${info.activityType} failed with ${error.name}: ${error.message} (at ${where})`;
    const options = { cause: error };
    return isLast
      ? new RatchetError('Bug', reportOf(said, met, info, codeVersion), options)
      : new RatchetError('BugSuspected', `${said}. It is tried ${bugAttemptsMax} times.`, {
          ...options,
          retryAfterMs: 1_000 * 3 ** (count - 1),
        });
  }

  /** An attempt that failed for another reason does not count. */
  sawOther(info: Info): void {
    const key = keyOf(info);
    const met = this.#counts.get(key);
    if (met) this.#counts.set(key, { ...met, attempt: info.attempt });
  }

  forget(info: Info): void {
    this.#counts.delete(keyOf(info));
  }
}

/** Activities without retries in Temporal count by type, because each attempt has a new activity id. */
function keyOf({ workflowExecution, activityId, activityType, retryPolicy }: Info): string {
  const which = retryPolicy?.maximumAttempts === 1 ? activityType : activityId;
  return `${workflowExecution?.runId ?? ''}/${which}`;
}

function reportOf(said: string, met: Met, { workflowExecution, activityId }: Info, codeVersion: string): string {
  const { count, seen } = met;
  const { workflowId = '', runId = '' } = workflowExecution ?? {};
  return [
    `This looks like a bug of Ratchet: ${said}, ${seen} times${count === seen ? '' : ` here, and ${count - seen} attempts between failed elsewhere`}.`,
    `Ratchet ${codeVersion}, Node ${process.version}, ${process.platform} ${process.arch}.`,
    `Its input: activity ${activityId} of the workflow ${workflowId}, execution ${runId} (npx ratchet-rl temporal workflow show --workflow-id ${workflowId} --run-id ${runId}).`,
    'Please report these lines. Nothing that is committed is lost: the same command (npx ratchet-rl train FILE) continues from the newest commit, with a version of Ratchet that fixes this.',
  ].join('\n');
}
