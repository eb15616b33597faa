import assert from 'node:assert/strict';
import { describe, test, type TestContext } from 'node:test';
import fc from 'fast-check';
import { batchOf, type PackedRow, type TrainSample } from '../../core/rl/learning/batch.ts';
import type { PackedBatch, StoredRows } from '../../core/rl/run-state.ts';
import { putJson } from '../../store/objects.ts';
import { EngineOptimizer, TrainerProcess } from '../../engine/index.ts';
import { decodePart, decodeTaught, encodePart, encodeRow, encodeTaught } from '../../runs/rollouts/batch-parts.ts';
import { BatchWriter, openBatch, putPacked, type StoredBatch } from '../../runs/rollouts/batches.ts';
import { layout } from '../../runs/layout.ts';
import { makeRun, damage, type TestRun } from '../activities/runs.ts';
import { optimizer, randomBatch } from '../engine/models.ts';
import { hasCode } from '../store/store.contract.ts';

const number = fc.oneof(
  fc.double({ noNaN: true, noDefaultInfinity: true }),
  fc.float({ noNaN: true, noDefaultInfinity: true }),
);
const token = fc.record({
  id: fc.nat(2 ** 31 - 1),
  mask: fc.constantFrom(0, 1),
  logprob: number,
  sampling: number,
  advantage: number,
});

/** Rows as packing makes them: numbers stand at trained tokens. */
const sample = fc
  .record({
    tokens: fc.array(token, { maxLength: 40 }),
    isTold: fc.boolean(),
    hasSampling: fc.boolean(),
    advantage: fc.option(number),
    temperature: fc.option(fc.constantFrom(0.6, 1.7)),
    isDistilled: fc.boolean(),
    observed: fc.option(fc.constantFrom(0.1, 0.25)),
  })
  .map(({ tokens, isTold, hasSampling, advantage, temperature, isDistilled, observed }): PackedRow => {
    // JSON has no −0.
    const column = (of: (one: (typeof tokens)[number]) => number): number[] =>
      tokens.map((one, t) => (t > 0 && one.mask === 1 ? of(one) + 0 : 0));
    return {
      tokenIds: tokens.map(({ id }) => id),
      lossMask: column(() => 1),
      ...(isTold ? { behaviorLogprobs: column(({ logprob }) => logprob) } : {}),
      ...(hasSampling ? { samplingLogprobs: column(({ sampling }) => sampling) } : {}),
      advantages: column((one) => advantage ?? one.advantage),
      ...(temperature === null ? {} : { temperature }),
      ...(isDistilled ? { objective: 'ref_kl' as const } : {}),
      ...(observed !== null && tokens.length > 1
        ? { observed: [{ from: 1, to: tokens.length, weight: observed }] }
        : {}),
    };
  });

describe('rows of a batch as bytes', () => {
  test('every number comes out as it went in, as text of JSON would have given it', () =>
    fc.assert(
      fc.property(fc.array(sample, { maxLength: 8 }), fc.nat(7), (samples, offset) => {
        const bytes = encodePart(samples.map((row, i) => encodeRow(row, i)));
        // Wherever a store has read it to.
        const moved = new Uint8Array(bytes.byteLength + offset).subarray(offset);
        moved.set(bytes);
        const { heads, row } = decodePart(moved, 'a part');
        assert.deepEqual(
          heads.map((_, i) => row(i)),
          JSON.parse(JSON.stringify(samples)),
        );
      }),
    ));

  test('log probabilities that are float32 take four bytes, others eight; one advantage of a row stands in its head', () => {
    const row = (logprob: number, advantages: readonly number[]) =>
      encodeRow({ tokenIds: [1, 2, 3], lossMask: [0, 1, 1], behaviorLogprobs: [0, logprob, -1], advantages }, 0);
    const short = row(Math.fround(-0.1), [0, 0.3, 0.3]);
    assert.deepEqual([short.head.logprobs, short.head.advantage], [4, 0.3]);
    assert.equal(row(-0.1, [0, 0.3, 0.3]).bytes - short.bytes, 8);
    assert.equal(row(Math.fround(-0.1), [0, 0.3, 0.4]).bytes - short.bytes, 16);
  });

  test('a number where no token counts, and one that is none, is a bug', () => {
    const row = { tokenIds: [1, 2], lossMask: [0, 1], behaviorLogprobs: [0, -1], advantages: [0, 1] };
    for (const change of [{ advantages: [1, 1] }, { behaviorLogprobs: [-1, -1] }, { lossMask: [0, 0.5] }])
      assert.throws(() => encodeRow({ ...row, ...change }, 0), /does not count/);
    assert.throws(() => encodeRow({ ...row, advantages: [0, NaN] }, 0), /the number NaN/);
  });

  test('bytes that are something else, or end early, are told by name', () => {
    const part = encodePart([encodeRow(randomBatch({ vocabularySize: 20 } as never, 1, 3)[0]!, 0)]);
    const taught = encodeTaught([Float32Array.of(-1, -2)]);
    for (const bytes of [Buffer.from('{"tokenIds":[1]}\n'), Buffer.alloc(0), part.subarray(0, -8), taught])
      assert.throws(() => decodePart(bytes, 'THIS'), hasCode('CheckpointDamaged', 'THIS'));
    assert.throws(() => decodeTaught(part, 'THIS'), hasCode('CheckpointDamaged', 'THIS'));
    assert.deepEqual([...decodeTaught(taught, 'THIS')[0]!], [-1, -2]);
  });
});

const config = { vocabularySize: 50 } as never;

async function stored(
  { run }: TestRun,
  samples: readonly PackedRow[],
  partBytesMax: number,
): Promise<{
  readonly rows: StoredRows;
  readonly packed: PackedBatch & { readonly ref: Parameters<typeof openBatch>[1]['packed'] };
}> {
  const writer = new BatchWriter(run, 1, { partBytesMax });
  for (const [rollout, row] of samples.entries()) await writer.add(row, rollout);
  const rows = await writer.end({ of: samples.length });
  const packed = { rows, metrics: {} };
  return { rows, packed: { ...packed, ref: await putPacked(run, 1, packed) } };
}

function allOf(batch: StoredBatch): Promise<readonly PackedRow[]> {
  return batch.read([...batch.rows.keys()]);
}

describe('a batch in parts', () => {
  const samples = randomBatch(config, 24, 7);

  test('is the same rows however many parts it has, in their order or any other', async (t) => {
    const test = await makeRun(t);
    for (const [partBytesMax, parts] of [
      [1 << 20, 1],
      [400, null],
      [1, 24],
    ] as const) {
      const { rows, packed } = await stored(test, samples, partBytesMax);
      if (parts !== null) assert.equal(rows.parts.length, parts);
      const batch = await openBatch(test.run, { packed: packed.ref });
      assert.deepEqual(await allOf(batch), samples);
      assert.deepEqual(await batch.read([23, 0, 5]), [samples[23], samples[0], samples[5]]);
      assert.deepEqual(
        batch.rows.map(({ tokens }) => tokens),
        samples.map(({ tokenIds }) => tokenIds.length),
      );
    }
  });

  test('a part ends before the row that would make it too long, and a longer row is a part of its own', async (t) => {
    const test = await makeRun(t);
    const sizes = samples.map((row) => encodeRow(row, 0).bytes);
    const partBytesMax = Math.max(...sizes) + 100;
    const { rows } = await stored(test, samples, partBytesMax);
    let row = 0;
    for (const { count } of rows.parts) {
      const own = sizes.slice(row, row + count!).reduce((sum, bytes) => sum + bytes, 0);
      assert.ok(
        own <= partBytesMax && (sizes[row + count!] === undefined || own + sizes[row + count!]! > partBytesMax),
      );
      row += count!;
    }
    assert.equal(row, samples.length);
    assert.equal((await stored(test, samples, 1)).rows.parts.length, samples.length);
  });

  test('packed twice it is the same objects, and what another attempt left of it is not in the way', async (t) => {
    const test = await makeRun(t);
    const once = await stored(test, samples, 400);
    const cut = new BatchWriter(test.run, 1, { partBytesMax: 400 });
    for (const row of samples.slice(3, 20)) await cut.add(row, 0);
    assert.deepEqual(await stored(test, samples, 400), once);
    for (const { key, sha256: digest } of once.rows.parts) assert.ok(layout.isNamedBy(key, digest), key);
  });

  test('rows say which rollout they are of where a rollout is not one row', async (t) => {
    const test = await makeRun(t);
    const writer = new BatchWriter(test.run, 1);
    for (const [i, row] of samples.entries()) await writer.add(row, i >> 1);
    const rows = await writer.end({ of: 12 });
    const batch = await openBatch(test.run, { packed: await putPacked(test.run, 1, { rows, metrics: {} }) });
    const expected = samples.map((_, i) => ({ index: i >> 1, of: 12 }));
    assert.deepEqual(
      (await allOf(batch)).map(({ rollout }) => rollout),
      expected,
    );
    assert.deepEqual(
      batch.rows.map(({ rollout }) => rollout),
      expected,
    );
  });

  test('rows say what they are learned by, and how many of their tokens an environment said, without being read', async (t) => {
    const test = await makeRun(t);
    const observed = [{ from: 2, to: 4, weight: 0.1 }];
    const rows = samples.map((row, i): PackedRow => ({
      ...row,
      ...(i % 3 === 0 ? { objective: 'ref_kl' } : {}),
      ...(i % 4 === 1 ? { observed } : {}),
    }));
    const { packed } = await stored(test, rows, 400);
    const batch = await openBatch(test.run, { packed: packed.ref });
    assert.deepEqual(await allOf(batch), rows);
    assert.deepEqual(
      batch.rows.map((row) => [row.objective, row.observed]),
      rows.map((_, i) => [i % 3 === 0 ? 'ref_kl' : undefined, i % 4 === 1 ? 2 : undefined]),
    );
  });

  test('rows of which the policy’s log probabilities are not known are named', async (t) => {
    const test = await makeRun(t);
    const rows = samples.map(({ behaviorLogprobs, ...row }, i) => (i % 10 === 3 ? row : { ...row, behaviorLogprobs }));
    const { packed } = await stored(test, rows, 400);
    const batch = await openBatch(test.run, { packed: packed.ref });
    assert.deepEqual(batch.untold, [3, 13, 23]);
    assert.deepEqual(await allOf(batch), rows);
  });

  test('a damaged part is named, with what was expected; the rows of others are read', async (t) => {
    const test = await makeRun(t);
    const { rows, packed } = await stored(test, samples, 400);
    const part = rows.parts[1]!;
    await damage(test, part.key);
    const batch = await openBatch(test.run, { packed: packed.ref });
    assert.deepEqual(await batch.read([0]), [samples[0]]);
    await assert.rejects(
      batch.read([rows.parts[0]!.count!]),
      hasCode('CheckpointDamaged', part.key, `expected sha256 ${part.sha256.slice(0, 12)}`),
    );
  });

  test('a part that is whole and not what its batch says of it is refused', async (t) => {
    const test = await makeRun(t);
    const { rows } = await stored(test, samples, 1 << 20);
    for (const [change, message] of [
      [{ counted: rows.counted.map((count, i) => (i === 2 ? count - 1 : count)) }, 'of which'],
      [{ tokens: rows.tokens.slice(1), counted: rows.counted.slice(1) }, 'rows in parts'],
      [{ parts: [{ ...rows.parts[0]!, count: undefined }] }, 'rows in parts'],
    ] as const) {
      const bad = await putJson(test.store, `batches/step_1.bad-${message.replaceAll(' ', '-')}.json`, {
        rows: { ...rows, ...change },
        metrics: {},
      });
      const read = async () => allOf(await openBatch(test.run, { packed: bad }));
      await assert.rejects(read(), hasCode('CheckpointDamaged', message));
    }
  });
});

test('a batch of many parts trains the same bits as one of one part, in the trainer’s process as in this one', async (t) => {
  const test = await makeRun(t);
  const options = { threads: 1, seed: 1 };
  const model = 'preset:reverse-text-0.2m';
  const near = await opened(t, await EngineOptimizer.open(model, options));
  const samples = randomBatch(near.model.config, 24, 7);
  const loss = { type: 'grpo', clipLow: 0.8, clipHigh: 1.2, aggregation: 'sequence' } as const;
  const step = { learningRate: 1e-3, optimizer, loss, temperature: 0.9, klBeta: 0, microBatchRows: 5, iterations: 2 };
  const expected = await near.trainStep(samples, step);
  const digest = await near.digest();
  for (const partBytesMax of [1 << 20, 300]) {
    const { packed } = await stored(test, samples, partBytesMax);
    const found = await openBatch(test.run, { packed: packed.ref });
    const read = async (places: readonly number[]) => (await found.read(places)) as readonly TrainSample[];
    const batch = batchOf({ rows: found.rows, read });
    for (const by of [
      await EngineOptimizer.open(model, options),
      await TrainerProcess.open(model, options),
      await TrainerProcess.open(model, options, { tokensSentMax: 0 }),
    ]) {
      const trainer = await opened(t, by);
      assert.deepEqual(await trainer.trainStep(batch, step), expected);
      assert.equal(await trainer.digest(), digest);
    }
  }
});

async function opened<T extends { close(): Promise<void> }>(t: TestContext, trainer: T): Promise<T> {
  t.after(() => trainer.close());
  return trainer;
}
