import assert from 'node:assert/strict';
import { test } from 'node:test';
import fc from 'fast-check';
import { drawExamples } from '../../../core/gepa/examples.ts';
import {
  candidateRows,
  candidateTree,
  frontierRows,
  treeDocument,
  type ToldCandidate,
} from '../../../core/gepa/results.ts';
import { unifiedDiff } from '../../../core/gepa/text-diff.ts';

const told = (prompt: string, parents: number[], scores: (number | null)[]): ToldCandidate => ({
  prompt,
  texts: { system_prompt: prompt },
  sha256: `sha of ${prompt}`,
  parents,
  scores,
  callsBefore: 3,
});
const candidates = [told('a', [], [0, 1, 0]), told('a\nb', [0], [1, null, 0.5]), told('a\nc', [0], [1, 1, 1])];

test('each candidate is a row with its diff from the start, its parents and its scores by example', () => {
  const [start, , best] = candidateRows(candidates, 2) as { reward: number; info: Record<string, unknown> }[];
  assert.equal(start!.info['diff_from_initial'], '');
  assert.equal(best!.reward, 1);
  assert.deepEqual(best!.info['parent_candidate_idxs'], [0]);
  assert.deepEqual(best!.info['val_subscores'], { '0': 1, '1': 1, '2': 1 });
  assert.equal(
    best!.info['diff_from_initial'],
    '--- initial/system_prompt.txt\n+++ candidate/system_prompt.txt\n@@ -1 +1,2 @@\n a\n+c\n',
  );
});

test('the frontier names all who are best at an example, and knows nothing of examples that nobody was scored on', () => {
  const rows = frontierRows(candidates.map((one) => ({ ...one, scores: [...one.scores, null] })));
  assert.deepEqual(
    rows.map((row) => [row['valset_row'], row['best_score'], row['num_best_candidates']]),
    [
      [0, 1, 2],
      [1, 1, 2],
      [2, 1, 1],
    ],
  );
});

test('the tree shows who came from whom, and the document each one’s diff to its parent', () => {
  assert.deepEqual(
    candidateTree(candidates, 2).map(({ line }) => line),
    ['0  0.333', '  1  0.750 on 2 of 3', '  2  1.000  ← best'],
  );
  assert.match(treeDocument(candidates, 2), /## Candidate 1 from 0\n\n```diff\n--- candidate 0\n\+\+\+ candidate 1\n/);
});

test('a diff, applied to the one text, gives the other', () => {
  const lines = fc.array(fc.constantFrom('a', 'b', 'c', 'd'), { maxLength: 12 });
  fc.assert(
    fc.property(lines, lines, (a, b) => {
      const diff = unifiedDiff(a.join('\n'), b.join('\n'), { from: 'x', to: 'y', context: 100 });
      // Without a difference all of it is context.
      const edits = diff === '' ? a.map((line) => ` ${line}`) : diff.split('\n').slice(3, -1);
      const side = (kind: string) =>
        edits.filter((line) => line[0] === ' ' || line[0] === kind).map((line) => line.slice(1));
      assert.deepEqual(side('-'), a);
      assert.deepEqual(side('+'), b);
    }),
  );
});

test('hunks are as difflib has them', () => {
  const before = Array.from({ length: 20 }, (_, i) => `line ${i}`);
  const after = before.with(2, 'two').with(17, 'seventeen');
  assert.equal(
    unifiedDiff(before.join('\n'), after.join('\n'), { from: 'x', to: 'y' }),
    '--- x\n+++ y\n@@ -1,6 +1,6 @@\n line 0\n line 1\n-line 2\n+two\n line 3\n line 4\n line 5\n@@ -15,6 +15,6 @@\n line 14\n line 15\n line 16\n-line 17\n+seventeen\n line 18\n line 19\n',
  );
});

test('examples to reflect on, to choose by and to compare on are disjoint, and the same for the same seed', () => {
  const drawn = drawExamples([{ dataset: 40, evalDataset: 0 }], { seed: 1, train: 20, val: 10, test: 5 });
  const all = [...drawn.train, ...drawn.val, ...drawn.test].map(([, , example]) => example);
  assert.equal(new Set(all).size, 35);
  assert.deepEqual(drawn, drawExamples([{ dataset: 40, evalDataset: 0 }], { seed: 1, train: 20, val: 10, test: 5 }));
});

test('of several environments as many examples of each are drawn, those of small ones more than once', () => {
  const sizes = [
    { dataset: 3, evalDataset: 2 },
    { dataset: 50, evalDataset: 50 },
  ];
  const { train, val, test: unseen } = drawExamples(sizes, { seed: 0, train: 10, val: 5, test: 4 });
  const count = (refs: typeof train, at: number) => refs.filter(([environment]) => environment === at).length;
  assert.deepEqual([count(train, 0), count(train, 1), count(val, 0), count(val, 1)], [5, 5, 3, 2]);
  assert.equal(count(unseen, 0), 0, 'what was seen is not compared on');
});
