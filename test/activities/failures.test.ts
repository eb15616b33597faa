import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { ApplicationFailure, CancelledFailure } from '@temporalio/common';
import { FailureMapping, toFailure } from '../../activities/around/failures.ts';
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

  test('what is not ours passes unchanged: a bug is retried, a cancellation stays one', () => {
    for (const error of [new TypeError('a bug'), new CancelledFailure('stop'), 'text'])
      assert.equal(toFailure(error), error);
  });

  test('around an activity, results pass and failures are mapped', async () => {
    const mapping = new FailureMapping();
    const input = { args: [], headers: {} };
    assert.equal(await mapping.execute(input, () => Promise.resolve(7)), 7);
    const failing = () => Promise.reject(new RatchetError('CommitConflict', 'someone else'));
    await assert.rejects(
      mapping.execute(input, failing),
      (error) => error instanceof ApplicationFailure && error.nonRetryable === true,
    );
  });
});
