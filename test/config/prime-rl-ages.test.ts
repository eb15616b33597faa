/** The version that a file of prime-rl is read as, and what it means then: files of our own after the shape of public ones, and all of prime-rl's history. */
import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { parseRunConfig } from '../../config/parse-run-config.ts';
import { anyEnvironment } from './home/compare.ts';
import { homeFiles } from './home/files.ts';
import { accept, only } from './read-run.ts';

const unclear = /no key says of which version of prime-rl/;
const options = { findEnvironment: anyEnvironment } as const;

/** Loss, bounds, KL, cap; weight decay; filters before and after a batch is full; batch. */
const today = ['ipo', 0.3, 0.3, 0, 1e4, 0, 'pre'] as const;
const summer = ['dppo', 0.2, 0.2, 1e-3, undefined, 0.01, 'post'] as const;
const march = ['ipo', 0.2, 0.2, 1e-3, undefined, 0.01, 'none'] as const;
const winter = ['importance_sampling', 0.125, 8, 0, undefined, 0.01, 'none'] as const;

function meaningOf(text: string, dialect?: string) {
  const run = accept(text, { ...options, ...(dialect === undefined ? {} : { dialect }) });
  const { loss, optimizer, rolloutFilters, batchSize } = run.spec;
  const [pre, post] = [rolloutFilters.pre, rolloutFilters.post].map((filters) =>
    filters.some(({ type, enforce }) => type === 'zero_advantage' && enforce),
  );
  const { type, maskLow, maskHigh, klTau, ratioMax } = loss;
  const means = [type, maskLow, maskHigh, klTau, ratioMax, optimizer.weightDecay, pre ? 'pre' : post ? 'post' : 'none'];
  return { means, batchSize, readAs: run.readAs, said: run.warnings.filter((line) => unclear.test(line)) };
}

const source = '[[orchestrator.train.source]]\nenv.taskset.id = "math"\nenv.agent.harness.id = "null"\n';
const listed = '[[orchestrator.train.env]]\nid = "math"\n';
const first = '[[orchestrator.env]]\nid = "math"\nargs = { split = "train" }\n';
const model = 'max_steps = 20\nseq_len = 2048\n[model]\nname = "Qwen/Qwen3-0.6B"\n';

/** Each file: its text, its dialect, the key that shows it, what it means, and other dialects where the keys leave it open. */
const files: Readonly<
  Record<
    string,
    readonly [text: string, dialect: string, by: string, means: readonly unknown[], others?: readonly string[]]
  >
> = {
  'group_size and algo where all sources inherit them': [
    `${model}[orchestrator]\nbatch_size = 64\n[orchestrator.train]\ngroup_size = 8\n[orchestrator.train.algo]\ntype = "grpo"\n${source}`,
    'prime-rl',
    'orchestrator.train.group_size',
    today,
  ],
  'a sampler beside the environment of a source': [
    `${model}[orchestrator]\nbatch_size = 64\ngroup_size = 8\n${source}[orchestrator.train.source.sampler]\ntype = "standard"\n`,
    'prime-rl',
    'orchestrator.train.source.sampler',
    today,
  ],
  'weight decay by itself, and batches that are not constant': [
    `${model}[trainer.optim]\nweight_decay = "auto"\n[orchestrator]\nbatch_size = 64\ngroup_size = 8\nconstant_trainer_batch_size = false\n${source}`,
    'prime-rl',
    'orchestrator.constant_trainer_batch_size',
    [...today.slice(0, 6), 'post'],
  ],
  'a bound of today, and weight decay that is written': [
    `${model}[trainer.loss]\neps = 0.1\n[trainer.optim]\nlr = 1e-6\nweight_decay = 0.05\n[orchestrator]\nbatch_size = 64\ngroup_size = 8\n${source}`,
    'prime-rl',
    'trainer.loss.eps',
    ['ipo', 0.1, 0.1, 0, 1e4, 0.05, 'pre'],
  ],
  icepop: [
    `${model}[trainer.loss]\ntype = "icepop"\nratio_high = 4.0\n[orchestrator]\nbatch_size = 64\ngroup_size = 8\n${source}`,
    'prime-rl',
    'trainer.loss.ratio_high',
    ['importance_sampling', 0.2, 4, 0, undefined, 0, 'pre'],
  ],
  'mixtures as they are computed today, monitors with chunks': [
    `${model}[trainer.model.moe.compute]\ntype = "bf16"\n[trainer.model.fusions]\nenabled = []\n[monitors.file]\nchunk_bytes = 1000\ncompress = false\nfloat_decimals = 3\n[orchestrator]\nbatch_size = 64\ngroup_size = 8\n${source}`,
    'prime-rl',
    'trainer.model.moe',
    today,
  ],
  'a table of what every source inherits': [
    `${model}[orchestrator]\nbatch_size = 64\ngroup_size = 8\n[orchestrator.train.env.retries]\nmax_retries = 2\n${source}`,
    'prime-rl',
    'orchestrator.train.env',
    today,
  ],
  'sources, and nothing that only one version has': [
    `${model}[orchestrator]\nbatch_size = 64\ngroup_size = 8\n${source}`,
    'prime-rl',
    'orchestrator.train',
    today,
    ['prime-rl-0.9'],
  ],
  'a curriculum, and W&B among the monitors': [
    `${model}[monitors.wandb]\nproject = "p"\n[orchestrator]\nbatch_size = 64\ngroup_size = 8\n${source}[orchestrator.train.source.curriculum.sampler]\ntype = "standard"\n`,
    'prime-rl',
    'orchestrator.train',
    today,
    ['prime-rl-0.9'],
  ],
  'ipo without a bound': [
    `${model}[trainer.loss]\ntype = "ipo"\n[orchestrator]\nbatch_size = 64\ngroup_size = 8\n${source}`,
    'prime-rl',
    'orchestrator.train',
    today,
    ['prime-rl-0.9'],
  ],
  'sources, and W&B at the top': [
    `${model}[wandb]\nproject = "p"\n[orchestrator]\nbatch_size = 64\ngroup_size = 8\n${source}`,
    'prime-rl-0.9',
    'wandb',
    summer,
  ],
  'sources, and zero advantages that are filtered': [
    `${model}[orchestrator]\nbatch_size = 64\ngroup_size = 8\n[orchestrator.train]\nfilter_zero_advantages = true\n${source}`,
    'prime-rl-0.9',
    'orchestrator.train.filter_zero_advantages',
    summer,
    ['prime-rl'],
  ],
  'the default loss by its name': [
    `${model}[trainer.loss]\ntype = "default"\n[orchestrator]\nbatch_size = 64\ngroup_size = 8\n${source}`,
    'prime-rl-0.9',
    'trainer.loss.type = "default"',
    summer,
  ],
  'ipo with its bound of summer': [
    `${model}[trainer.loss]\ntype = "ipo"\nipo_threshold = 0.1\n[orchestrator]\nbatch_size = 64\ngroup_size = 8\n${source}`,
    'prime-rl-0.9',
    'trainer.loss.ipo_threshold',
    ['ipo', 0.1, 0.1, 1e-3, undefined, 0.01, 'post'],
  ],
  'environments below train': [
    `${model}[orchestrator]\nbatch_size = 64\nrollouts_per_example = 8\n[orchestrator.train.sampling]\nmax_completion_tokens = 128\n${listed}`,
    'prime-rl-0.9',
    'orchestrator.train.env',
    summer,
  ],
  'a teacher’s mode of May': [
    `${model}[orchestrator]\nbatch_size = 64\ngroup_size = 8\ntraining_mode = "rl"\n${listed}`,
    'prime-rl-0.9',
    'orchestrator.train.env',
    summer,
  ],
  'masks of March': [
    `${model}[trainer.loss]\nipo_mask_low = 0.1\n[orchestrator]\nbatch_size = 64\nrollouts_per_example = 8\n${first}`,
    'prime-rl-0.5',
    'orchestrator.env',
    ['ipo', 0.1, 0.2, 1e-3, undefined, 0.01, 'none'],
  ],
  'environments of the orchestrator, and GPUs of a deployment': [
    `${model}[deployment]\nnum_train_gpus = 1\n[orchestrator]\nbatch_size = 64\nrollouts_per_example = 8\n[orchestrator.sampling]\nmax_tokens = 128\n${first}`,
    'prime-rl-0.5',
    'orchestrator.env',
    march,
    ['prime-rl-0.4', 'prime-rl-0.9'],
  ],
  'environments of the orchestrator alone': [
    `${model}[orchestrator]\nbatch_size = 64\nrollouts_per_example = 8\n[orchestrator.sampling]\nmax_tokens = 128\n${first}`,
    'prime-rl-0.5',
    'orchestrator.env',
    march,
    ['prime-rl-0.4', 'prime-rl-0.9'],
  ],
  'filters of February': [
    `${model}[orchestrator]\nbatch_size = 64\nrollouts_per_example = 8\n[[orchestrator.filters]]\ntype = "gibberish"\n${first}`,
    'prime-rl-0.5',
    'orchestrator.env',
    march,
    ['prime-rl-0.4', 'prime-rl-0.9'],
  ],
  'turns as branches, and ids of GPUs': [
    `inference_gpu_ids = [0]\ntrainer_gpu_ids = [1]\n${model}[orchestrator]\nbatch_size = 64\nrollouts_per_example = 8\ntrajectory_strategy = "branching"\n${first}`,
    'prime-rl-0.4',
    'inference_gpu_ids',
    winter,
  ],
  'masks of tokens': [
    `${model}[trainer.loss]\ntoken_mask_low = 0.2\n[orchestrator]\nbatch_size = 64\nrollouts_per_example = 8\n${first}`,
    'prime-rl-0.4',
    'trainer.loss.token_mask_low',
    ['importance_sampling', 0.2, 8, 0, undefined, 0.01, 'none'],
  ],
};

describe('a file of prime-rl is of the version that its keys show', () => {
  for (const [what, [text, dialect, by, means, others = []]] of Object.entries(files)) {
    test(what, () => {
      const found = meaningOf(text);
      assert.deepEqual(
        [found.readAs.dialect, found.readAs.because, found.means, found.batchSize],
        [dialect, by, means, 64],
      );
      // One line, which names each reading, what it means, and the key that decides.
      assert.equal(found.said.length, others.length === 0 ? 0 : 1);
      for (const other of others) assert.match(found.said[0]!, new RegExp(`--dialect ${other} reads it so`));
      if (others.length > 0) assert.match(found.said[0]!, /\[trainer.loss\].* says which it is/);
    });
  }

  test('what the line says to write decides, and --dialect does', () => {
    const text = `${model}[orchestrator]\nbatch_size = 64\ngroup_size = 8\n${source}`;
    for (const [loss, dialect, means] of [
      ['type = "ipo"\neps = 0.3\n', 'prime-rl', today],
      ['type = "default"\n', 'prime-rl-0.9', summer],
    ] as const) {
      const found = meaningOf(`${text}[trainer.loss]\n${loss}`);
      assert.deepEqual([found.readAs.dialect, found.means, found.said], [dialect, means, []]);
      assert.deepEqual(meaningOf(text, dialect).means, means);
    }
  });

  test('a key of the newest version counts where keys contradict each other', () => {
    const found = meaningOf(
      `inference_gpu_ids = [0]\n${model}[trainer.loss]\neps = 0.2\n[orchestrator]\nbatch_size = 64\ngroup_size = 8\n${source}`,
    );
    assert.deepEqual([found.readAs.dialect, found.means[1], found.said], ['prime-rl', 0.2, []]);
  });

  test('every file of its history is read as of its time, or one line names that reading', () => {
    const losses: readonly (readonly [key: string, dialect: string])[] = [
      ['ratio_type', 'prime-rl-0.4'],
      ['ipo_mask_low', 'prime-rl-0.5'],
      ['dppo_mask_low', 'prime-rl-0.9'],
      ['ipo_threshold', 'prime-rl-0.9'],
    ];
    const counts = { right: 0, named: 0 };
    const wrong: string[] = [];
    for (const { path, date, entry, home, text } of homeFiles()) {
      const loss = (home as { trainer?: { loss?: object } } | undefined)?.trainer?.loss ?? {};
      const its = losses.find(([key]) => key in loss)?.[1];
      if (entry !== 'rl' || its === undefined) continue;
      const run = parseRunConfig(text, { file: path, ...options });
      if (!run.ok) continue;
      const said = run.warnings.filter((line) => unclear.test(line));
      if (run.readAs.dialect === its) counts.right++;
      else if (said.length === 1 && said[0]!.includes(`--dialect ${its} `)) counts.named++;
      else wrong.push(`${path} of ${date}: ${run.readAs.dialect}, not ${its}`);
    }
    assert.deepEqual(wrong, []);
    assert.ok(counts.right >= 600 && counts.right > 3 * counts.named, JSON.stringify(counts));
  });
});

describe('Hosted Training’s files of today are prime-rl’s, with keys of its command beside', () => {
  const run = `[orchestrator]\nbatch_size = 64\n[orchestrator.train]\ngroup_size = 8\n${source}`;
  const beside: Readonly<Record<string, RegExp | null>> = {
    'image_tag = "main"': /image_tag has no effect here: it names the code of prime-rl/,
    'source_ref = "my-branch"': /source_ref has no effect here/,
    'gpu_type = "H200_141GB"': /gpu_type has no effect here: it runs on the machines/,
    'volume = "research"': /volume has no effect here: a run is kept in its store/,
    'volume_size = "500Gi"': /volume_size has no effect here/,
    'type = "full_finetune"': /type has no effect here/,
    'name = "my-run"': null,
    'env_files = ["secrets.env"]': null,
    'env_file = "secrets.env"': null,
    'env_files = "secrets.env"': null,
  };
  for (const [key, said] of Object.entries(beside)) {
    test(key, () => {
      const { spec, warnings, readAs } = accept(`${key}\n${model}${run}`, options);
      assert.equal(readAs.dialect, 'prime-rl');
      if (said) assert.match(warnings.join('\n'), said);
      if (key.startsWith('name')) assert.equal(spec.name, 'my-run');
      if (key.startsWith('env_file')) assert.deepEqual(spec.environments[0]!.variables?.files, ['secrets.env']);
    });
  }

  test('a release that is named says the age, a branch does not', () => {
    const plain = `${model}[orchestrator]\nbatch_size = 64\ngroup_size = 8\n${source}`;
    const old = meaningOf(`source_ref = "v0.9.0"\n${plain}`);
    assert.deepEqual(
      [old.readAs.dialect, old.readAs.because, old.means],
      ['prime-rl-0.9', 'source_ref = "v0.9.0"', summer],
    );
    assert.deepEqual(meaningOf(`image_tag = "v0.9.3"\n${plain}`).means, today);
    assert.equal(meaningOf(`source_ref = "main"\n${plain}`).said.length, 1);
  });

  test('on the command line too, and for a run on rows', () => {
    const typed = accept(`${model}${run}`, { ...options, overrides: { 'image-tag': 'main', 'gpu-type': 'H100' } });
    assert.match(typed.warnings.join('\n'), /image_tag has no effect here/);
    const rows =
      'gpu_type = "H100"\nvolume = "v"\nname = "rows"\nmax_steps = 5\n[model]\nname = "Qwen/Qwen3-0.6B"\n[data]\nname = "owner/rows"\nseq_len = 64\n';
    const { spec, readAs, warnings } = accept(rows, options);
    assert.deepEqual([readAs.dialect, spec.name, spec.optimizer.weightDecay], ['prime-rl-sft', 'rows', 0.01]);
    assert.match(warnings.join('\n'), /volume has no effect here/);
  });
});

describe('a file of prime-rl of today', () => {
  const run = (text: string, more = '') =>
    `${model}[orchestrator]\nbatch_size = 64\n[orchestrator.train]\ngroup_size = 8\n${more}${source}${text}`;

  test('a source of the same type of algorithm keeps what all sources have, one of another type does not', () => {
    const shared = 'algo = { type = "echo", roles = { user = { alpha = 0.2 } } }\n';
    const echo = (text: string) => accept(run(text, shared), options).spec.environments[0]!.echo;
    const own = 'algo = { type = "echo", roles = { tool = { alpha = 0.3 } } }\n';
    assert.deepEqual(echo(own), { user: 0.2, tool: 0.3 });
    assert.deepEqual(echo('algo = { roles = { tool = { alpha = 0.3 } } }\n'), { user: 0.2, tool: 0.3 });
    assert.equal(echo('algo = { type = "grpo" }\n'), undefined);
    const penalty = 'algo = { length_penalty = { num_turns_weight = 0.5 } }\n';
    const { spec } = accept(run('algo = { type = "grpo" }\n', penalty), options);
    assert.deepEqual(spec.lengthPenalty, { outputTokens: 0.25, inputTokens: 0.1, turns: 0.5 });
  });

  test('a KL term is of before 18 September: the file is of summer, or has the bound of then', () => {
    const plain = `${model}[trainer.loss]\nkl_tau = 0.01\n[orchestrator]\nbatch_size = 64\ngroup_size = 8\n${source}`;
    const found = meaningOf(plain);
    assert.deepEqual([found.readAs.dialect, found.means.slice(0, 4)], ['prime-rl-0.9', ['dppo', 0.2, 0.2, 0.01]]);
    assert.match(found.said[0]!, /--dialect prime-rl reads it so/);
    const read = accept(`${run('')}[trainer.loss]\nkl_tau = 0.01\n`, options);
    assert.deepEqual([read.spec.loss.type, read.spec.loss.maskLow, read.spec.loss.klTau], ['ipo', 0.1, 0.01]);
    assert.match(read.warnings.join('\n'), /kl_tau is of prime-rl until 18 September 2026/);
  });

  test('top_p brings the top_k that prime-rl sets, and is refused beside a teacher', () => {
    const nucleus = accept(run('', 'sampling = { top_p = 0.95 }\n'), options);
    assert.deepEqual([nucleus.spec.sampling.topP, nucleus.spec.sampling.topK], [0.95, 512]);
    assert.match(nucleus.warnings.join('\n'), /sampling\.top_k is not written beside top_p: 512/);
    assert.equal(accept(run('', 'sampling = { top_p = 0.95, top_k = 20 }\n'), options).spec.sampling.topK, 20);
    assert.equal(accept(run('', 'sampling = { temperature = 0.7 }\n'), options).spec.sampling.topK, null);
    const teacher = 'algo = { type = "opd", teacher = { name = "t", base_url = "http://localhost:1/v1" } }\n';
    const { expected } = only(run('', `sampling = { top_p = 0.95 }\n${teacher}`), options);
    assert.match(expected, /^nothing that leaves tokens out beside opd/);
  });

  test('what a renderer says to the chat template is said to it, the rest is named', () => {
    const renderer = (text: string) => accept(`${run('')}[orchestrator.renderer]\n${text}`, options);
    const off = renderer('name = "qwen3"\nenable_thinking = false\n');
    assert.deepEqual(off.spec.sampling.templateArguments, { enable_thinking: false });
    assert.doesNotMatch(off.warnings.join('\n'), /renderer/);
    const own = renderer('name = "default"\ntool_parser = "qwen3"\npersona = "terse"\n');
    assert.deepEqual(own.spec.sampling.templateArguments, { persona: 'terse' });
    assert.match(own.warnings.join('\n'), /orchestrator\.renderer: tool_parser has no effect here/);
  });

  test('an algorithm’s key that is not here is named by itself', () => {
    const refusal = (algo: string) => only(run('', `algo = { ${algo} }\n`), options);
    assert.deepEqual(
      [refusal('loss_aggregation = "prompt"'), refusal('length_weighted_baseline = true')].map((one) => [
        one.path,
        one.expected,
      ]),
      [
        ['orchestrator.train.algo.loss_aggregation', '"token", which is what a run here does'],
        ['orchestrator.train.algo.length_weighted_baseline', 'false, which is what a run here does'],
      ],
    );
    assert.match(refusal('type = "debug"').expected, /^type = "grpo" or "echo"/);
  });

  test('keys of November are read: about GPUs they have no effect, Muon’s embedding update is refused', () => {
    const keys = `[trainer.model]\npp = 2\npp_schedule = "DualPipeV"\npp_layers_per_stage = [1.5, 2]\nfreeze_engram_tables = true\n
[trainer.model.ac]\nmode = "matmul"\nlayer_modes = ["full", "none"]\n[trainer.model.moe]\nreduce_local_expert_grads_once = true\n
[trainer.model.pp_activation_offload]\nmin_bytes = 100\n[inference]\nenable_return_sampling_mask = true\n`;
    const { warnings } = accept(run('') + keys, options);
    assert.match(warnings.join('\n'), /trainer\.model\.pp_schedule has no effect here/);
    const muon = '[trainer.optim]\ntype = "muon"\nembedding_update = "sinkhorn"\n';
    assert.equal(only(run('') + muon, options).path, 'trainer.optim.embedding_update');
  });

  test('a cap below the bound that it would undercut is refused, as in prime-rl', () => {
    const ppo = (cap: number) => `${run('')}[trainer.loss]\ntype = "ppo"\nmax_importance_ratio = ${cap}\n`;
    assert.equal(only(ppo(1.1), options).path, 'trainer.loss.max_importance_ratio');
    assert.equal(accept(ppo(2), options).spec.loss.ratioMax, 2);
  });
});
