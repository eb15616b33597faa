import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { describe, test } from 'node:test';
import { learningRateAt } from '../../core/rl/sampling/schedule.ts';
import { formatProblems } from '../../config/parse-run-config.ts';
import type { Problem } from '../../config/toml/problems.ts';
import { configsFolder } from './run-files.ts';
import { accept, only, refuse } from './read-run.ts';

/** Each as `line path`. */
const places = (problems: readonly Problem[]): string[] => problems.map(({ line, path }) => `${line ?? '-'} ${path}`);

const seed = readFileSync(`${configsFolder}seeds/prime-rl.toml`, 'utf8');
/** Today's words. */
const today = `max_steps = 100
[orchestrator]
group_size = 8
[[orchestrator.train.source]]
env = { taskset = { id = "owner/gsm8k", split = "train" } }
`;
/** Supervised training. */
const onRows = 'max_steps = 10\n[model]\nname = "Qwen/Qwen3-0.6B"\n[data]\nname = "owner/rows"\nseq_len = 128\n';
const second = '[[orchestrator.train.source]]\nname = "second"\nenv = { taskset = { id = "owner/other" } }\n';
/** The same in those of v0.6. */
const before = `max_steps = 100
[orchestrator]
rollouts_per_example = 8
[[orchestrator.train.env]]
id = "owner/gsm8k"
args = { split = "train" }
`;

describe('which prime-rl a file is of', () => {
  test('is seen from the names that came and went', () => {
    assert.equal(accept(seed).readAs.dialect, 'prime-rl-0.4');
    assert.equal(accept(today).readAs.dialect, 'prime-rl');
    assert.equal(accept(before).readAs.dialect, 'prime-rl-0.9');
    // The days before March had masks as in 0.4, and GPUs as since 0.5.
    const between = seed.replace(/inference_gpu_ids.*\ntrainer_gpu_ids.*\n/, '') + '[deployment]\nnum_train_gpus = 2\n';
    assert.equal(accept(between).readAs.dialect, 'prime-rl-0.4');
  });

  test('may be said', () => {
    const text = '[orchestrator]\nrollouts_per_example = 8\n';
    assert.equal(accept(text, { dialect: 'prime-rl-0.4' }).spec.rolloutsPerExample, 8);
  });
});

test('nodes and the patience of ranks reach PyTorch, and are said to have no effect beside another trainer', () => {
  const text = `${today}[trainer]\ndist_timeout_seconds = 1200\n[deployment]\ntype = "multi_node"\nnum_train_nodes = 2\ngpus_per_node = 4\n[slurm]\n`;
  const embedded = accept(text);
  const { trainerGpus, torch = {} } = embedded.spec.requested ?? {};
  assert.deepEqual([trainerGpus, torch['nodes'], torch['rank_timeout']], [4, 2, 1200]);
  assert.match(
    embedded.warnings.join('\n'),
    /deployment\.num_train_nodes, .*dist_timeout_seconds.* without effect: for PyTorch/,
  );
  const { spec } = accept(`${text}[ratchet.trainer]\nkind = "torch"\n`);
  assert.ok(spec.trainer.kind === 'torch');
  const { nodes, ranks, rankTimeoutS } = spec.trainer;
  assert.deepEqual([nodes, ranks, rankTimeoutS], [2, 4, 1200]);
});

describe('the loss', () => {
  const lossOf = (settings: string) => accept(`${today}[trainer.loss]\n${settings}`).spec.loss;

  test('of today is IPO with its bound and its cap, of 0.9 DPPO, of 0.5 IPO with another bound, of 0.4 importance sampling over a mask', () => {
    assert.equal(accept(seed).spec.loss.type, 'importance_sampling');
    const { type, maskLow, maskHigh, klTau, ratioMax, aggregation } = lossOf('');
    assert.deepEqual([type, maskLow, maskHigh, klTau, ratioMax, aggregation], ['ipo', 0.3, 0.3, 0, 1e4, 'token']);
    const byAge = (dialect: string) => accept(today, dialect).spec.loss;
    assert.deepEqual([byAge('prime-rl-0.9').type, byAge('prime-rl-0.9').maskHigh], ['dppo', 0.2]);
    assert.deepEqual([byAge('prime-rl-0.5').type, byAge('prime-rl-0.5').maskLow], ['ipo', 0.2]);
  });

  test('has the bounds that are written', () => {
    const moved = lossOf('dppo_mask_low = 0.3\ndppo_mask_high = 0.1\nkl_tau = 0.0\n');
    assert.deepEqual([moved.type, moved.maskLow, moved.maskHigh, moved.klTau], ['dppo', 0.3, 0.1, 0]);
    const ipo = lossOf('type = "ipo"\nipo_threshold = 0.05\n');
    assert.deepEqual([ipo.type, ipo.maskLow, ipo.maskHigh, ipo.klTau], ['ipo', 0.05, 0.05, 0.001]);
    assert.equal(lossOf('type = "ipo"\n').maskHigh, 0.3);
    const newer = lossOf('eps = 0.1\nkl_tau = 0.001\nmax_importance_ratio = 100\n');
    assert.deepEqual([newer.maskLow, newer.maskHigh, newer.klTau, newer.ratioMax], [0.1, 0.1, 0.001, 100]);
  });
});

describe('older names', () => {
  test('mean what the newer ones mean, with one warning for each', () => {
    const [old, now] = [accept(before), accept(today, 'prime-rl-0.9')];
    assert.deepEqual(old.spec, now.spec);
    const said = old.warnings.filter((warning) => !now.warnings.includes(warning));
    assert.deepEqual(
      said.map((warning) => warning.split(' ')[0]),
      [
        'orchestrator.train.env',
        'orchestrator.rollouts_per_example',
        'the',
        'orchestrator.train.source[0].id',
        'orchestrator.filters',
      ],
    );
  });

  test('are reported at the place where they were written', () => {
    const problems = refuse(before.replace('8', '0.5').replace('"owner/gsm8k"', '"a b"'));
    assert.deepEqual(places(problems), ['3 orchestrator.rollouts_per_example', '5 orchestrator.train.env[0].id']);
  });

  test('beside newer ones agree, or are refused', () => {
    const both = (group: number): string =>
      today.replace('group_size = 8', `group_size = ${group}\nrollouts_per_example = 8`);
    assert.equal(accept(both(8)).spec.rolloutsPerExample, 8);
    assert.deepEqual(places(refuse(both(4))), ['4 orchestrator.rollouts_per_example']);
  });

  test('turn on what they turned on, also where nothing stands in them', () => {
    assert.equal(accept(today).spec.wandb, null);
    assert.equal(accept(`${today}[wandb]\n`).spec.wandb?.project, 'prime-rl');
    assert.equal(accept(`${today}[monitors.wandb]\n`).spec.wandb?.project, 'prime-rl');
  });
});

describe('"None" is null', () => {
  test('where a field or a table may be missing', () => {
    const { spec } = accept(
      seed
        .replace('[wandb]\nproject = "my-project"\nname = "my-run"', '')
        .replace('max_steps = 500', 'wandb = "None"\nmax_steps = 500'),
    );
    assert.equal(spec.wandb, null);
    assert.equal(accept(`${seed}[orchestrator.ckpt]\ninterval = "None"\n`).spec.checkpoints.interval, 500);
  });

  test('in tables of free keys, as it stands', () => {
    const { spec } = accept(seed.replace('difficulty = "hard"', 'difficulty = "None", list = ["None"]'));
    assert.deepEqual(spec.environments[0]?.args, { dataset_name: 'train', difficulty: null, list: [null] });
  });

  test('and nowhere else', () => {
    const [problem, ...others] = refuse(seed.replace('batch_size = 32 ', 'batch_size = "None" '));
    assert.deepEqual([problem?.path, problem?.received, others], ['orchestrator.batch_size', '"None"', []]);
  });

  test('turns off what is on where nothing is written', () => {
    const off = accept(`${today}[trainer.optim]\nmax_norm = "None"\n[trainer.model]\nac = "None"\n`).spec;
    assert.equal(off.optimizer.maxGradNorm, Number.MAX_VALUE);
    const acFreq = ({ trainer }: typeof off) => (trainer.kind === 'onnx' ? trainer.acFreq : null);
    assert.deepEqual([acFreq(accept(today).spec), acFreq(off)], [1, undefined]);
  });
});

test('a router that nothing trains may be frozen: beside adapters, and in a dense model', () => {
  const frozen = (model: string, more = ''): Record<string, string> => ({
    rl: `${today}[trainer.model]\nname = "${model}"\nfreeze_moe_router = true\n${more.replace('lora', 'trainer.model.lora')}`,
    sft: `${onRows.replace('Qwen/Qwen3-0.6B"', `${model}"\nfreeze_moe_router = true`)}${more.replace('lora', 'model.lora')}`,
  });
  for (const [kind, text] of Object.entries(frozen('Qwen/Qwen3-30B-A3B', '[lora]\n')))
    assert.match(accept(text).warnings.join('\n'), /freeze_moe_router has no effect here: adapters leave/, kind);
  for (const [kind, text] of Object.entries(frozen('Qwen/Qwen3-4B')))
    assert.match(accept(text).warnings.join('\n'), /freeze_moe_router has no effect here: qwen3-4b has no/, kind);
  for (const [kind, text] of Object.entries(frozen('Qwen/Qwen3-30B-A3B')))
    assert.match(only(text).expected, /routers are trained with their experts/, kind);
});

describe('optimizers', () => {
  const with_ = (optim: string, file = today): string => `${file}[trainer.optim]\n${optim}\n`;

  test('are those of prime-rl, with its values where nothing is written', () => {
    const read = (optim: string) => accept(with_(optim)).spec.optimizer;
    const adamw = { beta1: 0.9, beta2: 0.999, epsilon: 1e-8, weightDecay: 0, maxGradNorm: 1 };
    assert.deepEqual(read('weight_decay = "auto"'), adamw);
    assert.deepEqual(read('weight_decay = 0.02'), { ...adamw, weightDecay: 0.02 });
    assert.deepEqual(read('type = "adamw"\nbetas2 = 0.98'), { ...adamw, beta2: 0.98 });
    assert.deepEqual(read('type = "muon"'), { type: 'muon', ...adamw, beta2: 0.95, momentum: 0.95 });
    assert.deepEqual(read('type = "muon"\nmu = 0.9\nbetas2 = 0.99'), {
      type: 'muon',
      ...adamw,
      beta2: 0.99,
      momentum: 0.9,
    });
    assert.deepEqual(read('type = "sgd"'), { type: 'sgd', ...adamw });
    assert.deepEqual(read('type = "sgd"\nnesterov = false\nmomentum = 0'), {
      type: 'sgd',
      ...adamw,
      momentum: 0,
      nesterov: false,
    });
    assert.deepEqual(read('type = "sign_sgd"'), { type: 'sign_sgd', ...adamw });
  });

  test('of 0.4 have a Muon that no setting reaches, and say so', () => {
    const { spec, warnings } = accept(
      with_('type = "muon"\nbetas2 = 0.999', seed.replace(/\[trainer.optim\][^[]*/, '')),
    );
    assert.deepEqual([spec.optimizer.beta2, spec.optimizer.momentum], [0.95, 0.95]);
    assert.match(warnings.join('\n'), /trainer.optim.betas2 has no effect: prime-rl 0.4 makes its Muon without it/);
  });

  test('have no settings of one another', () => {
    const [problem] = refuse(with_('type = "sign_sgd"\nmomentum = 0.5'));
    assert.deepEqual(
      [problem?.path, problem?.expected],
      ['trainer.optim.momentum', 'nothing: trainer.optim.type = "sign_sgd" has no momentum'],
    );
    const [still] = refuse(with_('type = "sgd"\nmomentum = 0'));
    assert.match(still?.expected ?? '', /false beside momentum = 0/);
  });
});

describe('values that are said in several places', () => {
  test('the one at the top wins in 0.4, with a warning; since then another one is refused', () => {
    const twice = (text: string): string => `${text}[trainer]\nmax_steps = 7\n`;
    const { spec, warnings } = accept(twice(seed.replaceAll('[trainer.', '[trainer.')));
    assert.equal(spec.maxSteps, 500);
    assert.match(warnings.join('\n'), /trainer.max_steps = 7 has no effect: max_steps = 500/);
    const [problem] = refuse(twice(today));
    assert.equal(problem?.path, 'trainer.max_steps');
    assert.match(problem.expected, /^100, as max_steps says/);
    assert.equal(accept(`${today}[trainer]\nmax_steps = 100\n`).spec.maxSteps, 100);
  });

  test('names of models that differ are pointed out', () => {
    const { warnings } = accept(
      seed.replace('[inference.model]\nname = "Qwen/Qwen2.5-7B-Instruct"', '[inference.model]\nname = "Qwen/Qwen3-4B"'),
    );
    assert.match(warnings.join('\n'), /inference.model.name is "Qwen\/Qwen3-4B", and the model that is trained is/);
  });

  test('seq_len and max_model_len that differ are pointed out, since two documents disagree', () => {
    const { warnings } = accept(seed.replace('max_model_len = 16384', 'max_model_len = 8192'));
    assert.match(warnings.join('\n'), /seq_len \(16384\) and inference.model.max_model_len \(8192\) differ/);
  });
});

describe('what prime-rl asks of its server', () => {
  const served = today.replace('max_steps = 100', 'max_steps = 100\n[inference.vllm]\nmax_model_len = 4096');
  const limits = (text: string) => {
    const { maxTokens, contextTokens } = accept(text).spec.sampling;
    return [maxTokens, contextTokens];
  };

  test('without a limit of answers an answer may take what its prompt leaves of the server’s context', () => {
    const old = seed.replace(/^max_tokens = .*$/m, '');
    assert.deepEqual(limits(old), [16_384, 16_384]);
    assert.deepEqual(limits(served), [4096, 4096]);
    assert.deepEqual(limits(`${served}[orchestrator.train.sampling]\nmax_completion_tokens = 64\n`), [64, undefined]);
    assert.deepEqual(limits(`${served}sampling = { max_completion_tokens = 64 }\n`), [64, undefined]);
    assert.deepEqual(limits(seed), [1024, undefined]);
    assert.deepEqual(limits(today), [2048, undefined]);
  });

  test('variables of the chat template in extra_body are ours as well', () => {
    const off = 'extra_body = { chat_template_kwargs = { enable_thinking = false }, top_k = 5 }\n';
    const train = '[orchestrator.train.sampling]\n';
    for (const text of [
      `${today}${train}${off}`,
      seed.replace('temperature = 0.5', `temperature = 0.5\n${off.replace(', top_k = 5', '')}`),
      `${today}[orchestrator.train.source.sampling]\n${off}`,
    ]) {
      const { spec } = accept(text);
      assert.deepEqual(spec.sampling.templateArguments, { enable_thinking: false }, text);
    }
    const two = `${today}sampling = { ${off.trim()} }\n[[orchestrator.train.source]]\nenv = { taskset = { id = "b" } }\n`;
    const [own, other] = accept(two).spec.environments;
    assert.deepEqual([own!.sampling?.templateArguments, own!.sampling?.topK], [{ enable_thinking: false }, 5]);
    assert.equal(other!.sampling, undefined);
    const held = `${today}[orchestrator.eval]\nsource = [{ env = { taskset = { id = "b" } } }]\n[orchestrator.eval.sampling]\n${off}`;
    assert.deepEqual(accept(held).spec.eval!.sampling?.templateArguments, { enable_thinking: false });
  });
});

describe('what prime-rl refuses is refused, at its line and with what to do', () => {
  const old: Readonly<Record<string, readonly [text: string, at: string, said: RegExp]>> = {
    'ac = "full"': [
      seed.replace('[trainer.model.ac]\nfreq = 1', '[trainer.model]\nac = "full"'),
      'trainer.model.ac',
      /\[trainer.model.ac\] with freq = 1/,
    ],
    'a batch that is no whole number of groups': [
      seed.replace('batch_size = 32 ', 'batch_size = 40 '),
      'orchestrator.batch_size',
      /use 32 or 48/,
    ],
    'thresholds out of order': [
      seed.replace('online_difficulty_filtering = true', 'easy_threshold = 0.2\nhard_threshold = 0.8'),
      'orchestrator.buffer.easy_threshold',
      /above hard_threshold/,
    ],
    'ratios that are not one for each environment': [
      seed.replace('online_difficulty_filtering = true', 'env_ratios = [1, 2]'),
      'orchestrator.buffer.env_ratios',
      /1 numbers, one for each/,
    ],
    'a sampling parameter that is said twice': [
      seed.replace('temperature = 0.5', 'temperature = 0.5\nextra_body = { top_p = 0.9 }'),
      'orchestrator.sampling.extra_body.top_p',
      /says it twice fails/,
    ],
    'a temperature beside its course': [
      `${seed}[orchestrator.sampling.temp_scheduler]\nstart_temperature = 1.0\nend_temperature = 0.5\n`,
      'orchestrator.sampling.temperature',
      /one number or has a course/,
    ],
    'a course of temperatures without an end, once': [
      `${seed.replace('temperature = 0.5', '')}[orchestrator.sampling.temp_scheduler]\nstart_temperature = 1.0\n`,
      'orchestrator.sampling.temp_scheduler.end_temperature',
      /a number > 0/,
    ],
    'adapters from memory to memory': [
      `${seed}[weight_broadcast]\ntype = "nccl"\n`,
      'weight_broadcast.type',
      /"filesystem"/,
    ],
    'a loss that the engine has not': [`${seed}[trainer.loss]\nkl_tau = 0.1\n`, 'trainer.loss.kl_tau', /−ρ·A/],
    'masks out of order': [
      `${seed}[trainer.loss]\ntoken_mask_low = 9.0\n`,
      'trainer.loss.token_mask_low',
      /less than trainer.loss.token_mask_high \(8\)/,
    ],
    'float16 for training': [
      seed.replace('[trainer.model.ac]', '[trainer.model]\nreduce_dtype = "float16"\n[trainer.model.ac]'),
      'trainer.model.reduce_dtype',
      /"bfloat16", "float32"/,
    ],
    'the name that is kept for the sum': [
      seed.replace('id = "my-env"', 'id = "my-env"\nname = "agg"'),
      'orchestrator.env[0].name',
      /"agg" is reserved/,
    ],
  };
  const now: typeof old = {
    'more GPUs than a node has': [
      `${today}[deployment]\nnum_train_gpus = 4\nnum_infer_gpus = 6\n`,
      'deployment.num_train_gpus',
      /at most gpus_per_node \(8\)/,
    ],
    'two sizes of a batch': [
      today.replace('group_size = 8', 'group_size = 8\nbatch_size = 64\ntoken_batch_size = 9'),
      'orchestrator.token_batch_size',
      /a batch has one size/,
    ],
    'an algorithm of roles beside another': [
      `${today}algo = { type = "rae" }\n${second}`,
      'orchestrator.train.source[0].algo',
      /the same algo of all sources, or another than rae: roles of agents are told apart in all environments/,
    ],
    'an algorithm of roles with what is another’s': [
      today.replace('group_size = 8', 'group_size = 8\nalgo = { type = "rae", episode_agents = ["a"] }'),
      'orchestrator.algo.episode_agents',
      /nothing: an algo of type = "rae" has decay here/,
    ],
    'a source that learns by heart beside others': [
      `${today}algo = { type = "sft", sampling = { source = { name = "t", base_url = "http://t/v1" } } }\n${second}`,
      'orchestrator.train.source[0].algo',
      /where one source learns by heart what a teacher played, all of them do/,
    ],
    'two teachers': [
      `${today}algo = { type = "opd", teacher = { name = "t", base_url = "http://t/v1" } }\n${second}algo = { type = "opsd" }\n`,
      'orchestrator.train.source[1].algo',
      /as another source has it: the sources of a run learn from one teacher here/,
    ],
    'two teachers whose words are learned by heart': [
      `${today}algo = { type = "sft", sampling = { source = { name = "t", base_url = "http://t/v1" } } }\n${second}algo = { type = "sft", sampling = { source = { name = "u", base_url = "http://t/v1" } } }\n`,
      'orchestrator.train.source[1].algo',
      /"name":"t".*as another source has it: the sources of a run learn from one teacher here/,
    ],
    'a source without the length penalty of the run': [
      `${today.replace('group_size = 8', 'group_size = 8\nalgo = { type = "grpo", length_penalty = { type = "linear" } }')}algo = { type = "grpo" }\n${second}`,
      'orchestrator.train.source[0].algo',
      /length_penalty = \{"type":"linear"\}, as another source has it/,
    ],
    'code that picks the tokens of echo': [
      `${today}algo = { type = "echo", filter = { import_path = "mine.pick" } }\n`,
      'orchestrator.train.source[0].algo.filter',
      /which messages are learned is said by roles/,
    ],
    'a group of one': [today.replace('group_size = 8', 'group_size = 1'), 'orchestrator.group_size', /one alone/],
    'rows that the trainer cannot hold': [
      today.replace('group_size = 8', 'group_size = 8\nseq_len = 4096'),
      'orchestrator.seq_len',
      /at least orchestrator.seq_len \(4096\)/,
    ],
    'a schedule that does not end in time': [
      `${today}[trainer.scheduler]\ntype = "linear"\nwarmup_steps = 60\ndecay_steps = 60\n`,
      'trainer.scheduler.decay_steps',
      /at most max_steps less warmup_steps/,
    ],
    'a bound of another version': [
      `${today}[trainer.loss]\nipo_mask_low = 0.5\n`,
      'trainer.loss.ipo_mask_low',
      /nothing: a loss of type = "default" has no ipo_mask_low/,
    ],
    'a router that is frozen': [
      `${today}[trainer.model]\nname = "Qwen/Qwen3-30B-A3B"\nfreeze_moe_router = true\n`,
      'trainer.model.freeze_moe_router',
      /routers are trained with their experts/,
    ],
    'a router that is frozen, and a warm-up of all weights': [
      `${today}[trainer.model]\nname = "Qwen/Qwen3-30B-A3B"\nfreeze_moe_router = true\n[trainer.model.lora]\n[ratchet.sft]\nsteps = 5\n`,
      'trainer.model.freeze_moe_router',
      /without a warm-up/,
    ],
    'a correction that needs what is not kept': [
      `${today}[trainer.loss]\nscore_centering = true\n`,
      'trainer.loss.score_centering',
      /probabilities of all tokens/,
    ],
    'a part of the tasks of a training source': [
      `${today}select = { limit = 5 }\n`,
      'orchestrator.train.source[0].select',
      /choose among them in its arguments/,
    ],
    'a bound of another loss': [
      `${today}[trainer.loss]\nipo_threshold = 0.2\n`,
      'trainer.loss.ipo_threshold',
      /type = "ipo" beside it/,
    ],
    'a loss on held-out rows': [
      `${onRows}[val]\ninterval = 5\neval_on_start = true\n[val.data]\nname = "owner/rows"\nsplit = "test"\n`,
      'val',
      /\[eval\] takes its place/,
    ],
    'rows of several parts': [
      `${onRows}subsets = ["a", "b"]\nsplits = ["train", "test"]\nprobabilities = [0.5, 0.5]\n`,
      'data.subsets',
      /one source of rows; join the parts/,
    ],
    'evaluations of nothing': [`${today}[orchestrator.eval]\n`, 'orchestrator.eval.source', /at least one/],
  };
  for (const [what, [text, at, said]] of Object.entries({ ...old, ...now })) {
    test(what, () => {
      const problems = refuse(text);
      const problem = problems.find(({ path }) => path === at);
      assert.ok(problem, formatProblems(problems));
      assert.equal(problems.length, 1, formatProblems(problems));
      assert.match(`${problem.expected} ${problem.suggestion ?? ''}`, said);
      assert.ok(problem.line !== null);
    });
  }
});

describe('algorithms', () => {
  const withAlgo = (algo: string) => today.replace('group_size = 8', `group_size = 8\nalgo = ${algo}`);
  const echoes = (text: string) => accept(text).spec.environments.map(({ echo }) => echo);

  test('echo is grpo and the cross entropy of tools’ answers, or of the roles that are named', () => {
    assert.deepEqual(echoes(withAlgo('{ type = "echo" }')), [{ tool: 0.1 }]);
    const roles = '{ type = "echo", roles = { user = { alpha = 0.05 }, system = {} } }';
    const { spec } = accept(withAlgo(roles));
    assert.deepEqual(spec.environments[0]!.echo, { user: 0.05, system: 0.1 });
    assert.deepEqual([spec.advantage, spec.loss.type], ['centered', 'ipo']);
    assert.match(
      only(withAlgo('{ type = "echo", roles = {} }')).expected,
      /one of system, user, assistant, tool at least/,
    );
  });

  test('of sources that differ stand with their environments, each loss beside the other', () => {
    const opd = 'algo = { type = "opd", teacher = { name = "t", base_url = "http://t/v1" } }\n';
    const { spec } = accept(`${today}${second}${opd}`);
    assert.deepEqual(
      spec.environments.map(({ objective }) => objective),
      [undefined, 'ref_kl'],
    );
    assert.deepEqual([spec.loss.type, spec.loss.teacherTau, spec.teacher?.model], ['ipo', 0, 't']);
    const { type, maskLow, maskHigh, klTau, advantageTau, teacherTau, aggregation } = spec.distillation!;
    assert.deepEqual(
      [type, maskLow, maskHigh, klTau, advantageTau, teacherTau, aggregation],
      ['ipo', 0.2, null, 1e-3, 0, 1, 'token'],
    );
    const turned = accept(`${withAlgo(opd.slice('algo = '.length, -1))}${second}algo = { type = "grpo" }\n`);
    assert.deepEqual(
      turned.spec.environments.map(({ objective }) => objective),
      ['ref_kl', undefined],
    );
    assert.equal(turned.spec.loss.type, 'ipo');
    // A setting that all sources share is the run's.
    const all = accept(`${today}${opd}${second}${opd}`).spec;
    assert.deepEqual([all.loss.type, all.distillation, all.environments[1]!.objective], ['ipo', undefined, undefined]);
    assert.deepEqual(echoes(`${today}algo = { type = "echo" }\n${second}`), [{ tool: 0.1 }, undefined]);
  });

  test('groups of sources may differ in size, one alone where nothing is compared', () => {
    const opd = 'group_size = 1\nalgo = { type = "opd", teacher = { name = "t", base_url = "http://t/v1" } }\n';
    const { spec, warnings } = accept(`${today}${second}${opd}`);
    assert.deepEqual(
      [spec.rolloutsPerExample, ...spec.environments.map((one) => one.rolloutsPerExample)],
      [8, undefined, 1],
    );
    assert.match(warnings.join('\n'), /source\[1\]\.group_size: groups differ in their size/);
    assert.match(only(`${today}${second}group_size = 1\n`).expected, /one alone teaches nothing/);
  });
});

describe('difficulty', () => {
  test('0.4 puts aside what is beyond its thresholds, and drops groups that are all right or all wrong', () => {
    const { spec } = accept(
      seed.replace(
        'online_difficulty_filtering = true',
        'online_difficulty_filtering = true\neasy_threshold = 0.8\nhard_threshold = 0.2',
      ),
    );
    const pools = { easyThreshold: 0.8, hardThreshold: 0.2, easyFraction: 0, hardFraction: 0 };
    assert.deepEqual(spec.environments[0]?.pools, pools);
    assert.equal(spec.filter.onlineDifficultyFiltering, true);
  });

  test('today’s pools are drawn by their weights; a mean belongs to the first threshold that it does not exceed', () => {
    const pools = accept(`${today}[orchestrator.train.source.curriculum.sampler]\ntype = "difficulty_pool"\n`).spec
      .environments[0]?.pools;
    assert.ok(
      pools && pools.easyThreshold !== null && pools.easyThreshold > 0.75 && pools.easyThreshold < 0.75 + 1e-12,
    );
    assert.deepEqual([pools.hardThreshold, pools.easyFraction, pools.hardFraction], [0.25, 0.2, 0.2]);
  });

  test('gates that drop more than groups without any advantage are refused', () => {
    const gate = '[orchestrator.train.source.curriculum.gates.narrow]\ntype = "advantage_range"\n';
    accept(today + gate);
    assert.deepEqual(places(refuse(`${today}${gate}reject_max = 0.1\n`)), [
      '6 orchestrator.train.source[0].curriculum.gates.narrow',
    ]);
  });
});

test('a batch of so many tokens: whole groups of them, and as many rollouts at first as it has at least', () => {
  const text = today.replace('group_size = 8', 'group_size = 8\ntoken_batch_size = 100_000');
  const { spec, warnings } = accept(text);
  assert.deepEqual([spec.tokenBatchSize, spec.batchSize], [100_000, 48]); // no row is longer than 2,048 tokens
  assert.match(warnings.join('\n'), /token_batch_size: a batch is whole groups here/);
});

test('checkpoints: none is written down, an empty table is one at the end, and what is not limited is kept', () => {
  const of = (text: string) => accept(today + text).spec.checkpoints;
  assert.deepEqual(of('[ckpt]\n'), { interval: 100, keepLast: 1, keepInterval: 100 });
  assert.deepEqual(of('[ckpt]\ninterval = 10\nkeep_last = 3\n'), { interval: 10, keepLast: 3, keepInterval: null });
  assert.deepEqual(of('[ckpt]\ninterval = 10\nkeep_interval = 50\n'), { interval: 10, keepLast: 1, keepInterval: 50 });
});

test('groups without any advantage leave their place to others, or filled a batch and were taken out of it, as filter_zero_advantages had it', () => {
  const of = (text: string) => {
    const { filter, rolloutFilters, batchFill } = accept(today + text).spec;
    return [filter.keepsEqual, rolloutFilters.pre, rolloutFilters.post, batchFill];
  };
  const pruned = [{ type: 'zero_advantage', enforce: true }];
  assert.deepEqual(of(''), [false, pruned, [], 'full']);
  const inTable = today.replace('group_size', 'constant_trainer_batch_size = false\ngroup_size');
  const { filter, rolloutFilters, batchFill } = accept(inTable).spec;
  assert.deepEqual([filter.keepsEqual, rolloutFilters.pre, rolloutFilters.post, batchFill], [true, [], pruned, 'once']);
  assert.deepEqual(of('[orchestrator.train]\nfilter_zero_advantages = true\n'), [true, [], pruned, 'once']);
  assert.deepEqual(of('[orchestrator.train]\nfilter_zero_advantages = false\n'), [true, [], [], 'once']);
  assert.deepEqual(of('[[orchestrator.filters]]\ntype = "gibberish"\n')[0], true, 'as v0.5 had it');
  const gate =
    '[[orchestrator.train.source]]\nenv = { taskset = { id = "a" } }\n[orchestrator.train.source.curriculum.gates.any]\n';
  const gated = accept(`model = { name = "m" }\n[orchestrator]\ngroup_size = 4\n${gate}type = "advantage_range"\n`);
  assert.equal(gated.spec.filter.keepsEqual, false, 'a gate rejects them before they have a place');
});

test('prime-rl’s linear schedule: up, level, and down over its last steps', () => {
  const text = `${today}[trainer.optim]\nlr = 1e-5\n[trainer.scheduler]\ntype = "linear"\nwarmup_steps = 10\ndecay_steps = 20\n`;
  const { schedule, maxSteps } = accept(text).spec;
  // trainer/scheduler.py: LinearLR(1e-8 → 1, total_iters = 10), 1, LinearLR(1 → 1e-8, total_iters = decay_steps − 1)
  const home = (step: number): number =>
    step <= 10 ? 1e-8 + (1 - 1e-8) * ((step - 1) / 10) : step <= 80 ? 1 : 1 - (1 - 1e-8) * ((step - 81) / 19);
  for (let step = 1; step <= 100; step++) {
    const rate = learningRateAt({ step, maxSteps, peak: 1e-5, schedule });
    assert.ok(Math.abs(rate - 1e-5 * home(step)) < 1e-20, `step ${step}: ${rate}, ${home(step)}`);
  }
});

test('a warm-up of prime-rl begins at min_lr, in 0.4 and today: rates that its own scheduler told', () => {
  // setup_linear_scheduler and setup_cosine_scheduler of trainer/scheduler.py in v0.4.0 and at 559b447, stepped under torch: 10 steps, lr = 1e-2.
  const level = [1e-2, 1e-2, 1e-2, 1e-2];
  const up = [1e-3, 3.25e-3, 5.5e-3, 7.75e-3];
  const fromNothing = [1e-10, 2.50000008e-3, 5.00000005e-3, 7.50000003e-3];
  const told: readonly [settings: string, rates: readonly number[]][] = [
    ['type = "linear"\nmin_lr = 1e-3\ndecay_steps = 3\n', [...up, ...level, 5.5e-3, 1e-3]],
    ['type = "linear"\nmin_lr = 1e-3\ndecay_steps = 0\n', [...up, ...level, 1e-2, 1e-2]],
    ['type = "cosine"\nmin_lr = 1e-3\n', [...up, 1e-2, 9.39711432e-3, 7.75e-3, 5.5e-3, 3.25e-3, 1.60288568e-3]],
    ['type = "cosine"\n', [...fromNothing, 1e-2, 9.33012702e-3, 7.5e-3, 5e-3, 2.5e-3, 6.69872981e-4]],
  ];
  const short = {
    'prime-rl-0.4': seed.replace(/^max_steps = .*$/m, 'max_steps = 10'),
    'prime-rl': today.replace('100', '10'),
  };
  for (const [dialect, text] of Object.entries(short)) {
    for (const [settings, rates] of told) {
      const table = `[trainer.scheduler]\nwarmup_steps = 4\n${settings}`;
      const { spec, readAs } = accept(text, {
        over: [{ file: 'rate.toml', text: `[trainer.optim]\nlr = 1e-2\n${table}` }],
      });
      assert.deepEqual([readAs.dialect, spec.maxSteps], [dialect, 10]);
      for (const [i, home] of rates.entries()) {
        const rate = learningRateAt({ step: i + 1, maxSteps: 10, peak: spec.learningRate, schedule: spec.schedule });
        assert.ok(Math.abs(rate - home) <= 1e-8 * home, `${dialect}, ${settings}: step ${i + 1}: ${rate}, ${home}`);
      }
    }
  }
});

test('group_size missing is 1, as prime-rl’s configs/orchestrator.py has it: refused where rollouts are compared', () => {
  const missing = today.replace('group_size = 8\n', 'batch_size = 8\n');
  const problem = only(missing);
  assert.deepEqual([problem.path, problem.received], ['orchestrator.group_size', 'nothing, which is 1 in prime-rl']);
  assert.match(problem.expected, /^an integer ≥ 2: .* one alone teaches nothing/);
  const teacher = 'algo = { type = "opd", teacher = { name = "t", base_url = "http://t/v1" } }\n';
  const { spec } = accept(missing + teacher);
  assert.deepEqual([spec.rolloutsPerExample, spec.environments[0]?.rolloutsPerExample], [1, undefined]);
});

describe('several files read as one', () => {
  const over = [
    { file: 'mine.toml', text: 'max_steps = 7\n[orchestrator]\nbatch_size = 64\n[[orchestrator.env]]\nid = "other"\n' },
    { file: 'trainer.toml', text: '[optim]\nlr = 2e-5\n', section: 'trainer' },
  ];

  test('tables are merged from left to right, lists are replaced', () => {
    const { spec } = accept(seed, { over });
    assert.deepEqual([spec.maxSteps, spec.batchSize, spec.rolloutsPerExample], [7, 64, 16]);
    assert.deepEqual(
      spec.environments.map(({ id, args }) => ({ id, args })),
      [{ id: 'other', args: {} }],
    );
    assert.deepEqual([spec.learningRate, spec.optimizer.weightDecay], [2e-5, 0]);
  });

  test('what is wrong is said with the file in which it stands', () => {
    const spoiled = [
      { ...over[0]!, text: over[0]!.text.replace('64', '40') },
      { ...over[1]!, text: '[optim]\nlearn_rate = 1\n' },
    ];
    const problems = refuse(seed, { over: spoiled }).map(({ file, line, path }) => `${file}:${line} ${path}`);
    assert.deepEqual(problems, ['mine.toml:3 orchestrator.batch_size', 'trainer.toml:2 trainer.optim.learn_rate']);
    assert.equal(refuse(seed, { over: [{ file: 'x.toml', text: 'a =' }] })[0]?.file, 'x.toml');
  });

  test('settings of the command line are over all of them, in the file’s words or in ours', () => {
    const overrides = {
      'trainer.optim.lr': '3e-5',
      'trainer.ckpt.resume-step': '50',
      'sampling.top-p': '0.9',
      wandb: 'false',
      ckpt: 'true',
      'orchestrator.sampling': '{"max_tokens": 9}',
    };
    const { spec, resumeStep } = accept(seed, { over, overrides });
    assert.deepEqual([spec.learningRate, resumeStep, spec.sampling.topP, spec.wandb], [3e-5, 50, 0.9, null]);
    assert.deepEqual([spec.sampling.maxTokens, spec.sampling.temperature], [9, 0.5]);
    assert.equal(spec.checkpoints.interval, 7);
    assert.equal(accept(seed, { overrides: { resume: 'true' } }).resumeStep, -1);
    assert.equal(accept(today, { overrides: { 'resume.step': '5' } }).resumeStep, 5);
    const [problem] = refuse(seed, { overrides: { 'sampling.top-p': '2' } });
    assert.equal(problem?.file, 'command line');
  });
});
