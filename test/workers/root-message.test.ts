import assert from 'node:assert/strict';
import { test } from 'node:test';
import { ApplicationFailure, ActivityFailure } from '@temporalio/common';
import { rootMessage } from '../../workers/temporal/root-message.ts';
import { toFailure } from '../../activities/around/failures.ts';
import { RatchetError } from '../../core/errors.ts';

function throughTemporal(cause: unknown): Error {
  return new Error('Workflow execution failed', {
    cause: new ActivityFailure(
      'Activity task failed',
      'openRun',
      '1',
      'NON_RETRYABLE_FAILURE',
      undefined,
      cause as Error,
    ),
  });
}

test('of a run that stopped it is said what to do, not what a parser stumbled over', () => {
  const told = 'lineages/main/steps/step_5.json is not JSON. Restore the file.';
  const ours = new RatchetError('CheckpointDamaged', told, { cause: new SyntaxError('Unexpected end of JSON input') });
  assert.equal(rootMessage(throughTemporal(toFailure(ours))), told);
});

test('of a failure that is not ours the innermost message is said', () => {
  const failure = ApplicationFailure.create({ type: 'Error', message: 'outer', cause: new Error('the cause') });
  assert.equal(rootMessage(throughTemporal(failure)), 'the cause');
});
