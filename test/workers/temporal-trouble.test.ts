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
  const refusal = (code: number, details: string) => {
    const cause = Object.assign(new Error(`${code} X: ${details}`), { code, details, metadata: {} });
    return (temporalTrouble(new ServiceError('Failed to list workflows', { cause })) as Error).message;
  };
  for (const [code, details] of [
    [7, 'Request unauthorized.'],
    [16, 'the key is not valid'],
  ] as const)
    assert.match(
      refusal(code, details),
      /does not let these credentials do this: .*(unauthorized|valid)\. TEMPORAL_NAMESPACE names .* TEMPORAL_API_KEY_FILE/,
    );
  assert.match(
    refusal(8, 'namespace rate limit exceeded'),
    /no more requests of this namespace .*rate limit exceeded\. Type this again/,
  );
  const bug = new TypeError('x is undefined');
  assert.equal(temporalTrouble(bug), bug);
});
