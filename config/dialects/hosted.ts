import { isHubId } from '../../core/names.ts';
import { isHostedModel } from '../models/known-models.ts';
import { describe } from '../toml/reporter.ts';
import type { KeyPath } from '../toml/positions.ts';
import { serverUrls } from '../models/model-access.ts';
import { isTable, type Table, valueAt } from '../toml/tables.ts';
import { args, atLeastZero, choice, countOrAll, environmentId, flag, positive, text, whole } from '../toml/values.ts';
import {
  checkTemperatureCourse,
  filesOfVariables,
  filters,
  maskedImportanceSampling,
  prunedBatches,
  sayWholeGroups,
  setEnvFiles,
  setExtraBody,
  setRunName,
  wholeBatches,
  withVersion,
  noValidation,
} from './common-words.ts';
import { setRetries, setTimeouts } from './limit-words.ts';
import { becomes, type Dialect, type Field, ignored, only, type Own, refused, together } from './dialect.ts';
import { all, same } from './ours.ts';
import { placesOf } from './places.ts';
import { defaultTrainer } from './prime-rl/prime-rl-meaning.ts';

/**
 * Hosted Training, by the configs of the prime CLI (its class RLConfig and its members; unknown keys are errors there
 * too). 0.5.61 had a difficulty buffer and trained several steps ahead; 0.6.35 and 0.9.5 have filters of rollouts,
 * verifiers' v1 environments and switches of chat templates in their place. It trains LoRA adapters only.
 */

/** Fields of every version. */
const shared: Readonly<Record<string, Field>> = {
  model: becomes('model', text(), { isRequired: true }),
  name: together('`name`, spelt as a run’s name', text()),
  max_steps: becomes('max_steps', whole(1)),
  ...same('', 'batch_size rollouts_per_example learning_rate'),
  lora_alpha: becomes('lora.alpha'),
  oversampling_factor: together('`oversampling_factor`, at least 1', positive()),
  checkpoint_id: refused('warm start by checkpoint id; fetch its weights into a folder and point `model` at it'),
  cluster_name: ignored('there is no cluster to choose', text()),
  env_file: together('`env_files`, the first of them', filesOfVariables()),
  env_files: together('`env_files`', filesOfVariables()),
  trajectory_strategy: becomes('trajectory_strategy'),
  run_config: refused('settings of the hosted trainer; write what they mean in our words below [ratchet]'),
  'infrastructure.compute_size': ignored('it runs on the machines that its workers run on', text()),
  'env[].id': together('`env[].id`, with its version', environmentId()),
  ...same('env[]', 'name args'),
  'env[].version': together('`env[].id`: `owner/name@version`', text()),
  'sampling.max_tokens': becomes('sampling.max_tokens'),
  'sampling.temperature': becomes('sampling.temperature', atLeastZero()),
  ...same('sampling.temp_scheduler', 'type start_temperature end_temperature total_steps'),
  'sampling.extra_body': together('its known parameters those of `[sampling]`, the rest refused', args()),
  ...same('eval', 'interval num_examples rollouts_per_example eval_base_model'),
  'eval.env[].id': together('`eval.env[].id`, with its version', environmentId()),
  ...same('eval.env[]', 'name args'),
  'eval.env[].version': together('`eval.env[].id`: `owner/name@version`', text()),
  ...same('eval.env[]', 'num_examples rollouts_per_example'),
  'val.num_examples': ignored(noValidation, countOrAll('examples')),
  ...all('val.rollouts_per_example val.interval', ignored(noValidation, whole(1))),
  ...same('wandb', 'entity project name'),
  'checkpoints.interval': becomes('checkpoints.interval'),
  'checkpoints.keep_cloud': becomes('checkpoints.keep_last'),
  'adapters.interval': ignored('adapters are exported with every checkpoint; see [checkpoints]', whole(0)),
  'adapters.keep_last': ignored('adapters are kept with their checkpoints; see [checkpoints]', countOrAll('adapters')),
};

/** Fields of 0.5.61 only. */
const older: Readonly<Record<string, Field>> = {
  max_async_level: becomes('max_async_level', whole(0)),
  ...same('sampling', 'repetition_penalty min_tokens seed'),
  ...same('buffer', 'easy_threshold hard_threshold'),
  'buffer.easy_fraction': together('`buffer.easy_fraction`', atLeastZero()),
  'buffer.hard_fraction': together('`buffer.hard_fraction`', atLeastZero()),
  'buffer.online_difficulty_filtering': becomes('buffer.online_difficulty_filtering'),
  'buffer.env_ratios': together(
    'the `weight` of each [[env]]',
    positive().array().min(1).meta({ expected: 'a list of numbers > 0' }),
  ),
  'buffer.skip_verification': only(false, 'rollouts are always scored, they are trained on by their rewards', flag()),
  'buffer.seed': becomes('seed'),
};

/** Settings of one environment that were added in 0.6.35. */
function ofEnvironment(table: string): Record<string, Field> {
  const processes =
    'RATCHET_PYTHON_CHILDREN says how many processes of a worker play the environments of a Python package';
  return {
    [`${table}.harness`]: becomes(`${table}.agent.harness`, args()),
    [`${table}.pool`]: ignored(processes, args()),
    [`${table}.multiplex`]: ignored(processes, whole(1)),
    [`${table}.timeout`]: together(
      `of a rollout \`${table}.timeout\` with \`on_timeout = "truncate"\`, of an episode \`${table}.timeout\`, of other stages \`${table}.agent.timeout\``,
      args(),
    ),
    [`${table}.retries`]: together(`\`${table}.max_retries\`; rules are refused`, args()),
    [`${table}.max_retries`]: becomes(`${table}.max_retries`, whole(0)),
    ...same(table, 'system_prompt max_turns max_input_tokens max_output_tokens max_total_tokens'),
  };
}
const onlyBefore = 'only Hosted Training before prime 0.6 had it: --dialect hosted-0.5.61';

/** Sampling of one environment, of all evaluations, or of one evaluation's. */
function ownSampling(table: string): Record<string, Field> {
  return {
    ...same(table, 'max_tokens temperature'),
    [`${table}.extra_body`]: together(
      `its known parameters those of \`[${table.replace('[]', '')}]\`, the rest refused`,
      args(),
    ),
    ...same(table, 'enable_thinking reasoning_effort'),
  };
}

const noNetwork = 'workers reach what their machines reach';
/** Fields since 0.6.35. */
const newer: Readonly<Record<string, Field>> = {
  loss: becomes('loss', choice('rl', 'sft', 'opd'), { default: '"rl"' }),
  'teacher.model': becomes('teacher.model'),
  'teacher.client.base_url': together('`teacher.url`; Prime Inference where it is missing', serverUrls()),
  'teacher.client.api_key_var': becomes('teacher.api_key_var'),
  'teacher.client.headers': becomes('teacher.headers'),
  ...ownSampling('teacher.sampling'),
  'teacher.sampling.extra_body': together('refused where there is anything in it', args()),
  max_inflight_rollouts: together('`max_concurrent`', whole(1)),
  pre_batch_filters: becomes('pre_batch_filters', filters(text())),
  post_batch_filters: becomes('post_batch_filters', filters(text())),
  'tailscale.enabled': ignored(noNetwork, flag()),
  ...all('tailscale.auth_key tailscale.hostname_prefix', ignored(noNetwork, text())),
  'env[].taskset': together('`env[].id` and `env[].args`', args()),
  ...ofEnvironment('env[]'),
  ...ownSampling('env[].sampling'),
  'env[].group_size': together('`rollouts_per_example`, or of this environment', whole(2)),
  'env[].ratio': becomes('env[].weight'),
  ...same('sampling', 'enable_thinking reasoning_effort'),
  'eval.skip_first_step': becomes('eval.skip_first_step'),
  ...ownSampling('eval.sampling'),
  'eval.env[].taskset': together('`eval.env[].id` and `eval.env[].args`', args()),
  ...ofEnvironment('eval.env[]'),
  'eval.env[].ratio': ignored('every evaluation is of all its environments', positive()),
  ...ownSampling('eval.env[].sampling'),
  'eval.env[].group_size': becomes('eval.env[].rollouts_per_example'),
  max_async_level: refused(onlyBefore),
  buffer: refused(`${onlyBefore}; later versions ignore it`),
  ...all(
    'sampling.repetition_penalty sampling.min_tokens sampling.seed',
    refused(`${onlyBefore}; here it goes into [sampling.extra_body]`),
  ),
};

const defaults: Table = {
  max_steps: 100,
  batch_size: 128,
  rollouts_per_example: 8,
  learning_rate: 1e-4,
  lora: { r: 16, alpha: 32 },
  sampling: { max_tokens: 2048, temperature: 1 },
  checkpoints: { interval: 100, keep_last: 5 },
  trainer: { ...defaultTrainer, loss: maskedImportanceSampling },
};

const defaultsSince: Table = {
  ...defaults,
  batch_fill: 'once',
  ...prunedBatches,
  trainer: { ...defaultTrainer, loss: { type: 'dppo' } },
};

const before = {
  fields: { ...shared, ...older },
  defaults: { ...defaults, ...wholeBatches },
  together: olderTogether,
};
const since = { fields: { ...shared, ...newer }, defaults: defaultsSince, together: newerTogether };

export const hosted: Dialect = { ...since, name: 'hosted', title: 'Hosted Training (prime 0.9.5)' };
export const hosted0635: Dialect = { ...since, name: 'hosted-0.6.35', title: 'Hosted Training (prime 0.6.35)' };
export const hosted0561: Dialect = { ...before, name: 'hosted-0.5.61', title: 'Hosted Training (prime 0.5.61)' };

function sharedTogether(written: Table, own: Own): void {
  setRunName(own, written['name'], ['name']);
  warnOfModel(written, own);
  setOversampling(written, own);
  setEnvFiles(written, own);
  setExtraBody(own, written, { at: ['sampling'] });
  setEnvironments(written, own, ['env']);
  setEnvironments(written, own, ['eval', 'env']);
  if (isTable(written['eval'])) setEvaluation(written, own);
  checkTemperatureCourse(own, written, ['sampling']);
}

/** A model that the file's own system does not train is trained here like any other, with a warning. */
function warnOfModel({ model }: Table, own: Own): void {
  if (typeof model !== 'string' || isHostedModel(model) || !isHubId(model)) return;
  own.warn(
    `model: ${model} is none of the seven that Hosted Training's documents name (Qwen3 2507 of 4B, 30B and 235B, Instruct and Thinking, and INTELLECT-3)`,
  );
}

function setOversampling(written: Table, own: Own): void {
  const factor = written['oversampling_factor'];
  if (typeof factor !== 'number') return;
  own.set(['oversampling_factor'], Math.max(1, factor), ['oversampling_factor']);
  if (factor < 1) own.warn(`oversampling_factor = ${factor} is 1 here: a batch is sampled whole`);
}

function setEvaluation(written: Table, own: Own): void {
  if (own.get(['eval']) === undefined) own.set(['eval'], {}, ['eval']);
  if (valueAt(written, ['eval', 'env']) === undefined) {
    own.warn('[eval] without [[eval.env]] evaluates on the training environments here; Hosted Training leaves it out');
  }
}

/** Ids with their versions; a v1 environment's taskset is its id and its arguments. */
function setEnvironments(written: Table, own: Own, path: readonly string[]): void {
  const entries = valueAt(written, path);
  if (!Array.isArray(entries)) return;
  for (const [i, entry] of entries.entries()) {
    const { id, version, taskset } = entry as Table;
    const at = [...path, i];
    const { id: task, ...settings } = isTable(taskset) ? taskset : {};
    const named = id ?? task;
    if (typeof named === 'string') {
      own.set([...at, 'id'], withVersion(named, version), id === undefined ? [...at, 'taskset', 'id'] : [...at, 'id']);
    }
    if (!isTable(taskset)) continue;
    if (id !== undefined) {
      own.refuse({
        paths: [
          [...at, 'taskset'],
          [...at, 'id'],
        ],
        expected: 'either an id or a taskset: they name one environment each',
        received: 'both',
      });
    }
    const args = (entry as Table)['args'];
    own.set([...at, 'args'], { ...settings, ...(isTable(args) ? args : {}) }, [...at, 'taskset']);
  }
}

function olderTogether(written: Table, own: Own): void {
  sharedTogether(written, own);
  const at = (key: string) => ['buffer', key];
  for (const key of ['easy_fraction', 'hard_fraction']) {
    const fraction = valueAt(written, at(key));
    if (typeof fraction !== 'number' || fraction === 0) continue;
    own.set(at(key), fraction, at(key));
    own.warn(
      `buffer.${key}: here such examples are drawn ${fraction} times as often; there so many return on a resume`,
    );
  }
  setRatios(written, own);
}

function setRatios(written: Table, own: Own): void {
  const ratios = valueAt(written, ['buffer', 'env_ratios']);
  const environments = written['env'];
  if (!Array.isArray(ratios) || !Array.isArray(environments)) return;
  if (ratios.length !== environments.length) {
    own.refuse({
      paths: [['buffer', 'env_ratios'], ['env']],
      expected: `a number for each [[env]], of which there are ${environments.length}`,
      received: `a list of ${ratios.length}`,
    });
    return;
  }
  for (const [i, ratio] of ratios.entries()) own.set(['env', i, 'weight'], ratio, ['buffer', 'env_ratios', i]);
}

function newerTogether(written: Table, own: Own): void {
  sharedTogether(written, own);
  const laidOver = [
    ['eval', 'sampling'],
    ...placesOf('eval.env[].sampling', written),
    ...placesOf('env[].sampling', written),
  ];
  setGroupSizes(written, own);
  for (const path of [['env'], ['eval', 'env']]) setLimits(written, own, path);
  for (const at of laidOver) setExtraBody(own, written, { at });
  setTeacher(written, own);
  for (const path of [['sampling'], ...laidOver]) onlyOneSwitch(written, own, path);
  setInflight(written, own);
  if ((written['loss'] ?? 'rl') !== 'rl') return;
  own.warn(
    'the loss leaves out tokens whose probability moved by more than 0.2 in the direction of their advantage (dppo), which was prime-rl’s default then; Hosted Training of this version does not say by how much',
  );
}

/** The default server is Prime Inference. The loss of distillation is Hosted Training's own. */
function setTeacher(written: Table, own: Own): void {
  if ((written['loss'] ?? 'rl') !== 'rl') own.set(['trainer', 'loss', 'type'], undefined);
  const teacher = written['teacher'];
  if (!isTable(teacher)) return;
  const extra = valueAt(teacher, ['sampling', 'extra_body']);
  if (isTable(extra) && Object.keys(extra).length > 0) {
    const expected = 'nothing: further fields of a teacher’s requests are not sent';
    own.refuse({ paths: [['teacher', 'sampling', 'extra_body']], expected, received: describe(extra) });
  }
  const url = valueAt(teacher, ['client', 'base_url']);
  own.set(
    ['teacher', 'url'],
    url ?? primeInference,
    url === undefined ? ['teacher'] : ['teacher', 'client', 'base_url'],
  );
}

const primeInference = 'https://api.pinference.ai/api/v1';

/** A size that all environments state is the run's. */
function setGroupSizes(written: Table, own: Own): void {
  const places = placesOf('env[].group_size', written);
  const [first] = places;
  if (first === undefined) return;
  const environments = valueAt(written, ['env']);
  const isOfAll = Array.isArray(environments) && places.length === environments.length;
  const all = written['rollouts_per_example'];
  const size = all ?? (isOfAll ? valueAt(written, first) : own.get(['rollouts_per_example']));
  if (all === undefined) own.set(['rollouts_per_example'], size, first);
  const others = places.filter((at) => valueAt(written, at) !== size);
  for (const at of others) own.set(['env', at[1]!, 'rollouts_per_example'], valueAt(written, at), at);
  if (others.length > 0) sayWholeGroups(own, others[0]!);
}

/** Timeouts and retries, which are tables in v1. */
function setLimits(written: Table, own: Own, path: readonly string[]): void {
  const entries = valueAt(written, path);
  for (const [i, entry] of (Array.isArray(entries) ? entries : []).entries()) {
    const { timeout, retries } = entry as Table;
    const at = [...path, i];
    if (isTable(timeout)) setTimeouts(own, { table: timeout, from: [...at, 'timeout'], ours: at });
    // verifiers 0.4 ends an agent at its time limit and scores it; earlier versions, as in prime-rl 0.8, and an
    // episode's limit, make it an error.
    const hasAgents = isTable(timeout) && timeout['rollout'] !== undefined;
    if (hasAgents) own.set([...at, 'on_timeout'], 'truncate', [...at, 'timeout', 'rollout']);
    if (isTable(retries)) setRetries(own, { table: retries, from: [...at, 'retries'], ours: at });
  }
}

function onlyOneSwitch(written: Table, own: Own, path: KeyPath): void {
  const both = ['enable_thinking', 'reasoning_effort'].map((key) => [...path, key]);
  if (both.some((at) => valueAt(written, at) === undefined)) return;
  own.refuse({ paths: both, expected: 'only one of enable_thinking and reasoning_effort', received: 'both' });
}

function setInflight(written: Table, own: Own): void {
  const inflight = written['max_inflight_rollouts'];
  if (typeof inflight !== 'number') return;
  const from = ['max_inflight_rollouts'];
  if (written['oversampling_factor'] !== undefined) {
    const expected = 'only one of max_inflight_rollouts and oversampling_factor';
    own.refuse({ paths: [from, ['oversampling_factor']], expected, received: 'both' });
    return;
  }
  own.set(['max_concurrent'], inflight, from);
}
