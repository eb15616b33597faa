/** Settings that are shown have the names that people wrote. */
import assert from 'node:assert/strict';
import { readdirSync, readFileSync } from 'node:fs';
import path from 'node:path';
import { test } from 'node:test';
import { fileURLToPath } from 'node:url';
import { changedSettings, flat } from '../../config/changed-settings.ts';
import { parseRunConfig } from '../../config/parse-run-config.ts';
import { nameInFile } from '../../config/setting-names.ts';
import { settingsByPath } from '../../config/settings/index.ts';

test('settings have the names of the run file', () => {
  const names = {
    learningRate: 'learning_rate',
    generationTimeoutS: 'generation_timeout',
    maskTruncated: 'mask_truncated_completions',
    'optimizer.beta1': 'trainer.beta1',
    'optimizer.type': 'trainer.optimizer',
    'schedule.minRatio': 'trainer.min_lr_ratio',
    'loss.clipHigh': 'trainer.loss.clip_high',
    'kl.beta': 'kl_penalty.beta',
    'filter.maxReward': 'difficulty_filter.max_reward',
    'environments.0.args.min_length': 'env[0].args.min_length',
    'environments.1.limits.timeoutS': 'env[1].limits.timeout_s',
    'eval.environments.0.numExamples': 'eval.env[0].num_examples',
    'lora.targetModules.2': 'lora.target_modules[2]',
    'trainer.options.maxThings': 'trainer.options.maxThings',
    evalInterval: 'eval.interval',
  };
  for (const [at, name] of Object.entries(names)) assert.equal(nameInFile(at), name);
  assert.deepEqual(changedSettings({ learningRate: 1e-3 }, { learningRate: 2e-3 }), ['learning_rate 0.001 → 0.002']);
});

/** Fields that only a spec has, or that are null where a file leaves them out. */
const ofSpecs = ['schema_version', 'later', 'teacher', 'sft', 'wandb', 'eval', 'data', 'lora', 'name', 'model'];

test('of every run file here each setting that has no table of its own is one of the settings, and none is in camel case', () => {
  const folder = fileURLToPath(new URL('../../configs/rl/', import.meta.url));
  const files = readdirSync(folder).filter((name) => name.endsWith('.toml'));
  for (const file of files) {
    const parsed = parseRunConfig(readFileSync(path.join(folder, file), 'utf8'), { file: path.join(folder, file) });
    if (!parsed.ok) continue; // it needs what is not here
    for (const at of flat(parsed.spec).keys()) {
      const name = nameInFile(at);
      assert.doesNotMatch(name.replace(/\b(?:args|options)\..*/, ''), /[A-Z]/, `${file}: ${at} is ${name}`);
      if (!name.includes('.') && !ofSpecs.includes(name))
        assert.ok(settingsByPath.has(name), `${file}: ${at} is ${name}`);
    }
  }
  assert.ok(files.length > 10);
});
