import assert from 'node:assert/strict';
import { mkdir, mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { describe, test } from 'node:test';
import { fileURLToPath } from 'node:url';
import type { Info } from '@temporalio/activity';
import { ApplicationFailure, CancelledFailure } from '@temporalio/common';
import { MockActivityEnvironment } from '@temporalio/testing';
import { placeOfBug } from '../../activities/around/bugs.ts';
import { FailureMapping, toFailure } from '../../activities/around/failures.ts';
import { decodeRanges } from '../../core/rl/ledger.ts';
import { errorCodes, RatchetError, type ErrorCode } from '../../core/errors.ts';

describe('our failures as Temporal’s', () => {
  for (const [code, { retryable }] of Object.entries(errorCodes)) {
    test(`${code} is ${retryable ? 'tried again' : 'final'}, and its name is the failure's type`, () => {
      const failure = toFailure(new RatchetError(code as ErrorCode, 'what happened'));
      assert(failure instanceof ApplicationFailure);
      assert.deepEqual([failure.type, failure.nonRetryable, failure.message], [code, !retryable, 'what happened']);
      assert.equal(failure.nextRetryDelay, undefined);
    });
  }

  test('the cause is kept, and so is how long a server asked to wait', () => {
    const cause = new Error('ECONNRESET');
    const failure = toFailure(new RatchetError('InferenceUnavailable', 'gone', { cause, retryAfterMs: 1_500 }));
    assert(failure instanceof ApplicationFailure);
    assert.deepEqual([failure.cause, failure.nextRetryDelay], [cause, 1_500]);
  });

  test('errors that are not ours pass unchanged: a cancellation stays one', () => {
    for (const error of [new TypeError('a bug'), new CancelledFailure('stop'), 'text'])
      assert.equal(toFailure(error), error);
  });

  test('around an activity, results pass and failures are mapped', async () => {
    assert.equal(await mapped({}, () => Promise.resolve(7)), 7);
    const failing = () => Promise.reject(new RatchetError('CommitConflict', 'someone else'));
    await assert.rejects(
      mapped({}, failing),
      (error) => error instanceof ApplicationFailure && error.nonRetryable === true,
    );
  });

  test('attempts that fail are further and further apart, whatever the error', async () => {
    const away = new RatchetError('StoreUnavailable', 'away');
    for (const error of [away, new Error('ECONNRESET'), ApplicationFailure.retryable('again')]) {
      const delays = [1, 2, 6, 7, 1_000_000].map(async (attempt) => {
        const { nextRetryDelay } = await failureOf({ attempt }, () => Promise.reject(copyOf(error)));
        return nextRetryDelay;
      });
      assert.deepEqual(await Promise.all(delays), [200, 400, 6_400, 10_000, 10_000], error.message);
    }
    const asked = new RatchetError('InferenceUnavailable', 'gone', { retryAfterMs: 1_500 });
    assert.equal((await failureOf({ attempt: 9 }, () => Promise.reject(asked))).nextRetryDelay, 1_500);
  });

  test('a cancellation and an aborted call pass unchanged: they are not failures', async () => {
    for (const error of [new CancelledFailure('stop'), new DOMException('aborted', 'AbortError')])
      await assert.rejects(
        mapped({}, () => Promise.reject(error)),
        (thrown) => thrown === error,
      );
  });
});

/** Runs an activity with the interceptors of a worker. */
function mapped(info: Partial<Info>, work: () => Promise<unknown>): Promise<unknown> {
  const mapping = new FailureMapping('1.2.3');
  return new MockActivityEnvironment(info).run(() => mapping.execute({ args: [], headers: {} }, work));
}

/** A TypeError thrown with only our own files in its stack. */
const bug = (): Promise<never> =>
  new Promise((_, reject) => {
    Promise.resolve(null as never)
      .then(decodeRanges)
      .catch(reject);
  });

/** An error is changed when it is mapped. */
function copyOf<E extends Error>(error: E): E {
  return Object.assign(Object.create(Object.getPrototypeOf(error) as object) as E, error, { message: error.message });
}

const failureOf = async (info: Partial<Info>, work: () => Promise<unknown>): Promise<ApplicationFailure> => {
  const error: unknown = await mapped(info, work).catch((reason: unknown) => reason);
  assert(error instanceof ApplicationFailure);
  return error;
};

describe('a bug in our own code', () => {
  test('is retried a few times, ever more slowly, and then ends the attempt with a report', async () => {
    const workflowExecution = { workflowId: 'words', runId: 'execution' };
    const info = { activityType: 'commitStep', activityId: '7', workflowExecution };
    for (const delay of [1_000, 3_000, 9_000]) {
      const failure = await failureOf(info, bug);
      assert.deepEqual(
        [failure.type, failure.nonRetryable, failure.nextRetryDelay],
        ['BugSuspected', false, delay],
        failure.message,
      );
      assert.match(failure.message, /^commitStep failed with TypeError: .* \(at core\/rl\/ledger\.ts:\d+:\d+/);
    }
    const { type, nonRetryable, message, cause } = await failureOf(info, bug);
    assert.deepEqual([type, nonRetryable], ['Bug', true]);
    assert.match(
      message,
      /This looks like a bug of Ratchet.*commitStep failed with TypeError: .*core\/rl\/ledger\.ts.*4 times/,
    );
    assert.match(message, /Ratchet 1\.2\.3, Node v/);
    assert.match(message, /activity 7 of the workflow words, execution execution/);
    assert.match(message, /npx ratchet-rl train FILE\) continues from the newest commit/);
    assert.ok(cause instanceof TypeError);
  });

  test('counts attempts in a row: a success resets the count, and other activities have their own', async () => {
    const of = (activityId: string) => ({ activityId, workflowExecution: { workflowId: 'w', runId: 'in a row' } });
    for (let i = 0; i < 3; i++) await failureOf(of('1'), bug);
    await mapped(of('1'), () => Promise.resolve());
    assert.equal((await failureOf(of('1'), bug)).type, 'BugSuspected');
    assert.equal((await failureOf(of('2'), bug)).type, 'BugSuspected');
  });

  test('counts attempts that failed elsewhere in between: they met the same, as a rule', async () => {
    const of = (attempt: number) => ({
      activityId: '1',
      attempt,
      workflowExecution: { workflowId: 'w', runId: 'many' },
    });
    assert.equal((await failureOf(of(20), bug)).type, 'BugSuspected', 'those before may have been weather');
    const failure = await failureOf(of(23), bug);
    assert.equal(failure.type, 'Bug');
    assert.match(failure.message, /, 2 times here, and 2 attempts between failed elsewhere\.$/m);
  });

  test('counts no attempt that failed here for another reason', async () => {
    const of = (attempt: number) => ({
      activityId: '1',
      attempt,
      workflowExecution: { workflowId: 'w', runId: 'rain' },
    });
    const weather = () => Promise.reject(new RatchetError('StoreUnavailable', 'HTTP 503'));
    for (const attempt of [1, 3, 5]) {
      assert.equal((await failureOf(of(attempt), bug)).type, 'BugSuspected');
      assert.equal((await failureOf(of(attempt + 1), weather)).type, 'StoreUnavailable');
    }
    assert.match((await failureOf(of(7), bug)).message, /, 4 times\.$/m);
  });

  test('counts an activity by its name where each attempt is another activity', async () => {
    const types: unknown[] = [];
    for (const activityId of ['1', '2', '3', '4']) {
      const workflowExecution = { workflowId: 'w', runId: 'leases' };
      const info = { activityId, activityType: 'leaseTrainer', workflowExecution, retryPolicy: { maximumAttempts: 1 } };
      types.push((await failureOf(info, bug)).type);
    }
    assert.deepEqual(types, ['BugSuspected', 'BugSuspected', 'BugSuspected', 'Bug']);
  });

  const root = fileURLToPath(new URL('../../', import.meta.url));
  const ours = `${root}runs/layout.ts:12:3`;
  const errors: readonly (readonly [what: string, error: Error, stack: readonly string[], where: string | null])[] = [
    ['our own code', new TypeError('x'), [`keyOf (${ours})`], 'runs/layout.ts:12:3 (keyOf)'],
    ['our own code, by its address', new ReferenceError('x'), [`file://${ours}`], 'runs/layout.ts:12:3'],
    ['Node refusing what we asked', new TypeError('x'), ['open (node:fs:1:2)', ours], 'runs/layout.ts:12:3'],
    ['a stack without end', new RangeError('Maximum call stack size exceeded'), [ours], 'runs/layout.ts:12:3'],
    ['an assertion', new assert.AssertionError({ message: 'x' }), [ours], 'runs/layout.ts:12:3'],
    ['any other error', new Error('x'), [ours], null],
    ['an answer that is no JSON', new SyntaxError('x'), [ours], null],
    ['a connection that failed', new TypeError('fetch failed', { cause: new Error('x') }), [ours], null],
    ['a body that was cut', new TypeError('terminated'), [ours], null],
    ['the network', new TypeError('x', { cause: Object.assign(new Error('x'), { code: 'ECONNRESET' }) }), [ours], null],
    ['short memory', new RangeError('Array buffer allocation failed'), [ours], null],
    ['a text that is too long', new RangeError('Invalid string length'), [ours], null],
    ["a user's module", new TypeError('x'), ['reward (/home/me/env.ts:3:4)', ours], null],
    ["a user's module that calls ours", new TypeError('x'), [ours, 'load (/home/me/env.ts:3:4)'], null],
    ["a user's file in configs/", new TypeError('x'), [`${root}configs/rl/custom-loss/loss.ts:1:2`, ours], null],
    ['a package', new TypeError('x'), [`${root}node_modules/zod/index.js:1:2`, ours], null],
    ['a RatchetError', new RatchetError('StoreUnavailable', 'x'), [ours], null],
  ];
  for (const [what, error, frames, where] of errors) {
    test(`${where === null ? 'is not' : 'is'} ${what}`, () => {
      error.stack = [String(error), ...frames.map((frame) => `    at ${frame}`)].join('\n');
      assert.equal(placeOfBug(error), where);
    });
  }

  test('is found in the bundles that workers run', async (t) => {
    const folder = await mkdtemp(path.join(tmpdir(), 'ratchet-built-'));
    t.after(() => rm(folder, { recursive: true, force: true }));
    const file = path.join(folder, 'node_modules/.cache/ratchet/0/chunk.mjs');
    await mkdir(path.dirname(file), { recursive: true });
    const source = path.relative(path.dirname(file), path.join(root, 'runs/layout.ts'));
    await writeFile(`${file}.map`, JSON.stringify({ version: 3, sources: [source], names: [], mappings: 'AAWE' }));
    const error = new TypeError('x');
    error.stack = `TypeError: x\n    at keyOf (file://${file}:1:1)`;
    assert.equal(placeOfBug(error), 'runs/layout.ts:12:3 (keyOf)');
    await rm(`${file}.map`);
    assert.match(placeOfBug(error)!, /chunk\.mjs:1:1 \(keyOf\)$/);
  });
});
