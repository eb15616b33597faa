import assert from 'node:assert/strict';
import { test } from 'node:test';
import { NamespaceNotFoundError, ServiceError } from '@temporalio/client';
import { RatchetError } from '../../core/errors.ts';
import { temporalTrouble } from '../../workers/temporal/temporal-trouble.ts';

test('what a Temporal server could not or would not do is told in words, and a bug keeps its stack', () => {
  const cut = new ServiceError('Failed to list workflows', { cause: new Error('14 UNAVAILABLE: read ECONNRESET') });
  const told = temporalTrouble(cut);
  assert.ok(told instanceof RatchetError);
  assert.deepEqual([told.code, told.cause], ['ServerUnavailable', cut]);
  assert.match(told.message, /read ECONNRESET/);
  const wrong = temporalTrouble(new NamespaceNotFoundError('tema'));
  assert.match((wrong as Error).message, /no namespace "tema".*TEMPORAL_NAMESPACE/);
  const bug = new TypeError('x is undefined');
  assert.equal(temporalTrouble(bug), bug);
});
