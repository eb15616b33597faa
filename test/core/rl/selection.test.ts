import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import fc from 'fast-check';
import { decodeRanges, encodeRanges } from '../../../core/rl/ledger.ts';
import type { KeptGroups } from '../../../core/rl/run-state.ts';
import { type BatchSize, countGroups, isBatch, selectGroups } from '../../../core/rl/learning/selection.ts';

const kept = (key: string, policyStep: number, ordinals: readonly number[]): KeptGroups => ({
  scored: { key, sha256: key, bytes: 1 },
  policyStep,
  ordinals: encodeRanges(ordinals),
});
const ofGroups = (groups: number): BatchSize => ({ groups, total: null });
const ordinalsOf = (sources: readonly KeptGroups[]) => sources.flatMap(({ ordinals }) => decodeRanges(ordinals));

/** Rounds as a run leaves them: every ordinal in one round at most, rounds in any order, later rounds no older. */
const selectionInput = fc
  .record({
    step: fc.integer({ min: 1, max: 12 }),
    size: fc.record({ groups: fc.integer({ min: 1, max: 12 }), total: fc.constant(null) }),
    maxOffPolicySteps: fc.nat(4),
    rounds: fc.array(fc.array(fc.boolean(), { minLength: 1, maxLength: 9 }), { maxLength: 5 }),
    ages: fc.array(fc.nat(6), { minLength: 5, maxLength: 5 }),
    order: fc.array(fc.nat(), { minLength: 5, maxLength: 5 }),
  })
  .map(({ rounds, ages, order, step, ...rest }) => {
    let next = 1;
    const versions = ages.map((age) => Math.max(0, step - 1 - age)).sort((a, b) => a - b);
    const sources = rounds.map((keeps, i) => {
      const first = next;
      next += keeps.length;
      return kept(
        `round ${i}`,
        versions[i]!,
        keeps.flatMap((keep, j) => (keep ? [first + j] : [])),
      );
    });
    const shuffled = sources
      .map((source, i) => ({ source, at: order[i]! }))
      .sort((a, b) => a.at - b.at)
      .map(({ source }) => source);
    return { step, ...rest, kept: shuffled };
  });

describe('choosing the groups of a batch', () => {
  test('nothing is lost and nothing is there twice: trained, surplus and stale together are what was kept', () =>
    fc.assert(
      fc.property(selectionInput, (input) => {
        const { trained, surplus, stale } = selectGroups(input);
        const all = [...ordinalsOf(trained), ...ordinalsOf(surplus), ...decodeRanges(stale)];
        assert.deepEqual(
          all.sort((a, b) => a - b),
          ordinalsOf(input.kept).sort((a, b) => a - b),
        );
      }),
    ));

  test('a batch is never more than was asked for, and less only when there is no more', () =>
    fc.assert(
      fc.property(selectionInput, (input) => {
        const { trained, surplus } = selectGroups(input);
        assert.equal(countGroups(trained), Math.min(input.size.groups, countGroups(trained) + countGroups(surplus)));
      }),
    ));

  test('the oldest groups come first: every trained ordinal is below every one that waits', () =>
    fc.assert(
      fc.property(selectionInput, (input) => {
        const { trained, surplus } = selectGroups(input);
        const [newestTrained, oldestWaiting] = [Math.max(0, ...ordinalsOf(trained)), Math.min(...ordinalsOf(surplus))];
        assert(newestTrained < oldestWaiting);
      }),
    ));

  test('the same groups are taken in whatever order their rounds arrived', () =>
    fc.assert(
      fc.property(selectionInput, (input) => {
        const once = selectGroups(input);
        const again = selectGroups({ ...input, kept: input.kept.toReversed() });
        const sorted = (sources: readonly KeptGroups[]) => ordinalsOf(sources).sort((a, b) => a - b);
        assert.deepEqual(sorted(again.trained), sorted(once.trained));
        assert.equal(again.stale, once.stale);
      }),
    ));

  test('groups keep the round they came from, with its scores and its version', () =>
    fc.assert(
      fc.property(selectionInput, (input) => {
        const home = new Map(input.kept.flatMap((source) => decodeRanges(source.ordinals).map((n) => [n, source])));
        const { trained, surplus } = selectGroups(input);
        for (const source of [...trained, ...surplus]) {
          assert.notEqual(source.ordinals, '');
          for (const ordinal of decodeRanges(source.ordinals)) {
            assert.deepEqual(
              [source.scored, source.policyStep],
              [home.get(ordinal)!.scored, home.get(ordinal)!.policyStep],
            );
          }
        }
      }),
    ));

  test('groups of one part are as old as their own oldest tokens', () => {
    const mixed = { ...kept('a', 3, [1, 2, 3]), oldest: [3, 5, 6] };
    const at = (step: number) =>
      selectGroups({ step, size: { groups: 2, total: null }, maxOffPolicySteps: 2, kept: [mixed] });
    const { trained, stale, surplus } = at(7);
    assert.deepEqual([ordinalsOf(trained), stale, ordinalsOf(surplus)], [[2, 3], '1', []]);
    assert.deepEqual(trained[0]!.oldest, [5, 6]);
    assert.deepEqual([ordinalsOf(at(9).trained), at(9).stale], [[3], '1-2']);
  });

  test('a group is stale one step after the last that may train it', () => {
    const groups = [kept('a', 3, [1, 2])];
    const at = (step: number) => selectGroups({ step, size: ofGroups(8), maxOffPolicySteps: 2, kept: groups });
    assert.deepEqual([countGroups(at(6).trained), at(6).stale], [2, '']); // v3 trained onto v5: two steps off policy
    assert.deepEqual([countGroups(at(7).trained), at(7).stale], [0, '1-2']);
  });

  test('what no batch has room for waits, split from the round it came with', () => {
    const { trained, surplus, stale } = selectGroups({
      step: 2,
      size: ofGroups(3),
      maxOffPolicySteps: 1,
      kept: [kept('b', 1, [5, 6, 9]), kept('a', 0, [2, 4])],
    });
    assert.deepEqual(trained, [kept('b', 1, [5]), kept('a', 0, [2, 4])]);
    assert.deepEqual(surplus, [kept('b', 1, [6, 9])]);
    assert.equal(stale, '');
  });
});

describe('a batch of so many tokens', () => {
  const sized = (key: string, tokens: Readonly<Record<number, number>>): KeptGroups => ({
    ...kept(key, 1, Object.keys(tokens).map(Number)),
    sizes: Object.values(tokens),
  });
  const of = (sources: readonly KeptGroups[], tokens = 100, groups = 4) =>
    selectGroups({ step: 2, size: { groups, total: tokens }, maxOffPolicySteps: 1, kept: sources });

  test('takes what was kept before the run had such batches for average groups', () => {
    const before = kept('before', 1, [1, 2, 3]);
    const found = of([before, sized('new', { 4: 30, 5: 30 })], 100, 4); // 25 tokens each
    assert.deepEqual([ordinalsOf(found.trained), found.share, ordinalsOf(found.surplus)], [[1, 2, 3, 4], 1, [5]]);
  });

  test('is cut after the group with which it has them, oldest first; what waits keeps its tokens', () => {
    const { trained, surplus, share, groupsPerBatch } = of([
      sized('b', { 4: 50, 5: 7, 9: 1 }),
      sized('a', { 1: 30, 3: 40 }),
    ]);
    assert.deepEqual(trained, [sized('b', { 4: 50 }), sized('a', { 1: 30, 3: 40 })]);
    assert.deepEqual(surplus, [sized('b', { 5: 7, 9: 1 })]);
    assert.deepEqual([share, groupsPerBatch], [1, 3]);
  });

  test('says how much of it is there, and about how many groups it takes: more than there are while it is not whole', () => {
    assert.deepEqual(shareOf(of([])), [0, 4]);
    assert.deepEqual(shareOf(of([sized('a', { 1: 10, 2: 10 })])), [0.2, 10]);
    assert.deepEqual(shareOf(of([sized('a', { 1: 99 })])), [0.99, 2]);
    assert.deepEqual(shareOf(of([sized('a', { 1: 1000, 2: 5 })])), [1, 1]);
  });

  function shareOf({ share, groupsPerBatch }: ReturnType<typeof selectGroups>): readonly number[] {
    return [share, groupsPerBatch];
  }
});

test('a step trains on half a batch where that is asked for, once widened on an eighth, and on surplus alone only where that is whole', () => {
  const of = (ready: number, more: Partial<Parameters<typeof isBatch>[0]> = {}) =>
    isBatch({ share: ready / 80, hasSampled: true, isWidened: false, fill: 'half', isLong: false, ...more });
  assert.deepEqual([of(39), of(40), of(80)], [false, true, true]);
  assert.deepEqual([of(9, { isWidened: true }), of(10, { isWidened: true })], [false, true]);
  assert.deepEqual([of(79, { hasSampled: false }), of(80, { hasSampled: false })], [false, true]);
  const full = { fill: 'full', isLong: false } as const;
  assert.deepEqual([of(79, full), of(80, full), of(40, { ...full, isLong: true })], [false, true, true]);
  assert.deepEqual([of(1, { fill: 'once' }), of(0, { fill: 'once' })], [true, false]);
});
