import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import fc from 'fast-check';
import type { RunSpec } from '../../../config/run-spec.ts';
import { rolloutsInFlightMax } from '../../../core/limits.ts';
import {
  chunkIn,
  chunkName,
  chunksOfRound,
  groupsOfChunk,
  rolloutsAtOnce,
  roomKept,
  tasksPerMinute,
} from '../../../core/rl/sampling/chunks.ts';

const names = ['short', 'long', 'wiki', 'tools', 'maths', 'games', 'code', 'chat', 'plans'];

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

  test('what a worker plays at once is one pool, of which each environment has an eighth of its share for itself', () => {
    const environments = [
      { name: 'often', weight: 3 },
      { name: 'seldom', weight: 1, rolloutsPerExample: 16 },
      { name: 'hardly', weight: 1e-9 },
    ] as unknown as RunSpec['environments'];
    assert.equal(rolloutsAtOnce({ maxConcurrent: null }, 3), rolloutsInFlightMax);
    assert.equal(rolloutsAtOnce({ maxConcurrent: 64 }, 2), 32);
    assert.equal(rolloutsAtOnce({ maxConcurrent: 1 }, 2), 1);
    assert.deepEqual(roomKept({ environments, rolloutsPerExample: 8 }, 1024), { often: 88, seldom: 16, hardly: 0 });
    assert.deepEqual(roomKept({ environments: environments.slice(0, 1), rolloutsPerExample: 8 }, 1024), {});
  });

  test('what a config allows in a minute is shared by weight and part', () => {
    const environments = [
      { name: 'often', weight: 3 },
      { name: 'seldom', weight: 1 },
    ];
    const asked = { environments, maxConcurrent: 64, tasksPerMinute: 80 };
    assert.equal(tasksPerMinute({ index: 1, count: 2, environment: 'often' }, asked), 30);
    const one = { ...asked, environments: environments.slice(0, 1) };
    assert.equal(tasksPerMinute({ index: 0, count: 2 }, one), 40);
    assert.equal(tasksPerMinute({ index: 0, count: 1 }, { ...one, tasksPerMinute: null }), null);
  });
});
