import type { MetricDefinition } from './metric-names.ts';

/** What only evaluations have, in the section of `metric-names.ts`. */
export const evaluationMetrics: readonly MetricDefinition[] = [
  {
    name: 'eval/<env>/avg@<k>',
    unit: 'reward',
    meaning:
      'mean reward of k rollouts of each example, k being `rollouts_per_example`: `reward/mean` as prime-rl calls it',
    source: 'evaluation',
    when: 'with `[eval]`',
  },
  {
    name: 'eval/<env>/pass@<k>',
    unit: 'share',
    meaning:
      'share of examples of which one of k rollouts is right (reward ≥ 0.5), estimated without bias from all rollouts. k is 1, 2, 4, … up to `rollouts_per_example`',
    source: 'evaluation',
    when: 'with `[eval]` and at least 2 rollouts of each example',
  },
  {
    name: 'eval/<env>/vs_best/difference',
    unit: 'reward',
    meaning: 'mean over examples of the reward less that of the best version before it',
    source: 'evaluation',
    when: 'with `[eval]`, from the second evaluation on',
  },
  {
    name: 'eval/<env>/vs_best/is_worse',
    unit: '1',
    meaning: '1 where the whole 95 % interval of that difference (paired bootstrap) is below 0: a regression',
    source: 'evaluation',
    when: 'with `[eval]`, from the second evaluation on',
  },
];
