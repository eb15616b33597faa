import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { parseRunConfig } from '../../config/parse-run-config.ts';
import { ratchetReading } from '../../config/dialects/reading.ts';

const environment = '[[env]]\nid = "reverse-text"\n';

function parse(text: string): ReturnType<typeof parseRunConfig> {
  return parseRunConfig(`model = "m"\n${text}\n${environment}`, { file: 'run.toml', dialect: 'ratchet' });
}

function accept(text: string): { requested: unknown; warnings: string[] } {
  const parsed = parse(text);
  assert(parsed.ok, JSON.stringify(parsed));
  return { requested: parsed.spec.requested, warnings: parsed.warnings };
}

describe('GPUs and arguments of vLLM that the run itself does not use', () => {
  test('are kept in the spec, with a warning each', () => {
    const { requested, warnings } = accept(
      '[inference]\ngpus = 2\nvllm = { enforce_eager = true }\n[trainer]\nkind = "onnx"\ngpus = 2',
    );
    assert.deepEqual(requested, { trainerGpus: 2, inferenceGpus: 2, vllm: { enforce_eager: true }, torch: {} });
    assert.deepEqual(warnings, [
      'inference.vllm.enforce_eager without effect: for a vLLM that is started (--inference.kind vllm); here inference.kind = "embedded"',
      'trainer.gpus = 2 has no effect: the embedded engine trains on the CPU, or on one GPU with provider = "cuda"; PyTorch on several with kind = "torch"',
      'inference.gpus = 2 has no effect: for a vLLM that is started (--inference.kind vllm); here inference.kind = "embedded"',
    ]);
  });

  test('are none where a vLLM or a GPU uses them, or nothing is written', () => {
    assert.deepEqual(accept('[trainer]\ngpus = 1\nprovider = "cuda"'), { requested: undefined, warnings: [] });
    assert.equal(accept('[inference]\nkind = "vllm"\ngpus = 2\nvllm = { enforce_eager = true }').requested, undefined);
    assert.deepEqual(accept(''), { requested: undefined, warnings: [] });
  });

  test('have no warning where they choose the trainer: the choice is a line of its own', () => {
    assert.deepEqual(accept('[trainer]\ngpus = 2').warnings, []);
  });

  test('settings of PyTorch are kept and have a warning, but those that say what is done anyway', () => {
    const { requested, warnings } = accept('[trainer]\ncompile = true\nuse_liger = false\ndtype = "bfloat16"');
    assert.deepEqual(requested, {
      trainerGpus: null,
      inferenceGpus: null,
      vllm: {},
      torch: { dtype: 'bfloat16', compile: true },
    });
    assert.deepEqual(warnings, [
      'trainer.dtype, trainer.compile without effect: for PyTorch (--trainer.kind torch); here trainer.kind = "onnx"',
    ]);
    assert.deepEqual(accept('[trainer]\nkind = "torch"\ncompile = true\ngpus = 2'), {
      requested: undefined,
      warnings: [],
    });
  });

  test('are named with the trainer that decides in their place', () => {
    const { warnings } = accept('[trainer]\nkind = "module"\nimport = "./mine.ts"\ngpus = 1');
    assert.deepEqual(warnings, ['trainer.gpus = 1 has no effect: trainer.kind = "module" decides']);
  });
});

test('a setting of another system is refused by name, with its line, where a run cannot honour it', () => {
  const written: Readonly<Record<string, string>> = {
    'sampling.extra_body': '[sampling]\nextra_body = { x = 1 }',
    'eval.sampling.extra_body': '[eval.sampling]\nextra_body = { x = 1 }',
    'kl_penalty.ref_mixup_alpha': '[kl_penalty]\nref_mixup_alpha = 0.5',
    'trainer.tp': '[trainer]\ntp = 2',
    'inference.client': '[inference.client]\nconnect_timeout = 3',
    val: '[val]\ninterval = 5',
  };
  for (const [path, text] of Object.entries(written)) {
    const parsed = parse(text);
    assert(!parsed.ok && parsed.problems.length === 1, JSON.stringify(parsed));
    const { line, suggestion } = parsed.problems[0]!;
    assert(line, 'with its line');
    assert.equal(suggestion, `known, not supported yet: ${ratchetReading.refused?.[path]}`);
  }
});
