import { batchRolloutsMax, groupRolloutsMax, rolloutTokensMax, stepsMax } from '../../core/limits.ts';
import type { RatchetConfig } from './ratchet.ts';
import type { RelationProblem } from './ratchet-relations.ts';

/** The most that a number may be, what it would otherwise take, and what to write. */
interface Bound {
  /** A star stands for each of a list. */
  readonly path: readonly string[];
  readonly max: number;
  readonly because: string;
  readonly instead: string;
}

const rollouts = 'all rollouts of a step are planned, kept and packed together';
const fewer = 'a smaller batch and more steps (max_steps)';
const tokens = 'no model takes a longer text';
const asMany = 'as many tokens as the model takes';

const bounds: readonly Bound[] = [
  { path: ['batch_size'], max: batchRolloutsMax, because: rollouts, instead: fewer },
  {
    path: ['rollouts_per_example'],
    max: groupRolloutsMax,
    because: 'a group is played and scored as one',
    instead: 'more groups: a larger batch_size',
  },
  { path: ['oversampling_factor'], max: 100, because: rollouts, instead: 'a difficulty_filter that keeps more' },
  {
    path: ['max_steps'],
    max: stepsMax,
    because: 'each step leaves a commit',
    instead: 'what you mean to train, and go on from there',
  },
  { path: ['max_off_policy_steps'], max: stepsMax, because: 'there are no more steps', instead: 'a few steps' },
  {
    path: ['max_concurrent'],
    max: batchRolloutsMax,
    because: rollouts,
    instead: 'as many as the servers take at once',
  },
  { path: ['seq_len'], max: rolloutTokensMax, because: tokens, instead: asMany },
  { path: ['max_prompt_len'], max: rolloutTokensMax, because: tokens, instead: asMany },
  { path: ['sampling', 'max_tokens'], max: rolloutTokensMax, because: tokens, instead: asMany },
  { path: ['eval', 'sampling', 'max_tokens'], max: rolloutTokensMax, because: tokens, instead: asMany },
  {
    path: ['eval', 'rollouts_per_example'],
    max: groupRolloutsMax,
    because: 'they are played and scored together',
    instead: 'fewer; more examples say more',
  },
  { path: ['env', '*', 'sampling', 'max_tokens'], max: rolloutTokensMax, because: tokens, instead: asMany },
  {
    path: ['env', '*', 'max_turns'],
    max: 1_000_000,
    because: 'each turn is kept with its rollout',
    instead: 'fewer turns',
  },
  {
    path: ['eval', 'env', '*', 'max_turns'],
    max: 1_000_000,
    because: 'each turn is kept with its rollout',
    instead: 'fewer turns',
  },
  {
    path: ['eval', 'env', '*', 'rollouts_per_example'],
    max: groupRolloutsMax,
    because: 'they are played and scored together',
    instead: 'fewer; more examples say more',
  },
  { path: ['eval', 'env', '*', 'sampling', 'max_tokens'], max: rolloutTokensMax, because: tokens, instead: asMany },
  { path: ['lora', 'r'], max: 65_536, because: 'no layer is wider', instead: '8 to 64, as usual' },
  {
    path: ['trainer', 'num_iterations'],
    max: 1_000,
    because: 'each is a pass over the batch',
    instead: 'more steps (max_steps)',
  },
  {
    path: ['trainer', 'micro_batch_size'],
    max: batchRolloutsMax,
    because: 'no batch is larger',
    instead: 'as many rows as fit into memory',
  },
  {
    path: ['trainer', 'threads'],
    max: 1_024,
    because: 'no machine has more cores',
    instead: 'at most the cores of the machine',
  },
  {
    path: ['inference', 'max_concurrent'],
    max: batchRolloutsMax,
    because: 'no batch is larger',
    instead: 'as many as the servers take at once',
  },
  { path: ['sft', 'steps'], max: stepsMax, because: 'each is an optimizer step', instead: 'what you mean to train' },
  {
    path: ['sft', 'batch_size'],
    max: batchRolloutsMax,
    because: 'its rows are packed together',
    instead: 'a smaller batch and more steps (sft.steps)',
  },
  { path: ['gepa', 'max_calls'], max: stepsMax, because: 'every call is kept', instead: 'a budget that you would pay' },
  {
    path: ['gepa', 'minibatch_size'],
    max: groupRolloutsMax,
    because: 'one reflection is told all of it',
    instead: '3 to 20',
  },
];

/** Numbers that no machine could do anything with: what is meant is another one, and the run would only show it by its memory. */
export function sizeRelations(config: RatchetConfig): RelationProblem[] {
  return bounds.flatMap(({ path, max, because, instead }) =>
    valuesAt(config, path)
      .filter(({ value }) => typeof value === 'number' && value > max)
      .map(({ at, value }) => ({
        paths: [at],
        expected: `at most ${max}: ${because}`,
        received: String(value),
        suggestion: instead,
      })),
  );
}

function valuesAt(
  value: unknown,
  [name, ...rest]: readonly string[],
  at: readonly (string | number)[] = [],
): { at: readonly (string | number)[]; value: unknown }[] {
  if (name === undefined) return [{ at, value }];
  if (typeof value !== 'object' || value === null) return [];
  if (name === '*') {
    return Array.isArray(value) ? value.flatMap((each, i) => valuesAt(each, rest, [...at, i])) : [];
  }
  return valuesAt((value as Record<string, unknown>)[name], rest, [...at, name]);
}
