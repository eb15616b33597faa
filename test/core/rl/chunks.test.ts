import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import fc from 'fast-check';
import { rolloutsInFlightMax } from '../../../core/limits.ts';
import {
  chunkIn,
  chunkName,
  chunksOfRound,
  groupsOfChunk,
  rolloutsAtOnce,
  tasksPerMinute,
} from '../../../core/rl/chunks.ts';

const names = ['short', 'long', 'wiki', 'tools', 'maths', 'games', 'code', 'chat', 'plans'];

const unbounded = { maxConcurrent: null, tasksPerMinute: null };

describe('chunks of a sampling round', () => {
  test('every group lies in exactly one chunk, no chunk mixes environments or is larger than was asked', () => {
    fc.assert(
      fc.property(fc.array(fc.constantFrom(...names), { minLength: 1, maxLength: 60 }), fc.nat(20), (drawn, most) => {
        const groups = drawn.map((environment, ordinal) => ({ environment, ordinal }));
        const counts: Record<string, number> = {};
        for (const name of drawn) counts[name] = (counts[name] ?? 0) + 1;
        const chunks = chunksOfRound(groups.length, most + 1, counts);
        const held = chunks.map((chunk) => groupsOfChunk(groups, chunk));
        assert.deepEqual(
          held
            .flat()
            .map(({ ordinal }) => ordinal)
            .toSorted((a, b) => a - b),
          groups.map(({ ordinal }) => ordinal),
        );
        assert.ok(
          held.every((chunk) => chunk.length > 0 && new Set(chunk.map(({ environment }) => environment)).size === 1),
        );
        assert.equal(new Set(chunks.map(chunkName)).size, chunks.length);
        assert.ok(held.every((chunk) => chunk.length <= most + 1));
        assert.deepEqual(
          chunks.map((chunk) => chunkIn(`${chunkName(chunk)}.scored.jsonl.gz`)),
          chunks.map(chunkName),
        );
      }),
    );
  });

  test('the groups of one environment are divided evenly', () => {
    assert.deepEqual(chunksOfRound(8, 5), [
      { index: 0, count: 2 },
      { index: 1, count: 2 },
    ]);
    assert.equal(chunksOfRound(1, 5).length, 1);
    assert.equal(chunkName({ index: 0, count: 2 }), 'chunk_1_of_2');
  });

  test('what a worker plays at once is shared by weight, and each environment has at least one rollout of it', () => {
    const environments = [
      { name: 'often', weight: 3 },
      { name: 'seldom', weight: 1 },
      { name: 'hardly', weight: 1e-9 },
    ];
    const share = (environment: string) =>
      rolloutsAtOnce({ index: 0, count: 2, environment }, { ...unbounded, environments }, 1);
    assert.equal(share('often'), Math.floor((rolloutsInFlightMax * 3) / (4 + 1e-9)));
    assert.equal(share('hardly'), 1);
    const one = { ...unbounded, environments: environments.slice(0, 1) };
    assert.equal(rolloutsAtOnce({ index: 0, count: 2 }, one, 3), rolloutsInFlightMax);
  });

  test('what a config allows at once is shared by weight and among workers, what it allows in a minute by weight and part', () => {
    const environments = [
      { name: 'often', weight: 3 },
      { name: 'seldom', weight: 1 },
    ];
    const asked = { environments, maxConcurrent: 64, tasksPerMinute: 80 };
    assert.equal(rolloutsAtOnce({ index: 0, count: 2, environment: 'often' }, asked, 2), 24);
    assert.equal(rolloutsAtOnce({ index: 0, count: 2, environment: 'seldom' }, asked, 2), 8);
    assert.equal(tasksPerMinute({ index: 1, count: 2, environment: 'often' }, asked), 30);
    const one = { ...asked, environments: environments.slice(0, 1) };
    assert.deepEqual(
      [rolloutsAtOnce({ index: 0, count: 2 }, one, 1), tasksPerMinute({ index: 0, count: 2 }, one)],
      [64, 40],
    );
    assert.equal(tasksPerMinute({ index: 0, count: 1 }, { ...one, tasksPerMinute: null }), null);
  });
});
