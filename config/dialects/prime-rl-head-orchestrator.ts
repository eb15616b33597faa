import { z } from 'zod';
import {
  anyNumber,
  args,
  atLeastZero,
  choice,
  countOrAll,
  environmentId,
  environmentLabel,
  flag,
  fraction,
  positive,
  text,
  whole,
} from '../values.ts';
import { headersFromEnv, headerTable, variableName } from '../model-access.ts';
import { becomes, converted, ignored, refused, together } from './dialect.ts';
import {
  type Fields,
  temperature,
  processes,
  speed,
  python,
  gone,
  log,
  checkpoints,
  monitors,
  tokenizer,
  broadcast,
  transport,
  variables,
  envVars,
  vlm,
} from './prime-rl-head-shared.ts';
import { teacherField } from './prime-rl-teacher.ts';
import { nullable, port, serverBaseUrls, texts, under, why } from './prime-rl-words.ts';
import { buffer } from './prime-rl-04-fields.ts';

/** `[orchestrator]` of prime-rl's files since v0.5, without its header. */

/** Settings of a rollout that verifiers' environment had before its agents. */
const oldLimits = (table: string): Fields => ({
  address: processes(text()),
  num_workers: processes(z.union([whole(1), choice('auto')]).meta({ expected: 'an integer ≥ 1, or "auto"' })),
  max_retries: ignored(why.retry, whole(0)),
  state_columns: ignored('a rollout is stored with all it has', texts()),
  extra_env_kwargs: refused(
    'attributes that are set on a loaded environment; write what load_environment takes into args',
  ),
  timeout: becomes(`${table}.timeout`, positive(), { isNullable: true }),
  max_total_completion_tokens: converted(`${table}.max_output_tokens`, z.int().min(-1), (most) =>
    most > 0 ? most : undefined,
  ),
});
const sourceFields = (table: string): Fields => ({
  env: together(
    `\`${table}\`: \`taskset.id\` and the taskset's further keys as arguments, the rest as \`agent\``,
    args(),
  ),
  id: becomes(`${table}.id`, environmentId()),
  args: becomes(`${table}.args`, args()),
  name: becomes(`${table}.name`, environmentLabel(), { isNullable: true }),
  serve: processes(args()),
  legacy: ignored('environments are told apart by themselves', args()),
  ...oldLimits(table),
});
const sampling: Fields = {
  temperature: together('`sampling.temperature`', temperature(), { usual: '1', isNullable: true }),
  max_completion_tokens: together('`sampling.max_tokens`', whole(1), { usual: 'seq_len', isNullable: true }),
  extra_body: together('`sampling`, or refused', args()),
};
const source: Fields = {
  ...sourceFields('env[]'),
  ratio: becomes('env[].weight', positive(), { usual: '1', isNullable: true }),
  group_size: together('`rollouts_per_example`, or of this environment', whole(1)),
  ...under('sampling', sampling),
  algo: together('refused unless it is grpo', args(), { isNullable: true }),
  advantage: together('refused unless it is the default', args(), { isNullable: true }),
  'curriculum.sampler.type': together('pools or none', choice('standard', 'difficulty_pool')),
  'curriculum.sampler.seed': ignored('examples are drawn from the run’s one seed', whole(0)),
  'curriculum.sampler.pools': together('`env[].buffer`', args()),
  'curriculum.gates': together('none is needed to drop groups without advantage; others are refused', args()),
};
const trainSampling: Fields = {
  ...sampling,
  'temp_scheduler.type': becomes('sampling.temp_scheduler.type', choice('linear', 'cosine')),
  'temp_scheduler.start_temperature': becomes('sampling.temp_scheduler.start_temperature', atLeastZero()),
  'temp_scheduler.end_temperature': becomes('sampling.temp_scheduler.end_temperature', atLeastZero()),
  'temp_scheduler.total_steps': becomes('sampling.temp_scheduler.total_steps', whole(1), { isNullable: true }),
  repetition_penalty: becomes('sampling.repetition_penalty', atLeastZero(), { usual: '1' }),
  min_tokens: becomes('sampling.min_tokens', whole(0), { usual: '0' }),
  seed: becomes('sampling.seed', whole(0), { isNullable: true }),
};

const evalSampling = (table: string): Fields =>
  nullable({
    temperature: becomes(`${table}.temperature`, temperature()),
    top_p: becomes(`${table}.top_p`, fraction()),
    top_k: becomes(`${table}.top_k`, z.int().min(-1).meta({ expected: 'an integer ≥ 1, or -1' })),
    min_p: becomes(`${table}.min_p`, fraction()),
    max_completion_tokens: becomes(`${table}.max_tokens`, whole(1)),
    reasoning_effort: becomes(`${table}.reasoning_effort`, choice('minimal', 'low', 'medium', 'high')),
    repetition_penalty: becomes(`${table}.repetition_penalty`, atLeastZero()),
    min_tokens: becomes(`${table}.min_tokens`, whole(0)),
    seed: ignored('what is drawn is drawn from the run’s one seed', whole(0)),
    extra_body: together(`\`${table}\`, or refused`, args()),
  });
const evaluation: Fields = {
  ...under('source[]', {
    ...sourceFields('eval.env[]'),
    ratio: ignored('every evaluation is of all its environments', positive(), { isNullable: true }),
    num_examples: becomes('eval.env[].num_examples', countOrAll('examples'), { isNullable: true }),
    group_size: becomes('eval.env[].rollouts_per_example', whole(1), { isNullable: true }),
    interval: becomes('eval.env[].interval', whole(1)),
    skip_first: becomes('eval.env[].skip_first', whole(0)),
  }),
  ...under('source[].sampling', evalSampling('eval.env[].sampling')),
  ...under('sampling', evalSampling('eval.sampling')),
  num_examples: becomes('eval.num_examples', countOrAll('examples'), { usual: '-1' }),
  group_size: becomes('eval.rollouts_per_example', whole(1), { usual: '1' }),
  interval: becomes('eval.interval', whole(1), { usual: '100' }),
  skip_first_step: becomes('eval.skip_first_step', flag(), { usual: 'false' }),
  eval_base_model: becomes('eval.eval_base_model', flag()),
  retrigger_on_resume: ignored('a run that goes on has made the evaluations it had made', flag()),
  skip_eval_on_resume: ignored('a run that goes on has made the evaluations it had made', flag()),
  cancel_inflight_rollouts_on_eval: ignored('evaluations run beside the training', flag()),
  max_retries: ignored(why.retry, whole(0)),
  num_workers: processes(z.union([whole(1), choice('auto')]).meta({ expected: 'an integer ≥ 1, or "auto"' })),
};

const client: Fields = {
  timeout: becomes('inference.timeout', whole(1)),
  connect_timeout: becomes('inference.client.connect_timeout', positive()),
  wait_for_ready_timeout: processes(whole(1)),
  base_url: serverBaseUrls,
  admin_base_url: becomes('inference.client.admin_base_url', texts(), { isNullable: true }),
  router_url: becomes('inference.client.router_url', text(), { isNullable: true }),
  api_key_var: becomes('inference.api_key_var', variableName()),
  headers: becomes('inference.headers', headerTable()),
  headers_from_env: becomes('inference.headers_from_env', headersFromEnv()),
  extra_headers_from_state: becomes('inference.client.extra_headers_from_state', variables()),
  skip_model_check: ignored('it is about how prime-rl starts', flag()),
  dp_rank_count: processes(whole(1)),
  elastic: becomes('inference.client.elastic', args(), { isNullable: true }),
};

const filters = () =>
  z
    .array(z.looseObject({ type: choice('gibberish', 'repetition', 'zero_advantage'), enforce: flag().optional() }))
    .meta({ expected: 'a list of tables, each with type = "gibberish", "repetition" or "zero_advantage"' });

export const orchestrator: Fields = {
  algo: together('`loss` and `teacher`; others than grpo, opd and sft are refused', args(), {
    usual: '{ type = "grpo" }',
  }),
  'model.name': together('`model`', text()),
  'model.trust_remote_code': becomes('trainer.trust_remote_code', flag()),
  'model.vlm': vlm,
  'model.lora.name': ignored('adapters are served under the name of the policy', text(), { isNullable: true }),
  'model.lora.rank': together('as trainer.model.lora.rank, or refused', whole(1), { isNullable: true }),
  'model.lora.alpha': together('as trainer.model.lora.alpha, or refused', atLeastZero(), { isNullable: true }),
  ...under('model.client', client),
  ...under('train.source[]', source),
  ...under('train.sampling', trainSampling),
  'train.filter_zero_advantages': ignored('groups without any advantage are never trained on', flag()),
  'train.max_retries': ignored(why.retry, whole(0)),
  'train.num_workers': processes(z.union([whole(1), choice('auto')]).meta({ expected: 'an integer ≥ 1, or "auto"' })),
  ...tokenizer,
  renderer: ignored('messages are written out with the model’s chat template', args()),
  ...under('eval', evaluation),
  ...log,
  env_vars: envVars,
  ...monitors,
  collect_inference_metrics: ignored(why.monitor, flag()),
  inference_metrics_roles: ignored(why.monitor, texts(), { isNullable: true }),
  ...checkpoints,
  'ckpt.skip_buffer': ignored(why.checkpoints, flag()),
  ...broadcast,
  ...transport,
  output_dir: ignored('the run has one store: output_dir at the top', text()),
  tasks_per_minute: becomes('tasks_per_minute', whole(1), { isNullable: true }),
  env_server_base_port: processes(port()),
  batch_size: together('`batch_size`', whole(1), { usual: '128', isNullable: true }),
  token_batch_size: together('refused: a batch is so many rollouts', whole(1), { isNullable: true }),
  'concurrency.initial_inflight': processes(whole(1)),
  'concurrency.min_inflight': processes(whole(1)),
  'concurrency.max_inflight': converted(
    'max_concurrent',
    z.union([whole(1), z.literal('None')]).meta({ expected: 'an integer ≥ 1, or "None"' }),
    (most) => (most === 'None' ? undefined : most),
    { usual: '1024' },
  ),
  oversampling_factor: becomes('oversampling_factor', anyNumber(), { isNullable: true }),
  pool_size: processes(whole(1)),
  group_size: together('`rollouts_per_example`', whole(1), { usual: '1' }),
  seq_len: together('`seq_len`', whole(1), { usual: '2048' }),
  num_train_workers: processes(whole(1)),
  pad_to_multiple_of: speed(whole(1)),
  max_steps: together('`max_steps`', whole(1), { isNullable: true }),
  max_off_policy_steps: becomes('max_off_policy_steps', whole(0), { usual: '8' }),
  max_async_level: together('`max_async_level`, at most 1', whole(0)),
  strict_async_level: ignored('rollouts are as far ahead as they get, never further', flag()),
  'heartbeat.url': ignored(why.heartbeat, text()),
  // Until v0.8.
  'optim.lr': ignored('it is of several runs in one trainer; the learning rate is trainer.optim.lr', atLeastZero()),
  ...under('buffer', buffer),
  'advantage.type': together('refused unless "default"', choice('default', 'custom')),
  'advantage.import_path': python('an advantage', 'trainer.advantage'),
  'advantage.kwargs': python('an advantage', 'trainer.advantage'),
  'advantage.length_weighted_mean': gone(flag()),
  'advantage.length_weighted_baseline': gone(flag()),
  'advantage.length_shaping_alpha': { ...refused('advantages that count lengths'), isNullable: true },
  'advantage.length_penalty': { ...refused('advantages that count lengths'), isNullable: true },
  // v0.5: what it flagged lost its loss and filled the batch all the same.
  filters: becomes('post_batch_filters', filters()),
  pre_batch_filters: becomes('pre_batch_filters', filters()),
  post_batch_filters: becomes('post_batch_filters', filters()),
  training_mode: together('`loss`', choice('rl', 'opd', 'sft')),
  teacher: teacherField,
  teacher_model: teacherField,
  teacher_rollout_model: teacherField,
  use_sft_loss: together('`loss` = "sft"', flag()),
  use_token_client: ignored('the policy server answers with tokens', flag()),
  env_install_prerelease: ignored('`ratchet env install` installs environments', flag()),
  'verification.enabled': together('refused where it is off', flag()),
  'val.num_examples': becomes('val.num_examples', whole(1), { usual: '16' }),
  'val.rollouts_per_example': becomes('val.rollouts_per_example', whole(1), { usual: '1' }),
  'val.interval': becomes('val.interval', whole(1), { usual: '10' }),
  max_concurrent: becomes('max_concurrent', whole(1), { isNullable: true }),
  workers_per_env: processes(whole(1)),
  max_env_worker_restarts: processes(z.int().min(-1).meta({ expected: 'an integer ≥ 0, or -1' })),
  mask_env_responses: together('refused where it is off', flag()),
  reload_weights_on_start: ignored(why.broadcast, flag()),
  trajectory_strategy: becomes('trajectory_strategy', choice('interleaved', 'branching'), { usual: 'interleaved' }),
  seed: becomes('seed', whole(0), { usual: '42', isNullable: true }),
  bench: gone(flag()),
};
