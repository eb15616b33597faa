import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { parseRunConfig } from '../../config/parse-run-config.ts';

const parse = (trainer: string, inference = 'kind = "vllm"') =>
  parseRunConfig(
    `model = "models/Qwen3-4B"\n[[env]]\nid = "reverse-text"\n[trainer]\n${trainer}\n[inference]\n${inference}\n`,
    { file: 'run.toml' },
  );

describe('a run that PyTorch trains', () => {
  test('has one rank in float32 unless it says otherwise', () => {
    const usual = parse('kind = "torch"');
    assert.ok(usual.ok);
    assert.deepEqual(usual.spec.trainer, { kind: 'torch', program: null, ranks: 1, dtype: 'float32' });
    const own = parse('kind = "torch"\nprogram = "venv/bin/python"\nranks = 4\ndtype = "bfloat16"\nac_freq = 2');
    assert.ok(own.ok);
    assert.deepEqual(own.spec.trainer, {
      kind: 'torch',
      program: 'venv/bin/python',
      ranks: 4,
      dtype: 'bfloat16',
      acFreq: 2,
    });
    assert.deepEqual(own.warnings, [], 'ac_freq has an effect');
  });

  test('is sampled by vLLM or by the embedded engine', () => {
    for (const kind of ['vllm', 'embedded']) assert.ok(parse('kind = "torch"', `kind = "${kind}"`).ok, kind);
  });

  test('has keys that stand beside no other kind', () => {
    const refused = (...given: Parameters<typeof parse>): string[] => {
      const parsed = parse(...given);
      assert.ok(!parsed.ok, 'it was accepted');
      return parsed.problems.map(({ path }) => path);
    };
    assert.deepEqual(refused('ranks = 2'), ['trainer.ranks']);
    assert.deepEqual(refused('kind = "torch"\nranks = 65'), ['trainer.ranks']);
  });
});
