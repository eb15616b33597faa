import assert from 'node:assert/strict';
import { test } from 'node:test';
import {
  commandForSearchAttributes,
  lackOfSearchAttributes,
  missingSearchAttributes,
} from '../../workers/temporal/search-attributes.ts';

const failing = (code: number) => async () => {
  // Thrown like the client's: its own error around the call's.
  throw new Error('Failed to count workflows', { cause: Object.assign(new Error('refused'), { code }) });
};
const all = { RatchetRun: 2, RatchetStep: 3, RatchetReward: 4 };
const names = Object.keys(all) as (keyof typeof all)[];

test('without the right to call the operators, a namespace is asked by a query; a refusal means the memo, not a run that never opens', async () => {
  const [invalid, denied, unimplemented, unauthenticated, unavailable] = [3, 7, 12, 16, 14];
  const answers = async () => ({ count: 0 });
  const some = { names, isExact: false };
  assert.equal(await missingSearchAttributes({ list: async () => all, count: failing(unavailable) }), null);
  assert.deepEqual(await missingSearchAttributes({ list: async () => ({ RatchetRun: 2 }), count: answers }), {
    names: ['RatchetStep', 'RatchetReward'],
    isExact: true,
  });
  for (const refusal of [denied, unimplemented, unauthenticated]) {
    assert.equal(await missingSearchAttributes({ list: failing(refusal), count: answers }), null);
    assert.deepEqual(await missingSearchAttributes({ list: failing(refusal), count: failing(invalid) }), some);
    assert.deepEqual(await missingSearchAttributes({ list: failing(refusal), count: failing(denied) }), some);
  }
  // Weather is waited for.
  await assert.rejects(missingSearchAttributes({ list: failing(unavailable), count: answers }), /Failed/);
  await assert.rejects(missingSearchAttributes({ list: failing(denied), count: failing(unavailable) }), /Failed/);
});

test('what is missing is named, with the command for the administrator of that server', () => {
  const two = { names: ['RatchetStep', 'RatchetReward'], isExact: true } as const;
  const own = { address: '10.0.0.5:7233', namespace: 'team' };
  assert.equal(
    lackOfSearchAttributes(own, two),
    'The Temporal namespace team has no search attributes RatchetStep, RatchetReward: runs are found by their ids only, and tell their progress in their memo',
  );
  assert.match(
    lackOfSearchAttributes(own, { names, isExact: false }),
    /some of RatchetRun, .* let these credentials see/,
  );
  assert.equal(
    commandForSearchAttributes(own, two),
    'temporal operator search-attribute create --address 10.0.0.5:7233 --namespace team --name RatchetStep --type Int --name RatchetReward --type Double',
  );
  for (const address of ['team.a1b2c.tmprl.cloud:7233', 'eu-west-1.aws.api.temporal.io:7233'])
    assert.equal(
      commandForSearchAttributes({ address, namespace: 'team.a1b2c' }, { names: ['RatchetRun'], isExact: true }),
      'tcld namespace search-attributes add --namespace team.a1b2c --search-attribute RatchetRun=Keyword',
    );
});
