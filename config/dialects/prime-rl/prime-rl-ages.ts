import { isTable, type Table, valueAt } from '../../toml/tables.ts';
import { wordsOf } from '../ours.ts';
import { placesOf } from '../places.ts';
import { primeRlRenames } from './prime-rl-renames.ts';

/**
 * prime-rl's defaults have changed three times, and a file does not state its version. Keys that only some versions
 * have are evidence, because prime-rl refuses unknown keys. Versions are named after a release, the last one after the
 * day it began.
 */
const ages = ['0.4', '0.5', '0.9', 'today'] as const;
export type Age = (typeof ages)[number];

/** Each age for people: its name for `--dialect`, its time, and its defaults. */
export const aboutAges: Readonly<
  Record<Age, { readonly dialect: string; readonly when: string; readonly means: string }>
> = {
  '0.4': {
    dialect: 'prime-rl-0.4',
    when: 'before 2 March 2026',
    means:
      'importance sampling with masks of tokens and masks of whole sequences, weight_decay 0.01, and every group trained',
  },
  '0.5': {
    dialect: 'prime-rl-0.5',
    when: 'of March 2026',
    means: 'ipo with bounds of 0.2 and kl_tau 0.001, weight_decay 0.01, and every group trained',
  },
  '0.9': {
    dialect: 'prime-rl-0.9',
    when: 'from April to 26 August 2026',
    means:
      'dppo with bounds of 0.2 and kl_tau 0.001, weight_decay 0.01, and groups without any advantage taken out of a full batch',
  },
  today: {
    dialect: 'prime-rl',
    when: 'since 27 August 2026',
    means:
      'ipo with eps 0.3 and kl_tau 0 (until 18 September 0.1 and 0.001), weight_decay 0, and other groups in the place of those without any advantage',
  },
};

/** Ages whose releases read a key; `main` also had some for a few days. */
interface Span {
  readonly first: Age;
  readonly last: Age;
  readonly main?: readonly Age[];
}

const spans = new Map<string, Span>();
function span(of: Span, keys: string): void {
  for (const key of wordsOf(keys)) spans.set(key, of);
}

// Replaced names: all of them before the last age began.
for (const { was } of primeRlRenames) spans.set(was, { first: '0.4', last: '0.9' });
span(
  { first: '0.4', last: '0.4' },
  `inference_gpu_ids trainer_gpu_ids inference_gpus trainer_gpus teacher_gpu_ids ckpt.keep
  trainer.loss.ratio_type trainer.loss.token_mask_low trainer.loss.token_mask_high trainer.loss.geo_mask_low
  trainer.loss.geo_mask_high trainer.loss.sequence_mask_low trainer.loss.sequence_mask_high trainer.loss.sequence_clip_high
  trainer.model.experimental trainer.weight_broadcast.adapter_only inference.model.enable_auto_tool_choice
  orchestrator.trajectory_strategy orchestrator.mask_env_responses orchestrator.max_env_worker_restarts
  orchestrator.reload_weights_on_start orchestrator.buffer.skip_verification orchestrator.lora_name orchestrator.environment
  orchestrator.env_mix orchestrator.eval.retry orchestrator.eval.save orchestrator.eval.per_rollout
  orchestrator.eval.reasoning_field`,
);
span(
  { first: '0.4', last: '0.5', main: ['0.9'] },
  `orchestrator.env[] orchestrator.sampling orchestrator.max_concurrent orchestrator.val orchestrator.buffer.env_ratios
  orchestrator.eval.env[].skip_first`,
);
span({ first: '0.5', last: '0.5' }, 'trainer.loss.ipo_mask_low trainer.loss.ipo_mask_high');
span(
  { first: '0.5', last: 'today', main: ['0.4'] },
  'deployment slurm trainer.enable_router_replay inference.deployment weight_broadcast.port',
);
span(
  { first: '0.5', last: '0.9', main: ['0.4'] },
  'orchestrator.filters orchestrator.max_inflight_rollouts orchestrator.use_token_client toml_files clean_output_dir',
);
span({ first: '0.5', last: 'today', main: ['0.4'] }, 'orchestrator.token_batch_size');
span({ first: '0.5', last: 'today' }, 'model.vlm inference.use_deep_gemm trainer.model.fused_lm_head_token_chunk_size');
span({ first: '0.5', last: '0.9' }, 'orchestrator.teacher_rollout_model orchestrator.advantage.length_shaping_alpha');
span(
  { first: '0.9', last: '0.9' },
  `trainer.loss.dppo_mask_low trainer.loss.dppo_mask_high trainer.loss.ipo_threshold orchestrator.train.env[]
  orchestrator.pre_batch_filters orchestrator.post_batch_filters orchestrator.training_mode orchestrator.use_sft_loss
  orchestrator.student orchestrator.teacher orchestrator.pool_size orchestrator.use_renderer orchestrator.max_inflight_episodes
  orchestrator.advantage.length_penalty trainer.model.fp8 orchestrator.model.client.elastic file_monitor
  orchestrator.model.client.extra_headers_from_state`,
);
// Dropped in the first days of the last age.
span(
  { first: '0.9', last: '0.9', main: ['today'] },
  'orchestrator.train.filter_zero_advantages trainer.enable_token_export',
);
// prime-rl had it beside a bound of 0.1 until 18 September.
span({ first: '0.4', last: '0.9', main: ['today'] }, 'trainer.loss.kl_tau');
span(
  { first: '0.4', last: '0.9' },
  `orchestrator.buffer orchestrator.advantage orchestrator.seed orchestrator.strict_async_level max_async_level
  orchestrator.max_async_level trainer.max_async_level orchestrator.teacher_model orchestrator.oversampling_factor
  trainer.loss.teacher_tau orchestrator.optim orchestrator.eval.eval_base_model orchestrator.workers_per_env`,
);
span(
  { first: '0.9', last: 'today' },
  `orchestrator.train orchestrator.eval.source[] orchestrator.group_size orchestrator.algo orchestrator.renderer
  orchestrator.concurrency orchestrator.model.client orchestrator.eval.group_size orchestrator.eval.skip_first_step
  orchestrator.collect_inference_metrics inference.vllm inference.router inference.kv_cache_offload monitors run resume
  trainer.model.cp_style trainer.model.quantization trainer.model.full_offload trainer.monitors orchestrator.monitors
  inference.enable_fp32_lm_head`,
);
span(
  { first: 'today', last: 'today' },
  `trainer.loss.eps trainer.loss.max_importance_ratio trainer.loss.score_centering trainer.loss.ratio_low
  trainer.loss.ratio_high orchestrator.constant_trainer_batch_size orchestrator.train.group_size orchestrator.train.algo
  orchestrator.train.select orchestrator.eval.select orchestrator.train.source[].sampler orchestrator.train.source[].select
  orchestrator.train.source[].min_abs_advantage orchestrator.eval.source[].select orchestrator.train.sampling.top_p
  orchestrator.train.sampling.top_k trainer.model.moe trainer.model.fusions trainer.model.compile.mode
  monitors.file.chunk_bytes monitors.file.compress monitors.file.float_decimals`,
);

/** Values that only some ages accept. */
const values: readonly (readonly [path: string, ageOfValue: (value: unknown) => Span | undefined])[] = [
  ['trainer.optim.weight_decay', (value) => (value === 'auto' ? only('today') : undefined)],
  ['trainer.loss.type', (value) => ofLoss[String(value)]],
  // A table of values that every source inherits; a list until July 2026.
  ['orchestrator.train.env', (value) => (isTable(value) ? only('today') : undefined)],
  ['orchestrator.eval.env', (value) => (isTable(value) ? only('today') : undefined)],
  // Hosted Training's keys for the version of the training code.
  ['source_ref', ofVersion],
  ['image_tag', ofVersion],
];

const only = (age: Age): Span => ({ first: age, last: age });
const ofLoss: Readonly<Record<string, Span>> = {
  default: { first: '0.4', last: '0.9' },
  ipo: { first: '0.9', last: 'today' },
  icepop: only('today'),
  ppo: only('today'),
  cispo: only('today'),
};

/** The age of a release that is named by its number, as `v0.9.0`; a branch or a commit shows nothing. */
function ofVersion(value: unknown): Span | undefined {
  const [, major, minor, patch] = /^v?(\d+)\.(\d+)\.(\d+)$/.exec(String(value)) ?? [];
  if (major === undefined) return undefined;
  const [number, last] = [Number(minor), Number(patch)];
  if (Number(major) > 0 || number > 9 || (number === 9 && last > 0)) return only('today');
  return only(number <= 4 ? '0.4' : number === 5 ? '0.5' : '0.9');
}

interface Aged {
  readonly age: Age;
  /** The key that shows it; undefined without one. */
  readonly by: string | undefined;
  /** Other possible ages of the file; if empty, the keys decide. */
  readonly others: readonly Age[];
}

/** Evidence that a file of this age is prime-rl's: the key that shows its age, or one that only its files have. */
export function proofOf(age: Age): (table: Table) => string | undefined {
  return (table) => {
    const own = ownKey(table);
    if (own === undefined) return undefined;
    const aged = ageOf(table);
    return aged.age === age ? (aged.by ?? own) : undefined;
  };
}

function ownKey(table: Table): string | undefined {
  const isRun = isTable(table['orchestrator'] ?? table['trainer']);
  // Our files have [inference.vllm] as well, beside a model that is a text.
  const served = typeof table['model'] === 'string' ? [] : ['inference.vllm'];
  const paths = isRun ? [...ofRuns, ...ofGpus, ...served] : ofGpus;
  return paths.find((path) => valueAt(table, path.split('.')) !== undefined);
}

const ofGpus = ['inference_gpu_ids', 'trainer_gpu_ids'];
const ofRuns = [
  'orchestrator.train',
  'orchestrator.group_size',
  'orchestrator.algo',
  'orchestrator.env',
  'orchestrator.sampling',
  'deployment',
  'monitors',
];

/** The newest age whose releases read every key of a file. If keys contradict each other, the newest one counts. */
export function ageOf(table: Table): Aged {
  const known = spansIn(table);
  const reading = ages.filter((age) => known.every(({ span }) => isWithin(age, span)));
  const possible = ages.filter((age) => known.every(({ span }) => isWithin(age, span) || span.main?.includes(age)));
  const firsts = known.map(({ span }) => place(span.first));
  const age = reading.at(-1) ?? possible.at(-1) ?? ages[Math.max(...firsts)]!;
  const excluded = [ages[place(age) + 1], ages[place(age) - 1]];
  const deciding = excluded.map((other) => other && known.find(({ span }) => !isWithin(other, span)));
  return { age, by: (deciding[0] ?? deciding[1])?.path, others: possible.filter((other) => other !== age) };
}

function place(age: Age): number {
  return ages.indexOf(age);
}

function isWithin(age: Age, { first, last }: Span): boolean {
  return place(first) <= place(age) && place(age) <= place(last);
}

function spansIn(table: Table): { readonly path: string; readonly span: Span }[] {
  const byKeys = [...spans].flatMap(([path, one]) =>
    placesOf(path, table).length > 0 ? [{ path: path.replaceAll('[]', ''), span: one }] : [],
  );
  const byValues = values.flatMap(([path, ageOfValue]) => {
    const value = valueAt(table, path.split('.'));
    const one = value === undefined ? undefined : ageOfValue(value);
    return one ? [{ path: typeof value === 'string' ? `${path} = "${value}"` : path, span: one }] : [];
  });
  return [...byKeys, ...byValues];
}

/** One line for a file whose keys fit several ages: each age's defaults, and the key that would decide. */
export function sayAge(written: Table, { age, others }: Aged): string | undefined {
  if (others.length === 0) return undefined;
  const type = valueAt(written, ['trainer', 'loss', 'type']);
  const key = type === undefined ? 'trainer.loss.type is not written' : `trainer.loss.type = ${JSON.stringify(type)}`;
  const { when, means } = aboutAges[age];
  const readings = others.toReversed().map((other) => {
    const { dialect, when: its, means: meant } = aboutAges[other];
    return `A file ${its} means ${meant}: --dialect ${dialect} reads it so.`;
  });
  return `${key}, and no key says of which version of prime-rl the file is. It is read as one ${when}: ${means}. ${readings.join(' ')} ${decides[age]}`;
}

/** Advice for making a file one of a single age. */
const ofMasks = 'A mask in [trainer.loss] (token_mask_low, ipo_mask_low or dppo_mask_low) says which it is.';
const decides: Readonly<Record<Age, string>> = {
  '0.4': ofMasks,
  '0.5': ofMasks,
  '0.9': ofMasks,
  today: '[trainer.loss] says which it is: type = "ipo" with eps = 0.3, or type = "default".',
};
