import assert from 'node:assert/strict';
import { test } from 'node:test';
import { setImmediate as turn } from 'node:timers/promises';
import type { Client } from '@temporalio/client';
import { sharesInPools } from '../../workers/roles/pool-shares.ts';

/** Answers of a pool's workflow, in their order; an error: it does not answer. */
function clientOf(answers: (Readonly<Record<string, number>> | Error)[], asked: string[]): Client {
  const handle = (id: string) => ({
    describe: () => Promise.resolve({ status: { name: 'RUNNING' } }),
    query: () => {
      asked.push(id);
      const answer = answers.shift()!;
      return answer instanceof Error ? Promise.reject(answer) : Promise.resolve(answer);
    },
  });
  const withDeadline = (_: number, work: () => Promise<unknown>): Promise<unknown> => work();
  return { workflow: { getHandle: handle }, withDeadline } as unknown as Client;
}

test('a share is what the pool said lately; nobody waits for it, and one that does not answer changes nothing', async (t) => {
  let now = 0;
  t.mock.method(performance, 'now', () => now);
  const [asked, said]: [string[], string[]] = [[], []];
  const client = clientOf([{ a: 3 }, new Error('busy'), new Error('busy'), { a: 1.5 }], asked);
  const shareOf = sharesInPools(
    () => client,
    (line) => void said.push(line),
  );
  const look = async () => {
    const share = shareOf('gpus', 'a');
    for (let i = 0; i < 5; i++) await turn();
    return share;
  };
  assert.deepEqual([await look(), await look()], [undefined, 3]);
  assert.deepEqual(asked, ['ratchet-pool-gpus']); // once in ten seconds
  now += 10_001;
  assert.equal(await look(), 3);
  now += 10_001;
  assert.equal(await look(), 3);
  assert.equal(said.length, 1);
  assert.match(said[0]!, /the pool gpus does not say .* busy/);
  now += 10_001;
  await look();
  assert.equal(await look(), 1.5);
  assert.equal(shareOf('gpus', 'b'), 1);
});
