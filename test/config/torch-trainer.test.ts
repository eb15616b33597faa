import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { parseRunConfig } from '../../config/parse-run-config.ts';

const parse = (trainer: string, inference = 'kind = "vllm"') =>
  parseRunConfig(
    `model = "models/Qwen3-4B"\n[[env]]\nid = "reverse-text"\n[trainer]\n${trainer}\n[inference]\n${inference}\n`,
    { file: 'run.toml' },
  );

const places = { nodes: 1, launcher: 'ratchet', rankTimeoutS: 600 };

describe('a run that PyTorch trains', () => {
  test('has one rank in float32 unless it says otherwise', () => {
    const usual = parse('kind = "torch"');
    assert.ok(usual.ok);
    assert.deepEqual(usual.spec.trainer, { kind: 'torch', program: null, ranks: 1, dtype: 'float32', ...places });
    const own = parse('kind = "torch"\nprogram = "venv/bin/python"\nranks = 4\ndtype = "bfloat16"\nac_freq = 2');
    assert.ok(own.ok);
    assert.deepEqual(own.spec.trainer, {
      kind: 'torch',
      program: 'venv/bin/python',
      ranks: 4,
      dtype: 'bfloat16',
      acFreq: 2,
      ...places,
    });
    assert.deepEqual(own.warnings, [], 'ac_freq has an effect');
  });

  test('has a rank for each GPU that the file names, and is not told of GPUs that wait for something', () => {
    for (const [written, ranks] of [
      ['gpu_ids = [4, 5, 6, 7]', 4],
      ['gpus = 2', 2],
      ['ranks = 3\ngpus = 2', 3],
    ] as const) {
      const parsed = parse(`kind = "torch"\n${written}`);
      assert.ok(parsed.ok);
      assert.equal('ranks' in parsed.spec.trainer && parsed.spec.trainer.ranks, ranks);
      assert.deepEqual(parsed.notYet, []);
    }
    const both = parse('kind = "torch"\nranks = 3\ngpu_ids = [0, 1]');
    assert.ok(!both.ok);
    assert.match(both.problems[0]!.expected ?? '', /2, one for each of gpu_ids/);
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
