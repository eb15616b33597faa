import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import fc from 'fast-check';
import { rowsKeptBytesMax } from '../../core/limits.ts';
import type { ScoredGroup } from '../../core/rl/rollout/rollout.ts';
import type { ObjectRef } from '../../core/rl/run-state.ts';
import { encodeRows, packRows } from '../../store/objects.ts';
import { GroupsInOrder, scoredGroups } from '../../runs/rollouts/scored-groups.ts';
import { makeRun, type TestRun } from '../activities/runs.ts';
import { hasCode } from '../store/store.contract.ts';

function group(ordinal: number, logprobs: readonly number[] = [-1]): ScoredGroup {
  const turn = { promptTokenIds: [1], tokenIds: logprobs.map((_, i) => i), logprobs, text: '', policyStep: 0 } as const;
  const place = { group: ordinal, index: 0, exampleId: 0 };
  const turns = [{ ...turn, finishReason: 'stop' as const }];
  const rollouts = [{ ...place, turns, outcome: 'ok' as const, reward: 1, metrics: {} }];
  return { ordinal, environment: 'e', exampleId: 0, epoch: 0, policyStep: 0, rollouts };
}

async function stored({ store }: TestRun, key: string, groups: readonly ScoredGroup[]): Promise<ObjectRef> {
  return store.put(key, await packRows(groups));
}

async function all<T>(items: AsyncIterable<T>): Promise<T[]> {
  const found: T[] = [];
  for await (const item of items) found.push(item);
  return found;
}

describe('scored groups', () => {
  /** All but random: they are as large compressed. */
  const numbers = Array.from({ length: 100_000 }, (_, i) => -Math.abs(Math.sin(i * i)));

  test('of a large object come one at a time, and are the same', async (t) => {
    const test = await makeRun(t);
    const groups = [1, 2, 3].map((ordinal) => group(ordinal, numbers.slice(ordinal)));
    const ref = await stored(test, 'large.scored.jsonl.gz', groups);
    assert.ok(ref.bytes > rowsKeptBytesMax);
    assert.deepEqual(await all(scoredGroups(test.run, ref)), groups);
    const plain = await test.store.put('large.scored.jsonl', encodeRows(groups));
    assert.deepEqual(await all(scoredGroups(test.run, plain)), groups);
  });

  test('that are damaged are refused with the object and the line', async (t) => {
    const test = await makeRun(t);
    const { rollouts: _, ...bad } = group(2);
    for (const numbersOfFirst of [[-1], numbers, numbers.slice(1)]) {
      const groups = [
        group(1, numbersOfFirst),
        ...(numbersOfFirst.length > 1 ? [group(1, numbers)] : []),
        bad as never,
      ];
      const ref = await stored(test, `bad-${numbersOfFirst.length}.gz`, groups);
      const where = `bad-${numbersOfFirst.length}.gz, line ${groups.length}`;
      await assert.rejects(
        all(scoredGroups(test.run, ref)),
        hasCode('CheckpointDamaged', where, 'rollouts with turns'),
      );
    }
    const whole = await packRows([group(1, numbers), group(2, numbers)]);
    const cut = await test.store.put('cut.gz', whole.subarray(0, -100));
    assert.ok(cut.bytes > rowsKeptBytesMax);
    await assert.rejects(
      all(scoredGroups(test.run, cut)),
      hasCode('CheckpointDamaged', 'cut.gz', 'a gzip file that is cut'),
    );
  });
});

describe('groups of several objects', () => {
  test('come each once, those of the batch by ordinal, whichever objects they lie in and in whatever order', async (t) => {
    const test = await makeRun(t);
    let runs = 0;
    await fc.assert(
      fc.asyncProperty(
        fc.shuffledSubarray(
          Array.from({ length: 12 }, (_, i) => i + 1),
          { minLength: 1 },
        ),
        fc.array(fc.nat(3), { minLength: 12, maxLength: 12 }),
        fc.array(fc.boolean(), { minLength: 13, maxLength: 13 }),
        async (ordinals, objectOf, isWanted) => {
          runs += 1;
          const refs = await Promise.all(
            [0, 1, 2, 3].map((object) =>
              stored(
                test,
                `run-${runs}-${object}.gz`,
                ordinals.filter((_, i) => objectOf[i] === object).map((o) => group(o)),
              ),
            ),
          );
          const sources = refs.map((ref, object) => ({
            ref,
            ordinals: ordinals.filter((ordinal, i) => objectOf[i] === object && isWanted[ordinal] === true),
          }));
          const found = await all(new GroupsInOrder(test.run, sources, refs));
          assert.deepEqual(
            found.map(({ group: { ordinal } }) => ordinal).toSorted((a, b) => a - b),
            ordinals.toSorted((a, b) => a - b),
          );
          assert.deepEqual(
            found.filter((one) => one.isWanted).map(({ group: { ordinal } }) => ordinal),
            ordinals.filter((ordinal) => isWanted[ordinal]).toSorted((a, b) => a - b),
          );
          for (const {
            key,
            group: { ordinal },
          } of found)
            assert.equal(key, refs[objectOf[ordinals.indexOf(ordinal)]!]!.key);
        },
      ),
      { numRuns: 50 },
    );
  });

  test('of which one is missing are refused by the name of its object', async (t) => {
    const test = await makeRun(t);
    const ref = await stored(test, 'few.gz', [group(1), group(3)]);
    const groups = new GroupsInOrder(test.run, [{ ref, ordinals: [1, 2, 3] }], []);
    await assert.rejects(all(groups), hasCode('CheckpointDamaged', 'few.gz', 'expected the group 2'));
  });
});
