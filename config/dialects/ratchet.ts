import { z } from 'zod';
import {
  heartbeatTimeoutDefaultS,
  inferenceConcurrencyDefault,
  inferenceTimeoutDefaultS,
  poolFractionMin,
  rolloutRetriesMax,
} from '../../core/limits.ts';
import { runNamePattern } from '../../core/names.ts';
import { adoptions, evalMoments, regressionActions } from '../eval-words.ts';
import { baseUrl, headersFromEnv, headerTable, serverUrls, variableName } from '../model-access.ts';
import {
  anyNumber,
  args,
  atLeastZero,
  choice,
  choices,
  countOrAll,
  decay,
  environmentId,
  environmentLabel,
  flag,
  fraction,
  passedVariables,
  penalty,
  positive,
  resumeStep,
  stopTexts,
  text,
  texts,
  whole,
} from '../values.ts';
import { weightRoutes } from '../vllm-spec.ts';
import { laterShape } from './later.ts';
import { codeFile, lossTable, runKinds, teacherTable } from './learning-words.ts';

/**
 * Our own dialect, which all others are translated into: Hosted Training's TOML, and the tables Ratchet adds to it
 * ([trainer], [inference], [store], [sft]). Every field says
 * what it expects (`meta.expected`), which is the text of its errors, and has its default beside it.
 */

/** Difficulty pools, in the words of prime-rl's buffer; a fraction is a sampling weight. */
const poolFraction = () =>
  z.union([z.literal(0), z.number().min(poolFractionMin).max(1)]).meta({
    expected: `0, or a number from ${poolFractionMin} to 1: how often its examples are drawn, where normal ones are drawn once`,
  });
const poolFields = {
  easy_threshold: anyNumber().optional(),
  hard_threshold: anyNumber().optional(),
  easy_fraction: poolFraction().optional(),
  hard_fraction: poolFraction().optional(),
};

const gpuNumbers = () => z.array(z.int().min(0)).min(1).meta({ expected: 'a list of GPU numbers: [0, 1]' });

/** Fields whose feature is still to come are checked and kept, and known by their paths alone. */
// eslint-disable-next-line
const later = (table: string) => laterShape(table) as {};

/** What changes the distribution, or the end of a turn, beyond the temperature; vLLM's meanings. Neutral when missing. */
const modifierFields = {
  top_p: z.number().positive().max(1).meta({ expected: 'a number > 0 and ≤ 1' }).optional(),
  top_k: z
    .union([z.literal(-1), z.literal(0), z.int().min(1)])
    .meta({ expected: 'an integer ≥ 1, or -1 for all tokens' })
    .optional(),
  min_p: fraction().optional(),
  repetition_penalty: positive().optional(),
  presence_penalty: penalty().optional(),
  frequency_penalty: penalty().optional(),
  min_tokens: whole(0).optional(),
  stop: stopTexts().optional(),
};

/** The linear layers of a decoder, all of which LoRA adapts unless told otherwise. */
export const loraModules = ['q_proj', 'k_proj', 'v_proj', 'o_proj', 'gate_proj', 'up_proj', 'down_proj'] as const;
/** prime-rl's defaults. */
export const defaultLoraRank = 16;
export const defaultLoraAlpha = 32;

/** Variables of the chat template; `chat_template_kwargs` takes any, the others are names for two of them. */
const templateFields = {
  enable_thinking: flag().optional(),
  reasoning_effort: choice('minimal', 'low', 'medium', 'high').optional(),
  chat_template_kwargs: args().optional(),
};

/** What is laid over another table; evaluations may be greedy. */
const laidOver = {
  max_tokens: whole(1).optional(),
  temperature: atLeastZero().optional(),
  ...modifierFields,
  ...templateFields,
};

/** How far a rollout may go, in verifiers' words. */
const limitFields = {
  max_turns: whole(1).optional(),
  max_input_tokens: whole(1).optional(),
  max_output_tokens: whole(1).optional(),
  max_total_tokens: whole(1).optional(),
  /** Seconds. */
  timeout: positive().optional(),
  max_retries: whole(0, rolloutRetriesMax).optional(),
  agent: args().optional(),
};

const trainEnvironment = z.strictObject({
  id: environmentId(),
  /** Default: the id without its owner. */
  name: environmentLabel().optional(),
  args: args().default({}),
  /** Relative probability of drawing an example from this environment. */
  weight: positive().default(1),
  /** Lies over [buffer], key by key. */
  buffer: z.strictObject(poolFields).optional(),
  env_vars: passedVariables().optional(),
  ...limitFields,
  /** Lies over [sampling], key by key. */
  sampling: z.strictObject({ ...laidOver, ...later('env[].sampling') }).optional(),
  ...later('env[]'),
});

export const evalEnvironment = z.strictObject({
  id: environmentId(),
  name: environmentLabel().optional(),
  args: args().default({}),
  num_examples: countOrAll('examples').optional(),
  rollouts_per_example: whole(1).optional(),
  env_vars: passedVariables().optional(),
  ...limitFields,
  skip_first: whole(0).optional(),
  interval: whole(1).optional(),
  /** Lies over [eval.sampling], key by key. */
  sampling: z.strictObject({ ...laidOver, ...later('eval.env[].sampling') }).optional(),
  ...later('eval.env[]'),
});

/** A filter of rollouts; which of its fields belong to which type: ratchet-relations.ts. */
const rolloutFilter = z.strictObject({
  type: choice('gibberish', 'repetition', 'zero_advantage', 'low_reward'),
  enforce: flag().optional(),
  token_id_threshold: whole(0).optional(),
  logprob_offset: atLeastZero().optional(),
  window: whole(1).optional(),
  prob_threshold: fraction().optional(),
  min_reward: anyNumber().optional(),
});
const rolloutFilters = () =>
  z
    .array(rolloutFilter)
    .meta({
      expected: 'a list of tables, each with type = "gibberish", "repetition", "zero_advantage" or "low_reward"',
    })
    .default([]);

const advantageTypes = ['centered', 'std_normalized', 'custom'] as const;
/** A run in our own words: Hosted Training's, and what Ratchet adds to them. */
export const RatchetConfig = z.strictObject({
  /** `preset:NAME` or a folder of Hugging Face files. */
  model: z.string().regex(/\S/).meta({ expected: 'a text: "preset:NAME", or a folder of Hugging Face files' }),
  name: z
    .string()
    .regex(runNamePattern)
    .meta({ expected: 'up to 64 of a-z, 0-9, dot, dash and underscore, beginning with a letter or digit' })
    .optional(),
  /** What is learned from: rewards, a teacher's rollouts, or a teacher's log probabilities. */
  loss: choice(...runKinds).default('rl'),
  teacher: teacherTable(z.strictObject(laidOver)).optional(),
  /** 0 = supervised only: the run ends after [sft]. */
  max_steps: whole(0).default(100),
  batch_size: whole(1).default(128),
  rollouts_per_example: whole(1).default(8),
  learning_rate: positive().default(1e-4),
  seed: whole(0).default(0),
  oversampling_factor: z.number().min(1).meta({ expected: 'a number ≥ 1' }).default(1),
  max_concurrent: whole(1).optional(),
  tasks_per_minute: whole(1).optional(),
  max_async_level: whole(0, 1).default(1),
  max_off_policy_steps: whole(0).default(8),
  /** Seconds; verifiers' name and default. An activity of Temporal's has two hours, with room for what it stores. */
  generation_timeout: whole(1, 6000).default(600),
  /** Seconds; ours. */
  heartbeat_timeout: whole(2, 600).default(heartbeatTimeoutDefaultS),
  /** The documentation's place for `[trainer] warmup_steps`. */
  warmup_steps: whole(0).optional(),
  gradient_accumulation_steps: z
    .literal(1)
    .meta({
      expected: '1: a batch is one optimizer step; [trainer] micro_batch_size says how many rows are computed at once',
    })
    .default(1),
  trajectory_strategy: choice('interleaved', 'branching').default('interleaved'),
  mask_truncated_completions: flag().default(false),
  zero_truncated_completions: flag().default(false),
  seq_len: whole(1).optional(),
  overlong_rows: choice('truncate', 'mask', 'drop').default('truncate'),
  max_prompt_len: whole(1).optional(),
  pre_batch_filters: rolloutFilters(),
  post_batch_filters: rolloutFilters(),
  tokenizer: z.strictObject({ chat_template: text().optional() }).prefault({}),
  /** Another name for [lora] alpha. */
  lora_alpha: positive().optional(),
  lora: z
    .strictObject({
      enabled: flag().default(true),
      r: whole(1).default(defaultLoraRank),
      alpha: positive().optional(),
      dropout: z.number().min(0).lt(1).meta({ expected: 'a number ≥ 0 and < 1' }).default(0),
      target_modules: choices(...loraModules).default([...loraModules]),
    })
    .optional(),
  /** Lets `owner/name` be the built-in environment of that name. */
  builtin: flag().default(false),
  /** At least one, unless there is nothing but [sft] data to learn from: ratchet-relations.ts. */
  env: z.array(trainEnvironment).meta({ expected: 'at least one environment: a [[env]] with an id' }).default([]),
  /** Files with variables for environments in Python; from the config's folder, or else the project's. */
  env_files: texts().default([]),
  sampling: z
    .strictObject({
      max_tokens: whole(1).default(512),
      context_tokens: whole(1).optional(),
      temperature: positive().default(1),
      ...modifierFields,
      /** Keys the random numbers of training rollouts; the run's seed when missing. */
      seed: whole(0).optional(),
      ...templateFields,
      temp_scheduler: z.strictObject(later('sampling.temp_scheduler')).optional(),
      ...later('sampling'),
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
      /** What is not said here is as in [sampling]. */
      sampling: z.strictObject({ ...laidOver, ...later('eval.sampling') }).optional(),
      when: choice(...evalMoments).optional(),
      on_regression: choice(...regressionActions).default('flag'),
      /** Default: the training environments. */
      env: z.array(evalEnvironment).min(1).meta({ expected: 'a list of tables: [[eval.env]]' }).optional(),
      ...later('eval'),
    })
    .optional(),
  /** Branches that look for better system prompts while the run trains. */
  gepa: z
    .strictObject({
      interval: whole(1).optional(),
      at_steps: z.array(whole(0)).meta({ expected: 'a list of steps such as [50, 100]; 0 = v0' }).default([]),
      /** Names of [[env]]; all of them when missing. */
      environments: z.array(environmentLabel()).min(1).meta({ expected: 'a list of names of [[env]]' }).optional(),
      reflection_model: text(),
      url: baseUrl(),
      api_key_var: variableName().optional(),
      max_calls: whole(1).default(500),
      num_train: whole(1).default(100),
      num_val: whole(1).default(50),
      num_test: whole(2).default(50),
      minibatch_size: whole(1).default(3),
      perfect_score: anyNumber().optional(),
      state_columns: texts().default([]),
      max_concurrent: whole(1).default(32),
      adopt: choice(...adoptions).default('ask'),
    })
    .optional(),
  difficulty_filter: z
    .strictObject({
      enabled: flag().default(true),
      min_reward_variance: atLeastZero().optional(),
      min_reward: anyNumber().optional(),
      max_reward: anyNumber().optional(),
      /** Sampling rounds that keep too little: pause and say why, or first keep every group that has any variance. */
      on_starvation: choice('pause', 'widen').default('pause'),
    })
    .optional(),
  breaker: z
    .strictObject({
      max_failed_share: fraction().default(0.5),
      max_failed_groups: whole(1).default(10),
    })
    .prefault({}),
  buffer: z.strictObject({ online_difficulty_filtering: flag().default(false), ...poolFields }).prefault({}),
  kl_penalty: z
    .strictObject({
      enabled: flag().default(true),
      target_kl: positive().optional(),
      beta: atLeastZero().default(0.1),
      ref_sync_steps: whole(1).optional(),
      ...later('kl_penalty'),
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
  /** Three places for the same: [resume] step, [ckpt] resume_step, [trainer.ckpt] resume_step. Not part of the run. */
  resume: z.strictObject({ step: resumeStep().default(-1) }).optional(),
  ckpt: z.strictObject({ resume_step: resumeStep().optional() }).optional(),
  val: z.strictObject(later('val')).optional(),
  wandb: z
    .strictObject({
      project: text().optional(),
      name: text().optional(),
      entity: text().optional(),
      group: text().optional(),
      tags: z.array(text()).meta({ expected: 'a list of texts' }).optional(),
      mode: choice('online', 'offline', 'disabled').optional(),
    })
    .optional(),
  trainer: z
    .strictObject({
      kind: choice('onnx', 'tinker', 'module').default('onnx'),
      /** Of kind "module": a file whose default export makes the trainer, and what it is called with. */
      import: codeFile().optional(),
      /** Another name for `import`. */
      path: codeFile().optional(),
      options: z.record(z.string(), z.json()).default({}),
      threads: whole(1).default(1),
      provider: choice('cpu', 'cuda').default('cpu'),
      /** A loss without settings may be written as a text: `loss = "grpo"`. */
      loss: lossTable().prefault({}),
      /** Another place for [trainer.loss] clip_high. */
      clip_high: positive().optional(),
      /** An advantage without settings may be written as a text: `advantage = "std_normalized"`. */
      advantage: z
        .strictObject({ type: choice(...advantageTypes).default('centered'), import: codeFile().optional() })
        .prefault({}),
      num_iterations: whole(1).default(1),
      micro_batch_size: whole(1).optional(),
      beta1: decay().default(0.9),
      beta2: decay().default(0.999),
      epsilon: positive().default(1e-8),
      weight_decay: atLeastZero().default(0),
      max_grad_norm: positive().default(1),
      schedule: choice('constant', 'linear', 'cosine').default('constant'),
      warmup_steps: whole(0).optional(),
      /** The linear schedule's last steps; without it the rate falls from the warm-up on. */
      decay_steps: whole(1).optional(),
      min_lr_ratio: fraction().default(0),
      ckpt: z.strictObject({ resume_step: resumeStep().optional() }).optional(),
      gpu_ids: gpuNumbers().optional(),
      /** Of kind "tinker": the server, which samples as well. */
      url: baseUrl().optional(),
      api_key_var: variableName().optional(),
      server: choice('tinker', 'skyrl').optional(),
      base_model: text().optional(),
      loss_reduction: choice('sum', 'sequence_mean').optional(),
      /** Seconds; the hosted service takes an hour to ten years. */
      checkpoint_ttl: whole(1).optional(),
      ...later('trainer'),
    })
    .prefault({}),
  inference: z
    .strictObject({
      kind: choice('embedded', 'openai', 'vllm', 'tinker', 'module').default('embedded'),
      import: codeFile().optional(),
      /** Another name for `import`. */
      path: codeFile().optional(),
      options: z.record(z.string(), z.json()).default({}),
      /** One server, or several that share the rollouts. */
      url: serverUrls().optional(),
      /** In the words of evaluations: an alias, and the endpoints.toml that has it. */
      endpoint_id: text().optional(),
      endpoints_path: text().optional(),
      api_key_var: variableName().optional(),
      headers: headerTable().default({}),
      headers_from_env: headersFromEnv().default({}),
      /** Seconds. */
      timeout: positive().default(inferenceTimeoutDefaultS),
      max_concurrent: whole(1).default(inferenceConcurrencyDefault),
      provider: choice('cpu', 'cuda').default('cpu'),
      canary_threshold: positive().optional(),
      ...later('inference'),
      /** Of vLLM: how many GPUs it sees, which ones, and further arguments in its own words. */
      gpus: whole(0).optional(),
      gpu_ids: z.array(z.int().min(0)).min(1).meta({ expected: 'a list of GPU numbers: [0, 1]' }).optional(),
      vllm: args().optional(),
      program: text().optional(),
      port: whole(1).optional(),
      host: text().optional(),
      weights: choice(...weightRoutes).default('auto'),
      weights_agent: baseUrl().optional(),
    })
    .prefault({}),
  store: z
    .strictObject({
      uri: z
        .string()
        .regex(/^(?:file:.|s3:\/\/[a-z0-9][a-z0-9.-]{1,61}[a-z0-9](?:\/[^?#]*)?$)/)
        .meta({ expected: '"file:FOLDER" such as "file:outputs", or "s3://BUCKET/PREFIX/"' })
        .default('file:outputs'),
      /** Of s3: where its server is, unless it is AWS. */
      endpoint: z
        .url({ protocol: /^https?$/ })
        .meta({ expected: 'a URL such as "https://s3.example.com"' })
        .optional(),
      region: text().optional(),
      /** `endpoint/bucket/key` in place of `bucket.endpoint/key`; servers of one's own mostly want it. */
      path_style: flag().optional(),
      /** How the server encrypts what it stores: "AES256" with keys of its own, "aws:kms" with `kms_key_id` or the account's. */
      sse: choice('none', 'AES256', 'aws:kms').default('none'),
      kms_key_id: text().optional(),
    })
    .prefault({}),
  sft: z
    .strictObject({
      /** From the config's folder if it begins with a dot, else from the project's. */
      data: z
        .string()
        .regex(/\.jsonl$/)
        .meta({ expected: 'a .jsonl file with a conversation in each line, such as "./examples.jsonl"' })
        .optional(),
      steps: whole(1),
      batch_size: whole(1).default(64),
      /** Missing: ratchet-run-spec.ts. */
      learning_rate: positive().optional(),
      /** Missing = 20, or all of fewer steps. */
      warmup_steps: whole(0).optional(),
      min_lr_ratio: fraction().default(0.1),
    })
    .optional(),
  ...later(''),
});
export type RatchetConfig = z.infer<typeof RatchetConfig>;
