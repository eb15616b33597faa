import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import fc from 'fast-check';
import {
  auditLedger,
  countEnded,
  countsByKind,
  decodeRanges,
  encodeRanges,
  recordOutcomes,
} from '../../../core/rl/ledger.ts';
import type { EndState, StepOutcomes } from '../../../core/rl/ledger.ts';

const states: readonly EndState[] = [
  'trained',
  'stale',
  'refused',
  'superseded',
  'filtered:surplus',
  'failed:infra_failure',
];

/** A lineage as a run makes it: each step issues some groups and ends some of those that are open. */
const lineage = fc
  .array(
    fc.record({
      issue: fc.nat(6),
      ends: fc.array(fc.tuple(fc.boolean(), fc.constantFrom(...states)), { maxLength: 12 }),
    }),
    {
      minLength: 1,
      maxLength: 6,
    },
  )
  .map((steps) => {
    let [next, pending]: [number, number[]] = [1, []];
    return steps.map(({ issue, ends }, i): StepOutcomes => {
      const issued = Array.from({ length: issue }, () => next++);
      const ended = [...pending, ...issued].flatMap((ordinal, j) =>
        ends[j]?.[0] ? [{ ordinal, state: ends[j][1] }] : [],
      );
      const commit = recordOutcomes({ step: i + 1, pendingBefore: pending, issued, ended });
      pending = decodeRanges(commit.pending);
      return commit;
    });
  });

describe('ranges', () => {
  test('they are written compactly and read back', () => {
    assert.equal(encodeRanges([3, 1, 2, 7, 9, 10]), '1-3,7,9-10');
    assert.deepEqual(decodeRanges('1-3,7,9-10'), [1, 2, 3, 7, 9, 10]);
    assert.equal(encodeRanges([]), '');
  });

  test('what is written is read back, repeated numbers included', () => {
    fc.assert(
      fc.property(fc.array(fc.nat(60)), (ordinals) => {
        const read = decodeRanges(encodeRanges(ordinals));
        assert.deepEqual(
          read.toSorted((a, b) => a - b),
          ordinals.toSorted((a, b) => a - b),
        );
      }),
    );
  });

  test('a damaged range is refused', () => {
    for (const text of ['1-', 'x', '4-2', '1,,2', ' 1', '-3']) assert.throws(() => decodeRanges(text), /Not a range/);
  });
});

describe('ledger audit', () => {
  test('in every undamaged lineage, issued = Σ counts + pending', () => {
    fc.assert(
      fc.property(lineage, (commits) => {
        const audit = auditLedger(commits);
        assert.ok(audit.isSound);
        const counted = Object.values(audit.counts).reduce((sum, count) => sum + count, 0);
        assert.equal(audit.issued, counted + audit.pending);
      }),
    );
  });

  test('a group that ended twice is found', () => {
    fc.assert(
      fc.property(lineage, fc.nat(), fc.constantFrom(...states), (commits, pick, state) => {
        const ended = commits.flatMap((commit) =>
          Object.values(commit.ended).flatMap((ranges) => decodeRanges(ranges ?? '')),
        );
        fc.pre(ended.length > 0);
        const twice = ended[pick % ended.length]!;
        const again: StepOutcomes = {
          step: 99,
          issued: '',
          ended: { [state]: `${twice}` },
          pending: commits.at(-1)!.pending,
        };
        const audit = auditLedger([...commits, again]);
        assert.deepEqual([audit.duplicates, audit.isSound], [[twice], false]);
      }),
    );
  });

  test('a group that was issued and then lost is found', () => {
    fc.assert(
      fc.property(lineage, fc.nat(), (commits, pick) => {
        const last = commits.at(-1)!;
        const pending = decodeRanges(last.pending);
        fc.pre(pending.length > 0);
        const lost = pending[pick % pending.length]!;
        const damaged = { ...last, pending: encodeRanges(pending.filter((ordinal) => ordinal !== lost)) };
        const audit = auditLedger([...commits.slice(0, -1), damaged]);
        assert.deepEqual([audit.holes, audit.isSound], [[lost], false]);
      }),
    );
  });

  test('an ordinal that was never issued, or issued twice, is found', () => {
    const commit = (issued: string, trained: string): StepOutcomes => ({
      step: 1,
      issued,
      ended: { trained },
      pending: '',
    });
    assert.deepEqual(auditLedger([commit('1-2,4', '1-2,4')]).holes, [3]);
    assert.deepEqual(auditLedger([commit('1-2', '1-3')]).holes, [3]);
    assert.deepEqual(auditLedger([commit('1-2', '1-2'), { ...commit('2', ''), ended: {} }]).duplicates, [2]);
  });

  test('a group that is both ended and pending is a duplicate', () => {
    const audit = auditLedger([{ step: 1, issued: '1-2', ended: { trained: '1-2' }, pending: '2' }]);
    assert.deepEqual(audit.duplicates, [2]);
  });

  test('a run that has not committed anything is sound and empty', () => {
    assert.deepEqual(auditLedger([]), {
      issued: 0,
      counts: {},
      pending: 0,
      timedOut: {},
      effects: {},
      holes: [],
      duplicates: [],
      missingSteps: [],
      isSound: true,
    });
  });

  test('what ended with a step is counted whatever became of it', () => {
    assert.equal(countEnded([]), 0);
    assert.equal(countEnded([{ stale: '1-3,7' }, { 'filtered:no_signal': '9', 'failed:timeout': '12' }]), 6);
  });

  test('end states sum by kind whatever their reasons', () => {
    assert.deepEqual(countsByKind({ trained: 4, 'filtered:surplus': 1, 'filtered:too_easy': 2 }), {
      trained: 4,
      filtered: 3,
    });
  });
});
