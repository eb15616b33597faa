import assert from 'node:assert/strict';
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { test } from 'node:test';
import { trainOnShuffledRewards } from '../../bench/shuffled-control.ts';
import { loadRunConfig } from '../../load/load-run-config.ts';
import { createPreset, saveModelFolder } from '../../engine/index.ts';
import { demoConfig } from '../../bench/run-project.ts';

test('the control trains an adapter where the run does, and samples from what it has learned', async (t) => {
  const folder = await mkdtemp(path.join(tmpdir(), 'ratchet-control-'));
  t.after(() => rm(folder, { recursive: true }));
  const weights = path.join(folder, 'model');
  await saveModelFolder(createPreset('preset:reverse-text-0.2m', { seed: 0 }), weights);
  const settings = { max_steps: '2', batch_size: '32', 'eval.num_examples': '64', 'lora.r': '8', 'lora.alpha': '16' };
  const control = async (learningRate: string) => {
    const overrides = { ...settings, learning_rate: learningRate, 'difficulty_filter.enabled': 'false' };
    const { spec } = await loadRunConfig(demoConfig, { projectFolder: folder, overrides });
    return trainOnShuffledRewards(spec, weights, () => {});
  };
  const [still, moved] = [await control('1e-9'), await control('0.05')];
  assert.deepEqual([still.steps, moved.steps], [2, 2]);
  assert.deepEqual(still.before, moved.before);
  assert.deepEqual(still.after, still.before, 'a rate of next to nothing changes nothing');
  assert.notDeepEqual(moved.after, moved.before);
});
