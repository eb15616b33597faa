import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { parseRunConfig } from '../../config/parse-run-config.ts';

const parse = (trainer: string, inference = 'kind = "vllm"') =>
  parseRunConfig(
    `model = "models/Qwen3-4B"\n[[env]]\nid = "reverse-text"\n[trainer]\n${trainer}\n[inference]\n${inference}\n`,
    { file: 'run.toml' },
  );

const places = { nodes: 1, launcher: 'ratchet', rankTimeoutS: 600 };

function problemsOf(parsed: ReturnType<typeof parse>): string[] {
  assert.ok(!parsed.ok, 'it was accepted');
  return parsed.problems.map(({ path }) => path);
}

describe('a run that PyTorch trains', () => {
  test('has one rank in float32 unless it says otherwise', () => {
    const usual = parse('kind = "torch"');
    assert.ok(usual.ok);
    assert.deepEqual(usual.spec.trainer, { kind: 'torch', program: null, ranks: 1, ...places });
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

  test('says that settings of the embedded engine have no effect', () => {
    const parsed = parse('kind = "torch"\nthreads = 4\nprovider = "cuda"');
    assert.ok(parsed.ok);
    assert.match(
      parsed.warnings.join('\n'),
      /trainer\.threads \(4\) has no effect.*\n.*trainer\.provider \(cuda\) has no/,
    );
  });

  test('has a rank for each GPU that the file names, and is not told of GPUs that wait for something', () => {
    for (const [written, ranks] of [
      ['gpu_ids = [4, 5, 6, 7]', 4],
      ['gpus = 2', 2],
      ['ranks = 4\ngpus = 4\ngpu_ids = [0, 1, 2, 3]', 4],
    ] as const) {
      const parsed = parse(`kind = "torch"\n${written}`);
      assert.ok(parsed.ok, written);
      assert.equal('ranks' in parsed.spec.trainer && parsed.spec.trainer.ranks, ranks);
      assert.deepEqual([parsed.spec.requested, parsed.warnings], [undefined, []]);
    }
    const both = parse('kind = "torch"\nranks = 3\ngpu_ids = [0, 1]');
    assert.ok(!both.ok);
    assert.match(both.problems[0]!.expected ?? '', /2, one for each of gpu_ids/);
    for (const [written, expected] of [
      ['gpus = 2\ngpu_ids = [0, 1, 2]', '3, as many as gpu_ids lists'],
      ['gpus = 2\nranks = 3', '3, one for each of ranks'],
    ] as const) {
      const parsed = parse(`kind = "torch"\n${written}`);
      assert.ok(!parsed.ok);
      const [problem] = parsed.problems;
      assert.deepEqual([problem?.path, problem?.expected, problem?.received], ['trainer.gpus', expected, '2']);
    }
    assert.deepEqual(problemsOf(parse('kind = "torch"\ngpu_ids = [1, 1]')), ['trainer.gpu_ids']);
  });

  test('is sampled by vLLM or by the embedded engine', () => {
    for (const kind of ['vllm', 'embedded']) assert.ok(parse('kind = "torch"', `kind = "${kind}"`).ok, kind);
  });

  test('takes effect of what other systems’ files say about precision, memory and kernels', () => {
    const read = (text: string) => {
      const parsed = parseRunConfig(text, { file: 'run.toml', overrides: torch });
      assert.ok(parsed.ok, JSON.stringify(parsed));
      return parsed;
    };
    const torch = { 'ratchet.trainer.kind': 'torch', 'ratchet.inference.kind': 'vllm' };
    const primeRl = read(`max_steps = 10
[trainer.model]
optimization_dtype = "bfloat16"
reduce_dtype = "bfloat16"
attn = "flash_attention_2"
fsdp_cpu_offload = true
optim_cpu_offload = false
freeze_moe_router = true
compile = {}
ac = { freq = 2 }
[trainer.optim]
type = "muon"
[model]
name = "Qwen/Qwen3-30B-A3B"
[orchestrator]
batch_size = 64
group_size = 8
[[orchestrator.train.env]]
id = "reverse-text"
`);
    const { kind, program, ranks, ...honoured } = primeRl.spec.trainer as typeof primeRl.spec.trainer & {
      kind: 'torch';
    };
    assert.deepEqual([kind, program, ranks], ['torch', null, 1]);
    assert.deepEqual(honoured, {
      ...places,
      dtype: 'bfloat16',
      optimizationDtype: 'bfloat16',
      reduceDtype: 'bfloat16',
      attn: 'flash_attention_2',
      compile: true,
      fsdpCpuOffload: true,
      optimCpuOffload: false,
      freezeMoeRouter: true,
      acFreq: 2,
    });
    assert.equal(primeRl.spec.requested?.torch.dtype, undefined);
    assert.deepEqual(
      primeRl.warnings.filter((warning) => /dtype|attn|offload|compile|freeze/.test(warning)),
      [],
    );
    const vfRl = read(`model = "Qwen/Qwen3-4B"
[env]
id = "reverse-text"
[inference]
gpus = 1
[trainer]
gpus = 1
[trainer.args]
use_liger = true
gradient_checkpointing = true
lora_dropout = 0.1
max_grad_norm = 0.5
`);
    assert.deepEqual(vfRl.spec.trainer, {
      kind: 'torch',
      program: null,
      ranks: 1,
      ...places,
      dtype: 'bfloat16',
      useLiger: true,
      acFreq: 1,
    });
    assert.deepEqual([vfRl.spec.lora?.dropout, vfRl.spec.optimizer.maxGradNorm], [0.1, 0.5]);
  });

  test('trains what is named beside adapters, and holds their base in 4 bits', () => {
    const torch = 'kind = "torch"\nload_in_4bit = true\n[lora]\nmodules_to_save = ["lm_head"]';
    const sampled = (inference: string) => parse(torch, inference);
    const own = sampled('kind = "module"\nimport = "./mine.ts"');
    assert.ok(own.ok, JSON.stringify(own));
    assert.deepEqual(own.spec.lora?.modulesToSave, ['lm_head']);
    for (const kind of ['vllm', 'embedded'])
      assert.deepEqual(
        problemsOf(sampled(`kind = "${kind}"`)),
        ['lora.modules_to_save'],
        `${kind} loads no such adapter`,
      );
    assert.deepEqual(problemsOf(parse('kind = "torch"\nload_in_4bit = true')), ['trainer.load_in_4bit']);
    assert.deepEqual(problemsOf(parse('[lora]\nmodules_to_save = ["lm_head"]')), ['lora.modules_to_save']);
  });

  test('has keys that stand beside no other kind', () => {
    assert.deepEqual(problemsOf(parse('ranks = 2')), ['trainer.ranks']);
    assert.deepEqual(problemsOf(parse('kind = "torch"\nranks = 65')), ['trainer.ranks']);
  });
});
