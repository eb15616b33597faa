import { z } from 'zod';
import {
  batchRolloutsMax,
  groupRolloutsMax,
  heartbeatTimeoutDefaultS,
  rolloutTokensMax,
  stepsMax,
} from '../../core/limits.ts';
import { runNamePattern } from '../../core/names.ts';
import { liveSettings } from '../../core/rl/live-settings.ts';
import { timeoutFates } from '../../core/settings/environments.ts';
import { baseUrl } from '../models/model-access.ts';
import { atLeastZero, choice, flag, fraction, positive, text, whole } from '../toml/values.ts';
import type { RatchetConfig } from './index.ts';
import { type Bound, optionalTable, required, setting, specFields, table } from './setting.ts';

/** Settings of the run as a whole, at the top of a file. Each constant is a part of the spec as well. */

const rolloutsBound: Bound = [
  batchRolloutsMax,
  'all rollouts of a step are planned, kept and packed together',
  'a smaller batch and more steps (max_steps)',
];
export const tokensBound: Bound = [
  rolloutTokensMax,
  'no model takes a longer text',
  'as many tokens as the model takes',
];
export const serversBound: Bound = [batchRolloutsMax, 'no batch is larger', 'as many as the servers take at once'];

const runName = () =>
  z
    .string()
    .regex(runNamePattern)
    .meta({ expected: 'up to 64 of a-z, 0-9, dot, dash and underscore, beginning with a letter or digit' });
export const naming = {
  model: required(
    z.string().regex(/\S/).meta({
      expected:
        'a text: "preset:NAME", "smollm2-135m-instruct", a name on the Hugging Face Hub, or a folder of its files',
    }),
    'what is trained',
  ),
  name: setting(runName(), 'name of the run; else the name of the file, or `--name`'),
};
export const NameSpec = runName();

export const amount = {
  max_steps: setting(whole(0), 'optimizer steps; 0 = supervised only, the run ends after `[sft]`', {
    default: 100,
    most: [stepsMax, 'each step leaves a commit', 'what you mean to train, and continue from there'],
    live: liveSettings.max_steps,
  }),
  batch_size: setting(
    whole(1),
    'rollouts per step, a multiple of `rollouts_per_example`; by the roles of `[trainer.advantage]` rae and hierarchical_grpo so many trained agents',
    {
      default: 128,
      most: rolloutsBound,
    },
  ),
  token_batch_size: setting(
    whole(1),
    'tokens per step: whole groups, oldest first, until their rows (prompts and answers) have so many; `batch_size` is then how many rollouts are sampled before it is known how long they are',
  ),
  rollouts_per_example: setting(whole(1), 'rollouts of one example, the group: they are compared with one another', {
    default: 8,
    most: [groupRolloutsMax, 'a group is played and scored as one', 'more groups: a larger batch_size'],
  }),
  learning_rate: setting(positive(), 'of AdamW, at its highest; can be changed while the run runs (`ratchet set`)', {
    default: 1e-4,
    live: liveSettings.learning_rate,
  }),
};

export const chance = {
  seed: setting(whole(0), 'of everything that is drawn: weights of a preset, examples, tokens', { default: 0 }),
};

export const pace = {
  oversampling_factor: setting(
    z.number().min(1).meta({ expected: 'a number ≥ 1' }),
    'for filters that drop groups. Round by round, groups sampled = groups still needed × this. Continuously, the batch that trains next counts as so many batches in the window',
    { default: 1, most: [100, rolloutsBound[1], 'a difficulty_filter that keeps more'] },
  ),
  batch_fill: setting(
    choice('full', 'half', 'once'),
    'what a step trains on: "full" samples until a batch is whole (after four rounds half of one is enough), "half" trains on half a batch or more, "once" on what one round kept. With `max_async_level` above 0, groups worth a batch are a round',
    { default: 'full' },
  ),
  min_group_size: setting(
    whole(2),
    'rollouts of a group that must have a reward for the others to be trained without the rest; without it half of the group',
    { most: [groupRolloutsMax, 'no group is larger', 'rollouts_per_example at most'] },
  ),
  max_concurrent: setting(
    whole(1),
    'training rollouts that are played at once, over all rollout workers; shared among environments by weight',
    { most: [batchRolloutsMax, rolloutsBound[1], serversBound[2]] },
  ),
  tasks_per_minute: setting(
    whole(1),
    'examples of training that may be begun in a minute; shared among environments by weight and among the chunks of a round',
  ),
};

export const staleness = {
  max_async_level: setting(
    whole(0, 64),
    'how many steps sampling may be ahead of training. 0: strictly one after the other, and the same bits whatever was killed. 1: groups of step n+1 are sampled while step n trains. Above 0 a step trains on the groups that are ready, and waits for slow ones only where too many would be left out',
    { default: 1 },
  ),
  inflight_updates: setting(
    choice('token', 'turn', 'never'),
    'when rollouts in play take later weights, with `max_async_level` above 0. "turn": before each turn. "token": a vLLM with full weights changes them within a turn; elsewhere as "turn". "never": a rollout has the weights it began with',
    { default: 'token' },
  ),
  max_off_policy_steps: setting(
    whole(0),
    'a group whose oldest token is more than this many versions old is dropped as stale; sampling is no further ahead than this, whatever `max_async_level`. Steps wait until no more than 2 % of groups end so: a higher bound lets them be shorter',
    {
      default: 8,
      most: [stepsMax, 'there are no more steps', 'a few steps'],
    },
  ),
  max_mismatch_kl: setting(
    positive(),
    'nats per token that samples may be from the policy that trains on them. Where they are further, sampling is fewer steps ahead, half a batch at least (`max_async_level` above 1). Any when missing; can be changed while the run runs (`ratchet set`)',
    { live: liveSettings.max_mismatch_kl },
  ),
};

/** Fates of a rollout that is not finished in time: verifiers' older API truncates it, prime-rl's dispatcher drops it. */

/** Temporal's limit for an activity is two hours, minus time for storing. */
const generationTimeoutMaxS = 6000;
export const patience = {
  generation_timeout: setting(
    whole(1, generationTimeoutMaxS),
    'seconds of work on a round. An unfinished rollout is leased again, twice, before it has timed out (`on_timeout`). Also the limit of a reward function',
    { default: 600, as: 'generationTimeoutS' },
  ),
  on_timeout: setting(
    choice(...timeoutFates),
    'what becomes of a rollout that is not finished in time, at its `[[env]] timeout` or at the end of `generation_timeout`. "drop": it has no reward, and its group goes on without it. "truncate": its finished turns are scored and trained as a truncated rollout’s; without one it is scored with an empty answer. Both are counted (`timed_out`)',
    { default: 'drop' },
  ),
  heartbeat_timeout: setting(whole(2, 600), 'seconds of silence after which a worker is taken to be dead', {
    default: heartbeatTimeoutDefaultS,
    as: 'heartbeatTimeoutS',
  }),
};

/** Selects the tokens of a rollout to train on, and their rows. */
export const rows = {
  trajectory_strategy: setting(
    choice('interleaved', 'branching'),
    'how turns become rows: `interleaved` joins turns that extend each other’s tokens exactly, `branching` gives each turn a row; the same tokens are trained',
    { default: 'interleaved' },
  ),
  mask_truncated_completions: setting(
    flag(),
    'whether rollouts that were cut (a turn at its limit, a row at `seq_len`) carry no loss; they count in their group’s mean',
    { default: false, as: 'maskTruncated' },
  ),
  zero_truncated_completions: setting(flag(), 'whether rollouts that were cut have the reward 0', {
    default: false,
    as: 'zeroTruncated',
  }),
  seq_len: setting(
    whole(1),
    'tokens of the longest row that is trained; any when missing. With kind "prime-rl" those of a micro-batch, and needed',
    { most: tokensBound },
  ),
  token_scores: setting(
    flag(),
    'whether what the trainer computes of each token that counts, its log probability and the entropy there, is kept for the page: 8 bytes a token, and of two million tokens a step at most',
    { default: true },
  ),
  overlong_rows: setting(
    choice('truncate', 'mask', 'drop'),
    'how a longer row is trained, which is counted: its first tokens, or none of its rollout (`mask`), or none of the row (`drop`)',
    { default: 'truncate' },
  ),
};

export const prompts = {
  max_prompt_len: setting(
    whole(1),
    'tokens of the longest first prompt. The group of a longer one is dropped as `overlong_prompt`, which the breaker does not count. (verifiers’ trainer leaves such examples out.)',
    { as: 'maxPromptTokens', most: tokensBound },
  ),
};

export const tokenizer = table({
  chat_template: setting(
    text(),
    'a Jinja chat template in place of the model’s own: its text, or a file (from the config’s folder if it begins with a dot). For prompts, training and supervised rows alike; stored with the run and its weights',
  ),
});

/**
 * A chat template that replaces the model's own: the SHA-256 of its text, which is stored with the run and its weights.
 */
export const ChatTemplateSpec = z.strictObject({
  /** Absolute path of the file that was read; null = the text was in the config. Until the file is read, its path as written. */
  path: z.string().min(1).nullable(),
  /** Hex, of the text; null until it was read. */
  sha256: z.string().nullable(),
});
export type ChatTemplateSpec = z.infer<typeof ChatTemplateSpec>;

/** Conditions to pause the run instead of training on the remains of infrastructure failures. */
export const breaker = {
  max_failed_share: setting(
    fraction(),
    'share of a step’s rollouts that infrastructure may fail before the run pauses; those that were not finished in time are none of it',
    { default: 0.5 },
  ),
  max_failed_groups: setting(whole(1), 'groups in a row that may be lost to it, or to timeouts', { default: 10 }),
};
export const BreakerSpec = z.strictObject(specFields(breaker));
export type BreakerSpec = z.infer<typeof BreakerSpec>;

/** Weights & Biases receives the run's metrics. The key is in the environment of the metrics process, never here. */
export const wandb = {
  project: setting(text(), '`ratchet` when missing'),
  name: setting(text(), 'the run’s name when missing'),
  entity: setting(text(), 'whose project; the key’s own when missing'),
  group: setting(text(), 'of W&B'),
  tags: setting(z.array(text()).meta({ expected: 'a list of texts' }), 'of W&B', { neutral: [] }),
  mode: setting(choice('online', 'offline', 'disabled'), 'online where there is a key, else offline'),
};
export const WandbSpec = z.strictObject(specFields(wandb));
export type WandbSpec = z.infer<typeof WandbSpec>;

/**
 * MLflow receives the run's metrics. Its credentials are in the environment of the metrics process
 * (`MLFLOW_TRACKING_TOKEN`, or `MLFLOW_TRACKING_USERNAME` and `MLFLOW_TRACKING_PASSWORD`), never here.
 */
export const mlflow = {
  tracking_uri: setting(baseUrl('http://127.0.0.1:5000'), 'of the tracking server; `MLFLOW_TRACKING_URI` when missing'),
  experiment: setting(text(), '`ratchet` when missing; made where there is none; also `MLFLOW_EXPERIMENT_NAME`'),
  run_name: setting(text(), 'the run’s name when missing'),
};
export const MlflowSpec = z.strictObject(specFields(mlflow));
export type MlflowSpec = z.infer<typeof MlflowSpec>;

/** OpenTelemetry's variables in the environment of the metrics process name the receiver; a run does not. */
export const opentelemetry = {
  rollouts: setting(
    fraction(),
    'share of the rollouts that are spans of their own, the same ones when they are sent again; less for large runs, 0 = none',
    { default: 1 },
  ),
};
export const OpenTelemetrySpec = z.strictObject(specFields(opentelemetry));
export type OpenTelemetrySpec = z.infer<typeof OpenTelemetrySpec>;

export { budgetSpec, pricedModelsSpec } from './budgets.ts';
export { BudgetSpec } from './budgets.ts';
export { QueueSpec, queueSpec } from './queue.ts';
export { RetentionSpec, retentionSpec } from './checkpoints.ts';
export { cost, costTable, CostSpec } from './cost.ts';
export { notify, NotifySpec } from './notify.ts';

export const klPenalty = optionalTable({
  enabled: setting(flag(), '`false` measures the divergence only', { default: true }),
  target_kl: setting(positive(), 'beta is doubled or halved when the divergence leaves [target/1.5, 1.5·target]'),
  beta: setting(atLeastZero(), 'coefficient of the divergence in the loss', { default: 0.1 }),
  ref_sync_steps: setting(whole(1), 'steps between renewals of the reference policy; else it stays v0'),
});

export const KlSpec = z.strictObject({
  /** Coefficient of the k3 estimate in the loss; 0 = reported only. */
  beta: z.number().min(0),
  /** When set, beta is doubled or halved as the step's KL leaves [target/1.5, 1.5·target]. */
  targetKl: z.number().positive().nullable(),
  /** Steps between renewals of the reference policy; null = it stays v0. */
  refSyncSteps: z.int().positive().nullable(),
});
export type KlSpec = z.infer<typeof KlSpec>;

/** Disabled means reported only: the divergence is measured either way. */
export function klSpec({ kl_penalty: written }: RatchetConfig): KlSpec {
  const { enabled = false, beta = 0, target_kl = null, ref_sync_steps = null } = written ?? {};
  return { beta: enabled ? beta : 0, targetKl: enabled ? target_kl : null, refSyncSteps: ref_sync_steps };
}

export const store = table({
  uri: setting(
    z
      .string()
      .regex(/^(?:file:.|s3:\/\/[a-z0-9][a-z0-9.-]{1,61}[a-z0-9](?:\/[^?#]*)?$)/)
      .meta({ expected: '"file:FOLDER" such as "file:outputs", or "s3://BUCKET/PREFIX/"' }),
    'below which the run’s folder is',
    { default: 'file:outputs' },
  ),
  endpoint: setting(
    z.url({ protocol: /^https?$/ }).meta({ expected: 'a URL such as "https://s3.example.com"' }),
    'of S3, unless it is AWS',
  ),
  region: setting(text(), 'of S3'),
  path_style: setting(flag(), '`endpoint/bucket/key`; true where there is an endpoint'),
  sse: setting(choice('none', 'AES256', 'aws:kms'), 'how the server encrypts what it stores', { default: 'none' }),
  kms_key_id: setting(text(), 'a key of yours, with "aws:kms"'),
});

/**
 * The address of a store includes how its S3 server is reached; a server with an endpoint of its own mostly has no name
 * per bucket.
 */
export function storeUri({ store }: RatchetConfig): string {
  const { uri, endpoint, region, path_style, sse, kms_key_id } = store;
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
