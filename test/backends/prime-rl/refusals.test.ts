/** What never reaches prime-rl's trainer, and which installations are driven. */
import assert from 'node:assert/strict';
import { readdirSync, readFileSync, truncateSync, writeFileSync } from 'node:fs';
import path from 'node:path';
import { after, before, describe, test } from 'node:test';
import { readColumns } from '../../../backends/prime-rl/batch-columns.ts';
import { GivenBatches, placeBatch } from '../../../backends/prime-rl/given-batches.ts';
import { mainForm, olderForm } from '../../../backends/prime-rl/forms.ts';
import { mainMicroBatch } from '../../../backends/prime-rl/micro-batch-wire.ts';
import { type Installation, profileOf } from '../../../backends/prime-rl/profiles.ts';
import { rowsOf as sourceOf, type TrainSample } from '../../../core/rl/learning/batch.ts';
import { olderBatch, olderSample } from '../../../backends/prime-rl/training-batch-wire.ts';
import { installation } from '../../stand-ins/prime-rl/installation.mjs';
import { Bench } from './trained.ts';

describe('a batch that prime-rl would take', () => {
  let bench: Bench;
  before(async () => {
    bench = await Bench.make();
  });
  after(() => bench.close());

  const changed = (change: (row: TrainSample) => Partial<TrainSample>): TrainSample[] =>
    bench.rows.map((row, i) => (i === 3 ? { ...row, ...change(row) } : row));
  const setLast = (values: readonly number[], value: number): number[] => [...values.slice(0, -1), value];

  test('is refused without a start where a number is none, and nothing has changed', async () => {
    const trainer = await bench.opened();
    const digest = await trainer.digest();
    for (const [rows, what] of [
      [changed(({ advantages }) => ({ advantages: setLast(advantages, Number.NaN) })), /advantages .* NaN/],
      [changed(({ behaviorLogprobs }) => ({ behaviorLogprobs: setLast(behaviorLogprobs, -Infinity) })), /log prob/],
      [bench.rows.map((row) => ({ ...row, lossMask: row.lossMask.map(() => 0) })), /no token/],
    ] as const) {
      const outcome = await bench.step(trainer, 1, rows);
      assert.deepEqual([outcome.applied, outcome.digest], [false, digest]);
      assert.match(outcome.reason ?? '', what);
    }
    assert.deepEqual(bench.processes(), [], 'nothing was started');
  });

  test('is an error where its tokens, lengths or masks cannot be', async () => {
    const trainer = await bench.opened({ seqLen: 24 });
    const long = bench.rows[0]!;
    const times = (values: readonly number[]): number[] => [...values, ...values, ...values];
    const longer = { tokenIds: times(long.tokenIds), lossMask: times(long.lossMask), advantages: times(long.advantages), behaviorLogprobs: times(long.behaviorLogprobs) }; // prettier-ignore
    for (const [rows, what] of [
      [changed(({ tokenIds }) => ({ tokenIds: setLast(tokenIds, 384) })), /vocabulary, got 384/],
      [changed(({ tokenIds }) => ({ tokenIds: setLast(tokenIds, -1) })), /vocabulary, got -1/],
      [changed(() => longer), /24 tokens at most \(seq_len\)/],
      [changed(({ lossMask }) => ({ lossMask: setLast(lossMask, 0.5) })), /mask of 0 and 1/],
      [changed(({ lossMask }) => ({ lossMask: [1, ...lossMask.slice(1)] })), /begins with 0/],
      [changed(({ advantages }) => ({ advantages: advantages.slice(1) })), /advantages in row 3, one per token/],
    ] as const)
      await assert.rejects(bench.step(trainer, 1, rows), (error: Error) => what.test(error.message));
    assert.deepEqual(bench.processes(), []);
  });

  test('is refused after it was trained where the loss is no number; the next step begins from before', async () => {
    const trainer = await bench.opened();
    const [first, second] = await bench.steps(trainer, 1, 2);
    const other = await bench.opened();
    await bench.steps(other, 1, 1);
    const wild = changed(({ advantages }) => ({ advantages: advantages.map((value) => value * 1e38) }));
    const refused = await bench.step(other, 2, wild);
    assert.deepEqual([refused.applied, refused.digest, await other.digest()], [false, first, first]);
    assert.equal((await bench.step(other, 2)).digest, second);
  });

  test('is an error where it was trained with another rate, and none of its processes is left', async (t) => {
    process.env['STAND_IN_RATE'] = '2';
    t.after(() => delete process.env['STAND_IN_RATE']);
    const trainer = await bench.opened();
    const others = bench.processes();
    await assert.rejects(bench.step(trainer, 1), /trained with the learning rate 0\.002; expected 0\.001/);
    assert.deepEqual(bench.processes(), others);
    delete process.env['STAND_IN_RATE'];
    assert.equal((await bench.step(trainer, 1)).digest, (await bench.step(await bench.opened(), 1)).digest);
  });

  test('keeps its bytes: others are refused, and damage on the disk is found', async () => {
    const given = new GivenBatches(bench.newFolder());
    const write = async (rows: readonly TrainSample[]) => {
      const columns = await readColumns(sourceOf(rows), ({ lossMask, advantages }) => ({ mask: lossMask, advantages, temperature: 1 })); // prettier-ignore
      const { files } = mainForm.batch(columns, { fields: mainMicroBatch, seqLen: 64, ranks: 2, cp: 1, step: 1 });
      return given.write(1, files, { learning_rate: 1, weight_decay: 0 });
    };
    const batch = await write(bench.rows);
    assert.deepEqual((await write(bench.rows)).files, batch.files);
    const target = path.join(bench.newFolder(), 'step_1');
    await placeBatch(batch, target);
    assert.deepEqual(readdirSync(target).sort(), ['rank_0.bin', 'rank_1.bin', 'settings.json']);
    await assert.rejects(write(changed(({ advantages }) => ({ advantages: setLast(advantages, 9) }))), { code: 'Bug' });
    await placeBatch(batch, path.join(bench.newFolder(), 'step_1'));
    truncateSync(path.join(batch.folder, 'rank_1.bin'), 100);
    await assert.rejects(
      placeBatch(batch, path.join(bench.newFolder(), 'step_1')),
      /rank_1\.bin is not what was written/,
    );
  });

  test('is not repeated from a state of another version, of half a folder, or of another trainer', async () => {
    const trainer = await bench.opened();
    await bench.steps(trainer, 1, 2);
    const state = bench.newFolder();
    await trainer.saveOptimizer(state);
    const weights = bench.newFolder();
    await trainer.exportTo(weights, { base: '' });
    const other = await bench.opened();
    await assert.rejects(other.restoreOptimizer({ folder: state }), /is of the version/);
    await other.open(weights, { lora: null, seed: 1 });
    const shard = path.join(state, '__0_0.distcp');
    const whole = readFileSync(shard);
    writeFileSync(shard, whole.subarray(0, 1_000));
    await assert.rejects(other.restoreOptimizer({ folder: state }), { code: 'CheckpointDamaged' });
    await assert.rejects(other.restoreOptimizer({ folder: bench.newFolder() }), { code: 'CheckpointDamaged' });
    await assert.rejects(other.restoreOptimizer(new Uint8Array(8)), { code: 'CheckpointDamaged' });
    writeFileSync(shard, whole);
    await other.restoreOptimizer({ folder: state });
    assert.equal((await bench.step(other, 3)).digest, (await bench.step(trainer, 3)).digest);
  });
});

describe('an installation of prime-rl', () => {
  const told = (change: Partial<Installation>): Installation => ({ ...installation, ...change });
  const microBatch = (fields: readonly string[]) => told({ structs: { MicroBatch: [...fields] } });

  test('is driven by the fields of its transport, in its own order', () => {
    const turned = mainMicroBatch.toReversed();
    assert.deepEqual(profileOf(microBatch(turned), 'python').fields, turned);
  });

  const older = (change: Partial<Installation['structs']> = {}): Installation =>
    told({
      structs: {
        TrainingSample: [...olderSample],
        TrainingBatch: [...olderBatch],
        MicroBatch: ['input_ids'],
        ...(change as Installation['structs']),
      },
      settings: { RLTrainerConfig: ['loss', 'rollout_transport', 'weight_broadcast', 'ckpt', 'scheduler'] },
    });

  test('is driven by the marker of its broadcasts, also that of a branch', () => {
    assert.equal(profileOf(told({ markers: ['.finished', '.started'] }), 'python').marker, '.finished');
  });

  test('packs samples itself where it is of v0.4.0', () => {
    const { form, fields } = profileOf(older(), 'python');
    assert.deepEqual([form, fields], [olderForm, olderSample]);
  });

  for (const [what, change, expected] of [
    [
      'a sample of a later release',
      older({ TrainingSample: [...olderSample, 'env_name'] }),
      /TrainingSample has env_name/,
    ],
    ['a field that is not known', microBatch([...mainMicroBatch, 'run_id']), /has run_id, which is not known/],
    ['a field less', microBatch(mainMicroBatch.slice(1)), /lacks input_ids/],
    ['another marker', told({ markers: ['READY'] }), /marked by READY: expected STABLE or \.finished/],
    ['packages missing', told({ missing: ['msgspec'] }), /lacks msgspec/],
    [
      'no resume in its settings',
      told({ settings: { TrainerConfig: ['loss', 'rollout_transport', 'weight_broadcast', 'ckpt'] } }),
      /no setting resume/,
    ],
  ] as const)
    test(`is refused by name with ${what}`, () => {
      assert.throws(
        () => profileOf(change, '/opt/prime-rl'),
        (error: Error) => expected.test(error.message),
      );
    });
});
