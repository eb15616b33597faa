import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import fc from 'fast-check';
import { auditLedger, decodeRanges, encodeRanges, recordOutcomes } from '../../../core/rl/ledger.ts';
import type { EndState, StepOutcomes } from '../../../core/rl/ledger.ts';
import { auditLineages, type LineageCommits } from '../../../core/rl/lineages.ts';

/** Plan of a step: refused attempts, stale groups, waiting groups; or a rewind of the run. */
const stepPlan = fc.record({
  issue: fc.nat(6),
  ends: fc.array(
    fc.constantFrom<EndState | null>('trained', 'refused', 'stale', 'filtered:too_easy', 'failed:timeout', null),
    {
      maxLength: 14,
    },
  ),
});
const action = fc.oneof(
  { weight: 5, arbitrary: stepPlan.map((step) => ({ ...step, rewind: null })) },
  {
    weight: 1,
    arbitrary: fc.double({ min: 0, max: 1, noNaN: true }).map((rewind) => ({ issue: 0, ends: [], rewind })),
  },
);

/**
 * Simulates a run as the workflow and `firstCommit` would: each lineage a chain of its own, from step 0 or from a
 * commit.
 */
function play(actions: readonly { issue: number; ends: readonly (EndState | null)[]; rewind: number | null }[]) {
  const zero: StepOutcomes = { step: 0, issued: '', ended: {}, pending: '' };
  const lineages: (Omit<LineageCommits, 'commits'> & { commits: StepOutcomes[] })[] = [
    { lineage: 'main', origin: null, first: 0, commits: [zero] },
  ];
  for (const { issue, ends, rewind } of actions) {
    const current = lineages.at(-1)!;
    const last = current.commits.at(-1)!;
    if (rewind === null) {
      const before = decodeRanges(last.pending);
      const next = 1 + Math.max(0, ...current.commits.flatMap(({ issued }) => decodeRanges(issued)));
      const issued = Array.from({ length: issue }, (_, i) => next + i);
      const ended = [...before, ...issued].flatMap((ordinal, i) => (ends[i] ? [{ ordinal, state: ends[i] }] : []));
      current.commits.push(recordOutcomes({ step: last.step + 1, pendingBefore: before, issued, ended }));
      continue;
    }
    const at = current.commits[Math.floor(rewind * (current.commits.length - 1))]!;
    const drawn = current.commits.filter(({ step }) => step <= at.step).flatMap(({ issued }) => decodeRanges(issued));
    const pending = decodeRanges(at.pending);
    const inherited = encodeRanges(drawn.filter((ordinal) => !pending.includes(ordinal)));
    const ended: StepOutcomes['ended'] = inherited === '' ? {} : { inherited };
    const first: StepOutcomes = { step: at.step, issued: encodeRanges(drawn), ended, pending: at.pending };
    const origin = { lineage: current.lineage, step: at.step };
    lineages.push({ lineage: `l${lineages.length + 1}`, origin, first: at.step, commits: [first] });
  }
  return lineages;
}

const run = fc.array(action, { minLength: 1, maxLength: 14 }).map(play);

describe('the ledger of a whole run', () => {
  test('whatever was refused, went stale, waited or was left behind by a rewind, every group is accounted for once', () => {
    fc.assert(
      fc.property(run, (lineages) => {
        const audit = auditLineages(lineages);
        assert.ok(audit.isSound, JSON.stringify(audit));
        const ended = Object.values(audit.counts).reduce((sum, count) => sum + count, 0);
        assert.equal(audit.issued, ended + audit.pending + audit.superseded);
        for (const { issued, counts, pending } of audit.lineages) {
          assert.equal(issued, Object.values(counts).reduce((sum, count) => sum + count, 0) + pending);
        }
      }),
    );
  });

  test('how a group ended is told across a rewind; groups after its point are superseded', () => {
    const main: LineageCommits = {
      lineage: 'main',
      origin: null,
      first: 0,
      commits: [
        { step: 0, issued: '', ended: {}, pending: '' },
        { step: 1, issued: '1-4', ended: { trained: '1-2', 'filtered:too_easy': '3' }, pending: '4' },
        { step: 2, issued: '5-6', ended: { trained: '4-5' }, pending: '6' },
      ],
    };
    const l2: LineageCommits = {
      lineage: 'l2',
      origin: { lineage: 'main', step: 1 },
      first: 1,
      commits: [
        { step: 1, issued: '1-4', ended: { inherited: '1-3' }, pending: '4' },
        { step: 2, issued: '5-7', ended: { trained: '4,6', stale: '5' }, pending: '7' },
      ],
    };
    const audit = auditLineages([main, l2]);
    assert.deepEqual(audit.counts, { trained: 4, 'filtered:too_easy': 1, stale: 1 });
    assert.deepEqual([audit.issued, audit.pending, audit.superseded, audit.isSound], [9, 1, 2, true]);
    assert.deepEqual(
      audit.lineages.map(({ superseded }) => superseded),
      [2, 0],
    );
  });

  const spoilers = ['dropped', 'duplicated', 'moved', 'missing commit'] as const;
  for (const how of spoilers) {
    test(`whichever ordinal or commit it is, ${how === 'missing commit' ? 'a missing commit' : `an ordinal that was ${how}`} is found`, () => {
      let found = 0;
      fc.assert(
        fc.property(run, fc.nat(), fc.nat(), fc.nat(), (lineages, a, b, c) => {
          const spoiled = spoil(lineages, how, a, b, c);
          fc.pre(spoiled !== null);
          found += 1;
          const audit = auditLineages(spoiled);
          assert.equal(audit.isSound, false, JSON.stringify(spoiled));
        }),
        { numRuns: 200 },
      );
      assert.ok(found >= 100, `only ${found} histories could be spoiled like that`);
    });
  }
});

/** One corruption at a place the numbers choose; null where this history has no such place. */
function spoil(
  lineages: readonly LineageCommits[],
  how: 'dropped' | 'duplicated' | 'moved' | 'missing commit',
  a: number,
  b: number,
  c: number,
): LineageCommits[] | null {
  const which = a % lineages.length;
  const { commits } = lineages[which]!;
  const replace = (changed: readonly StepOutcomes[]) =>
    lineages.map((lineage, i) => (i === which ? { ...lineage, commits: changed } : lineage));
  if (how === 'missing commit') {
    if (commits.length < 2) return null;
    const gone = b % (commits.length - 1); // the last one's loss shows in what was written after it, not here
    return replace(commits.filter((_, i) => i !== gone));
  }
  const lists = commits.flatMap((commit, i) =>
    ['issued', 'pending', ...Object.keys(commit.ended)].flatMap((name) =>
      listOf(commit, name).length > 0 ? [{ i, name }] : [],
    ),
  );
  if (lists.length === 0) return null;
  const { i, name } = lists[b % lists.length]!;
  const list = listOf(commits[i]!, name);
  const ordinal = list[c % list.length]!;
  const without = withList(
    commits[i]!,
    name,
    list.filter((other) => other !== ordinal),
  );
  if (how === 'dropped') return replace(commits.map((commit, at) => (at === i ? without : commit)));
  const twice = withList(commits[i]!, name, [...list, ordinal]);
  if (how === 'duplicated') return replace(commits.map((commit, at) => (at === i ? twice : commit)));
  const to = (i + 1 + (c % Math.max(1, commits.length - 1))) % commits.length;
  if (to === i) return null;
  const there = withList(commits[to]!, name, [...listOf(commits[to]!, name), ordinal]);
  return replace(commits.map((commit, at) => (at === i ? without : at === to ? there : commit)));
}

function listOf(commit: StepOutcomes, name: string): number[] {
  if (name === 'issued' || name === 'pending') return decodeRanges(commit[name]);
  return decodeRanges(commit.ended[name as EndState] ?? '');
}

function withList(commit: StepOutcomes, name: string, ordinals: readonly number[]): StepOutcomes {
  const ranges = encodeRanges(ordinals);
  if (name === 'issued' || name === 'pending') return { ...commit, [name]: ranges };
  return { ...commit, ended: { ...commit.ended, [name]: ranges } };
}

test('steps without a commit are named', () => {
  const commit = (step: number): StepOutcomes => ({ step, issued: '', ended: {}, pending: '' });
  assert.deepEqual(auditLedger([commit(0), commit(3)]).missingSteps, [1, 2]);
  assert.deepEqual(auditLedger([commit(2)], 0).missingSteps, [0, 1]);
  assert.deepEqual(auditLedger([commit(2), commit(3)]).missingSteps, []);
});
