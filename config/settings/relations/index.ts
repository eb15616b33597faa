import type { RatchetConfig } from '../index.ts';
import { writtenPools } from '../environments.ts';
import { evalSampling } from '../evaluation.ts';
import { isByRole, kindOfEnvironment } from '../learning.ts';
import { agentRelations } from './agents.ts';
import { boundRelations, placeRelations } from './bounds.ts';
import { budgetRelations } from './budgets.ts';
import { inferenceRelations } from './inference.ts';
import { dataRelations, preferenceRelations } from './data.ts';
import { kindRelations, kindWarnings } from './kinds.ts';
import { importRelation, lossRelations, optimizerRelations } from './learning.ts';
import { problem, type RelationProblem, type Relations } from './problem.ts';
import { branchRelations } from './prompt-branches.ts';
import { ownSamplingRelations, policyRelations, rolloutRelations, rolloutWarnings } from './rollouts.ts';
import { courseRelations, samplingWarnings } from './sampling.ts';
import { teacherRelations } from './teacher.ts';

/** Relations between settings. Only the first problem of each setting is reported. */
const relations: readonly ((config: RatchetConfig) => Relations)[] = [
  environmentRelations,
  boundRelations,
  placeRelations,
  batchRelations,
  groupRelations,
  filterRelations,
  poolRelations,
  scheduleRelations,
  optimizerRelations,
  lossRelations,
  teacherRelations,
  dataRelations,
  preferenceRelations,
  ({ trainer }) => importRelation('trainer.advantage', trainer.advantage),
  moduleRelations,
  inferenceRelations,
  kindRelations,
  samplingRelations,
  courseRelations,
  ownSamplingRelations,
  policyRelations,
  agentRelations,
  evalRelations,
  branchRelations,
  budgetRelations,
  storeRelations,
  notifyRelations,
  rolloutRelations,
  ({ env }) => duplicateNames(env, 'env'),
  ({ eval: evaluation }) => duplicateNames(evaluation?.env ?? [], 'eval.env'),
];

export function problemsBetween(config: RatchetConfig): RelationProblem[] {
  return relations.flatMap((relation) => [...relation(config)]);
}

function* environmentRelations(config: RatchetConfig): Relations {
  const { env, max_steps, sft, eval: evaluation } = config;
  for (const [i, entry] of env.entries()) {
    const { advantage } = entry;
    if (advantage === undefined || kindOfEnvironment(config, entry) === 'rl') continue;
    const expected = 'nothing: what is learned of a teacher alone has no advantages';
    yield problem([`env.${i}.advantage`, `env.${i}.loss`, 'loss'], expected, JSON.stringify(advantage));
  }
  if (max_steps === 0 && sft === undefined) {
    const expected = 'an integer ≥ 1, or [sft] beside it: without steps only a supervised run trains anything';
    yield problem(['max_steps', 'sft'], expected, 0);
  }
  if (env.length > 0 || config.data !== undefined) return;
  if (max_steps > 0 || sft?.data === undefined)
    yield problem('env', 'at least one environment: a [[env]] with an id', 'nothing');
  else if (evaluation !== undefined && evaluation.env === undefined) {
    const expected = 'at least one [[eval.env]]: without [[env]] there is nothing else to evaluate on';
    yield problem(['eval.env', 'eval'], expected, 'nothing');
  }
}

function* storeRelations({ store }: RatchetConfig): Relations {
  const { uri, endpoint, region, path_style, sse, kms_key_id } = store;
  if (kms_key_id !== undefined && sse !== 'aws:kms') {
    const expected = 'sse = "aws:kms" beside it: no other encryption takes a key of yours';
    yield problem(['store.kms_key_id', 'store.sse'], expected, `sse = "${sse}"`);
    return;
  }
  if (uri.startsWith('s3:')) return;
  const ofS3 = { endpoint, region, path_style, sse: sse === 'none' ? undefined : sse };
  for (const [name, value] of Object.entries(ofS3)) {
    if (value === undefined) continue;
    const expected = 'uri = "s3://BUCKET/PREFIX/" beside it: a folder has no such setting';
    yield problem([`store.${name}`, 'store.uri'], expected, `${name} = ${JSON.stringify(value)}`);
  }
}

function* notifyRelations({ notify }: RatchetConfig): Relations {
  const { webhook, webhook_var, format, secret_var } = notify ?? {};
  if (webhook !== undefined && webhook_var !== undefined) {
    const expected = 'either webhook or webhook_var: notices are sent to one place';
    yield problem(['notify.webhook_var', 'notify.webhook'], expected, 'both');
  }
  if (webhook !== undefined || webhook_var !== undefined) return;
  const ofWebhook = { format, secret_var, private: notify?.private ? true : undefined };
  for (const [name, value] of Object.entries(ofWebhook)) {
    if (value === undefined) continue;
    const expected = 'webhook or webhook_var beside it: nothing is posted without';
    yield problem([`notify.${name}`, 'notify.webhook'], expected, `${name} = ${JSON.stringify(value)}`);
  }
}

function* batchRelations({ batch_size, rollouts_per_example, trainer, env }: RatchetConfig): Relations {
  const { micro_batch_size = 1, gpus } = trainer as { micro_batch_size?: number; gpus?: number };
  const hasOwnSizes = env.some(({ rollouts_per_example: own = rollouts_per_example }) => own !== rollouts_per_example);
  if (batch_size % rollouts_per_example !== 0 && !hasOwnSizes && !isByRole({ trainer })) {
    const below = Math.floor(batch_size / rollouts_per_example) * rollouts_per_example;
    const nearest = [below, below + rollouts_per_example].filter((size) => size > 0).join(' or ');
    const expected = `a multiple of rollouts_per_example (${rollouts_per_example}): a batch is made of whole groups`;
    yield problem(['batch_size', 'rollouts_per_example'], expected, batch_size, `use ${nearest}`);
  } else if (gpus !== undefined && batch_size % (micro_batch_size * gpus) !== 0) {
    const expected = `a multiple of micro_batch_size × the trainer's GPUs (${micro_batch_size} × ${gpus}): each computes whole micro-batches`;
    yield problem(['batch_size', 'trainer.micro_batch_size', 'trainer.gpus'], expected, batch_size);
  }
}

function* groupRelations(config: RatchetConfig): Relations {
  const { min_group_size: least, rollouts_per_example, env } = config;
  const size = Math.min(rollouts_per_example, ...env.flatMap((entry) => entry.rollouts_per_example ?? []));
  for (const [i, entry] of env.entries()) {
    const { rollouts_per_example: own } = entry;
    if (own !== 1 || kindOfEnvironment(config, entry) !== 'rl' || isByRole(config)) continue;
    const expected = 'an integer ≥ 2: what a rollout gets is its reward compared with the others of its group';
    yield problem(`env.${i}.rollouts_per_example`, expected, own);
  }
  if (least === undefined || least <= size) return;
  const expected = `at most the rollouts of a group (${size}): else a group with one failed rollout is always dropped`;
  yield problem(['min_group_size', 'rollouts_per_example'], expected, least, `use ${size} to drop such groups`);
}

function* filterRelations({ difficulty_filter }: RatchetConfig): Relations {
  const { min_reward, max_reward } = difficulty_filter ?? {};
  if (min_reward === undefined || max_reward === undefined || min_reward <= max_reward) return;
  const expected = `at most max_reward (${max_reward}): groups are kept when min_reward ≤ mean reward ≤ max_reward`;
  const at = ['difficulty_filter.min_reward', 'difficulty_filter.max_reward'];
  yield problem(at, expected, min_reward, 'swap the two, or no group is ever kept');
}

/** Checks [buffer] once, and every environment with settings of its own. */
function* poolRelations(config: RatchetConfig): Relations {
  const run = writtenPools(config);
  const places = [
    { path: 'buffer', written: run, own: run },
    ...config.env.flatMap(({ buffer }, i) =>
      buffer === undefined ? [] : [{ path: `env.${i}.buffer`, written: writtenPools(config, buffer), own: buffer }],
    ),
  ];
  for (const { path, written, own } of places) {
    const at = (key: string) => [`${path}.${key}`, `buffer.${key}`];
    const { easy_threshold: easy, hard_threshold: hard } = written;
    if (easy !== undefined && hard !== undefined && easy <= hard) {
      const expected = `a number above hard_threshold (${hard}): means at or above it are easy, those at or below the other hard`;
      yield problem([...at('easy_threshold'), ...at('hard_threshold')], expected, easy);
    }
    for (const pool of ['easy', 'hard'] as const) {
      const fraction = own[`${pool}_fraction`];
      const isOwnThreshold = config.env.some(({ buffer }) => buffer?.[`${pool}_threshold`] !== undefined);
      const isUsed = written[`${pool}_threshold`] !== undefined || (path === 'buffer' && isOwnThreshold);
      if (fraction === undefined || isUsed) continue;
      const expected = `a ${pool}_threshold beside it: without one no example is ever ${pool}`;
      yield problem(at(`${pool}_fraction`), expected, fraction);
    }
  }
}

function* scheduleRelations({ warmup_steps, trainer, sft, max_steps }: RatchetConfig): Relations {
  const { decay_steps, schedule } = trainer;
  const warmup = trainer.warmup_steps ?? warmup_steps ?? 0;
  if (decay_steps !== undefined && schedule !== 'linear') {
    const expected = `nothing, or schedule = "linear": a ${schedule} one has no decay of its own`;
    yield problem(['trainer.decay_steps', 'trainer.schedule'], expected, decay_steps);
  } else if (decay_steps !== undefined && warmup + decay_steps > max_steps) {
    const expected = `at most max_steps less warmup_steps (${max_steps} − ${warmup})`;
    yield problem(['trainer.decay_steps', 'trainer.warmup_steps', 'max_steps'], expected, decay_steps);
  }
  if (sft?.warmup_steps !== undefined && sft.warmup_steps > sft.steps) {
    const expected = `at most [sft] steps (${sft.steps}), or the learning rate is never reached`;
    yield problem(['sft.warmup_steps', 'sft.steps'], expected, sft.warmup_steps);
  }
}

function* moduleRelations(config: RatchetConfig): Relations {
  for (const table of ['trainer', 'inference'] as const) {
    const { kind, import: file, path } = config[table];
    if (file !== undefined && path !== undefined) {
      const expected = `one of them: import is ${JSON.stringify(file)}`;
      yield problem([`${table}.path`, `${table}.import`], expected, JSON.stringify(path));
      continue;
    }
    const key = path === undefined ? 'import' : 'path';
    yield* importRelation(table, { type: kind, import: file ?? path }, { key: 'kind', word: 'module', file: key });
  }
}

function* samplingRelations(config: RatchetConfig): Relations {
  const tables = [
    { path: 'sampling', written: config.sampling },
    ...(config.eval?.sampling ? [{ path: 'eval.sampling', written: evalSampling(config) }] : []),
    ...(config.eval?.env ?? []).flatMap(({ sampling }, i) =>
      sampling ? [{ path: `eval.env.${i}.sampling`, written: evalSampling(config, sampling) }] : [],
    ),
  ];
  for (const { path, written } of tables) {
    const { min_tokens = 0, max_tokens } = written;
    if (min_tokens > max_tokens)
      yield problem([`${path}.min_tokens`, `${path}.max_tokens`], `at most max_tokens (${max_tokens})`, min_tokens);
  }
}

function* evalRelations({ eval: evaluation }: RatchetConfig): Relations {
  const { skip_first_step, eval_base_model } = evaluation ?? {};
  if (skip_first_step === undefined || eval_base_model === undefined || skip_first_step !== eval_base_model) return;
  const expected = `the opposite of eval_base_model (${eval_base_model}), or only one of the two`;
  yield problem(['eval.skip_first_step', 'eval.eval_base_model'], expected, skip_first_step);
}

function* duplicateNames(
  environments: readonly { readonly name?: string | undefined }[],
  table: 'env' | 'eval.env',
): Relations {
  for (const [i, { name }] of environments.entries()) {
    const before = environments.findIndex((other) => other.name === name);
    if (name === undefined || before === i) continue;
    yield problem(`${table}.${i}.name`, `a name of its own; ${table}[${before}] has this one`, JSON.stringify(name));
  }
}

/** Settings that are legal but probably unintended. */
export function warningsOf(config: RatchetConfig): string[] {
  return [...ownWarnings(config), ...rolloutWarnings(config), ...kindWarnings(config), ...samplingWarnings(config)];
}

function* ownWarnings({ checkpoints, kl_penalty, max_steps, trainer, warmup_steps }: RatchetConfig): Iterable<string> {
  const warmup = trainer.warmup_steps ?? warmup_steps ?? 0;
  if (warmup > max_steps)
    yield `warmup_steps (${warmup}) is more than max_steps (${max_steps}): the run ends before its learning rate is reached.`;
  const { interval, keep_interval } = checkpoints;
  if (keep_interval !== undefined && keep_interval % interval !== 0)
    yield `checkpoints.keep_interval (${keep_interval}) is not a multiple of checkpoints.interval (${interval}): only steps that are multiples of both are kept for good.`;
  if (kl_penalty?.enabled === true && kl_penalty.target_kl !== undefined && kl_penalty.beta === 0)
    yield 'kl_penalty.beta is 0 and stays 0 whatever kl_penalty.target_kl says: doubling 0 gives 0.';
}
