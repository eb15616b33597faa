import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { parseRunConfig } from '../../config/parse-run-config.ts';
import { accept, refuse } from './read-run.ts';

const vfRl = (args: string, more = ''): string =>
  `model = "Qwen/Q"\n[env]\nid = "a/b"\n[inference]\ngpus = 1\n${more}[trainer]\ngpus = 2\n[trainer.args]\n${args}`;

describe('vf-rl', () => {
  test('what is not written is as RLConfig has it', () => {
    const { spec, readAs } = accept(vfRl(''));
    assert.equal(readAs.dialect, 'vf-rl');
    assert.deepEqual([spec.batchSize, spec.rolloutsPerExample, spec.microBatchSize, spec.maxSteps], [512, 16, 8, 500]);
    assert.deepEqual(
      [spec.loss.type, spec.loss.maskLow, spec.loss.maskHigh, spec.loss.aggregation],
      ['importance_sampling', 0.125, 8, 'token'],
    );
    assert.deepEqual([spec.lora?.r, spec.lora?.alpha, spec.learningRate, spec.seed], [8, 32, 1e-5, 42]);
    assert.equal(spec.sampling.maxTokens, 2048);
    assert.deepEqual(
      [spec.seqLen, spec.maxPromptTokens, spec.maskTruncated, spec.zeroTruncated],
      [2048, 512, false, false],
    );
    assert.deepEqual(spec.requested, {
      inferenceGpus: 1,
      trainerGpus: 2,
      vllm: {},
      torch: { dtype: 'bfloat16' },
    });
  });

  test('its loss, its adapters and its schedule are what the arguments say', () => {
    const { spec } = accept(
      vfRl(
        'use_lora = false\nmask_ratio_low = 0.5\nmask_ratio_high = 2.0\nlr_scheduler_type = "cosine"\nwarmup_ratio = 0.1\nmax_steps = 200\nmax_seq_len = 1024\nreport_to = "none"\n',
      ),
    );
    assert.deepEqual([spec.lora, spec.loss.maskLow, spec.loss.maskHigh, spec.wandb], [null, 0.5, 2, null]);
    assert.deepEqual([spec.schedule.type, spec.schedule.warmupSteps, spec.sampling.maxTokens], ['cosine', 20, 1024]);
  });

  test('uploads to a hub have no effect, and are said: they train nothing', () => {
    const keys = [
      'push_to_hub = true',
      'hub_model_id = "owner/model"',
      'hub_strategy = "every_save"',
      'hub_private_repo = true',
      'hub_always_push = false',
      'hub_revision = "main"',
      'push_to_hub_model_id = "model"',
      'push_to_hub_organization = "owner"',
    ];
    const { spec, warnings } = accept(vfRl(`${keys.join('\n')}\n`));
    assert.deepEqual(spec, accept(vfRl('')).spec);
    for (const key of keys) {
      const name = key.split(' ')[0]!;
      assert.equal(
        warnings.filter((line) => line.startsWith(`trainer.args.${name} has no effect here`)).length,
        1,
        name,
      );
    }
  });

  test('a warm-up begins at 0, and a constant rate has none, as transformers has it', () => {
    const warm = accept(vfRl('lr_scheduler_type = "linear"\nwarmup_steps = 5\n')).spec.schedule;
    assert.deepEqual([warm.type, warm.warmupSteps, warm.warmupFrom], ['linear', 5, 0]);
    const { spec, warnings } = accept(vfRl('warmup_steps = 5\n'));
    assert.deepEqual([spec.schedule.type, spec.schedule.warmupSteps], ['constant', 0]);
    assert.match(warnings.join(), /trainer.args.warmup_steps has no effect with lr_scheduler_type = "constant"/);
    assert.equal(spec.optimizer.decayMatricesOnly, true, 'norms and biases do not decay');
  });

  test('arguments of GRPOConfig beside its own count, and are said to; alone they are the older trainer’s', () => {
    const mixed =
      'num_generations = 8\nmicro_batch_size = 4\nbatch_size = 64\nuse_lora = true\nmax_prompt_len = 256\nnum_iterations = 2\nbeta = 0.05\nnum_batches_ahead = 0\n';
    const { spec, readAs, warnings } = accept(vfRl(mixed));
    assert.equal(readAs.dialect, 'vf-rl');
    assert.deepEqual(
      [spec.rolloutsPerExample, spec.numIterations, spec.kl.beta, spec.maxAsyncLevel, spec.loss.type],
      [8, 2, 0.05, 0, 'importance_sampling'],
    );
    assert.match(warnings.join(), /num_generations, num_iterations, num_batches_ahead, beta: of GRPOConfig/);
    const [problem] = refuse(vfRl(`${mixed}rollouts_per_example = 16\n`));
    assert.match(problem!.expected, /they are one setting/);
    const older = accept(vfRl('num_generations = 8\nper_device_train_batch_size = 8\nmax_steps = 5\n'));
    assert.equal(older.readAs.dialect, 'grpo');
  });

  test('evaluations and checkpoints are asked for as transformers has it', () => {
    const { spec } = accept(
      vfRl('eval_strategy = "steps"\neval_steps = 25\nsave_steps = 0.1\nmax_steps = 200\nsave_total_limit = 3\n'),
    );
    assert.deepEqual([spec.eval?.interval, spec.eval?.skipFirstStep], [25, true]);
    assert.deepEqual(spec.checkpoints, { interval: 20, keepLast: 3, keepInterval: null });
    assert.match(accept(vfRl('eval_steps = 25\n')).warnings.join(), /no effect without eval_strategy/);
  });

  test('a batch that its GPUs cannot share is refused with those that they can', () => {
    const [problem] = refuse(vfRl('batch_size = 120\nmicro_batch_size = 16\nrollouts_per_example = 8\n'));
    assert.deepEqual(
      [problem?.line, problem?.path, problem?.suggestion],
      [9, 'trainer.args.batch_size', 'use 96 or 128'],
    );
  });

  test('arguments beside [trainer.args] count, in one place, and are said to', () => {
    const { spec, warnings } = accept(vfRl('').replace('[trainer.args]', 'max_steps = 7'));
    assert.equal(spec.maxSteps, 7);
    assert.match(warnings.join(), /trainer.max_steps: vf-rl reads \[trainer.args\] alone/);
    assert.match(
      refuse(vfRl('max_steps = 8\n').replace('gpus = 2', 'gpus = 2\nmax_steps = 7'))[0]!.expected,
      /in one place/,
    );
  });

  test('arguments of vLLM are kept, and misspelt ones refused', () => {
    const args = (text: string): string => `[inference.args]\n${text}\n`;
    const { spec, warnings } = accept(vfRl('', args('enforce_eager = true\nsomething_new = 1')));
    assert.deepEqual(spec.requested?.vllm, { enforce_eager: true, something_new: 1 });
    assert.match(warnings.join(), /something_new is no argument of vLLM’s that is known here/);
    const [problem] = refuse(vfRl('', args('enforce_eagr = true')));
    assert.deepEqual([problem?.line, problem?.suggestion], [7, 'did you mean "enforce_eager"?']);
  });

  test('a file without GPUs is refused, as vf-rl refuses it', () => {
    const paths = refuse('model = "Qwen/Q"\n[env]\nid = "a/b"\n[trainer.args]\nmax_steps = 5\n').map(
      ({ path }) => path,
    );
    assert.deepEqual(paths, ['inference', 'trainer.gpus']);
  });
});

const grpo = (args: string): string => `model = "Qwen/Q"\n[env]\nid = "a/b"\n[trainer.args]\nmax_steps = 50\n${args}`;

describe('GRPOConfig', () => {
  test('a batch is rows at once × GPUs × how often they are accumulated', () => {
    const { spec, readAs } = accept(
      grpo('num_generations = 16\nper_device_train_batch_size = 4\ngradient_accumulation_steps = 8\n').replace(
        '[trainer.args]',
        '[trainer]\ngpus = 2\n[trainer.args]',
      ),
    );
    assert.equal(readAs.dialect, 'grpo');
    assert.deepEqual([spec.batchSize, spec.rolloutsPerExample, spec.microBatchSize], [64, 16, 4]);
  });

  test('its loss is clipped by ε and divided by rows and max_seq_len, with a KL term', () => {
    const { spec } = accept(
      grpo(
        'num_generations = 8\nepsilon = 0.3\nepsilon_high = 0.4\nbeta = 0.02\nmax_seq_len = 1024\nmax_tokens = 256\n',
      ),
    );
    assert.deepEqual([spec.loss.type, spec.loss.clipLow, spec.loss.clipHigh], ['grpo', 0.7, 1.4]);
    assert.deepEqual([spec.loss.aggregation, spec.loss.maxTokens, spec.sampling.maxTokens], ['dr_grpo', 1024, 256]);
    assert.deepEqual(spec.kl, { beta: 0.02, targetKl: null, refSyncSteps: 100 });
    assert.deepEqual([spec.lora, spec.advantage, spec.schedule.type], [null, 'centered', 'linear']);
    const other = accept(
      grpo(
        'num_generations = 8\nloss_type = "grpo"\nscale_rewards = true\nnum_iterations = 2\nnum_batches_ahead = 0\n',
      ),
    ).spec;
    assert.deepEqual(
      [other.loss.aggregation, other.advantage, other.numIterations, other.maxAsyncLevel],
      ['sequence', 'std_normalized', 2, 0],
    );
  });

  test('ratios are to the weights that a step begins from, and what GRPOTrainer counts otherwise is said', () => {
    const { spec, warnings } = accept(
      grpo('num_generations = 4\ngradient_accumulation_steps = 2\nloss_type = "bnpo"\nnum_iterations = 2\n'),
    );
    // grpo_trainer.py of verifiers 0.1.6 takes old log probabilities from the trainer's weights; get_decay_parameter_names of
    // transformers' trainer.py leaves norms and biases out.
    assert.deepEqual([spec.loss.oldLogprobs, spec.filter.keepsEqual], ['trainer', true]);
    assert.equal(spec.optimizer.decayMatricesOnly, true);
    assert.match(warnings.join('\n'), /"bnpo": GRPOTrainer divides each of the 2 parts of a batch by its own tokens/);
    assert.match(warnings.join('\n'), /num_iterations = 2: a step here is a batch with its 2 passes/);
  });

  test('a reference is renewed as a whole; one that is mixed is refused, and where it is the default that is said', () => {
    const { spec, warnings } = accept(grpo('beta = 0.1\nref_model_sync_steps = 50\n'));
    assert.equal(spec.kl.refSyncSteps, 50);
    assert.match(warnings.join(), /ref_model_mixup_alpha = 0.5, its default, mixes the two/);
    const whole = accept(grpo('beta = 0.1\nref_model_mixup_alpha = 1.0\n'));
    assert.deepEqual(
      whole.warnings.map((warning) => /^\w+/.exec(warning)?.[0]),
      ['attention', 'failures'],
    );
    const mixed = parseRunConfig(grpo('beta = 0.1\nref_model_mixup_alpha = 0.6\n'), { file: 'run.toml' });
    assert(!mixed.ok);
    assert.match(mixed.problems.map(({ expected }) => expected).join(), /^1: the reference is renewed as a whole$/);
    assert.equal(accept(grpo('beta = 0.1\nsync_ref_model = false\n')).spec.kl.refSyncSteps, null);
  });

  test('its arguments may stand at the top of a file, and a misspelt one is told the right one', () => {
    const { spec, readAs } = accept(
      'model = "Qwen/Q"\nmax_steps = 5\nnum_generations = 4\nbeta = 0.0\n[env]\nid = "a/b"\n',
    );
    assert.deepEqual([readAs.dialect, spec.rolloutsPerExample, spec.maxSteps], ['grpo', 4, 5]);
    const [problem] = refuse(grpo('num_generations = 8\nasync_generation_timeot = 60\n'));
    assert.equal(problem?.suggestion, 'did you mean "async_generation_timeout"?');
  });

  test('epochs, and batches that several steps share, are refused', () => {
    assert.match(refuse(grpo('beta = 0.1\n').replace('max_steps = 50', ''))[0]!.expected, /whole epochs/);
    assert.match(refuse(grpo('steps_per_generation = 4\n'))[0]!.expected, /one optimizer step at a time/);
  });
});

test('a key that is ours alone is refused in a file of prime-rl’s folder, with where it goes', () => {
  const text =
    'model = "a/b"\nmax_steps = 5\nbatch_size = 8\nrollouts_per_example = 8\n[[env]]\nid = "a/b"\n[store]\nuri = "file:x"\n';
  const parsed = parseRunConfig(text, { file: 'configs/prime-rl/x.toml' });
  assert(!parsed.ok);
  assert.equal(parsed.readAs?.dialect, 'flat');
  assert.equal(parsed.problems[0]?.suggestion, "it is Ratchet's own: [ratchet.store]");
});
