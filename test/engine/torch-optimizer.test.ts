/** AdamW and gradient clipping against torch's, computed in double precision; make_gradients.py makes the golden file. */
import assert from 'node:assert/strict';
import { readFile } from 'node:fs/promises';
import { test } from 'node:test';
import { fileURLToPath } from 'node:url';
import type { OptimizerSpec } from '../../config/run-spec.ts';
import { WeightUpdates } from '../../engine/train/updates/index.ts';
import { readFloats } from './golden/gradients/read-gradients.ts';

const folder = fileURLToPath(new URL('./golden/gradients/adamw/', import.meta.url));

interface Golden {
  readonly optimizer: OptimizerSpec;
  /** The weights are this many copies of the tile in the file. */
  readonly repeats: number;
  readonly steps: readonly { readonly learningRate: number; readonly norm: number }[];
}

/** The norm is summed in single precision in parts. torch's own in float32 is less exact. */
const normTolerance = 5e-6;
/** Share of the distance that the weights have moved so far. */
const tolerance = 2e-6;

test('five steps of AdamW with clipping are those of torch.optim.AdamW and clip_grad_norm_', async () => {
  const { optimizer, repeats, steps } = JSON.parse(await readFile(`${folder}steps.json`, 'utf8')) as Golden;
  const tensors = await readFloats(`${folder}steps.safetensors`);
  const initial = tensors.get('weights_0')!;
  const weights = repeated(initial, repeats);
  const adamw = new WeightUpdates([vector(weights.length)], { threads: 1 });
  let travelled = 0;
  for (const [index, { learningRate, norm }] of steps.entries()) {
    const gradient = repeated(tensors.get(`gradient_${index + 1}`)!, repeats);
    const ours = await adamw.globalNorm(gradient);
    assert.ok(Math.abs(ours / norm - 1) < normTolerance, `the norm is ${ours}, torch says ${norm}`);
    await adamw.apply(weights, gradient, { norm: ours, learningRate, optimizer });
    // A step is at most about the learning rate long, whatever the gradient.
    travelled += learningRate;
    requireEqual(weights, tensors.get(`weights_${index + 1}`)!, travelled);
  }
  await adamw.close();
});

/** Beside `tolerance`, a weight may be off by the rounding of what it was added to. */
function requireEqual(weights: Float32Array, expected: Float32Array, travelled: number): void {
  weights.forEach((weight, i) => {
    const value = expected[i % expected.length]!;
    const rounding = 4 * Math.abs(value) * 2 ** -24;
    assert.ok(
      Math.abs(weight - value) <= tolerance * travelled + rounding,
      `weight ${i} is ${weight}, torch says ${value}`,
    );
  });
}

function vector(length: number) {
  return { name: 'weights', shape: [length], offset: 0, length };
}

function repeated(tile: Float32Array, times: number): Float32Array {
  const whole = new Float32Array(tile.length * times);
  for (let i = 0; i < times; i++) whole.set(tile, i * tile.length);
  return whole;
}
