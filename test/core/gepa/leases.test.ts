/** How a search's requests are cut into leases, and when one worker answers them instead. */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import fc from 'fast-check';
import { answerOf, comparedOnTest, compareScores, isQuick, slicesOf, slowPace } from '../../../core/gepa/leases.ts';
import type { EvaluateRequest } from '../../../core/gepa/search-state.ts';
import { slowPlayS } from '../../../core/rl/sampling/window.ts';

function requestOf(count: number): EvaluateRequest {
  const examples = Array.from({ length: count }, (_, i) => (7 * i) % 100);
  return {
    kind: 'evaluate',
    id: '3.child.0',
    iteration: 3,
    purpose: 'child',
    texts: { system_prompt: 'abc' },
    set: 'train',
    examples,
    keepsTraces: true,
    seed: 1,
  };
}

test('however a request is cut, its slices have each example once, in order, and its answer is that of the whole', () =>
  fc.assert(
    fc.property(
      fc.integer({ min: 1, max: 300 }),
      fc.integer({ min: 1, max: 40 }),
      fc.integer({ min: 1, max: 50 }),
      (count, workers, inFlightMax) => {
        const request = requestOf(count);
        const slices = slicesOf(request, { workers, inFlightMax });
        assert.deepEqual(
          slices.flatMap(({ examples }) => examples),
          request.examples,
        );
        assert.ok(
          slices.every(
            ({ from, examples }) => request.examples[from] === examples[0] && examples.length <= inFlightMax,
          ),
        );
        const played = slices.map(({ from, examples }) => ({
          scores: examples.map((_, i) => (from + i) / count),
          refused: null,
        }));
        const scores = request.examples.map((_, i) => i / count);
        assert.deepEqual(answerOf(request, played), { kind: 'scores', id: request.id, scores, paid: count });
      },
    ),
  ));

test('every worker of many has something of a large request, and a small one costs few events', () => {
  const sizesOf = (count: number) =>
    slicesOf(requestOf(count), { inFlightMax: Infinity }).map((one) => one.examples.length);
  assert.deepEqual([1, 2, 3, 5, 10].map(sizesOf), [[1], [2], [3], [3, 2], [3, 3, 3, 1]]);
  assert.ok(slicesOf(requestOf(300), { inFlightMax: Infinity }).length <= 16);
  assert.ok(slicesOf(requestOf(300), { workers: 40, inFlightMax: Infinity }).length >= 40);
});

test('rollouts of unknown length are leased; of known ones those that one process does not answer in two seconds', () => {
  const three = [requestOf(3)];
  assert.ok(!isQuick(three, null));
  // Three beside each other take as long as one, nine perhaps three times as long.
  const pace = { seconds: slowPlayS / 2, beside: 3 };
  assert.ok(isQuick(three, pace));
  assert.ok(!isQuick([...three, ...three, ...three], pace));
  assert.ok(!isQuick([], { seconds: slowPlayS, beside: 3 }), 'what follows a reflection is slow as well');
  assert.ok(!isQuick([], slowPace));
});

test('a search that found nothing compares nothing', () => {
  const [start, best] = [{ system_prompt: 'a' }, { system_prompt: 'b' }];
  assert.deepEqual(comparedOnTest(start, start), [{ id: 'test.start', texts: start }]);
  assert.deepEqual(comparedOnTest(start, best)[1], { id: 'test.b', texts: best });
});

test('two prompts are compared on the examples that both have a score of', () => {
  assert.deepEqual(compareScores([1, null, 0, 1], [0, 1, 0, null]), { examples: 2, before: 0.5, after: 0 });
  assert.deepEqual(compareScores([null], [1]), { examples: 0, before: null, after: null });
});
