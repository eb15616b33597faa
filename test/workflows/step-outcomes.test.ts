import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import fc from 'fast-check';
import { auditLedger, decodeRanges, encodeRanges, type EndedRanges } from '../../core/rl/ledger.ts';
import { nothingLost } from '../../core/rl/lost-work.ts';
import type { KeptGroups } from '../../core/rl/run-state.ts';
import { selectGroups } from '../../core/rl/learning/selection.ts';
import type { CollectedStep } from '../../workflows/step/collect-step.ts';
import { initialCurriculum } from '../../core/rl/sampling/curriculum.ts';
import { stepOutcomes } from '../../workflows/step/step-outcomes.ts';

const ref = { key: 'k', sha256: 's', bytes: 1 };
const kept = (policyStep: number, ordinals: readonly number[]): KeptGroups => ({
  scored: ref,
  policyStep,
  ordinals: encodeRanges(ordinals),
});
const collected = (some: Partial<CollectedStep>): CollectedStep => ({
  packed: ref,
  trained: [],
  surplus: [],
  curriculum: initialCurriculum,
  issued: [],
  ended: [],
  rows: 0,
  figures: {},
  lost: nothingLost,
  ...some,
});

describe('what a commit says became of the groups', () => {
  test('v0 issued nothing', () => {
    assert.deepEqual(stepOutcomes(0, []), { step: 0, issued: '', ended: {}, pending: '' });
  });

  test('one round: some filtered, a batch trained, the rest waiting', () => {
    const attempt = collected({
      issued: [[1, 8]],
      ended: [{ 'filtered:too_easy': '2', 'failed:infra_failure': '5' }],
      trained: [kept(0, [1, 3, 4, 6])],
      surplus: [kept(0, [7, 8])],
    });
    assert.deepEqual(stepOutcomes(1, [attempt]), {
      step: 1,
      issued: '1-8',
      ended: { 'failed:infra_failure': '5', 'filtered:too_easy': '2', trained: '1,3-4,6' },
      pending: '7-8',
    });
  });

  test('the groups of a refused batch end as refused, and only the last attempt is trained', () => {
    const attempts = [
      collected({ issued: [[1, 4]], trained: [kept(0, [1, 2])], surplus: [kept(0, [3, 4])] }),
      collected({
        issued: [[5, 6]],
        trained: [kept(0, [3, 4])],
        surplus: [kept(0, [5])],
        ended: [{ 'filtered:too_hard': '6' }],
      }),
    ];
    assert.deepEqual(stepOutcomes(1, attempts), {
      step: 1,
      issued: '1-6',
      ended: { 'filtered:too_hard': '6', refused: '1-2', trained: '3-4' },
      pending: '5',
    });
  });

  test('whatever is kept, refused or too old, the ledger of the commits is sound', () =>
    fc.assert(
      fc.property(
        fc.integer({ min: 1, max: 5 }),
        fc.nat(2),
        fc.array(fc.array(fc.array(fc.boolean(), { minLength: 1, maxLength: 8 }), { minLength: 1, maxLength: 3 }), {
          minLength: 1,
          maxLength: 6,
        }),
        (groupsPerBatch, maxOffPolicySteps, steps) => {
          let [next, surplus]: [number, readonly KeptGroups[]] = [1, []];
          const commits = steps.map((attempts, i) => {
            const step = i + 1;
            const results = attempts.map((keeps) => {
              const first = next;
              next += keeps.length;
              const ordinals = keeps.map((_, j) => first + j);
              const round = kept(
                Math.max(0, step - 1 - (first % 2)),
                ordinals.filter((_, j) => keeps[j]),
              );
              const dropped: EndedRanges = { 'filtered:no_signal': encodeRanges(ordinals.filter((_, j) => !keeps[j])) };
              const selection = selectGroups({
                step,
                size: { groups: groupsPerBatch, total: null },
                maxOffPolicySteps,
                kept: [...surplus, round],
              });
              surplus = selection.surplus;
              return collected({
                ...selection,
                issued: [[first, next - 1]],
                ended: selection.stale === '' ? [dropped] : [dropped, { stale: selection.stale }],
              });
            });
            return stepOutcomes(step, results);
          });
          const audit = auditLedger(commits);
          assert(audit.isSound, JSON.stringify({ holes: audit.holes, duplicates: audit.duplicates }));
          assert.equal(audit.issued, next - 1);
          assert.equal(audit.pending, surplus.flatMap(({ ordinals }) => decodeRanges(ordinals)).length);
        },
      ),
    ));
});
