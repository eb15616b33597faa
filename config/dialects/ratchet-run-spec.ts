import type { z } from 'zod';
import { vllmSpec } from './vllm-run-spec.ts';
import { environmentName } from '../../core/names.ts';
import { accessDefaults } from '../model-access-spec.ts';
import { keyOf } from '../model-access.ts';
import { usualKey } from '../../core/eval/model-servers.ts';
import { tinkerInferenceSpec, tinkerLoraSpec, tinkerTrainerSpec } from './tinker-run-spec.ts';
import type {
  DifficultyFilterSpec,
  EnvironmentSpec,
  EvalSpec,
  KlSpec,
  ModuleSpec,
  PoolSpec,
  RolloutFilterSpec,
  RunSpec,
} from '../run-spec.ts';
import { learnsFromRewards, lossSpec, teacherSpec } from './learning-spec.ts';
import { laidOver, samplingSpec, type WrittenEvalSampling, type WrittenSampling } from './own-sampling.ts';
import { defaultLoraAlpha, defaultLoraRank, type evalEnvironment, type RatchetConfig, loraModules } from './ratchet.ts';

/** The one meaning of a config whose fields and relations are right. */
export function ratchetToRunSpec(config: RatchetConfig, name: string): Omit<RunSpec, 'later'> {
  const { trainer, sampling } = config;
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
    ...optimizerSpecs(config),
    loss: lossSpec(config),
    advantage: advantageSpec(config),
    numIterations: trainer.num_iterations,
    microBatchSize: trainer.micro_batch_size ?? null,
    lora: loraSpec(config),
    sampling: samplingSpec(sampling),
    chatTemplate:
      config.tokenizer.chat_template === undefined ? null : { path: config.tokenizer.chat_template, sha256: null },
    maxPromptTokens: config.max_prompt_len ?? null,
    trajectoryStrategy: config.trajectory_strategy,
    maskTruncated: config.mask_truncated_completions,
    zeroTruncated: config.zero_truncated_completions,
    seqLen: config.seq_len ?? null,
    overlongRows: config.overlong_rows,
    rolloutFilters: {
      pre: filtersOfRollouts(config, config.pre_batch_filters),
      post: filtersOfRollouts(config, config.post_batch_filters),
    },
    environments,
    teacher: teacherSpec(config),
    eval: evalSpec(config, environments),
    ...branchSpec(config, environments),
    filter: filterSpec(config),
    kl: klSpec(config),
    maxAsyncLevel: config.max_async_level,
    maxOffPolicySteps: config.max_off_policy_steps,
    oversamplingFactor: config.oversampling_factor,
    maxConcurrent: config.max_concurrent ?? null,
    tasksPerMinute: config.tasks_per_minute ?? null,
    generationTimeoutS: config.generation_timeout,
    heartbeatTimeoutS: config.heartbeat_timeout,
    breaker: {
      maxFailedShare: config.breaker.max_failed_share,
      maxFailedGroups: config.breaker.max_failed_groups,
    },
    checkpoints: checkpointSpec(config),
    wandb: wandbSpec(config),
    sft: sftSpec(config),
    trainer: trainer.kind === 'tinker' ? tinkerTrainerSpec(config) : trainerSpec(trainer.kind, trainer),
    inference: inferenceSpec(config),
    store: { uri: storeUri(config.store) },
  };
}

function optimizerSpecs({
  trainer,
  warmup_steps: warmupSteps,
}: RatchetConfig): Pick<RunSpec, 'schedule' | 'optimizer'> {
  return {
    schedule: {
      type: trainer.schedule,
      warmupSteps: trainer.warmup_steps ?? warmupSteps ?? 0,
      ...(trainer.decay_steps === undefined ? {} : { decaySteps: trainer.decay_steps }),
      minRatio: trainer.min_lr_ratio,
    },
    optimizer: {
      beta1: trainer.beta1,
      beta2: trainer.beta2,
      epsilon: trainer.epsilon,
      weightDecay: trainer.weight_decay,
      maxGradNorm: trainer.max_grad_norm,
    },
  };
}

function wandbSpec({ wandb }: RatchetConfig): RunSpec['wandb'] {
  if (wandb === undefined) return null;
  return {
    project: wandb.project ?? null,
    name: wandb.name ?? null,
    entity: wandb.entity ?? null,
    group: wandb.group ?? null,
    tags: wandb.tags ?? [],
    mode: wandb.mode ?? null,
  };
}

function sftSpec(config: RatchetConfig): RunSpec['sft'] {
  const { sft } = config;
  if (sft === undefined) return null;
  return {
    data: sft.data === undefined ? null : { path: sft.data, sha256: null },
    steps: sft.steps,
    batchSize: sft.batch_size,
    learningRate: sft.learning_rate ?? sftLearningRate(config),
    warmupSteps: sft.warmup_steps ?? Math.min(sftWarmupSteps, sft.steps),
    minRatio: sft.min_lr_ratio,
  };
}

/** Where the file does not say. */
const sftWarmupSteps = 20;

/**
 * Likewise. A preset begins with random weights; a model that can read already would be ruined by what those need, and has the
 * default of TRL's `SFTConfig` for all weights, ten times that where an adapter alone is trained (Tinker).
 */
function sftLearningRate({ model, trainer }: Pick<RatchetConfig, 'model' | 'trainer'>): number {
  if (model.startsWith('preset:')) return 3e-3;
  return trainer.kind === 'tinker' ? 2e-4 : 2e-5;
}

/** `import` is there where the kind is "module": ratchet-relations.ts. */
function moduleSpec({
  import: file,
  path = '',
  options,
}: {
  import?: string | undefined;
  path?: string | undefined;
  options: ModuleSpec['options'];
}): ModuleSpec {
  return { kind: 'module', import: { path: file ?? path, sha256: null }, options };
}

function trainerSpec(kind: 'onnx' | 'module', trainer: RatchetConfig['trainer']): RunSpec['trainer'] {
  const { threads, provider, gpu_ids: gpuIds } = trainer;
  return kind === 'module' ? moduleSpec(trainer) : { kind, threads, provider, ...(gpuIds ? { gpuIds } : {}) };
}

function inferenceSpec(config: RatchetConfig): RunSpec['inference'] {
  const { inference } = config;
  const { kind, url = null, endpoint_id, endpoints_path = accessDefaults.endpointsPath } = inference;
  if (kind === 'module') return moduleSpec(inference);
  if (kind === 'tinker') return tinkerInferenceSpec(config);
  const pool = {
    url,
    endpoints: endpoint_id === undefined ? null : { path: endpoints_path, id: endpoint_id },
    apiKeyVar: keyOf(inference.api_key_var ?? '')?.variable ?? null,
    headers: inference.headers,
    headersFromEnv: inference.headers_from_env,
    timeoutS: inference.timeout,
    maxConcurrent: inference.max_concurrent,
    provider: inference.provider,
    ...(inference.canary_threshold === undefined ? {} : { canaryThreshold: inference.canary_threshold }),
  };
  return kind === 'vllm' ? { kind, ...pool, vllm: vllmSpec(config, loraSpec(config)) } : { kind, ...pool };
}

/** The step that the config asks to go on from: −1 = the latest, null = it does not say. */
export function ratchetResumeStep({ resume, ckpt, trainer }: RatchetConfig): number | null {
  return resume?.step ?? ckpt?.resume_step ?? trainer.ckpt?.resume_step ?? null;
}

/** How an S3 server is reached is part of the store's address; a server with an endpoint of its own mostly has no name per bucket. */
function storeUri({ uri, endpoint, region, path_style, sse, kms_key_id }: RatchetConfig['store']): string {
  if (!uri.startsWith('s3:')) return uri;
  const options = new URLSearchParams();
  if (endpoint !== undefined) options.set('endpoint', endpoint);
  if (region !== undefined) options.set('region', region);
  if (path_style ?? endpoint !== undefined) options.set('path_style', 'true');
  if (sse !== 'none') options.set('sse', sse);
  if (kms_key_id !== undefined) options.set('kms_key_id', kms_key_id);
  const query = options.toString();
  return query === '' ? uri : `${uri}?${query}`;
}

/** [sampling] with what [eval.sampling] says laid over it, and over that what an environment says of its own. */
export function evalSampling(
  { sampling, eval: evaluation }: RatchetConfig,
  own: Partial<WrittenEvalSampling> = {},
): WrittenSampling {
  return laidOver(sampling, { ...evaluation?.sampling, ...own });
}

/** Without a use for advantages, one of 0 says nothing about a rollout. */
function filtersOfRollouts(config: RatchetConfig, written: RatchetConfig['pre_batch_filters']): RolloutFilterSpec[] {
  const filters = written.map(filterOfRollouts);
  return learnsFromRewards(config) ? filters : filters.filter(({ type }) => type !== 'zero_advantage');
}

/** prime-rl's defaults (v0.5 to v0.7): filters that look at tokens only count unless told otherwise. */
function filterOfRollouts(written: RatchetConfig['pre_batch_filters'][number]): RolloutFilterSpec {
  const { type, enforce = type === 'zero_advantage' || type === 'low_reward' } = written;
  if (type === 'gibberish') {
    const { token_id_threshold: tokenIdThreshold = 100_000, logprob_offset: logprobOffset = 2 } = written;
    return { type, enforce, tokenIdThreshold, logprobOffset };
  }
  if (type === 'zero_advantage') return { type, enforce };
  if (type === 'low_reward') return { type, enforce, minReward: written.min_reward ?? 0 };
  const { window = 3_000, prob_threshold: probThreshold = 0.99 } = written;
  return { type, enforce, window, probThreshold };
}

function advantageSpec({ trainer: { advantage } }: RatchetConfig): RunSpec['advantage'] {
  if (advantage.type !== 'custom') return advantage.type;
  return { import: { path: advantage.import ?? '', sha256: null } };
}

/** Naming an alpha asks for LoRA, as in Hosted Training, which trains nothing else. */
export function loraSpec(config: RatchetConfig): RunSpec['lora'] {
  const { lora, lora_alpha } = config;
  if (config.trainer.kind === 'tinker') return tinkerLoraSpec(config);
  if (lora?.enabled === false || (lora === undefined && lora_alpha === undefined)) return null;
  return {
    r: lora?.r ?? defaultLoraRank,
    alpha: lora?.alpha ?? lora_alpha ?? defaultLoraAlpha,
    dropout: lora?.dropout ?? 0,
    targetModules: lora?.target_modules ?? [...loraModules],
  };
}

function trainEnvironments(config: RatchetConfig): EnvironmentSpec[] {
  return withNames(config.env).map((entry) => {
    const { id, name, args, weight, buffer, sampling } = entry;
    return {
      id,
      ...ofEnvironment(config, entry),
      ...(sampling === undefined ? {} : { sampling: samplingSpec(laidOver(config.sampling, sampling)) }),
      name,
      args,
      weight,
      pools: poolSpec(writtenPools(config, buffer)),
    };
  });
}

/** What trained and evaluated environments may say alike, where they do. */
function ofEnvironment(
  config: RatchetConfig,
  entry: z.infer<typeof evalEnvironment> | RatchetConfig['env'][number],
): Pick<EnvironmentSpec, 'variables' | 'limits' | 'agent'> {
  const { agent } = entry;
  return { ...seenBy(config, entry.env_vars), ...limitsOf(entry), ...(agent === undefined ? {} : { agent }) };
}

function limitsOf(
  entry: z.infer<typeof evalEnvironment> | RatchetConfig['env'][number],
): Pick<EnvironmentSpec, 'limits'> {
  const limits = {
    maxTurns: entry.max_turns ?? null,
    maxInputTokens: entry.max_input_tokens ?? null,
    maxOutputTokens: entry.max_output_tokens ?? null,
    maxTotalTokens: entry.max_total_tokens ?? null,
    timeoutS: entry.timeout ?? null,
    maxRetries: entry.max_retries ?? null,
  };
  return Object.values(limits).every((limit) => limit === null) ? {} : { limits };
}

/** Variables that an environment sees beside the usual ones; nothing where there are none. */
function seenBy({ env_files }: RatchetConfig, names: readonly string[] = []): Pick<EnvironmentSpec, 'variables'> {
  if (names.length + env_files.length === 0) return {};
  return { variables: { names: [...new Set(names)], files: env_files } };
}

type WrittenPools = NonNullable<RatchetConfig['env'][number]['buffer']>;

/** What [buffer] says of pools, with what an environment says of its own laid over it. */
export function writtenPools({ buffer }: RatchetConfig, own: WrittenPools = {}): WrittenPools {
  return { ...buffer, ...own };
}

/** Examples of a pool are put aside unless a fraction says otherwise, as in prime-rl. */
function poolSpec({ easy_threshold, hard_threshold, easy_fraction, hard_fraction }: WrittenPools): PoolSpec | null {
  if (easy_threshold === undefined && hard_threshold === undefined) return null;
  return {
    easyThreshold: easy_threshold ?? null,
    hardThreshold: hard_threshold ?? null,
    easyFraction: easy_fraction ?? 0,
    hardFraction: hard_fraction ?? 0,
  };
}

function evalSpec(config: RatchetConfig, trained: readonly EnvironmentSpec[]): EvalSpec | null {
  const evaluation = config.eval;
  if (evaluation === undefined) return null;
  const { interval, skip_first_step, eval_base_model, num_examples, rollouts_per_example } = evaluation;
  const entries: readonly z.infer<typeof evalEnvironment>[] =
    evaluation.env ?? config.env.map((entry, i) => asEvaluated(entry, trained[i]!));
  return {
    interval,
    sampling: evaluation.sampling === undefined ? null : samplingSpec(evalSampling(config)),
    when: evaluation.when ?? null,
    onRegression: evaluation.on_regression,
    skipFirstStep: skip_first_step ?? (eval_base_model === undefined ? false : !eval_base_model),
    environments: withNames(entries).map((entry) => ({
      id: entry.id,
      ...ofEnvironment(config, entry),
      name: entry.name,
      args: entry.args,
      numExamples: entry.num_examples ?? num_examples,
      rolloutsPerExample: entry.rollouts_per_example ?? rollouts_per_example,
      skipFirst: entry.skip_first ?? 0,
      interval: entry.interval ?? null,
      sampling: entry.sampling === undefined ? null : samplingSpec(evalSampling(config, entry.sampling)),
    })),
  };
}

/** Nothing where the run has no branches. */
function branchSpec({ gepa }: RatchetConfig, trained: readonly EnvironmentSpec[]): Pick<RunSpec, 'gepa'> {
  if (gepa === undefined) return {};
  return {
    gepa: {
      interval: gepa.interval ?? null,
      atSteps: [...new Set(gepa.at_steps)].sort((a, b) => a - b),
      environments: gepa.environments ?? trained.map(({ name }) => name),
      reflectionModel: gepa.reflection_model,
      url: gepa.url,
      apiKeyVar: gepa.api_key_var === undefined ? usualKey(gepa.url) : (keyOf(gepa.api_key_var)?.variable ?? null),
      maxCalls: gepa.max_calls,
      numTrain: gepa.num_train,
      numVal: gepa.num_val,
      numTest: gepa.num_test,
      minibatchSize: gepa.minibatch_size,
      perfectScore: gepa.perfect_score ?? null,
      stateColumns: gepa.state_columns,
      maxConcurrent: gepa.max_concurrent,
      adopt: gepa.adopt,
    },
  };
}

/** One that is trained on, where none is named for evaluations: with its limits and under its name, and sampled as they are. */
function asEvaluated(
  trained: RatchetConfig['env'][number],
  { name }: EnvironmentSpec,
): z.infer<typeof evalEnvironment> {
  const entry: Partial<RatchetConfig['env'][number]> & Pick<typeof trained, 'id' | 'args'> = { ...trained, name };
  for (const key of ['weight', 'buffer', 'sampling'] as const) delete entry[key];
  return entry;
}

/** Environments without a name are called after their id, and numbered when that name is taken. */
export function withNames<T extends { readonly id: string; readonly name?: string | undefined }>(
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

function filterSpec(config: RatchetConfig): DifficultyFilterSpec {
  const { difficulty_filter, buffer } = config;
  const bounds = difficulty_filter?.enabled === true ? difficulty_filter : undefined;
  return {
    minRewardVariance: bounds?.min_reward_variance ?? 0,
    minReward: bounds?.min_reward ?? unbounded.minReward,
    maxReward: bounds?.max_reward ?? unbounded.maxReward,
    onlineDifficultyFiltering: buffer.online_difficulty_filtering,
    keepsEqual: !learnsFromRewards(config),
    onStarvation: difficulty_filter?.on_starvation ?? 'pause',
  };
}

/** Disabled means reported only: the divergence is measured either way. */
function klSpec({ kl_penalty }: RatchetConfig): KlSpec {
  const isPenalized = kl_penalty?.enabled === true;
  return {
    beta: isPenalized ? kl_penalty.beta : 0,
    targetKl: isPenalized ? (kl_penalty.target_kl ?? null) : null,
    refSyncSteps: kl_penalty?.ref_sync_steps ?? null,
  };
}

/** Keeping all of them is keeping every multiple of the interval for good. */
function checkpointSpec({ checkpoints }: RatchetConfig): RunSpec['checkpoints'] {
  const { interval, keep_interval } = checkpoints;
  const keepLast = checkpoints.keep_last ?? checkpoints.keep_cloud ?? 5;
  if (keepLast === -1) return { interval, keepLast: 1, keepInterval: interval };
  return { interval, keepLast, keepInterval: keep_interval ?? null };
}
