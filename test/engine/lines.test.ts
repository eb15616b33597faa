import assert from 'node:assert/strict';
import { test } from 'node:test';
import fc from 'fast-check';
import { type MaskedSample, type RowFacts, type Rows, rowsOf } from '../../core/rl/learning/batch.ts';
import { Parameters } from '../../engine/index.ts';
import type { ModelConfig } from '../../engine/model/config.ts';
import { GradientComputer } from '../../engine/train/gradient-computer.ts';
import { supervisedFeeds } from '../../engine/train/feeds.ts';
import { joinRows, pairCost } from '../../engine/train/lines.ts';
import { cutMicroBatches, readMicroBatches } from '../../engine/train/micro-batches.ts';
import { randomParameters, tinyConfig } from './models.ts';

const token = (config: ModelConfig, seed: number): number => (7 * seed + 3) % config.vocabularySize;

/** Groups of rows, each of which begins as its group does, and counts in the loss from there on. */
function groups(config: ModelConfig, sizes: readonly { prompt: number; answers: readonly number[] }[]): MaskedSample[] {
  return sizes.flatMap(({ prompt, answers }, g) =>
    answers.map((length, i) => ({
      tokenIds: [
        ...Array.from({ length: prompt }, (_, t) => (t === 0 ? g : token(config, t))),
        ...Array.from({ length }, (_, t) => token(config, 5 * t + i + 2 * g)),
      ],
      lossMask: [...Array.from({ length: prompt }, () => 0), ...Array.from({ length }, () => 1)],
    })),
  );
}

/** The same rows, without the facts they share. */
function apart(samples: readonly MaskedSample[]): Rows<MaskedSample> {
  const source = rowsOf(samples);
  return { ...source, rows: source.rows.map((facts) => ({ ...facts, shared: 0 })) };
}

const samples = groups(tinyConfig, [
  { prompt: 12, answers: [3, 5, 1, 4] },
  { prompt: 9, answers: [2] },
  { prompt: 17, answers: [6, 2, 6] },
]);

interface Computing {
  readonly logitsMax?: number;
  readonly recomputesEvery?: number;
}

async function computed(rows: Rows<MaskedSample>, config: ModelConfig, options: Computing = {}) {
  const parameters = randomParameters(config, 3);
  const computer = new GradientComputer(config, { threads: 1, ...options });
  const [gradient, scratch] = [new Parameters(config), new Parameters(config)];
  const weights = { parameters, adapter: null };
  const pass = { kind: 'sft' as const, rows, lossFeeds: supervisedFeeds(rowsOf(rows).rows) };
  const [sums] = await computer.accumulate([pass], weights, gradient, scratch);
  const logprobs = await computer.score(rows, weights, 0.7);
  await computer.close();
  return {
    loss: sums!['loss']!,
    gradient: gradient.flat,
    logprobs: Float32Array.from(logprobs.flatMap((row) => [...row])),
  };
}

function requireEqual(actual: Float32Array, expected: Float32Array): void {
  const size = expected.reduce((most, value) => Math.max(most, Math.abs(value)), 0);
  assert(size > 1e-3);
  expected.forEach((value, i) => assert(Math.abs(value - actual[i]!) < 2e-5 * size, `${i}: ${value}, ${actual[i]}`));
}

const shapes: Record<string, ModelConfig> = {
  'a usual model': tinyConfig,
  'layers without positions': {
    ...tinyConfig,
    attention: [
      { window: null, rotary: 'none' },
      { window: null, rotary: 'global' },
    ],
  },
};

for (const [name, config] of Object.entries(shapes)) {
  const ways: Readonly<Record<string, Computing>> = {
    '': {},
    ', logits in parts': { logitsMax: 3 * config.vocabularySize },
    ', layers computed again': { recomputesEvery: 1 },
  };
  for (const [way, options] of Object.entries(ways)) {
    test(`a beginning that rows share is computed once: the loss, gradient and log probabilities are those of each row by itself, ${name}${way}`, async () => {
      const together = await computed(samples, config, options);
      const each = await computed(apart(samples), config, { ...options, recomputesEvery: 0 });
      assert(Math.abs(together.loss - each.loss) < 1e-5 * Math.abs(each.loss));
      requireEqual(together.gradient, each.gradient);
      requireEqual(together.logprobs, each.logprobs);
    });
  }
}

test('a group is one line of its prompt and all answers; the last token of the prompt predicts, so each row has its own', async () => {
  const source = rowsOf(samples);
  const limits = { pairCost: pairCost(tinyConfig) };
  const lines = cutMicroBatches(source.rows, 1000, limits).flat();
  assert.deepEqual(
    lines.map(({ rows, shared, width }) => ({ rows, shared, width })),
    [
      { rows: [4], shared: 0, width: 10 },
      { rows: [0, 1, 2, 3], shared: 11, width: 11 + 3 + 5 + 1 + 4 },
      { rows: [5, 6, 7], shared: 16, width: 16 + 6 + 2 + 6 },
    ],
  );
  for await (const micro of readMicroBatches(source, cutMicroBatches(source.rows, 1000, limits))) {
    assert.equal(new Set(micro.selected).size, micro.selected.length);
    micro.selected.forEach((slot, i) => {
      const { tokenIds } = samples[micro.sourceRow[i]!]!;
      assert.equal(micro.tokens[Number(slot)], tokenIds[micro.sourcePosition[i]! - 1]);
    });
  }
});

test('rows that do not begin alike, or count where they do, are never computed as one', async () => {
  const source = rowsOf(samples);
  const limits = { pairCost: pairCost(tinyConfig) };
  for (const [row, shared] of [
    [1, 12], // its last shared token predicts its first of the answer
    [4, 8], // another prompt
  ]) {
    const claimed = source.rows.map((facts, place) => ({ ...facts, shared: place === row ? shared! : 0 }));
    const cut = cutMicroBatches(claimed, 1000, limits);
    await assert.rejects(async () => {
      for await (const _ of readMicroBatches(source, cut));
    }, /begins as its line does|predicts no token that counts/);
  }
});

test('rows stay apart under a window, and where one line would be more work', () => {
  assert.equal(pairCost({ ...tinyConfig, attention: [{ window: 4, rotary: 'global' }] }), null);
  const row: RowFacts = { tokens: 1001, counted: 999, weight: 999, shared: 2 };
  const limits = { rowsMax: 64, widthMax: 10_000, selectedMax: Infinity, pairCost: 3e-4 };
  assert.equal(joinRows([row, row], limits).length, 2);
  const mostlyShared = { ...row, shared: 900 };
  assert.equal(joinRows([mostlyShared, mostlyShared], limits).length, 1);
});

const facts = fc.record({ tokens: fc.integer({ min: 2, max: 60 }), counted: fc.nat(3), shared: fc.nat(40) });

test('however rows are joined, each with loss is in one line, which is as wide as it says and within bounds', () => {
  fc.assert(
    fc.property(fc.array(facts), fc.integer({ min: 1, max: 5 }), (given, rowsMax) => {
      const rows = given.map((row) => ({
        ...row,
        counted: Math.min(row.counted, row.tokens - 1),
        shared: Math.min(row.shared, Math.max(0, row.tokens - 2)),
        weight: row.counted,
      }));
      const lines = joinRows(rows, { rowsMax, widthMax: 100, selectedMax: 20, pairCost: 1e-3 });
      const withLoss = [...rows.keys()].filter((row) => rows[row]!.counted > 0);
      assert.deepEqual(
        lines.flatMap((line) => line.rows),
        withLoss,
      );
      for (const { rows: places, shared, width } of lines) {
        const own = places.reduce((sum, row) => sum + rows[row]!.tokens - 1 - shared, 0);
        assert.equal(width, shared + own);
        assert(places.length === 1 || (places.length <= rowsMax && width <= 100 && shared > 0));
      }
    }),
  );
});
