import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { CorrectionSpec, InferenceSpec, RunSpec } from '../../config/run-spec.ts';
import { accept, only } from './read-run.ts';

const minimal = 'model = "preset:x"\n[[env]]\nid = "reverse-text"\n';

describe('what is trained and how', () => {
  test('a loss may be named, or have a table of its own', () => {
    const at = (text: string) => accept(`${minimal}${text}`).spec.loss;
    assert.deepEqual(at(''), {
      type: 'cispo',
      clipLow: 0,
      clipHigh: 3,
      maskLow: 0,
      maskHigh: null,
      klTau: 0,
      advantageTau: 1,
      teacherTau: 0,
      aggregation: 'token',
      maxTokens: 512,
      oldLogprobs: 'sampler',
      correction: CorrectionSpec.parse({}),
      import: null,
    });
    const grpo = at('[trainer]\nloss = "grpo"\n');
    assert.deepEqual([grpo.type, grpo.clipLow, grpo.clipHigh], ['grpo', 0.8, 1.2]);
    assert.equal(at('[trainer]\nclip_high = 5\n').clipHigh, 5);
    const own = at('[trainer.loss]\ntype = "grpo"\nclip_high = 1.28\naggregation = "dr_grpo"\n');
    assert.deepEqual([own.clipLow, own.clipHigh, own.aggregation, own.maxTokens], [0.8, 1.28, 'dr_grpo', 512]);
    const masked = at('[trainer.loss]\ntype = "importance_sampling"\nmask_low = 0.125\nmask_high = 8\n');
    assert.deepEqual([masked.maskLow, masked.maskHigh], [0.125, 8]);
    const gspo = at('[trainer]\nloss = "gspo"\n');
    assert.deepEqual([gspo.clipLow, gspo.clipHigh, gspo.aggregation], [1 - 3e-4, 1 + 4e-4, 'sequence']);
    assert.equal(at('[trainer]\nloss = { type = "dro", beta = 0.1 }\n').klTau, 0.05);
    const [dppo, ipo] = ['dppo', 'ipo'].map((type) => at(`[trainer]\nloss = "${type}"\n`));
    assert.deepEqual([dppo!.maskLow, dppo!.maskHigh, dppo!.klTau], [0.2, 0.2, 0.001]);
    assert.deepEqual([ipo!.maskLow, ipo!.maskHigh, ipo!.klTau], [0.1, 0.1, 0.001]);
    const moved = at('[trainer.loss]\ntype = "dppo"\nmask_low = 0.3\nmask_high = 0.1\nkl_tau = 0\n');
    assert.deepEqual([moved.maskLow, moved.maskHigh, moved.klTau], [0.3, 0.1, 0]);
    const divided = at('[trainer.loss]\ntype = "grpo"\naggregation = "dr_grpo"\ndr_grpo_tokens = 2048\n');
    assert.equal(divided.maxTokens, 2048);
    const custom = at('[trainer.loss]\ntype = "custom"\nimport = "./my-loss.ts"\n');
    assert.deepEqual(custom.import, { path: './my-loss.ts', sha256: null });
    assert.equal(accept(minimal, { overrides: { 'trainer.loss': 'grpo' } }).spec.loss.type, 'grpo');
  });

  test('a loss whose settings do not fit is refused at the setting', () => {
    const at = (text: string) => only(`${minimal}[trainer.loss]\n${text}\n`);
    assert.match(at('type = "grpo"\nclip_high = 0.2').suggestion ?? '', /for ε = 0.2 write 1.2/);
    assert.equal(at('type = "grpo"\nclip_low = 1.5').path, 'trainer.loss.clip_low');
    assert.match(at('clip_low = 0.5').expected, /cispo has no lower clip/);
    assert.match(at('type = "custom"').expected, /a file with the code/);
    assert.match(at('import = "./x.ts"').expected, /type = "custom"/);
    assert.match(at('type = "custom"\nimport = "./x.py"').expected, /a .ts or .js file/);
    assert.match(at('mask_low = 0.5').expected, /type = "importance_sampling", "dppo" or "ipo" beside it/);
    assert.match(at('kl_tau = 0.1').expected, /type = "dppo" or "ipo" beside it; of other losses \[kl_penalty\]/);
    assert.match(at('type = "importance_sampling"\nmask_low = 2\nmask_high = 1').expected, /a number < mask_high/);
    assert.match(at('dr_grpo_tokens = 5').expected, /aggregation = "dr_grpo" beside it/);
    assert.equal(only(`${minimal}[trainer]\nloss = "ppo"\n`).path, 'trainer.loss.type');
    assert.match(only(`${minimal}[trainer]\nloss = "ppo"\n`).received, /"ppo"/);
    assert.match(
      only(`${minimal}[trainer]\nclip_high = 2\n[trainer.loss]\nclip_high = 3\n`).expected,
      /\[trainer.loss\] clip_high is 3/,
    );
  });

  test('LoRA is asked for by its table, or by the alpha of Hosted Training', () => {
    const all = ['q_proj', 'k_proj', 'v_proj', 'o_proj', 'gate_proj', 'up_proj', 'down_proj'];
    const at = (text: string) => accept(`${text}${minimal}`).spec.lora;
    assert.equal(at(''), null);
    assert.deepEqual(at('lora_alpha = 8\n'), { r: 16, alpha: 8, dropout: 0, targetModules: all });
    const table = 'enabled = true\nr = 64\nalpha = 16\ndropout = 0.05\ntarget_modules = ["q_proj", "v_proj"]\n';
    assert.deepEqual(accept(`${minimal}[lora]\n${table}`).spec.lora, {
      r: 64,
      alpha: 16,
      dropout: 0.05,
      targetModules: ['q_proj', 'v_proj'],
    });
    assert.equal(accept(`${minimal}[lora]\nenabled = false\nr = 4\n`).spec.lora, null);
    assert.match(only(`lora_alpha = 8\n${minimal}[lora]\nalpha = 4\n`).expected, /alpha is 4/);
    assert.match(only(`${minimal}[lora]\ntarget_modules = ["lm_head"]\n`).expected, /"q_proj"/);
  });

  test('passes, micro-batches, schedules and the device are settings of the trainer', () => {
    const text = 'num_iterations = 3\nmicro_batch_size = 8\nschedule = "cosine"\nprovider = "cuda"\n';
    const { spec } = accept(`${minimal}[trainer]\n${text}`);
    assert.deepEqual(
      [spec.numIterations, spec.microBatchSize, spec.schedule.type, spec.trainer],
      [3, 8, 'cosine', { kind: 'onnx', threads: 1, provider: 'cuda' }],
    );
    const { inference } = accept(`${minimal}[inference]\nprovider = "cuda"\n`).spec;
    assert.deepEqual(inference, InferenceSpec.parse({ kind: 'embedded', url: null, provider: 'cuda' }));
    assert.match(only(`${minimal}[inference]\nprovider = "gpu"\n`).expected, /one of "cpu", "cuda"/);
    assert.deepEqual([accept(minimal).spec.numIterations, accept(minimal).spec.microBatchSize], [1, null]);
  });

  test('sampling has the parameters of vLLM, for training and for evaluation', () => {
    const sampling = 'top_p = 0.9\ntop_k = 50\nmin_p = 0.01\nrepetition_penalty = 1.1\nmin_tokens = 2\nstop = ["."]\n';
    const { spec } = accept(
      `${minimal}[sampling]\nseed = 4\n${sampling}[eval.sampling]\ntemperature = 0.5\ntop_k = -1\n`,
    );
    const expected = {
      maxTokens: 512,
      temperature: 1,
      topP: 0.9,
      topK: 50,
      minP: 0.01,
      repetitionPenalty: 1.1,
      presencePenalty: 0,
      frequencyPenalty: 0,
      minTokens: 2,
      stop: ['.'],
      templateArguments: {},
      seed: 4,
    };
    assert.deepEqual(spec.sampling, expected);
    assert.deepEqual(spec.eval?.sampling, { ...expected, temperature: 0.5, topK: null });
    assert.match(only(`${minimal}[sampling]\nmax_tokens = 4\nmin_tokens = 5\n`).expected, /at most max_tokens \(4\)/);
    assert.equal(only(`${minimal}[sampling]\ntop_p = 0\n`).path, 'sampling.top_p');
  });

  test('a spec that was written down without a field has its default', () => {
    const { spec } = accept(minimal);
    const { numIterations: _, microBatchSize: __, lora: ___, ...older } = spec;
    const { maxTokens, temperature } = spec.sampling;
    const read = RunSpec.parse({
      ...older,
      sampling: { maxTokens, temperature },
      loss: { type: 'cispo', clipHigh: 3, aggregation: 'token' },
      trainer: { kind: 'onnx', threads: 1 },
      inference: { kind: 'embedded', url: null },
    });
    assert.deepEqual(read, { ...spec, loss: { ...spec.loss, maxTokens: null } });
  });
});

describe('supervised runs and where metrics go', () => {
  const sft = '[sft]\nsteps = 30\ndata = "./rows.jsonl"\n';

  test('few supervised steps need no warm-up of their own in the file; one that is written has to fit', () => {
    const warmup = (text: string) => accept(`${minimal}[sft]\n${text}`).spec.sft!.warmupSteps;
    assert.deepEqual([warmup('steps = 10\n'), warmup('steps = 400\n')], [10, 20]);
    assert.match(only(`${minimal}[sft]\nsteps = 10\nwarmup_steps = 11\n`).expected, /at most \[sft\] steps \(10\)/);
  });

  test('the rate that random weights need is nobody else’s default', () => {
    const rate = (text: string) =>
      accept(`${text}[[env]]\nid = "reverse-text"\n[sft]\nsteps = 10\n`).spec.sft!.learningRate;
    assert.equal(rate('model = "preset:x"\n'), 3e-3);
    assert.equal(rate('model = "./qwen3-0.6b"\n'), 2e-5);
    assert.equal(rate('model = "./qwen3-0.6b"\nlora.r = 8\n'), 2e-5);
    const written = 'model = "./qwen3-0.6b"\n[[env]]\nid = "reverse-text"\n[sft]\nsteps = 10\nlearning_rate = 1e-4\n';
    assert.equal(accept(written).spec.sft!.learningRate, 1e-4);
  });

  test('a run may be supervised only, and then needs no environment', () => {
    const { spec } = accept(`model = "preset:x"\nmax_steps = 0\n${sft}`);
    assert.deepEqual(
      [spec.maxSteps, spec.environments, spec.sft?.data],
      [0, [], { path: './rows.jsonl', sha256: null }],
    );
    assert.equal(accept(`${minimal}[sft]\nsteps = 30\n`).spec.sft?.data, null);
  });

  test('what leaves nothing to train on is refused', () => {
    assert.equal(only(`max_steps = 0\n${minimal}`).path, 'max_steps');
    assert.match(only('model = "preset:x"\n').expected, /at least one environment/);
    assert.match(only(`model = "preset:x"\nmax_steps = 0\n[sft]\nsteps = 30\n`).expected, /at least one environment/);
    assert.match(
      only(`model = "preset:x"\nmax_steps = 0\n${sft}[eval]\ninterval = 5\n`).expected,
      /at least one \[\[eval.env\]\]/,
    );
    assert.match(only(`${minimal}[sft]\nsteps = 30\ndata = "rows.csv"\n`).expected, /a \.jsonl file/);
  });

  test('[wandb] is understood in the file and on the command line; a mode that does not exist is not', () => {
    const overrides = { 'wandb.project': 'p', 'wandb.name': '7' };
    const { spec } = accept(`${minimal}[wandb]\ntags = ["a", "b"]\nmode = "offline"\n`, { overrides });
    const nothing = { entity: null, group: null };
    assert.deepEqual(spec.wandb, { ...nothing, project: 'p', name: '7', tags: ['a', 'b'], mode: 'offline' });
    assert.match(only(`${minimal}[wandb]\nmode = "on"\n`).expected, /one of "online", "offline", "disabled"/);
  });
});
