import assert from 'node:assert/strict';
import { test } from 'node:test';
import { type Drift, driftAfter, levelWithin } from '../../../core/rl/sampling/drift.ts';

type Step = readonly [mismatchKl: number | undefined, behind: number | undefined];

function after(steps: readonly Step[], most: number | null = null): Drift | undefined {
  const next = (before: Drift | undefined, [mismatchKl, behind]: Step): Drift =>
    driftAfter(before, { mismatchKl, behind, most });
  return steps.reduce<Drift | undefined>(next, undefined);
}

test('what no age explains is the least of any step, and the rest is shared among the versions that a batch was behind', () => {
  assert.deepEqual(after([[0.02, 0]]), { least: 0.02, perVersion: null });
  const two: Step[] = [
    [0.02, 0],
    [0.14, 2],
  ];
  assert.deepEqual(after(two), { least: 0.02, perVersion: (0.14 - 0.02) / 2 });
  const three: Step[] = [
    [0, 0],
    [0.25, 1],
    [0.75, 1],
  ];
  assert.deepEqual(after(three), { least: 0, perVersion: 0.5 }, 'the newest counts half');
  assert.deepEqual(after([...three, [0.3, 0]]), { least: 0, perVersion: 0.5 }, 'nothing is learnt of it on-policy');
  const below: Step[] = [
    [0, 0],
    [-0.1, 1],
  ];
  assert.equal(after(below)?.perVersion, 0, 'an estimate below 0 is none');
});

test('a step of which nothing was measured says nothing of the drift', () => {
  const before = { least: 0, perVersion: 0.1 };
  for (const [mismatchKl, behind] of [
    [undefined, 1],
    [Infinity, 1],
    [undefined, undefined],
  ] as const) {
    assert.deepEqual(driftAfter(before, { mismatchKl, behind, most: null }), before);
  }
  assert.deepEqual(after([[undefined, undefined]]), { least: null, perVersion: null });
});

test('sampling begins half a step ahead, is half a step more with each step, and as far as keeps samples near', () => {
  const aheads = (perVersion: number, most: number): (number | undefined)[] => {
    const steps: Step[] = [[0, 0], ...Array.from({ length: 4 }, (): Step => [perVersion, 1])];
    return steps.map((_, i) => after(steps.slice(0, i + 1), most)?.ahead);
  };
  assert.deepEqual(aheads(0.001, 0.05), [1, 1.5, 2, 2.5, 3]);
  assert.deepEqual(aheads(0.025, 0.05), [1, 1.5, 2, 2, 2]);
  assert.deepEqual(aheads(0.5, 0.05), [1, 0.5, 0.5, 0.5, 0.5], 'half a one at least');
  const unmeasured: Step[] = Array.from({ length: 4 }, () => [undefined, 1]);
  assert.equal(after(unmeasured, 0.05)?.ahead, 2.5, 'a trainer that says nothing bounds nothing');
});

test('a run that is told so while it runs is at once as near as its drift asks for, and what stays in a commit is JSON', () => {
  const before = { least: 0, perVersion: 0.02 };
  assert.equal(levelWithin(8, before, 0.05), 8, 'until its next step');
  assert.equal(driftAfter(before, { mismatchKl: 0.04, behind: 2, most: 0.05 }).ahead, 2.5);
  const still = driftAfter({ least: 0, perVersion: null }, { mismatchKl: undefined, behind: 2, most: 0.05 });
  assert.deepEqual(JSON.parse(JSON.stringify(still)), still);
});

test('of the level so many steps are taken', () => {
  const drift = { least: 0, perVersion: 0.02, ahead: 2.5 };
  assert.equal(levelWithin(8, drift, 0.05), 2.5);
  assert.equal(levelWithin(2, drift, 0.05), 2);
  for (const level of [0, 1])
    assert.equal(levelWithin(level, { ...drift, ahead: 0.5 }, 0.05), level, 'not ahead, or one');
  assert.equal(levelWithin(8, undefined, 0.05), 0.5);
  assert.equal(levelWithin(8, drift, null), 8);
  assert.equal(levelWithin(8, undefined, null), 8);
});
