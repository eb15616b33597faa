import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { parseRunConfig } from '../../config/parse-run-config.ts';
import { accept, only } from './read-run.ts';

const parse = (trainer: string, more = 'seq_len = 4096') =>
  parseRunConfig(
    `model = "models/Qwen3-4B"\nmax_steps = 40\n${more}\n[[env]]\nid = "reverse-text"\n[trainer]\n${trainer}\n[inference]\nkind = "vllm"\n`,
    { file: 'run.toml' },
  );
const kind = 'kind = "prime-rl"\nprogram = "/opt/prime-rl"\n';

function problemsOf(parsed: ReturnType<typeof parse>): string[] {
  assert.ok(!parsed.ok, 'it was accepted');
  return parsed.problems.map(({ path }) => path);
}

describe('a run that prime-rl’s trainer trains', () => {
  test('says what its own file is made of', () => {
    const usual = parse(kind);
    assert.ok(usual.ok, JSON.stringify(usual));
    assert.deepEqual(usual.spec.trainer, {
      kind: 'prime-rl',
      program: '/opt/prime-rl',
      ranks: 1,
      primeRl: {},
      nodes: 1,
      rankTimeoutS: 600,
      seqLen: 4096,
      maxSteps: 40,
      checkpointInterval: 20,
    });
    const own = parse(
      `${kind}gpu_ids = [0, 1, 2, 3]\ncp = 2\nep = 4\nac_freq = 2\nattn = "flash_attention_3"\ncompile = false\noptimization_dtype = "bfloat16"\nfsdp_cpu_offload = true\n[trainer.prime_rl.model]\nimpl = "custom"`,
    );
    assert.ok(own.ok, JSON.stringify(own));
    const { ranks, cp, ep, gpuIds, acFreq, attn, compile, optimizationDtype, fsdpCpuOffload, primeRl } = own.spec
      .trainer as Extract<typeof own.spec.trainer, { kind: 'prime-rl' }>;
    assert.deepEqual([ranks, cp, ep, gpuIds, acFreq, attn], [4, 2, 4, [0, 1, 2, 3], 2, 'flash_attention_3']);
    assert.deepEqual([compile, optimizationDtype, fsdpCpuOffload], [false, 'bfloat16', true]);
    assert.deepEqual([primeRl, own.spec.requested, own.warnings], [{ model: { impl: 'custom' } }, undefined, []]);
  });

  for (const [written, path] of [
    ['kind = "prime-rl"', 'trainer.program'],
    [`${kind}ranks = 4\ncp = 3`, 'trainer.cp'],
    [`${kind}ranks = 2\ngpu_ids = [0]`, 'trainer.ranks'],
    [`${kind}nodes = 2\ncp = 4`, 'trainer.cp'],
    [`${kind}dtype = "float32"`, 'trainer.dtype'],
    [`${kind}attn = "eager"`, 'trainer.attn'],
    [`${kind}use_liger = true`, 'trainer.use_liger'],
    [`${kind}num_iterations = 2`, 'trainer.num_iterations'],
    [`${kind}num_mini_batches = 2`, 'trainer.num_mini_batches'],
    [`${kind}micro_batch_size = 4`, 'trainer.micro_batch_size'],
    [`${kind}decay_matrices_only = true`, 'trainer.decay_matrices_only'],
    [`${kind}load_in_4bit = true`, 'trainer.load_in_4bit'],
    [`${kind}launcher = "torchrun"`, 'trainer.launcher'],
    [`${kind}[trainer.loss]\nentropy_coef = 0.1`, 'trainer.loss.entropy_coef'],
    [`${kind}[trainer.correction]\ntoken_mask = [0.5, 2.0]`, 'trainer.correction.token_mask'],
    [`${kind}[trainer.loss]\nold_logprobs = "trainer"`, 'trainer.loss.old_logprobs'],
    [`${kind}[trainer.prime_rl.optim]\nlr = 1`, 'trainer.prime_rl.optim'],
    [`${kind}[trainer.prime_rl.log]\nlevel = "error"`, 'trainer.prime_rl.log'],
    [`${kind}[trainer.prime_rl.model]\nseq_len = 1`, 'trainer.prime_rl.model.seq_len'],
    [`${kind}[kl_penalty]\nbeta = 0.1\nenabled = true`, 'kl_penalty.enabled'],
    ['kind = "torch"\ncp = 2', 'trainer.cp'],
    ['[trainer.prime_rl.model]\nimpl = "custom"', 'trainer.prime_rl'],
  ] as const)
    test(`refuses ${path} in ${JSON.stringify(written.split('\n').at(-1))}`, () =>
      assert.deepEqual(problemsOf(parse(written)), [path]));

  test('gets from a file of prime-rl what only its own trainer knows; beside another it is named as without effect', () => {
    const text = `seq_len = 64\n[model]\nname = "models/Qwen3-4B"\n[orchestrator]\nbatch_size = 16\ngroup_size = 4\n[[orchestrator.train.env]]\nid = "reverse-text"\n[trainer.model]\ncp = 2\nep = 4\nimpl = "custom"\n[trainer.model.ac]\nfreq = 2\nmode = "selective"\n[trainer.loss]\ntype = "default"\n[deployment]\nnum_train_gpus = 4\n`;
    const passed = accept(`${text}[ratchet.trainer]\n${kind}`);
    const { ranks, cp, ep, acFreq, primeRl } = passed.spec.trainer as Extract<typeof passed.spec.trainer, { kind: 'prime-rl' }>; // prettier-ignore
    assert.deepEqual([ranks, cp, ep, acFreq], [4, 2, 4, 2]);
    assert.deepEqual(primeRl, { model: { impl: 'custom', ac: { mode: 'selective' } } });
    const idle = ({ warnings }: typeof passed) =>
      warnings.flatMap((line) => /^(trainer\.model\.\S+) has no effect here/.exec(line)?.[1] ?? []);
    assert.deepEqual(idle(passed), []);
    assert.deepEqual(
      idle(accept(text)),
      ['cp', 'impl', 'ep', 'ac.mode'].map((name) => `trainer.model.${name}`),
    );
    const wrong = only(`${text.replace('cp = 2', 'cp = 3')}[ratchet.trainer]\n${kind}`);
    assert.equal(wrong.path, 'trainer.model.cp');
    const chosen = accept(`${text.replace('ep = 4', 'ep = "auto"')}[ratchet.trainer]\n${kind}`);
    assert.equal('ep' in chosen.spec.trainer, false);
  });

  test('gets what a file of prime-rl turns off by "None"', () => {
    const text = `seq_len = 64\n[model]\nname = "models/Qwen3-4B"\n[orchestrator]\nbatch_size = 16\ngroup_size = 4\n[[orchestrator.train.env]]\nid = "reverse-text"\n[trainer.model]\nac = "None"\nac_offloading = "None"\ncompile = "None"\n[trainer.loss]\ntype = "default"\n`;
    const { spec, warnings } = accept(`${text}[ratchet.trainer]\n${kind}`);
    const { primeRl, acFreq } = spec.trainer as Extract<typeof spec.trainer, { kind: 'prime-rl' }>;
    assert.deepEqual([primeRl, acFreq], [{ model: { ac: 'None', ac_offloading: 'None', compile: 'None' } }, undefined]);
    assert.deepEqual(warnings.filter((line) => line.includes('trainer.model')), []); // prettier-ignore
    assert.equal('primeRl' in accept(text).spec.trainer, false);
  });

  test('gets from a file of prime-rl 0.4 what only its own trainer knows', () => {
    const text = `seq_len = 64\ninference_gpu_ids = [0]\ntrainer_gpu_ids = [1, 2]\n[model]\nname = "models/Qwen3-4B"\n[orchestrator]\nbatch_size = 16\nrollouts_per_example = 4\n[[orchestrator.env]]\nid = "reverse-text"\n[trainer.model]\nimpl = "custom"\nep = 2\nfused_lm_head_chunk_size = 1024\n[trainer.loss]\nkl_tau = 0\n`;
    const masked = parseRunConfig(`${text}[ratchet.trainer]\n${kind}`, { file: 'run.toml' });
    assert.ok(!masked.ok && masked.problems.every(({ expected }) => expected.startsWith('nothing: it reports no log')));
    const { spec } = accept(`${text}[ratchet.trainer]\n${kind}[ratchet.trainer.loss]\ntype = "dppo"\n`);
    const { primeRl, ep } = spec.trainer as Extract<typeof spec.trainer, { kind: 'prime-rl' }>;
    assert.deepEqual([primeRl, ep], [{ model: { impl: 'custom', fused_lm_head_chunk_size: 1024 } }, 2]);
  });

  test('a setting that two kinds have is refused beside a third with both', () => {
    const { expected } = only(
      'model = "m"\nmax_steps = 1\n[[env]]\nid = "reverse-text"\n[trainer]\nkind = "onnx"\nprogram = "/opt/x"\n',
    );
    assert.match(expected, /^kind = "torch" or "prime-rl" beside it/);
  });

  test('names the length of its micro-batches', () => assert.deepEqual(problemsOf(parse(kind, '')), ['seq_len']));
});
