import { z } from 'zod';
import { anyNumber, atLeastZero, choice, flag, fraction, whole } from '../toml/values.ts';
import type { RatchetConfig } from './index.ts';
import { learnsFromRewards } from './learning.ts';
import { inSpec, listOf, meaning, optionalTable, required, setting, specFields, type WrittenIn } from './setting.ts';

/** Selects the groups and rollouts to train on. */

const starvation = {
  on_starvation: setting(
    choice('pause', 'widen'),
    'when rounds keep too little: pause and say why, or after four of them keep every group whose rewards differ, and train on an eighth of a batch or more',
    { default: 'pause' },
  ),
};
export const difficultyFilter = optionalTable({
  enabled: setting(flag(), 'whether the bounds below apply', { default: true }),
  min_reward_variance: setting(atLeastZero(), 'population variance of a group’s rewards'),
  min_reward: setting(anyNumber(), 'a group’s mean reward, below which it is too hard'),
  max_reward: setting(anyNumber(), 'above which it is too easy'),
  keep_equal: setting(
    flag(),
    'whether groups whose rewards are all equal have their place in a batch, though they have no advantage; else others take it. A batch of nothing else is collected again',
    { default: false },
  ),
  ...starvation,
});

/** A group is kept when its population variance of rewards is ≥ minRewardVariance and minReward ≤ mean ≤ maxReward. */
export const DifficultyFilterSpec = z.strictObject({
  minRewardVariance: z.number().min(0),
  minReward: z.number(),
  maxReward: z.number(),
  /**
   * Drops groups whose rollouts are all right or all wrong (mean reward 1 or 0), like prime-rl's switch of that name.
   */
  onlineDifficultyFiltering: z.boolean(),
  /** Keeps groups with equal rewards: by the config, or because the objective needs no advantages. */
  keepsEqual: z.boolean().default(false),
  ...specFields(starvation),
});
export type DifficultyFilterSpec = z.infer<typeof DifficultyFilterSpec>;

export function filterSpec(config: RatchetConfig): DifficultyFilterSpec {
  const { difficulty_filter: written, buffer } = config;
  const bounds = written?.enabled === true ? written : undefined;
  const leaveEarly = rolloutFilterSpecs(config).pre.some(({ type, enforce }) => type === 'zero_advantage' && enforce);
  return {
    minRewardVariance: bounds?.min_reward_variance ?? 0,
    // Bounds that keep every group: JSON has no infinity.
    minReward: bounds?.min_reward ?? -Number.MAX_VALUE,
    maxReward: bounds?.max_reward ?? Number.MAX_VALUE,
    onlineDifficultyFiltering: buffer.online_difficulty_filtering,
    keepsEqual: !learnsFromRewards(config) || ((written?.keep_equal === true || countsLengths(config)) && !leaveEarly),
    onStarvation: written?.on_starvation ?? 'pause',
  };
}

/** Penalties for length turn equal rewards into unequal advantages. */
function countsLengths({ trainer }: RatchetConfig): boolean {
  return trainer.length_penalty !== undefined || trainer.overlong_penalty !== undefined;
}

/** Fields that only filters of one type have, with prime-rl's defaults (v0.5 to v0.7). */
const fieldsOf = {
  gibberish: {
    token_id_threshold: setting(whole(0), 'of gibberish: a token with a higher id (100000 when missing) …', {
      neutral: 100_000,
    }),
    logprob_offset: setting(atLeastZero(), '… and a log probability below −ln(vocabulary) less this (2 when missing)', {
      neutral: 2,
    }),
  },
  repetition: {
    window: setting(whole(1), 'of repetition: so many sampled tokens in a row (3000 when missing) …', {
      neutral: 3_000,
    }),
    prob_threshold: setting(fraction(), '… each with a higher probability than this (0.99 when missing)', {
      neutral: 0.99,
    }),
  },
  zero_advantage: {},
  low_reward: {
    min_reward: setting(anyNumber(), 'of low_reward: rollouts with less are flagged', { neutral: 0 }),
  },
};
export const fieldsOfFilter: Readonly<Record<keyof typeof fieldsOf, readonly string[]>> = {
  gibberish: Object.keys(fieldsOf.gibberish),
  repetition: Object.keys(fieldsOf.repetition),
  zero_advantage: [],
  low_reward: Object.keys(fieldsOf.low_reward),
};

const filter = {
  type: required(
    choice('gibberish', 'repetition', 'zero_advantage', 'low_reward'),
    'rare tokens, a text that repeats itself, a rollout without an advantage, or one with a low reward',
  ),
  enforce: setting(
    flag(),
    'whether flagged rollouts lose their loss; else they are only counted. By default true for `zero_advantage` and `low_reward`. A group without a rollout left is replaced by another one',
  ),
  ...fieldsOf.gibberish,
  ...fieldsOf.repetition,
  ...fieldsOf.low_reward,
};
const filters = (entries: typeof filter) =>
  listOf(entries, (items) =>
    items
      .meta({
        expected: 'a list of tables, each with type = "gibberish", "repetition", "zero_advantage" or "low_reward"',
      })
      .default([]),
  );
export const preBatchFilters = filters(filter);
export const postBatchFilters = filters(
  meaning(filter, (key) =>
    key === 'type'
      ? 'the same, for a full batch: flagged rollouts have no loss with `enforce`, and are not replaced'
      : 'the same',
  ),
);

/**
 * A filter of single rollouts, in prime-rl's words. `enforce` removes flagged rollouts from the loss; without it they are
 * only counted.
 *
 *     gibberish       a token with an id > tokenIdThreshold and a logprob < −ln(vocabulary) − logprobOffset
 *     repetition      `window` sampled tokens in a row with a probability > probThreshold
 *     zero_advantage  an advantage of exactly 0
 *     low_reward      a reward < minReward (ours)
 */
const enforce = z.boolean();
export const RolloutFilterSpec = z.discriminatedUnion('type', [
  z.strictObject({ type: z.literal('gibberish'), enforce, ...specFields(fieldsOf.gibberish) }),
  z.strictObject({ type: z.literal('repetition'), enforce, ...specFields(fieldsOf.repetition) }),
  z.strictObject({ type: z.literal('zero_advantage'), enforce }),
  z.strictObject({ type: z.literal('low_reward'), enforce, ...specFields(fieldsOf.low_reward) }),
]);
export type RolloutFilterSpec = z.infer<typeof RolloutFilterSpec>;

/** In each slot the first filter that matches flags a rollout. */
export const RolloutFiltersSpec = z.strictObject({
  /** Applied before a batch is filled: a group without remaining rollouts is dropped and replaced. */
  pre: z.array(RolloutFilterSpec).default([]),
  /** Applied once the batch is full: the remaining rollouts are trained on. */
  post: z.array(RolloutFilterSpec).default([]),
});

export function rolloutFilterSpecs(config: RatchetConfig): z.infer<typeof RolloutFiltersSpec> {
  // If advantages are unused, one of 0 means nothing for a rollout.
  const isUsed = ({ type }: RolloutFilterSpec) => type !== 'zero_advantage' || learnsFromRewards(config);
  return {
    pre: config.pre_batch_filters.map(rolloutFilterSpec).filter(isUsed),
    post: config.post_batch_filters.map(rolloutFilterSpec).filter(isUsed),
  };
}

/** Filters that look at tokens only count by default, as in prime-rl. */
function rolloutFilterSpec(written: WrittenIn<typeof filter>): RolloutFilterSpec {
  const { type, enforce = type === 'zero_advantage' || type === 'low_reward' } = written;
  switch (type) {
    case 'gibberish':
      return { type, enforce, ...inSpec(fieldsOf.gibberish, written) };
    case 'repetition':
      return { type, enforce, ...inSpec(fieldsOf.repetition, written) };
    case 'zero_advantage':
      return { type, enforce };
    case 'low_reward':
      return { type, enforce, ...inSpec(fieldsOf.low_reward, written) };
    default:
      return type satisfies never;
  }
}
