/** Optimizers of prime-rl against its own code; test/data/optimizers/record.py recorded golden.json. */
import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { test } from 'node:test';
import type { OptimizerSpec } from '../../config/run-spec.ts';
import { placed } from '../../engine/model/parameter-layout.ts';
import { WeightUpdates } from '../../engine/train/updates/index.ts';

interface Settings {
  readonly type: NonNullable<OptimizerSpec['type']>;
  readonly weight_decay: number;
  readonly max_norm: number;
  readonly mu?: number;
  readonly momentum?: number;
  readonly nesterov?: boolean;
  readonly betas1?: number;
  readonly betas2?: number;
}

interface Golden {
  readonly shapes: Readonly<Record<string, readonly number[]>>;
  readonly rates: readonly number[];
  readonly initial: readonly number[];
  readonly gradients: readonly (readonly number[])[];
  readonly cases: Readonly<
    Record<string, { readonly settings: Settings; readonly weights: readonly (readonly number[])[] }>
  >;
}

const golden = JSON.parse(readFileSync(new URL('../data/optimizers/golden.json', import.meta.url), 'utf8')) as Golden;
const layout = placed(Object.entries(golden.shapes));

function optimizerOf({ type, weight_decay, max_norm, mu, momentum = mu, nesterov, betas1, betas2 }: Settings) {
  const more = { ...(momentum === undefined ? {} : { momentum }), ...(nesterov === undefined ? {} : { nesterov }) };
  const betas = { beta1: betas1 ?? 0.9, beta2: betas2 ?? 0.999 };
  return { type, ...betas, ...more, epsilon: 1e-8, weightDecay: weight_decay, maxGradNorm: max_norm };
}

async function step(updates: WeightUpdates, weights: Float32Array, settings: Settings, i: number): Promise<void> {
  const gradient = Float32Array.from(golden.gradients[i]!);
  const norm = await updates.globalNorm(gradient);
  const learningRate = golden.rates[i]!;
  await updates.apply(weights, gradient, { norm, learningRate, optimizer: optimizerOf(settings) });
}

for (const [name, { settings, weights: expected }] of Object.entries(golden.cases)) {
  test(`four steps of ${name} are those of prime-rl's own code`, async (t) => {
    const updates = new WeightUpdates(layout, { threads: 1 });
    t.after(() => updates.close());
    const weights = Float32Array.from(golden.initial);
    for (const [i, values] of expected.entries()) {
      await step(updates, weights, settings, i);
      for (const { name: tensor, offset, length } of layout) {
        for (let at = offset; at < offset + length; at++) {
          const off = Math.abs(weights[at]! - values[at]!);
          assert.ok(off < 1e-7, `step ${i + 1}, ${tensor}[${at - offset}]: ${weights[at]}, prime-rl has ${values[at]}`);
        }
      }
    }
  });
}

for (const [name, { settings, weights: expected }] of Object.entries(golden.cases)) {
  test(`${name} that is saved after two steps and restored goes on with the same bits, whatever the threads`, async (t) => {
    const whole = new WeightUpdates(layout, { threads: 1 });
    const before = new WeightUpdates(layout, { threads: 2 });
    const after = new WeightUpdates(layout, { threads: 2 });
    t.after(() => Promise.all([whole.close(), before.close(), after.close()]));
    const [undisturbed, resumed] = [Float32Array.from(golden.initial), Float32Array.from(golden.initial)];
    for (const i of expected.keys()) await step(whole, undisturbed, settings, i);
    for (const i of [0, 1]) await step(before, resumed, settings, i);
    after.restore(before.save());
    assert.deepEqual(after.save(), before.save());
    for (const i of [2, 3]) await step(after, resumed, settings, i);
    assert.deepEqual(resumed, undisturbed);
    assert.deepEqual(after.save(), whole.save());
  });
}

test('the state of one optimizer is not taken for that of another', async (t) => {
  const [muon, sgd] = [new WeightUpdates(layout, { threads: 1 }), new WeightUpdates(layout, { threads: 1 })];
  t.after(() => Promise.all([muon.close(), sgd.close()]));
  const weights = Float32Array.from(golden.initial);
  await step(muon, weights, golden.cases['muon']!.settings, 0);
  sgd.restore(muon.save());
  await assert.rejects(step(sgd, weights, golden.cases['sgd']!.settings, 1), {
    code: 'CheckpointDamaged',
    message: /of muon, and the step is one of sgd/,
  });
  sgd.reset();
  await step(sgd, weights, golden.cases['sgd']!.settings, 1);
});
