import { z } from 'zod';
import { nearestName } from '../../core/suggest.ts';
import type { KeyPath } from '../toml/positions.ts';
import { isTable, type Table, tableOr, valueAt } from '../toml/tables.ts';
import {
  args,
  atLeastZero,
  choice,
  environmentId,
  flag,
  fraction,
  positive,
  prompt,
  text,
  whole,
} from '../toml/values.ts';
import { setRunName } from './common-words.ts';
import { becomes, converted, type Field, ignored, only, type Own, refused, together } from './dialect.ts';
import { all, into, type Rows, under, wordsOf } from './ours.ts';

/** Arguments that verifiers' two trainers take from transformers' TrainingArguments, and their lookup. */

/** Arguments by name, from any of their tables. */
export interface Arguments {
  readonly value: (name: string) => unknown;
  /** Path of the argument; for a missing one, its place. */
  readonly path: (name: string) => KeyPath;
}

/** Tables of arguments, the last one wins. `''` is the top of the file. */
const places: Readonly<Record<string, KeyPath>> = { '': [], trainer: ['trainer'], 'trainer.args': ['trainer', 'args'] };

/** Warns of arguments outside [trainer.args], and refuses repeated ones. */
export function argumentsOf(
  written: Table,
  { names, system, own }: { readonly names: readonly string[]; readonly system: string; readonly own: Own },
): Arguments {
  const fallback: KeyPath = ['trainer', 'args'];
  const outside: string[] = [];
  const paths = new Map<string, KeyPath>();
  for (const name of names) {
    const found = Object.values(places).filter((table) => valueAt(written, [...table, name]) !== undefined);
    if (found.length === 0) continue;
    const at = found.map((table) => [...table, name]);
    paths.set(name, at.at(-1)!);
    if (found.length > 1) own.refuse({ paths: at, expected: `${name} in one place`, received: 'two of them' });
    if (found.some((table) => table.length < fallback.length)) outside.push(at[0]!.join('.'));
  }
  if (outside.length > 0) {
    own.warn(`${outside.join(', ')}: ${system} reads [trainer.args] alone and leaves them out; here they count`);
  }
  const path = (name: string): KeyPath => paths.get(name) ?? [...fallback, name];
  return { path, value: (name) => valueAt(written, path(name)) };
}

const noTrackers = 'metrics are in metrics.jsonl, whole and for every step';
const noHub =
  'nothing is uploaded while it trains: weights are exported with every checkpoint (`ratchet model export`)';
const noLoader = 'examples are drawn by the run itself';
const schedules = {
  constant: 'constant',
  constant_with_warmup: 'constant',
  linear: 'linear',
  cosine: 'cosine',
} as const;

const noSearch = 'the policy server is found by the run; for one of yours see [ratchet.inference] url';

export const transformersArguments: Rows = {
  output_dir: converted('store.uri', text(), (folder) => `file:${folder}`),
  run_name: together('`name`, spelt as a run’s name, and `wandb.name`', text()),
  learning_rate: becomes('learning_rate'),
  lr_scheduler_type: converted(
    'trainer.schedule',
    choice('constant', 'constant_with_warmup', 'linear', 'cosine'),
    (type) => schedules[type],
  ),
  warmup_steps: becomes('trainer.warmup_steps'),
  warmup_ratio: together('`trainer.warmup_steps`: this share of max_steps', fraction()),
  max_steps: becomes('max_steps', whole(1)),
  num_train_epochs: ignored('max_steps says when the run ends', positive()),
  weight_decay: becomes('trainer.weight_decay'),
  adam_beta1: becomes('trainer.beta1'),
  adam_beta2: becomes('trainer.beta2'),
  adam_epsilon: becomes('trainer.epsilon'),
  max_grad_norm: becomes('trainer.max_grad_norm'),
  seed: becomes('seed'),
  bf16: converted('trainer.dtype', flag(), (isUsed) => (isUsed ? 'bfloat16' : 'float32')),
  gradient_checkpointing: converted('trainer.ac_freq', flag(), (isUsed) => (isUsed ? 1 : undefined)),
  gradient_checkpointing_kwargs: ignored('only PyTorch takes it', args()),
  save_strategy: together('"no": a checkpoint at the end alone', choice('steps', 'no')),
  save_steps: together('`checkpoints.interval`; below 1 a share of max_steps', positive()),
  save_total_limit: becomes('checkpoints.keep_last', whole(1)),
  save_only_model: ignored('a checkpoint is always whole, so that the run can continue from it', flag()),
  resume_from_checkpoint: ignored(
    'a run continues from its newest commit; for another step see `ratchet train --resume.step`',
    z.union([flag(), text()]).meta({ expected: 'a text, or true or false' }),
  ),
  eval_strategy: together('"steps": evaluations on held-out examples', choice('no', 'steps')),
  eval_steps: together('`eval.interval`; below 1 a share of max_steps', positive()),
  eval_on_start: together('the opposite of `eval.skip_first_step`', flag()),
  logging_steps: ignored(noTrackers, atLeastZero()),
  ...all('logging_strategy logging_dir log_level', ignored(noTrackers, text())),
  ...all('logging_first_step log_on_each_node disable_tqdm', ignored(noTrackers, flag())),
  report_to: together(
    '`wandb` and `mlflow` where it names them',
    z.union([text(), text().array()]).meta({ expected: 'a text or a list of texts' }),
  ),
  ...all('remove_unused_columns dataloader_drop_last', ignored(noLoader, flag())),
  dataloader_num_workers: ignored(noLoader, whole(0)),
  shuffle_dataset: ignored('examples are always drawn in an order that the seed gives', flag()),
  fp16: refused('training in float16; the embedded engine computes in float32'),
  optim: ignored('it is AdamW', text()),
  deepspeed: refused('DeepSpeed'),
  fsdp: refused('FSDP settings of transformers'),
  ...all('push_to_hub hub_private_repo hub_always_push', ignored(noHub, flag())),
  ...all(
    'hub_model_id hub_strategy hub_revision push_to_hub_model_id push_to_hub_organization',
    ignored(noHub, text()),
  ),
  ...all('hub_token push_to_hub_token', ignored(`${noHub}; a token does not belong into a file`, text())),
  vllm_server_host: ignored(noSearch, text()),
  vllm_server_port: ignored(noSearch, whole(1, 65_535)),
  vllm_server_timeout: ignored('the policy server is waited for', positive()),
  mask_env_responses: only(true, 'only the tokens that the model wrote carry loss', flag()),
  ...into('', 'max_concurrent mask_truncated_completions zero_truncated_completions'),
  temperature: becomes('sampling.temperature', positive()),
  top_p: becomes('sampling.top_p', positive()),
  top_k: becomes('sampling.top_k', whole(-1)),
  ...into('sampling', 'min_p repetition_penalty presence_penalty frequency_penalty'),
};

/** Arguments that both trainers have, each under its own names, with their possible tables. */
export function verifiersFields(
  itsArguments: Rows,
  { tables, isRequired }: { readonly tables: readonly (keyof typeof places)[]; readonly isRequired: boolean },
): Record<string, Field> {
  const ofServer = together('`inference.vllm`', z.json().meta({ expected: 'a value of TOML' }));
  const trainerArguments = under('', itsArguments);
  return {
    model: becomes('model', text(), { isRequired: true }),
    'env.id': becomes('env[].id', environmentId(), { isRequired: true }),
    'env.args': becomes('env[].args', args()),
    'env.system_prompt': becomes('env[].system_prompt', prompt()),
    'inference.gpus': becomes('inference.gpus', whole(1), { isRequired }),
    'inference.args': together('`inference.vllm`', args()),
    ...Object.fromEntries(vllmArguments.map((name) => [`inference.${name}`, ofServer])),
    'trainer.gpus': becomes('trainer.gpus', whole(1), { isRequired }),
    ...Object.fromEntries(
      tables.flatMap((table) =>
        Object.entries(trainerArguments).map(([name, field]) => [[...places[table]!, name].join('.'), field]),
      ),
    ),
  };
}

/** `evalSteps`, `saveSteps`: defaults of the trainer. */
export function transformersTogether(
  { value, path }: Arguments,
  own: Own,
  fallback: { readonly evalSteps: number; readonly saveSteps: number; readonly schedule: 'constant' | 'linear' },
): void {
  setRunName(own, value('run_name'), path('run_name'));
  setTrackers({ value, path }, own);
  const maxSteps = Number(own.get(['max_steps']) ?? 0);
  const stepsOf = (given: number): number => (given < 1 ? Math.max(1, Math.ceil(given * maxSteps)) : Math.round(given));

  const ratio = value('warmup_ratio');
  if (typeof ratio === 'number' && !value('warmup_steps')) {
    own.set(['trainer', 'warmup_steps'], Math.ceil(ratio * maxSteps), path('warmup_ratio'));
  }
  setSchedule({ value, path }, own, fallback.schedule);

  const saveSteps = Number(value('save_steps') ?? fallback.saveSteps);
  const isSaved = value('save_strategy') !== 'no';
  own.set(
    ['checkpoints', 'interval'],
    isSaved ? stepsOf(saveSteps) : Math.max(1, maxSteps),
    path(isSaved ? 'save_steps' : 'save_strategy'),
  );

  if (value('eval_strategy') === 'steps') {
    own.set(['eval', 'interval'], stepsOf(Number(value('eval_steps') ?? fallback.evalSteps)), path('eval_steps'));
    own.set(['eval', 'skip_first_step'], value('eval_on_start') !== true, path('eval_on_start'));
  } else if (value('eval_steps') !== undefined || value('eval_on_start') !== undefined) {
    own.warn('eval_steps and eval_on_start have no effect without eval_strategy = "steps"');
  }
}

/**
 * In `get_scheduler` the constant schedule has no warm-up, and the others start at 0: the first step trains nothing.
 */
function setSchedule({ value, path }: Arguments, own: Own, fallback: 'constant' | 'linear'): void {
  const warmup = Number(own.get(['trainer', 'warmup_steps']) ?? 0);
  if (warmup === 0) return;
  const from = path(value('warmup_steps') === undefined ? 'warmup_ratio' : 'warmup_steps');
  if ((value('lr_scheduler_type') ?? fallback) !== 'constant') {
    own.set(['trainer', 'warmup_from'], 0, from);
    return;
  }
  own.set(['trainer', 'warmup_steps'], undefined, from);
  own.warn(
    `${from.join('.')} has no effect with lr_scheduler_type = "constant", there as here: write "constant_with_warmup" for one.`,
  );
}

/** Both trainers report to W&B by default; TensorBoard's files are always written. */
function setTrackers({ value, path }: Arguments, own: Own): void {
  const given = (value('report_to') ?? 'wandb') as string | readonly string[];
  const trackers = typeof given === 'string' ? [given] : given;
  const others = trackers.filter((tracker) => !['wandb', 'mlflow', 'tensorboard', 'all', 'none'].includes(tracker));
  if (others.length > 0) own.warn(`report_to: ${others.join(', ')} is not fed; ${noTrackers}`);
  if (trackers.includes('mlflow')) {
    own.set(['mlflow'], {}, path('report_to'));
    if (value('run_name') !== undefined) own.set(['mlflow', 'run_name'], value('run_name'), path('run_name'));
  }
  if (!trackers.includes('wandb') && !trackers.includes('all')) return;
  own.set(['wandb'], {}, path('report_to'));
  if (value('run_name') !== undefined) own.set(['wandb', 'name'], value('run_name'), path('run_name'));
}

/** Common arguments of vLLM's server; others are kept as well, unless they are nearly one of these. */
const vllmArguments = wordsOf(`
  api_server_count attention_backend block_size chat_template cpu_offload_gb data_parallel_size
  disable_custom_all_reduce disable_log_requests disable_log_stats distributed_executor_backend download_dir dtype
  enable_auto_tool_choice enable_chunked_prefill enable_expert_parallel enable_lora enable_prefix_caching
  enable_reasoning enforce_eager generation_config gpu_memory_utilization hf_overrides host kv_cache_dtype
  limit_mm_per_prompt load_format logprobs_mode max_cpu_loras max_logprobs max_lora_rank max_loras max_model_len
  max_num_batched_tokens max_num_seqs pipeline_parallel_size port quantization reasoning_parser revision
  rope_scaling rope_theta seed served_model_name swap_space tensor_parallel_size tokenizer tokenizer_mode
  tool_call_parser tool_parser_plugin trust_remote_code uvicorn_log_level`);

/** [inference.args], and vLLM's arguments beside it in [inference]. */
export function setServerArguments(written: Table, own: Own): void {
  const inference = written['inference'];
  if (!isTable(inference)) return;
  const { gpus: _gpus, args = {}, ...outside } = inference;
  if (Object.keys(outside).length > 0) {
    const names = Object.keys(outside).map((name) => `inference.${name}`);
    own.warn(`${names.join(', ')}: vf-rl reads [inference.args] alone and leaves them out; here they count`);
  }
  for (const [table, at] of [
    [outside, ['inference']],
    [tableOr(args), ['inference', 'args']],
  ] as const) {
    for (const [name, value] of Object.entries(table)) {
      own.set(['inference', 'vllm', name], value, [...at, name]);
      if (vllmArguments.includes(name)) continue;
      const meant = nearestName(name, vllmArguments);
      if (meant === undefined) {
        own.warn(`inference.args.${name} is no argument of vLLM’s that is known here; it is kept as it is`);
        continue;
      }
      const suggestion = `did you mean "${meant}"?`;
      const expected = 'an argument of vLLM’s server';
      own.refuse({ paths: [[...at, name]], expected, received: 'an unknown key', suggestion });
    }
  }
}
