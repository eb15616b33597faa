/**
 * Losses and gradients against PyTorch's autograd of transformers' models. The golden files need no PyTorch; with
 * RATCHET_TORCH_PYTHON set, fresh random models, larger ones, are compared as well.
 */
import assert from 'node:assert/strict';
import { execFile } from 'node:child_process';
import { randomInt } from 'node:crypto';
import { join } from 'node:path';
import { type TestContext, test } from 'node:test';
import { fileURLToPath } from 'node:url';
import { promisify } from 'node:util';
import { EngineOptimizer } from '../../engine/index.ts';
import { computeCase, copyModel, type GradientGolden, readGradients } from './golden/gradients/read-gradients.ts';
import { relativeDifference } from './golden/read-golden.ts';
import { temporaryFolder } from './models.ts';

const goldens = fileURLToPath(new URL('./golden/gradients/', import.meta.url));
const models = ['qwen3', 'qwen2', 'llama', 'mistral', 'smollm3', 'gemma3', 'qwen3-moe', 'qwen3-lora', 'qwen2-lora'];

/** Largest difference of a tensor's gradient, as a part of its largest element. */
const gradientTolerance = 1e-5;
/** Relative tolerance of a metric, or absolute where it is small. */
const metricTolerance = 1e-5;

for (const name of models) {
  test(`every loss of ${name} has the value, the metrics and the gradient of PyTorch's autograd`, (t) =>
    compare(t, join(goldens, name)));
}

const python = process.env['RATCHET_TORCH_PYTHON'];
test(
  'so it is on random models never seen before',
  { skip: python ? false : 'RATCHET_TORCH_PYTHON is not set' },
  async (t) => {
    const folder = await temporaryFolder(t);
    const seed = String(randomInt(1_000_000));
    t.diagnostic(`seed ${seed}`);
    const script = join(goldens, 'make_gradients.py');
    await promisify(execFile)(python!, [script, '--seed', seed, '--larger', '--out', folder]);
    for (const name of models) await compare(t, join(folder, name));
  },
);

async function compare(t: TestContext, folder: string): Promise<void> {
  const model = await copyModel(folder, await temporaryFolder(t));
  const golden = await readGradients(folder);
  const trainer = await EngineOptimizer.open(model, { threads: 1 });
  try {
    assert.equal(trainer.adapter !== null, golden.base !== null);
    await compareCases(t, trainer, golden);
  } finally {
    await trainer.close();
  }
}

async function compareCases(t: TestContext, trainer: EngineOptimizer, golden: GradientGolden): Promise<void> {
  let worst = { difference: 0, where: 'nowhere' };
  for (const lossCase of golden.cases) {
    // One micro-batch and several must give the same sums.
    for (const limits of [{}, { microBatchRows: 3 }]) {
      const metrics = await computeCase(trainer, golden, lossCase, limits);
      requireMetrics(lossCase.name, metrics, lossCase.metrics);
      for (const { name } of trainer.gradient.layout) {
        const where = `${lossCase.name}/${name}`;
        const expected = golden.gradients.get(where);
        assert.ok(expected, `PyTorch has no gradient ${where}`);
        const difference = relativeDifference(trainer.gradient.view(name), expected);
        assert.ok(difference <= gradientTolerance, `${where} differs by ${difference}`);
        if (difference > worst.difference) worst = { difference, where };
      }
    }
  }
  t.diagnostic(`largest relative difference ${worst.difference.toExponential(1)} in ${worst.where}`);
}

function requireMetrics(where: string, actual: object, expected: Readonly<Record<string, number>>): void {
  const found = new Map<string, unknown>(Object.entries(actual));
  for (const [name, value] of Object.entries(expected)) {
    const ours = found.get(name);
    if (name === 'klDivergence' && ours === null) continue; // without a KL term it is not asked for
    assert.ok(typeof ours === 'number', `${where}: ${name} is ${String(ours)}`);
    const difference = Math.abs(ours - value) / Math.max(1, Math.abs(value));
    assert.ok(difference <= metricTolerance, `${where}: ${name} is ${ours}, PyTorch says ${value}`);
  }
}
