import assert from 'node:assert/strict';
import { test } from 'node:test';
import fc from 'fast-check';
import { randomStream } from '../../core/random.ts';
import type { SequenceRequest } from '../../engine/sample/sequence-request.ts';
import { TokenChooser, truncate } from '../../engine/sample/token-choice.ts';
import { plainDraw } from './plain-sampling.ts';

const base: SequenceRequest = { promptTokenIds: [0, 1], maxTokens: 8, temperature: 1, seed: 7, stopTokenIds: [] };

/** Multiples of 1/1024, so that rounding cannot decide between near values. */
const number = (min: number, max: number): fc.Arbitrary<number> =>
  fc.integer({ min: min * 1024, max: max * 1024 }).map((steps) => steps / 1024);

/** Draws the tokens of a row from the same logits again and again. */
function drawRow(logits: readonly number[], request: SequenceRequest): ReturnType<TokenChooser['fromLogits']>[] {
  const rows = { data: Float32Array.from(logits), vocabularySize: logits.length };
  const chooser = new TokenChooser(request);
  return Array.from({ length: request.maxTokens }, () => chooser.fromLogits(rows, 0));
}

const vocabulary = 24;
const tokenId = fc.integer({ min: 0, max: vocabulary - 1 });
const score = fc.oneof(
  number(-9, 9),
  fc.constantFrom(-2, 0, 1.5), // ties
);
const modifiedRequest = fc
  .record({
    temperature: fc.oneof(fc.constant(0), number(0.125, 3)),
    seed: fc.integer(),
    promptTokenIds: fc.array(tokenId, { minLength: 1, maxLength: 6 }),
    stopTokenIds: fc.array(tokenId, { maxLength: 3 }),
    minTokens: fc.integer({ min: 0, max: 6 }),
    topP: fc.oneof(fc.constant(1), fc.double({ min: 1e-9, max: 1, noNaN: true })),
    topK: fc.integer({ min: -1, max: vocabulary + 2 }),
    minP: fc.oneof(fc.constant(0), number(0, 1)),
    repetitionPenalty: fc.oneof(fc.constant(1), number(0.5, 2)),
    presencePenalty: fc.oneof(fc.constant(0), number(-2, 2)),
    frequencyPenalty: fc.oneof(fc.constant(0), number(-2, 2)),
    logitBias: fc.array(fc.tuple(tokenId, number(-5, 5)), { maxLength: 4 }),
    allowedTokenIds: fc.option(fc.uniqueArray(tokenId, { minLength: 5 }), { nil: null }),
    ignoreEnd: fc.boolean(),
  })
  .map(({ logitBias, allowedTokenIds, ...rest }): SequenceRequest => ({
    ...rest,
    maxTokens: 6,
    logitBias: new Map(logitBias),
    ...(allowedTokenIds && { allowedTokenIds }),
  }));

test('every token is that of a plain implementation in double precision, and so are its probabilities', () => {
  const logits = fc.array(score, { minLength: vocabulary, maxLength: vocabulary });
  fc.assert(
    fc.property(logits, modifiedRequest, (values, request) => {
      const output: number[] = [];
      for (const { tokenId: drawn, logprob, samplingLogprob } of drawRow(values, request)) {
        const plain = plainDraw(values, request, output);
        // On the very edge of a set rounding decides.
        fc.pre(plain.sums.every((sum) => Math.abs(sum - (request.topP ?? 1)) > 1e-9));
        assert.equal(drawn, plain.tokenId);
        assert.ok(Math.abs(logprob - plain.logprob) < 1e-5);
        assert.ok(Math.abs(samplingLogprob - plain.samplingLogprob) < 1e-5);
        output.push(drawn);
      }
    }),
    { numRuns: 3000, seed: 20261121 },
  );
});

test('tokens are drawn as often as the modified distribution says', () => {
  const random = randomStream('logits');
  const logits = Array.from({ length: vocabulary }, () => Math.fround(4 * random()));
  const requests: Partial<SequenceRequest>[] = [
    {},
    { topP: 0.8 },
    { topK: 5, temperature: 1.4 },
    { minP: 0.2 },
    { repetitionPenalty: 1.6, logitBias: new Map([[3, 2]]), topP: 0.9, topK: 12, minP: 0.02 },
  ];
  for (const change of requests) {
    const { probabilities } = plainDraw(logits, { ...base, ...change }, []);
    const draws = 20_000;
    const counts = Array.from({ length: vocabulary }, () => 0);
    for (let seed = 0; seed < draws; seed++) {
      counts[drawRow(logits, { ...base, ...change, maxTokens: 1, seed })[0]!.tokenId]!++;
    }
    const possible = probabilities.filter((probability) => probability > 0);
    assert.ok(counts.every((count, id) => count === 0 || probabilities[id]! > 0));
    const chiSquare = probabilities.reduce(
      (sum, probability, id) =>
        probability === 0 ? sum : sum + (counts[id]! - draws * probability) ** 2 / (draws * probability),
      0,
    );
    // Mean k − 1, variance 2(k − 1): five deviations.
    const freedom = possible.length - 1;
    assert.ok(chiSquare < freedom + 5 * Math.sqrt(2 * freedom) + 5, `${JSON.stringify(change)}: ${chiSquare}`);
  }
});

const kept = (weights: readonly number[], truncation: Parameters<typeof truncate>[1]): number[] => {
  const array = Float64Array.from(weights);
  truncate(array, truncation);
  return [...array.keys()].filter((id) => array[id]! > 0);
};

test('top_k keeps what equals the k-th, and does nothing from the whole vocabulary on', () => {
  assert.deepEqual(kept([1, 0.5, 0.5, 0.25], { topK: 2 }), [0, 1, 2]);
  assert.deepEqual(kept([1, 0.5, 0.5, 0.25], { topK: 1 }), [0]);
  for (const topK of [-1, 0, 4, 100]) assert.deepEqual(kept([1, 0.5, 0.5, 0.25], { topK }), [0, 1, 2, 3]);
  assert.deepEqual(kept([0, 1, 0, 0.5], { topK: 3 }), [1, 3]);
});

test('top_p keeps the smallest set that reaches it, at least the likeliest token, and of equals the first ids', () => {
  assert.deepEqual(kept([0.25, 1, 0.5], { topP: 1e-300 }), [1]);
  assert.deepEqual(kept([1, 1, 1, 1], { topP: 0.5 }), [0, 1]);
  assert.deepEqual(kept([1, 1, 1, 1], { topP: 0.51 }), [0, 1, 2]);
  assert.deepEqual(kept([0.5, 1, 0.5], { topP: 0.5 }), [1]);
  assert.deepEqual(kept([0.5, 1, 0.5], { topP: 0.6 }), [0, 1]);
  assert.deepEqual(kept([0.5, 1, 0.5], { topP: 1 }), [0, 1, 2]);
});

test('min_p 1 keeps what is as likely as the likeliest; top_p sees what min_p and top_k left', () => {
  assert.deepEqual(kept([0.99, 1, 0.5, 1], { minP: 1 }), [1, 3]);
  assert.deepEqual(kept([1, 0.6, 0.3, 0.1], { minP: 0.3 }), [0, 1, 2]);
  // Renormalized over 1 + 0.6, the first is 0.625; over all four it would be 0.5.
  assert.deepEqual(kept([1, 0.6, 0.3, 0.1], { topK: 2, topP: 0.62 }), [0]);
  assert.deepEqual(kept([1, 0.6, 0.3, 0.1], { topP: 0.62 }), [0, 1]);
});

test('temperature 0 takes the likeliest token after penalties and bias, and ignores truncation', () => {
  const logits = [0, 3, 2.5, -1];
  const greedy = { ...base, temperature: 0, promptTokenIds: [0], maxTokens: 4 };
  const ids = (change: Partial<SequenceRequest>): number[] =>
    drawRow(logits, { ...greedy, ...change }).map(({ tokenId: id }) => id);
  assert.deepEqual(ids({}), [1, 1, 1, 1]);
  assert.deepEqual(ids({ presencePenalty: 1 }), [1, 2, 1, 1]);
  assert.deepEqual(ids({ frequencyPenalty: 1 }), [1, 2, 1, 2]);
  assert.deepEqual(ids({ logitBias: new Map([[3, 10]]) }), [3, 3, 3, 3]);
  assert.deepEqual(ids({ topP: 0.1, topK: 1, minP: 1 }), [1, 1, 1, 1]);
  const [plain] = drawRow(logits, greedy);
  const [truncated] = drawRow(logits, { ...greedy, topK: 1 });
  assert.deepEqual(truncated, plain);
});

test('a single allowed token is drawn however unlikely, with its probability under the model', () => {
  const [choice] = drawRow([0, 90, 0, -800], { ...base, allowedTokenIds: [3] });
  assert.deepEqual(choice, { tokenId: 3, logprob: -890, samplingLogprob: 0 });
});

test('probabilities of the graph and logits lead to the same token', () => {
  const random = randomStream('both');
  for (let seed = 0; seed < 500; seed++) {
    const data = Float32Array.from({ length: 300 }, () => 8 * random());
    const total = data.reduce((sum, logit) => sum + Math.exp(logit), 0);
    const probabilities = { data: data.map((logit) => Math.exp(logit) / total), vocabularySize: 300 };
    const fromLogits = new TokenChooser({ ...base, seed }).fromLogits({ data, vocabularySize: 300 }, 0);
    const fromProbabilities = new TokenChooser({ ...base, seed }).fromProbabilities(probabilities, 0, 0);
    assert.equal(fromProbabilities.tokenId, fromLogits.tokenId);
    assert.ok(Math.abs(fromProbabilities.logprob - fromLogits.logprob) < 1e-6);
  }
});

test('a greedy row takes the token that the graph found likeliest, with its probability', () => {
  const probabilities = { data: Float32Array.of(0.25, 0.5, 0.25, 1, 0, 0), vocabularySize: 3 };
  const chooser = new TokenChooser({ ...base, temperature: 0 });
  const logprob = Math.fround(Math.log(0.5));
  const expected = { tokenId: 1, logprob, samplingLogprob: logprob };
  assert.deepEqual(chooser.fromProbabilities(probabilities, 0, 1), expected);
  assert.deepEqual(chooser.fromProbabilities(probabilities, 1, 0), { tokenId: 0, logprob: 0, samplingLogprob: 0 });
  assert.equal(chooser.needsLogits, false, 'after the first token');
});

test('probabilities that end below 1 leave the rest to the last possible token', () => {
  const probabilities = { data: Float32Array.of(0.1, 0.2, 0, 0), vocabularySize: 4 };
  for (let seed = 0; seed < 50; seed++) {
    assert.ok(new TokenChooser({ ...base, seed }).fromProbabilities(probabilities, 0, 0).tokenId < 2);
  }
});

test('logits that are not numbers give a log probability that is none', () => {
  const rows = { data: Float32Array.of(NaN, NaN), vocabularySize: 2 };
  for (const temperature of [0, 1]) {
    assert.ok(Number.isNaN(new TokenChooser({ ...base, temperature }).fromLogits(rows, 0).logprob));
  }
  assert.ok(Number.isNaN(new TokenChooser(base).fromProbabilities(rows, 0, 0).logprob));
});
