import { serverMetrics, timeSection } from './metric-sections.ts';
import { evaluationMetrics } from './evaluation-metric-names.ts';
import { filterMetricDefinitions } from './filters.ts';
import { lostMetricDefinitions, teacherMetrics } from './further-metric-names.ts';
import { failedOutcomes } from './rollout.ts';

/**
 * Every metric a run writes into `metrics.jsonl`, with its meaning. docs/guide/metrics.md is made from this table, and a test holds
 * a real run's rows against it.
 */
export interface MetricDefinition {
  /** As it is written, with `<env>` for an environment's name, `<function>` for a reward function's, `<outcome>` for a failure, `<k>` for a number. */
  readonly name: string;
  /** 1 stands for a plain number: a ratio, a count, a reward. */
  readonly unit: 'reward' | 'share' | 'tokens' | 'rollouts' | 'groups' | 'servers' | 'steps' | 'seconds' | 'nats' | '1';
  readonly meaning: string;
  /** What it is measured on. */
  readonly source: MetricSource;
  /** In which runs or steps it is there; always, in every step of RL, where not said. */
  readonly when?: string;
}

type MetricSource = 'rollouts' | 'batch' | 'trainer' | 'servers' | 'clock' | 'recovery' | 'evaluation';

/** What is measured over a set of rollouts, wherever: below `train/agg/all/`, `eval/<env>/`, …. */
interface RolloutFigure extends Omit<MetricDefinition, 'name' | 'source'> {
  readonly suffix: string;
}

const rolloutFigures: readonly RolloutFigure[] = [
  { suffix: 'reward/mean', unit: 'reward', meaning: 'mean reward; rollouts that failed have none and are left out' },
  { suffix: 'reward/min', unit: 'reward', meaning: 'the smallest reward' },
  { suffix: 'reward/max', unit: 'reward', meaning: 'the largest reward' },
  {
    suffix: 'num_output_tokens/mean',
    unit: 'tokens',
    meaning: 'mean of sampled tokens per rollout, over all its turns',
  },
  { suffix: 'num_output_tokens/min', unit: 'tokens', meaning: 'the fewest' },
  { suffix: 'num_output_tokens/max', unit: 'tokens', meaning: 'the most' },
  { suffix: 'num_turns/mean', unit: '1', meaning: 'mean number of turns of the policy' },
  { suffix: 'is_truncated/mean', unit: 'share', meaning: 'rollouts that ended at `max_tokens` or the context length' },
  {
    suffix: 'metrics/<function>',
    unit: '1',
    meaning: 'mean of one reward function of the rubric, unweighted; also of those with weight 0',
    when: 'named by the environment',
  },
  { suffix: 'has_error/mean', unit: 'share', meaning: 'rollouts that failed through infrastructure' },
  {
    suffix: 'error/<outcome>',
    unit: 'rollouts',
    meaning: `how many failed, by cause: ${failedOutcomes.map((outcome) => `\`${outcome}\``).join(', ')}`,
    when: 'some did',
  },
];

function overRollouts(prefix: string, source: MetricSource, when?: string): MetricDefinition[] {
  return rolloutFigures.map(({ suffix, ...figure }) => {
    const both = [when, figure.when].filter((text) => text !== undefined).join('; ');
    return { ...figure, name: `${prefix}/${suffix}`, source, ...(both === '' ? {} : { when: both }) };
  });
}

function solved(prefix: string, when?: string): MetricDefinition[] {
  const shares = { all: 'all rollouts are right (reward ≥ 1)', none: 'none is (reward ≤ 0)', some: 'some are' };
  return Object.entries(shares).map(([kind, meaning]) => ({
    name: `${prefix}/solved_${kind}`,
    unit: 'share',
    meaning: `groups of which ${meaning}`,
    source: 'rollouts',
    ...(when === undefined ? {} : { when }),
  }));
}

const several = 'several environments';
const pools = '`easy_threshold` or `hard_threshold`';

/** By section of docs/guide/metrics.md. */
export const metricSections: readonly {
  readonly title: string;
  readonly text: string;
  readonly metrics: readonly MetricDefinition[];
}[] = [
  {
    title: 'The reward, and all that was sampled',
    text: 'Over every group that finished for the step, trained or dropped: the mean over the kept ones alone would flatter or slander.',
    metrics: [
      {
        name: 'train/reward',
        unit: 'reward',
        meaning: 'mean reward; the same as `train/agg/all/reward/mean`',
        source: 'rollouts',
      },
      {
        name: 'rollout/mean_length',
        unit: 'tokens',
        meaning: 'the same as `train/agg/all/num_output_tokens/mean`',
        source: 'rollouts',
      },
      {
        name: 'rollout/zeroed',
        unit: 'rollouts',
        meaning: 'rollouts that were cut and have the reward 0 for it',
        source: 'rollouts',
        when: '`zero_truncated_completions`',
      },
      ...overRollouts('train/agg/all', 'rollouts'),
      ...solved('train/agg/all'),
    ],
  },
  {
    title: 'What was trained',
    text: 'The same, over the groups of the batch alone.',
    metrics: overRollouts('train/agg/effective', 'batch'),
  },
  {
    title: 'By environment',
    text: 'With one environment these are left out: they would repeat the figures above.',
    metrics: [
      {
        name: 'reward/<env>/mean',
        unit: 'reward',
        meaning: 'mean reward of all that finished in it',
        source: 'rollouts',
        when: several,
      },
      {
        name: 'batch/<env>',
        unit: 'rollouts',
        meaning: 'its rollouts in the batch that have a reward',
        source: 'batch',
        when: several,
      },
      ...overRollouts('train/<env>/all', 'rollouts', several),
      ...solved('train/<env>/all', several),
      ...overRollouts('train/<env>/effective', 'batch', several),
    ],
  },
  {
    title: 'Difficulty pools',
    text: 'The pool of each example after this step; examples that were not played yet are normal.',
    metrics: (['easy', 'normal', 'hard'] as const).flatMap((pool): MetricDefinition[] => [
      {
        name: `pool/${pool}`,
        unit: '1',
        meaning: `examples in the ${pool} pools, over all environments that have them`,
        source: 'rollouts',
        when: pools,
      },
      {
        name: `pool/<env>/${pool}`,
        unit: '1',
        meaning: `examples in its ${pool} pool`,
        source: 'rollouts',
        when: pools,
      },
    ]),
  },
  {
    title: 'Groups and the batch',
    text: 'Why groups were dropped, and what the batch is made of. `[difficulty_filter]` has the bounds.',
    metrics: [
      {
        name: 'filter/too_easy',
        unit: 'groups',
        meaning: 'dropped: mean reward above `max_reward`, or exactly 1 with `online_difficulty_filtering`',
        source: 'rollouts',
      },
      {
        name: 'filter/too_hard',
        unit: 'groups',
        meaning: 'dropped: mean reward below `min_reward`, or exactly 0 with `online_difficulty_filtering`',
        source: 'rollouts',
      },
      {
        name: 'filter/low_variance',
        unit: 'groups',
        meaning: 'dropped: variance of rewards below `min_reward_variance`',
        source: 'rollouts',
      },
      {
        name: 'filter/no_signal',
        unit: 'groups',
        meaning: 'dropped: all rewards are the same, or there are none',
        source: 'rollouts',
      },
      {
        name: 'filter/non_finite',
        unit: 'groups',
        meaning: 'dropped: rewards so large that mean or variance overflows',
        source: 'rollouts',
      },
      {
        name: 'filter/widened',
        unit: '1',
        meaning: '1: the bounds did not apply to this step',
        source: 'rollouts',
        when: '`on_starvation = "widen"` acted',
      },
      ...filterMetricDefinitions,
      { name: 'batch/groups', unit: 'groups', meaning: 'groups in the batch', source: 'batch' },
      {
        name: 'batch/rollouts',
        unit: 'rollouts',
        meaning: 'rollouts in the batch that have a reward',
        source: 'batch',
      },
      {
        name: 'batch/rows',
        unit: '1',
        meaning: 'rows they were packed into; a conversation that only grows is one row',
        source: 'batch',
      },
      { name: 'batch/trained_tokens', unit: 'tokens', meaning: 'tokens that count in the loss', source: 'batch' },
      {
        name: 'batch/signal_tokens',
        unit: 'tokens',
        meaning: 'those of them whose advantage is not 0',
        source: 'batch',
      },
      {
        name: 'batch/overlong_rows',
        unit: '1',
        meaning: 'rows of it that were longer than `seq_len`; `overlong_rows` says what became of them',
        source: 'batch',
        when: '`seq_len`',
      },
      {
        name: 'batch/masked_rollouts',
        unit: 'rollouts',
        meaning: 'rollouts of its groups that carry no loss because they were cut or have a row that is too long',
        source: 'batch',
        when: '`mask_truncated_completions`, or `overlong_rows = "mask"`',
      },
      {
        name: 'off_policy/mean',
        unit: 'steps',
        meaning:
          'mean age of the batch: versions between the policy that sampled a group and the one it trains; 0 = on-policy',
        source: 'batch',
      },
      { name: 'off_policy/max', unit: 'steps', meaning: 'age of the oldest group', source: 'batch' },
    ],
  },
  {
    title: 'The gradient step',
    text: 'From the trainer. ρ = exp(logprob now − logprob when it was sampled), per token; means are over the tokens that count. With `num_iterations` above 1 they are means over the passes, `grad_norm` is the last one’s.',
    metrics: [
      {
        name: 'train/loss',
        unit: '1',
        meaning: 'the loss; its height says little, as advantages sum to 0',
        source: 'trainer',
      },
      { name: 'loss', unit: '1', meaning: 'the same, as the trainer names it', source: 'trainer' },
      { name: 'train/learning_rate', unit: '1', meaning: 'of this step, after the schedule', source: 'trainer' },
      {
        name: 'grad_norm',
        unit: '1',
        meaning: 'L2 norm of the gradient, before it is clipped to `max_grad_norm`',
        source: 'trainer',
      },
      {
        name: 'engine_restores',
        unit: '1',
        meaning: 'models that a Tinker server lost during the step, which was begun again each time',
        source: 'trainer',
        when: 'there were some',
      },
      { name: 'entropy', unit: 'nats', meaning: 'mean entropy of the next-token distribution', source: 'trainer' },
      { name: 'ratio_mean', unit: '1', meaning: 'mean ρ; 1 = the policy is the one that sampled', source: 'trainer' },
      {
        name: 'mismatch_kl',
        unit: 'nats',
        meaning:
          'mean of ρ − 1 − ln ρ: how far the trained policy is from the sampled one, staleness and numerics together',
        source: 'trainer',
      },
      { name: 'max_logprob_difference', unit: 'nats', meaning: 'the largest |ln ρ| of a token', source: 'trainer' },
      { name: 'clip_fraction', unit: 'share', meaning: 'tokens that clipping or a mask acts on', source: 'trainer' },
      {
        name: 'clip_fraction_low',
        unit: 'share',
        meaning:
          'those below `clip_low`, in grpo and gspo, or `mask_low`, in importance_sampling, or left out because their probability fell, in dppo and ipo; else 0',
        source: 'trainer',
      },
      {
        name: 'clip_fraction_high',
        unit: 'share',
        meaning: 'those above `clip_high` or `mask_high`',
        source: 'trainer',
      },
      {
        name: 'train/kl_divergence',
        unit: 'nats',
        meaning:
          'mean k3 estimate, per token, of the divergence from the reference policy (v0 unless `ref_sync_steps`); measured with and without `[kl_penalty]`',
        source: 'trainer',
      },
      { name: 'kl_divergence', unit: 'nats', meaning: 'the same, as the trainer names it', source: 'trainer' },
      teacherMetrics.kl,
      {
        name: 'train/kl_beta',
        unit: '1',
        meaning: 'coefficient of that divergence in the loss; 0 = measured only',
        source: 'trainer',
      },
      { name: 'token_count', unit: 'tokens', meaning: 'tokens that the trainer counted', source: 'trainer' },
      {
        name: 'sft/loss',
        unit: 'nats',
        meaning: 'mean loss per token at the end of the supervised warm-up',
        source: 'trainer',
        when: 'row of step 0, with `[sft]`',
      },
    ],
  },
  serverMetrics,
  timeSection,
  {
    title: 'Recoveries and work lost',
    text: 'On the way to this commit. What did not happen is left out.',
    metrics: [
      {
        name: 'recovery/count',
        unit: '1',
        meaning: 'recoveries: lost workers that were replaced, and activities that were begun again',
        source: 'recovery',
        when: 'there were some',
      },
      {
        name: 'recovery/restarts',
        unit: '1',
        meaning: '1: the orchestrator was started after the commit before',
        source: 'recovery',
        when: 'it was',
      },
      ...lostMetricDefinitions,
    ],
  },
  {
    title: 'Evaluations',
    text: 'A row of its own for each environment and evaluated version, on the held-out dataset: with the sampling of `[eval.sampling]`, and once greedily.',
    metrics: [
      {
        name: 'eval/<env>/policy_version',
        unit: '1',
        meaning: 'the version that was evaluated',
        source: 'evaluation',
        when: 'with `[eval]`',
      },
      ...overRollouts('eval/<env>', 'evaluation', 'with `[eval]`'),
      {
        name: 'eval/<env>/greedy/reward/mean',
        unit: 'reward',
        meaning: 'mean reward at temperature 0, one rollout per example',
        source: 'evaluation',
        when: 'with `[eval]`',
      },
      {
        name: 'eval/<env>/greedy/metrics/exact_match',
        unit: 'share',
        meaning: 'the reward function `exact_match`, at temperature 0',
        source: 'evaluation',
        when: 'with `[eval]`; the environment has one',
      },
      ...evaluationMetrics,
    ],
  },
];

const definitions = metricSections.flatMap(({ metrics }) => metrics);

/** The definition of a metric by the name under which a run with these environments writes it; undefined where the table has none. */
export function definitionOf(name: string, environments: readonly string[]): MetricDefinition | undefined {
  return definitions.find((metric) => patternOf(metric.name, environments).test(name));
}

function patternOf(name: string, environments: readonly string[]): RegExp {
  const source = name
    .split(/(<\w+>)/)
    .map((part) => {
      if (part === '<env>') return anyOf(environments);
      if (part === '<function>') return '.+';
      if (part === '<k>') return String.raw`\d+`;
      if (part === '<outcome>') return anyOf(failedOutcomes);
      return escaped(part);
    })
    .join('');
  return new RegExp(`^${source}$`);
}

function anyOf(names: readonly string[]): string {
  return `(?:${names.map(escaped).join('|')})`;
}

function escaped(text: string): string {
  return text.replaceAll(/[.*+?^${}()|[\]\\]/g, String.raw`\$&`);
}
