import { z } from 'zod';
import { environmentName, runNamePattern } from '../../names.ts';
import type { DifficultyFilterSpec, EnvironmentSpec, EvalSpec, KlSpec, RunSpec } from '../run-spec.ts';

/**
 * Hosted Training's TOML, and the tables Ratchet adds to it ([trainer], [inference], [store], [sft]). Every field says
 * what it expects (`meta.expected`), which is the text of its errors, and has its default beside it.
 */

/** What `expected` says in an error about the field. */
declare module 'zod' {
  interface GlobalMeta {
    expected?: string;
  }
}

const whole = (min: number, max?: number) =>
  z
    .int()
    .min(min)
    .max(max ?? Number.MAX_SAFE_INTEGER)
    .meta({ expected: max === undefined ? `an integer ≥ ${min}` : `an integer from ${min} to ${max}` });
const positive = () => z.number().positive().meta({ expected: 'a number > 0' });
const atLeastZero = () => z.number().min(0).meta({ expected: 'a number ≥ 0' });
const fraction = () => z.number().min(0).max(1).meta({ expected: 'a number from 0 to 1' });
const decay = () => z.number().min(0).lt(1).meta({ expected: 'a number ≥ 0 and < 1' });
const anyNumber = () => z.number().meta({ expected: 'a number' });
const flag = () => z.boolean().meta({ expected: 'true or false' });
const text = () => z.string().regex(/\S/).meta({ expected: 'a text that is not empty' });
const choice = <const T extends readonly string[]>(...options: T) =>
  z.enum(options).meta({ expected: `one of ${options.map((option) => `"${option}"`).join(', ')}` });
const countOrAll = (what: string) =>
  z.union([z.literal(-1), z.int().min(1)]).meta({ expected: `an integer ≥ 1, or -1 for all ${what}` });
const args = () =>
  z.record(z.string(), z.json()).meta({ expected: 'a table of texts, numbers, true or false, lists and tables' });
const environmentId = () =>
  z
    .string()
    .regex(/^(?:[A-Za-z0-9][\w.-]*\/)?[A-Za-z0-9][\w.-]{0,63}(?:@[\w.+-]+)?$/)
    .meta({ expected: 'an environment id such as "reverse-text" or "owner/reverse-text"' });
/** Names become folder and metric names; `agg` is where prime-rl puts the sum over environments. */
const environmentLabel = () =>
  z
    .string()
    .regex(/^(?!agg$)[A-Za-z0-9][\w.-]{0,63}$/)
    .meta({ expected: 'up to 64 letters, digits, dots, dashes and underscores; "agg" is reserved' });

const trainEnvironment = z.strictObject({
  id: environmentId(),
  /** Default: the id without its owner. */
  name: environmentLabel().optional(),
  args: args().default({}),
  /** Relative probability of drawing an example from this environment. */
  weight: positive().default(1),
});

const evalEnvironment = z.strictObject({
  id: environmentId(),
  name: environmentLabel().optional(),
  args: args().default({}),
  num_examples: countOrAll('examples').optional(),
  rollouts_per_example: whole(1).optional(),
});

/** A run in Hosted Training's words. */
export const HostedConfig = z.strictObject({
  /** `preset:NAME` or a folder of Hugging Face files. */
  model: z.string().regex(/\S/).meta({ expected: 'a text: "preset:NAME", or a folder of Hugging Face files' }),
  name: z
    .string()
    .regex(runNamePattern)
    .meta({ expected: 'up to 64 of a-z, 0-9, dot, dash and underscore, beginning with a letter or digit' })
    .optional(),
  loss: z
    .literal('rl')
    .meta({ expected: '"rl"; known, not supported yet: "sft" and "opd" (for supervised steps before RL, see [sft])' })
    .default('rl'),
  max_steps: whole(1).default(100),
  batch_size: whole(2).default(128),
  rollouts_per_example: whole(2).default(8),
  learning_rate: positive().default(1e-4),
  seed: whole(0).default(0),
  oversampling_factor: z.number().min(1).meta({ expected: 'a number ≥ 1' }).default(1),
  max_async_level: whole(0, 1).default(1),
  max_off_policy_steps: whole(0).default(8),
  /** The documentation's place for `[trainer] warmup_steps`. */
  warmup_steps: whole(0).optional(),
  gradient_accumulation_steps: z.literal(1).meta({ expected: '1: a batch is one optimizer step' }).default(1),
  env: z.array(trainEnvironment).min(1).meta({ expected: 'at least one environment: a [[env]] with an id' }),
  sampling: z
    .strictObject({
      max_tokens: whole(1).default(512),
      temperature: positive().default(1),
    })
    .prefault({}),
  eval: z
    .strictObject({
      interval: whole(1).default(100),
      num_examples: countOrAll('examples').default(-1),
      rollouts_per_example: whole(1).default(1),
      skip_first_step: flag().optional(),
      /** The older name of the opposite. */
      eval_base_model: flag().optional(),
      /** Default: the training environments. */
      env: z.array(evalEnvironment).min(1).meta({ expected: 'a list of tables: [[eval.env]]' }).optional(),
    })
    .optional(),
  difficulty_filter: z
    .strictObject({
      enabled: flag().default(true),
      min_reward_variance: atLeastZero().optional(),
      min_reward: anyNumber().optional(),
      max_reward: anyNumber().optional(),
    })
    .optional(),
  buffer: z.strictObject({ online_difficulty_filtering: flag().default(false) }).prefault({}),
  kl_penalty: z
    .strictObject({
      enabled: flag().default(true),
      target_kl: positive().optional(),
      beta: atLeastZero().default(0.1),
      ref_sync_steps: whole(1).optional(),
    })
    .optional(),
  checkpoints: z
    .strictObject({
      interval: whole(1).default(20),
      keep_last: countOrAll('checkpoints').optional(),
      /** Hosted Training's name for keep_last. */
      keep_cloud: countOrAll('checkpoints').optional(),
      keep_interval: whole(1).optional(),
    })
    .prefault({}),
  wandb: z.strictObject({ project: text().optional(), name: text().optional(), entity: text().optional() }).optional(),
  trainer: z
    .strictObject({
      kind: choice('onnx').default('onnx'),
      threads: whole(1).default(1),
      loss: choice('cispo').default('cispo'),
      clip_high: positive().default(3),
      advantage: choice('centered', 'std_normalized').default('centered'),
      beta1: decay().default(0.9),
      beta2: decay().default(0.999),
      epsilon: positive().default(1e-8),
      weight_decay: atLeastZero().default(0),
      max_grad_norm: positive().default(1),
      schedule: choice('constant', 'linear').default('constant'),
      warmup_steps: whole(0).optional(),
      min_lr_ratio: fraction().default(0),
    })
    .prefault({}),
  inference: z
    .strictObject({
      kind: choice('embedded').default('embedded'),
      url: z
        .url({ protocol: /^https?$/ })
        .meta({ expected: 'a URL such as "http://127.0.0.1:8000"' })
        .optional(),
    })
    .prefault({}),
  store: z
    .strictObject({
      uri: z
        .string()
        .regex(/^file:./)
        .meta({ expected: 'a file: URI such as "file:outputs" (known, not supported yet: s3:)' })
        .default('file:outputs'),
    })
    .prefault({}),
  sft: z
    .strictObject({
      steps: whole(1),
      batch_size: whole(1).default(64),
      learning_rate: positive().default(3e-3),
      warmup_steps: whole(0).default(20),
      min_lr_ratio: fraction().default(0.1),
    })
    .optional(),
});
export type HostedConfig = z.infer<typeof HostedConfig>;

/**
 * Fields that Hosted Training, its older versions or its documentation have and Ratchet cannot honour yet, each with
 * what to do meanwhile. They are refused by name: ignoring one would train something else than was asked for.
 */
export const knownUnsupported: Readonly<Record<string, string>> = {
  adapters: 'LoRA adapters; weights are exported with every checkpoint',
  checkpoint_id: 'warm start by checkpoint id; point `model` at a folder of weights',
  cluster_name: 'hosted clusters',
  env_file: 'secret files; set environment variables where the workers run',
  env_files: 'secret files; set environment variables where the workers run',
  infrastructure: 'hosted machine sizes',
  lora: 'LoRA; all weights are trained',
  lora_alpha: 'LoRA; all weights are trained',
  max_inflight_rollouts: 'a cap of its own; oversampling_factor bounds what is in flight',
  post_batch_filters: 'filter lists; see [difficulty_filter]',
  pre_batch_filters: 'filter lists; groups without any advantage are always dropped, for more see [difficulty_filter]',
  run_config: 'hosted overrides',
  tailscale: 'hosted networking',
  teacher: 'distillation from a teacher',
  trajectory_strategy: 'turns that only append to the conversation are always trained as one row',
  val: 'validation batches; see [eval]',
  'buffer.easy_fraction': 'difficulty pools',
  'buffer.easy_threshold': 'difficulty pools; see [difficulty_filter] max_reward',
  'buffer.env_ratios': 'ratios in one list; give each [[env]] a weight',
  'buffer.hard_fraction': 'difficulty pools',
  'buffer.hard_threshold': 'difficulty pools; see [difficulty_filter] min_reward',
  'buffer.seed': 'a seed of its own; the run has one `seed`',
  'buffer.skip_verification': 'rollouts without scoring',
  'env.group_size': 'group sizes per environment; see rollouts_per_example',
  'env.harness': 'verifiers v1 harnesses; name a built-in environment by id',
  'env.max_turns': 'here; if the environment has such a setting, put it in args',
  'env.ratio': 'ratios; give each [[env]] a weight',
  'env.sampling': 'sampling per environment; see [sampling]',
  'env.taskset': 'verifiers v1 tasksets; name a built-in environment by id',
  'env.timeout': 'timeouts per environment',
  'env.version': 'versions; the built-in environment is used',
  'eval.env.version': 'versions; the built-in environment is used',
  'eval.sampling': 'sampling of its own; evaluations sample as [sampling] says',
  'sampling.enable_thinking': 'chat template switches',
  'sampling.extra_body': 'free request fields',
  'sampling.min_p': 'truncated sampling; the trainer needs the untruncated probabilities',
  'sampling.min_tokens': 'a least length',
  'sampling.reasoning_effort': 'chat template switches',
  'sampling.repetition_penalty': 'penalties; the trainer needs the unmodified probabilities',
  'sampling.seed': 'a seed of its own; the run has one `seed`',
  'sampling.stop': 'stop texts; a turn ends with the end-of-sequence token',
  'sampling.temp_scheduler': 'temperature schedules',
  'sampling.top_k': 'truncated sampling; the trainer needs the untruncated probabilities',
  'sampling.top_p': 'truncated sampling; the trainer needs the untruncated probabilities',
};

/** What other trainers call a field of ours. */
export const synonyms: Readonly<Record<string, string>> = {
  lr: 'learning_rate',
  group_size: 'rollouts_per_example',
  num_generations: 'rollouts_per_example',
  steps: 'max_steps',
  max_new_tokens: 'max_tokens',
  max_completion_length: 'max_tokens',
  envs: 'env',
  environment: 'env',
  environments: 'env',
  ckpt: 'checkpoints',
  checkpoint: 'checkpoints',
  optimizer: 'trainer',
  kl: 'kl_penalty',
};

/** Something that only shows when two fields are looked at together. */
export interface RelationProblem {
  /** The first is where the error is reported. */
  readonly paths: readonly (readonly (string | number)[])[];
  readonly expected: string;
  readonly received: string;
  readonly suggestion?: string;
}

export function hostedRelations(config: HostedConfig): RelationProblem[] {
  return [
    ...batchRelations(config),
    ...filterRelations(config),
    ...scheduleRelations(config),
    ...keepRelations(config),
    ...evalRelations(config),
    ...duplicateNames(config.env, ['env']),
    ...duplicateNames(config.eval?.env ?? [], ['eval', 'env']),
  ];
}

function batchRelations({ batch_size, rollouts_per_example }: HostedConfig): RelationProblem[] {
  if (batch_size % rollouts_per_example === 0) return [];
  const below = Math.floor(batch_size / rollouts_per_example) * rollouts_per_example;
  const nearest = [below, below + rollouts_per_example].filter((size) => size > 0).join(' or ');
  return [
    {
      paths: [['batch_size'], ['rollouts_per_example']],
      expected: `a multiple of rollouts_per_example (${rollouts_per_example}): a batch is made of whole groups`,
      received: String(batch_size),
      suggestion: `use ${nearest}`,
    },
  ];
}

function filterRelations({ difficulty_filter }: HostedConfig): RelationProblem[] {
  const { min_reward, max_reward } = difficulty_filter ?? {};
  if (min_reward === undefined || max_reward === undefined || min_reward <= max_reward) return [];
  return [
    {
      paths: [
        ['difficulty_filter', 'min_reward'],
        ['difficulty_filter', 'max_reward'],
      ],
      expected: `at most max_reward (${max_reward}): groups are kept when min_reward ≤ mean reward ≤ max_reward`,
      received: String(min_reward),
      suggestion: 'swap the two, or no group is ever kept',
    },
  ];
}

function scheduleRelations(config: HostedConfig): RelationProblem[] {
  const problems: RelationProblem[] = [];
  const { warmup_steps, trainer, sft } = config;
  if (warmup_steps !== undefined && trainer.warmup_steps !== undefined && warmup_steps !== trainer.warmup_steps) {
    problems.push({
      paths: [['warmup_steps'], ['trainer', 'warmup_steps']],
      expected: `one of them: [trainer] warmup_steps is ${trainer.warmup_steps}`,
      received: String(warmup_steps),
      suggestion: 'keep the one in [trainer]',
    });
  }
  if (sft !== undefined && sft.warmup_steps > sft.steps) {
    problems.push({
      paths: [
        ['sft', 'warmup_steps'],
        ['sft', 'steps'],
      ],
      expected: `at most [sft] steps (${sft.steps}), or the learning rate is never reached`,
      received: String(sft.warmup_steps),
    });
  }
  return problems;
}

function keepRelations({ checkpoints: { keep_last, keep_cloud } }: HostedConfig): RelationProblem[] {
  if (keep_last === undefined || keep_cloud === undefined || keep_last === keep_cloud) return [];
  return [
    {
      paths: [
        ['checkpoints', 'keep_cloud'],
        ['checkpoints', 'keep_last'],
      ],
      expected: `one of them: keep_cloud is another name of keep_last, which is ${keep_last}`,
      received: String(keep_cloud),
    },
  ];
}

function evalRelations(config: HostedConfig): RelationProblem[] {
  const { skip_first_step, eval_base_model } = config.eval ?? {};
  if (skip_first_step === undefined || eval_base_model === undefined || skip_first_step !== eval_base_model) return [];
  return [
    {
      paths: [
        ['eval', 'skip_first_step'],
        ['eval', 'eval_base_model'],
      ],
      expected: `the opposite of eval_base_model (${eval_base_model}), or only one of the two`,
      received: String(skip_first_step),
    },
  ];
}

function duplicateNames(
  environments: readonly { readonly name?: string | undefined }[],
  path: readonly string[],
): RelationProblem[] {
  return environments.flatMap(({ name }, i) => {
    const before = environments.findIndex((other) => other.name === name);
    if (name === undefined || before === i) return [];
    return [
      {
        paths: [[...path, i, 'name']],
        expected: `a name of its own; ${path.join('.')}[${before}] has this one`,
        received: JSON.stringify(name),
      },
    ];
  });
}

/** What is legal but probably not meant. */
export function hostedWarnings(config: HostedConfig): string[] {
  const warnings: string[] = [];
  const { checkpoints, kl_penalty, max_steps, trainer, wandb } = config;
  const warmupSteps = trainer.warmup_steps ?? config.warmup_steps ?? 0;
  if (warmupSteps > max_steps) {
    warnings.push(
      `warmup_steps (${warmupSteps}) is more than max_steps (${max_steps}): the run ends before its learning rate is reached.`,
    );
  }
  if (wandb !== undefined) warnings.push('[wandb] comes later; metrics are in metrics.jsonl of the run.');
  if (checkpoints.keep_interval !== undefined && checkpoints.keep_interval % checkpoints.interval !== 0) {
    warnings.push(
      `checkpoints.keep_interval (${checkpoints.keep_interval}) is not a multiple of checkpoints.interval (${checkpoints.interval}): only steps that are multiples of both are kept for good.`,
    );
  }
  if (kl_penalty?.enabled === true && kl_penalty.target_kl !== undefined && kl_penalty.beta === 0) {
    warnings.push('kl_penalty.beta is 0 and stays 0 whatever kl_penalty.target_kl says: doubling 0 gives 0.');
  }
  return warnings;
}

/** The one meaning of a config whose fields and relations are right. */
export function hostedToRunSpec(config: HostedConfig, name: string): RunSpec {
  const { trainer, sft, sampling, wandb } = config;
  const environments = trainEnvironments(config);
  return {
    schemaVersion: 1,
    name,
    model: config.model,
    seed: config.seed,
    maxSteps: config.max_steps,
    batchSize: config.batch_size,
    rolloutsPerExample: config.rollouts_per_example,
    learningRate: config.learning_rate,
    schedule: {
      type: trainer.schedule,
      warmupSteps: trainer.warmup_steps ?? config.warmup_steps ?? 0,
      minRatio: trainer.min_lr_ratio,
    },
    optimizer: {
      beta1: trainer.beta1,
      beta2: trainer.beta2,
      epsilon: trainer.epsilon,
      weightDecay: trainer.weight_decay,
      maxGradNorm: trainer.max_grad_norm,
    },
    loss: { type: trainer.loss, clipHigh: trainer.clip_high, aggregation: 'token' },
    advantage: trainer.advantage,
    sampling: { maxTokens: sampling.max_tokens, temperature: sampling.temperature },
    environments,
    eval: evalSpec(config, environments),
    filter: filterSpec(config),
    kl: klSpec(config),
    maxAsyncLevel: config.max_async_level,
    maxOffPolicySteps: config.max_off_policy_steps,
    oversamplingFactor: config.oversampling_factor,
    checkpoints: checkpointSpec(config),
    wandb:
      wandb === undefined
        ? null
        : { project: wandb.project ?? null, name: wandb.name ?? null, entity: wandb.entity ?? null },
    sft:
      sft === undefined
        ? null
        : {
            steps: sft.steps,
            batchSize: sft.batch_size,
            learningRate: sft.learning_rate,
            warmupSteps: sft.warmup_steps,
            minRatio: sft.min_lr_ratio,
          },
    trainer: { kind: trainer.kind, threads: trainer.threads },
    inference: { kind: config.inference.kind, url: config.inference.url ?? null },
    store: { uri: config.store.uri },
  };
}

function trainEnvironments({ env }: HostedConfig): EnvironmentSpec[] {
  return withNames(env).map(({ id, name, args, weight }) => ({ id, name, args, weight }));
}

function evalSpec(config: HostedConfig, trained: readonly EnvironmentSpec[]): EvalSpec | null {
  const evaluation = config.eval;
  if (evaluation === undefined) return null;
  const { interval, skip_first_step, eval_base_model, num_examples, rollouts_per_example } = evaluation;
  const entries: readonly z.infer<typeof evalEnvironment>[] =
    evaluation.env ?? trained.map(({ id, name, args }) => ({ id, name, args }));
  return {
    interval,
    skipFirstStep: skip_first_step ?? (eval_base_model === undefined ? false : !eval_base_model),
    environments: withNames(entries).map((entry) => ({
      id: entry.id,
      name: entry.name,
      args: entry.args,
      numExamples: entry.num_examples ?? num_examples,
      rolloutsPerExample: entry.rollouts_per_example ?? rollouts_per_example,
    })),
  };
}

/** Environments without a name are called after their id, and numbered when that name is taken. */
function withNames<T extends { readonly id: string; readonly name?: string | undefined }>(
  environments: readonly T[],
): (T & { readonly name: string })[] {
  const taken = new Set(environments.flatMap(({ name }) => name ?? []));
  return environments.map((environment) => {
    if (environment.name !== undefined) return { ...environment, name: environment.name };
    const base = environmentName(environment.id);
    let name = base;
    for (let i = 2; taken.has(name); i++) name = `${base}-${i}`;
    taken.add(name);
    return { ...environment, name };
  });
}

/** Bounds that keep every group. JSON has no infinity. */
const unbounded = { minReward: -Number.MAX_VALUE, maxReward: Number.MAX_VALUE };

function filterSpec({ difficulty_filter, buffer }: HostedConfig): DifficultyFilterSpec {
  const bounds = difficulty_filter?.enabled === true ? difficulty_filter : undefined;
  return {
    minRewardVariance: bounds?.min_reward_variance ?? 0,
    minReward: bounds?.min_reward ?? unbounded.minReward,
    maxReward: bounds?.max_reward ?? unbounded.maxReward,
    onlineDifficultyFiltering: buffer.online_difficulty_filtering,
  };
}

/** Disabled means reported only: the divergence is measured either way. */
function klSpec({ kl_penalty }: HostedConfig): KlSpec {
  const isPenalized = kl_penalty?.enabled === true;
  return {
    beta: isPenalized ? kl_penalty.beta : 0,
    targetKl: isPenalized ? (kl_penalty.target_kl ?? null) : null,
    refSyncSteps: kl_penalty?.ref_sync_steps ?? null,
  };
}

/** Keeping all of them is keeping every multiple of the interval for good. */
function checkpointSpec({ checkpoints }: HostedConfig): RunSpec['checkpoints'] {
  const { interval, keep_interval } = checkpoints;
  const keepLast = checkpoints.keep_last ?? checkpoints.keep_cloud ?? 5;
  if (keepLast === -1) return { interval, keepLast: 1, keepInterval: interval };
  return { interval, keepLast, keepInterval: keep_interval ?? null };
}
