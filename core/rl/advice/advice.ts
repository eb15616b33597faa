import { type Draft, moving, withoutContradiction } from './advice-items.ts';
import { byUrgency, type Finding, rules } from './rules-of-thumb.ts';
import {
  seriesOf,
  recent,
  head,
  tail,
  bestStretch,
  differs,
  span,
  between,
  sum,
  mean,
  median,
  percent,
  threeDigits,
  type StepFigures,
} from './series.ts';

export type { StepFigures } from './series.ts';

export interface AdviceSettings {
  readonly learningRate: number;
  readonly rolloutsPerExample: number;
  readonly batchSize: number;
  readonly maxAsyncLevel: number;
  readonly maxTokens: number;
  readonly temperature: number;
  readonly maxGradNorm: number;
  readonly klBeta: number;
}

interface AdviceInput {
  /** Ascending; the steps that led to the run's current version. */
  readonly steps: readonly StepFigures[];
  readonly settings: AdviceSettings;
  /** Effective training time, from 0 to 1; null if unknown. */
  readonly ettr: number | null;
  /** Causes of the time that was not effective, in words; null if unknown. */
  readonly ineffective: string | null;
}

/**
 * Findings from a run's committed metrics: "unstable", "slow" and "no learning". Pure: the same metrics give the same
 * findings. A metric that the run lacks is not judged.
 */
export function advise(input: AdviceInput): Finding[] {
  const trained = input.steps.filter(({ metrics }) => 'train/loss' in metrics || 'train/reward' in metrics);
  if (trained.length < rules.stepsMin) {
    const evidence = `${trained.length} trained steps; trends are judged from ${rules.stepsMin} on`;
    const young: Draft = { level: 'note', symptom: 'settings', about, evidence, causes: [], change: [] };
    return withoutContradiction(byUrgency([young, ...present(input, trained)]));
  }
  const trends = [rewardTrend, entropyCollapse, klBlowUp, gradientSpikes, clippedTokens, offPolicy];
  const found = [...trends.flatMap((judge) => judge(input, trained) ?? []), ...present(input, trained)];
  return withoutContradiction(byUrgency(found));
}

/** Findings that need no trend. */
function present(input: AdviceInput, steps: readonly StepFigures[]): Draft[] {
  return [rejectedGroups, truncated, failed, bottleneck, lostTime].flatMap((judge) => judge(input, steps) ?? []);
}

type AdviceRule = (input: AdviceInput, steps: readonly StepFigures[]) => Draft | null;

const about = 'the run';

const rateTooHigh = moving('learning rate', 'lower', 'the learning rate is too high');

/** Every finding names the same lower rate, so that two of them request one change. */
function lowerRate({ learningRate }: AdviceSettings): ReturnType<typeof moving> {
  const says = `npx ratchet-rl set RUN learning_rate=${threeDigits(learningRate / 2)} (now ${threeDigits(learningRate)})`;
  return moving('learning rate', 'lower', says);
}

const rewardTrend: AdviceRule = ({ settings }, all) => {
  const reward = seriesOf(all, 'train/reward');
  if (reward.values.length < rules.stepsMin) return null;
  const [first, last] = [head(reward), tail(reward)];
  const best = bestStretch(reward, last.values.length);
  const now = mean(last.values);
  const fall = mean(best.values) - now;
  const gain = now - mean(first.values);
  const isLarge = fall > rules.fallShare * Math.abs(mean(best.values));
  const isCertain = differs(best.values, last.values);
  const hasFallen = isLarge && (isCertain || gain <= 0);
  if (!hasFallen && (now >= rules.tooEasyReward || (gain > 0 && differs(first.values, last.values)))) return null;
  if (hasFallen && isCertain) {
    return {
      level: 'look',
      symptom: 'unstable',
      about,
      evidence: `reward fell from ${threeDigits(mean(best.values))} (${span(best)}) to ${threeDigits(now)} (${span(last)})`,
      causes: [rateTooHigh, 'few rollouts per gradient', 'nothing keeps the policy near where it was good'],
      change: [
        lowerRate(settings),
        backTo(best.steps.at(-1)!),
        moving(
          'rollouts_per_example',
          'higher',
          `rollouts_per_example 16 to 32 (now ${settings.rolloutsPerExample}): a fork`,
        ),
        moving('batch_size', 'higher', `batch_size above ${settings.batchSize}: a fork`),
        '[kl_penalty] enabled = true, target_kl = 0.01, beta = 0.1',
        '[trainer] num_iterations = 1',
        moving(
          'rollouts_per_example',
          'higher',
          `groups of ${rules.groupSizeStable.low} to ${rules.groupSizeStable.high} for all weights`,
        ),
        moving('model', 'larger', `a larger model (${rules.calmModelParameters / 1e9}B and more)`),
      ],
    };
  }
  const stretches = `reward ${threeDigits(mean(first.values))} (${span(first)}) and ${threeDigits(now)} (${span(last)})`;
  if (hasFallen) {
    return {
      level: 'look',
      symptom: 'no learning',
      about,
      evidence: `${stretches}, with ${threeDigits(mean(best.values))} at its best (${span(best)}): lower than it was, though no difference beyond the noise`,
      causes: [rateTooHigh, ...littleSignal],
      change: [lowerRate(settings), backTo(best.steps.at(-1)!), ...moreSignal],
    };
  }
  const raised = `npx ratchet-rl set RUN learning_rate=${threeDigits(settings.learningRate * 3)} (now ${threeDigits(settings.learningRate)}; LoRA takes 1e-5 to 1e-4, all weights 1e-6 to 1e-5 of large models)`;
  const hasGained = gain > 0;
  return {
    level: 'look',
    symptom: 'no learning',
    about,
    evidence: `${stretches}: no difference beyond the noise`,
    causes: [
      ...(hasGained ? [moving('learning rate', 'higher', 'the learning rate is too low')] : []),
      ...littleSignal,
    ],
    change: [...(hasGained ? [moving('learning rate', 'higher', raised)] : []), ...moreSignal],
  };
};

function backTo(step: number): ReturnType<typeof moving> {
  return moving('the run', 'back', `npx ratchet-rl rewind RUN --step ${step}: continues from where it was good`);
}

const littleSignal = [
  'groups carry little signal',
  moving('examples', 'easier', 'the task is too hard'),
  'its reward does not measure what changes',
];

const moreSignal = [
  'continuous rewards in place of sparse ones',
  moving('examples', 'easier', 'easier examples'),
  moving('[difficulty_filter]', 'narrower', '[difficulty_filter] online_difficulty_filtering = true'),
  'npx ratchet-rl rollouts RUN --sort reward: is the best what you wanted?',
];

const entropyCollapse: AdviceRule = ({ settings }, all) => {
  const entropy = seriesOf(all, 'entropy');
  if (entropy.values.length < rules.stepsMin) return null;
  const [first, last] = [median(head(entropy).values), median(tail(entropy).values)];
  const isSolved = mean(tail(seriesOf(all, 'train/reward')).values) >= rules.tooEasyReward;
  if (isSolved || !(first > 0) || last >= first * rules.entropyShareMin) return null;
  const since = entropy.steps[entropy.values.findIndex((value) => value < first * rules.entropyShareMin)];
  return {
    level: 'look',
    symptom: 'unstable',
    about,
    evidence: `entropy ${threeDigits(first)} (${span(head(entropy))}) fell to ${threeDigits(last)} (${span(tail(entropy))}); below a tenth since step ${since}`,
    causes: [
      'the policy says the same whatever it is asked, so groups stop differing',
      rateTooHigh,
      'the upper clip bound is too tight for rare tokens',
    ],
    change: [
      lowerRate(settings),
      '[trainer.loss] a higher upper bound (clip_high), or type = "cispo"',
      `[sampling] temperature from ${rules.temperature.low} to ${rules.temperature.high} (now ${settings.temperature}): a fork`,
      '[kl_penalty] enabled = true',
    ],
  };
};

const klBlowUp: AdviceRule = ({ settings }, all) => {
  const kl = seriesOf(all, 'train/kl_divergence');
  if (kl.values.length < rules.stepsMin) return null;
  const third = Math.floor(kl.values.length / 3);
  const middle = median(kl.values.slice(third, 2 * third));
  const now = median(tail(kl).values);
  const runsAway = now > rules.klRunaway.least && now > middle * rules.klRunaway.factor;
  if (!runsAway && now <= rules.klMax) return null;
  const rise = runsAway ? ` (${threeDigits(middle)} in the middle of the run)` : '';
  return {
    level: runsAway ? 'look' : 'note',
    symptom: 'unstable',
    about,
    evidence: `train/kl_divergence ${threeDigits(now)} nats per token from the reference at ${span(tail(kl))}${rise}, beta ${settings.klBeta}`,
    causes: [
      'the policy has left the reference: wanted where it begins as another model or from random weights, else a sign of reward hacking',
    ],
    change: [
      '[kl_penalty] enabled = true, target_kl = 0.01, beta = 0.1',
      lowerRate(settings),
      'ref_sync_steps, where the reference may move along',
      'npx ratchet-rl rollouts RUN --sort reward: do the best ones deserve it?',
    ],
  };
};

const gradientSpikes: AdviceRule = ({ settings }, all) => {
  const norms = seriesOf(all, 'grad_norm');
  const { factor, share, least } = rules.gradientSpike;
  const spikes = norms.steps.filter(
    (_, i) => i >= 5 && norms.values[i]! > factor * median(norms.values.slice(Math.max(0, i - 20), i)),
  );
  if (spikes.length < least || spikes.length < share * norms.values.length) return null;
  return {
    level: 'look',
    symptom: 'unstable',
    about,
    evidence: `gradient norms above ${factor} times those before them at ${spikes.length} of ${norms.values.length} steps: ${spikes.slice(0, 8).join(', ')}${spikes.length > 8 ? ', …' : ''}`,
    causes: ['batches with very few rows that count', rateTooHigh, 'rewards of very different size'],
    change: [
      `npx ratchet-rl set RUN max_grad_norm=${threeDigits(Math.min(settings.maxGradNorm, median(norms.values)))} (now ${threeDigits(settings.maxGradNorm)}; ${rules.maxGradNormStable.low} to ${rules.maxGradNormStable.high} where nothing else steadies it)`,
      moving('batch_size', 'higher', `batch_size above ${settings.batchSize}: a fork`),
      '[trainer] advantage = "std_normalized"',
    ],
  };
};

const clippedTokens: AdviceRule = ({ settings }, all) => {
  const clipped = tail(seriesOf(all, 'clip_fraction'));
  const now = median(clipped.values);
  if (clipped.values.length === 0 || now <= rules.clippedMax) return null;
  return {
    level: 'look',
    symptom: 'unstable',
    about,
    evidence: `${percent(now)} of the tokens are outside of the clip range (${span(clipped)})`,
    causes: [
      'the policy moves far within a batch',
      'samples are old',
      'sampler and trainer do not agree on probabilities',
    ],
    change: [lowerRate(settings), 'num_iterations = 1', ...lessAsync(settings), 'max_off_policy_steps lower'],
  };
};

function lessAsync({ maxAsyncLevel }: AdviceSettings): ReturnType<typeof moving>[] {
  if (maxAsyncLevel === 0) return [];
  return [moving('max_async_level', 'lower', `max_async_level = 0 (now ${maxAsyncLevel})`)];
}

const offPolicy: AdviceRule = ({ settings }, all) => {
  const mismatch = tail(seriesOf(all, 'mismatch_kl'));
  const age = tail(seriesOf(all, 'off_policy/mean'));
  const [kl, versions] = [median(mismatch.values), median(age.values)];
  const isFar = mismatch.values.length > 0 && kl > rules.mismatchKlMax;
  const isOld = age.values.length > 0 && versions > rules.offPolicyMax;
  if (!isFar && !isOld) return null;
  return {
    level: 'look',
    symptom: 'unstable',
    about,
    evidence: [
      ...(isFar ? [`mismatch_kl ${threeDigits(kl)} between sampler and trainer (${span(mismatch)})`] : []),
      ...(isOld ? [`samples are ${threeDigits(versions)} versions old on average (${span(age)})`] : []),
    ].join('; '),
    causes: [
      'groups wait long before they are trained',
      'a server that samples in another precision, or from other weights',
    ],
    change: [
      ...lessAsync(settings),
      `npx ratchet-rl set RUN max_mismatch_kl=${rules.mismatchKlMax}`,
      'where it stays above 0.05 at level 0: look at the policy server',
    ],
  };
};

const rejectedGroups: AdviceRule = ({ settings }, all) => {
  const last = all.slice(-recent(all.length));
  const dropped = (reason: string): number => sum(last.map(({ metrics }) => metrics[`filter/${reason}`] ?? 0));
  const reasons = ['too_easy', 'too_hard', 'low_variance', 'no_signal', 'non_finite'].map(
    (reason) => [reason, dropped(reason)] as const,
  );
  const lost = sum(reasons.map(([, count]) => count));
  const total = lost + sum(last.map(({ metrics }) => metrics['batch/groups'] ?? 0));
  if (total === 0 || lost / total <= rules.rejectedGroupsMax) return null;
  const solvedAll = mean(last.flatMap(({ metrics }) => metrics['train/agg/all/solved_all'] ?? []));
  const solvedNone = mean(last.flatMap(({ metrics }) => metrics['train/agg/all/solved_none'] ?? []));
  const isEasy = solvedAll > solvedNone || dropped('too_easy') > dropped('too_hard');
  const counted = reasons.filter(([, count]) => count > 0).map(([reason, count]) => `${count} ${reason}`);
  const isStarving = lost / total > rules.starvationShare;
  const areAlike = solvedAll + solvedNone < 0.5 && dropped('no_signal') + dropped('low_variance') > lost / 2;
  return {
    level: 'look',
    symptom: 'slow',
    about,
    evidence: `${percent(lost / total)} of ${total} groups were sampled for nothing at ${between(last)}: ${counted.join(', ')}${isStarving ? '; fewer than a quarter are kept, so steps take several sampling rounds' : ''}`,
    causes: [
      areAlike
        ? 'the answers of a group get the same reward, neither all right nor all wrong: they are alike, or the reward is coarse'
        : isEasy
          ? moving('examples', 'harder', 'the examples have become too easy')
          : moving('examples', 'easier', 'the examples are too hard'),
      moving('[difficulty_filter]', 'wider', 'the bounds of [difficulty_filter] are narrow'),
    ],
    change: [
      ...(areAlike
        ? [
            `[sampling] temperature from ${rules.temperature.low} to ${rules.temperature.high} (now ${settings.temperature}): a fork`,
            moving('rollouts_per_example', 'higher', 'more rollouts_per_example: a fork'),
            'a finer reward',
          ]
        : isEasy
          ? [
              moving('examples', 'harder', 'harder examples'),
              moving('the run', 'done', 'stop here: it has learned these'),
            ]
          : [
              moving('examples', 'easier', 'easier examples'),
              moving('rollouts_per_example', 'higher', 'more rollouts_per_example: a fork'),
            ]),
      moving(
        '[difficulty_filter]',
        'wider',
        'wider min_reward, max_reward and min_reward_variance in [difficulty_filter]',
      ),
      ...(isStarving
        ? [
            moving('[difficulty_filter]', 'wider', 'on_starvation = "widen"'),
            'oversampling_factor higher: fewer rounds, one after the other',
          ]
        : []),
    ],
  };
};

const truncated: AdviceRule = ({ settings }, all) => {
  const cut = tail(seriesOf(all, 'train/agg/all/is_truncated/mean'));
  const now = mean(cut.values);
  if (cut.values.length === 0 || now <= rules.truncatedMax) return null;
  const length = tail(seriesOf(all, 'rollout/mean_length'));
  return {
    level: 'look',
    symptom: 'no learning',
    about,
    evidence: `${percent(now)} of the answers are cut off at max_tokens = ${settings.maxTokens} (${span(cut)}; ${threeDigits(mean(length.values))} tokens on average)`,
    causes: [moving('max_tokens', 'higher', 'answers need more room'), 'length is rewarded by accident'],
    change: [
      moving('max_tokens', 'higher', `[sampling] max_tokens above ${settings.maxTokens}: a fork`),
      'a reward function that takes something off for length',
    ],
    rulesOut: [{ of: 'learning rate', to: 'higher' }],
  };
};

const failed: AdviceRule = (_, all) => {
  const errors = tail(seriesOf(all, 'train/agg/all/has_error/mean'));
  if (errors.values.length === 0 || mean(errors.values) <= rules.failedMax) return null;
  const last = all.slice(-recent(all.length));
  const kinds = [...new Set(last.flatMap(({ metrics }) => Object.keys(metrics)))].filter((name) =>
    name.startsWith('train/agg/all/error/'),
  );
  const counted = kinds.map(
    (name) => `${sum(last.map(({ metrics }) => metrics[name] ?? 0))} ${name.split('/').at(-1)}`,
  );
  return {
    level: 'look',
    symptom: 'lost work',
    about,
    evidence: `${percent(mean(errors.values))} of the rollouts failed through infrastructure (${span(errors)}): ${counted.join(', ')}`,
    causes: ['the environment, its judge or its sandbox throws', 'generation_timeout is too short'],
    change: ['npx ratchet-rl rollouts RUN --outcome infra_failure (timeout, judge_failure, oom) shows what they threw'],
  };
};

const bottleneck: AdviceRule = ({ settings }, all) => {
  const last = all.slice(-recent(all.length)).filter(({ metrics }) => 'time/step' in metrics);
  const seconds = (name: string): number => median(last.map(({ metrics }) => metrics[name] ?? 0));
  const step = seconds('time/step');
  if (last.length === 0 || !(step > 0)) return null;
  const generate = median(
    last.map(({ metrics }) => (metrics['rollout/generation_time'] ?? 0) + (metrics['rollout/scoring_time'] ?? 0)),
  );
  const scoring = seconds('rollout/scoring_time');
  const train = seconds('time/train');
  const figures = `generation and scoring ${threeDigits(generate)} s, training ${threeDigits(train)} s, step ${threeDigits(step)} s (${between(last)})`;
  const note = (evidence: string, causes: Draft['causes'], change: Draft['change']): Draft => ({
    level: 'note',
    symptom: 'slow',
    about,
    evidence: `${evidence}: ${figures}`,
    causes,
    change,
  });
  if (scoring > generate / 2 && generate > rules.boundShare * step) {
    return note(
      'bound by scoring',
      ['a reward function, or a judge behind it, takes longer than the model'],
      ['a faster judge, or more of it at once', 'more workers: npx ratchet-rl dev --rollout-workers 2'],
    );
  }
  if (generate > rules.boundShare * step && generate > train) {
    return note(
      'bound by generation',
      ['answers are long, groups large, or the policy server slow'],
      [
        ...(settings.maxAsyncLevel === 0
          ? [moving('max_async_level', 'higher', 'max_async_level = 1: collects beside training')]
          : []),
        moving('max_tokens', 'lower', '[sampling] max_tokens lower'),
        moving('rollouts_per_example', 'lower', 'rollouts_per_example 4 to 8'),
        moving('model', 'smaller', 'a smaller model'),
        'a faster policy server ([inference] provider, or one elsewhere), more rollout workers',
      ],
    );
  }
  if (train > rules.boundShare * step) {
    return note(
      'bound by training',
      ['the batch is large for this trainer'],
      [
        ...(settings.batchSize > 256
          ? [moving('batch_size', 'lower', `batch_size lower (now ${settings.batchSize}; 128 to 256 is usual)`)]
          : []),
        '[lora]: trains adapters alone',
        moving('model', 'smaller', 'a smaller model'),
        '[trainer] threads or provider',
      ],
    );
  }
  return null;
};

const lostTime: AdviceRule = ({ ettr, ineffective }, all) => {
  if (ettr === null || ettr >= rules.ettrMin) return null;
  const recoveries = sum(all.map(({ metrics }) => metrics['recovery/count'] ?? 0));
  const lost = (name: string): number => sum(all.map(({ metrics }) => metrics[`lost/${name}`] ?? 0));
  const where = all.filter(({ metrics }) => (metrics['recovery/count'] ?? 0) > 0).map(({ step }) => step);
  const steps = where.length === 0 ? '' : ` (${where.length === 1 ? 'step' : 'steps'} ${where.slice(0, 8).join(', ')})`;
  const rest = ineffective === null ? '' : `; not effective: ${ineffective}`;
  const wasLost = recoveries > 0 || lost('rollouts') > 0 || lost('seconds') > 0;
  if (!wasLost) {
    return {
      level: 'look',
      symptom: 'slow',
      about,
      evidence: `ETTR ${ettr.toFixed(2)}: no recoveries, nothing lost${rest}`,
      causes: [
        'a machine that is busy with something else',
        'workers or servers that the run waited for: Temporal, the store',
        'evaluations and checkpoints beside the steps',
      ],
      change: ['npx ratchet-rl events RUN: what it waited for', 'fewer programs beside the run, or another machine'],
    };
  }
  return {
    level: 'look',
    symptom: 'lost work',
    about,
    evidence: `ETTR ${ettr.toFixed(2)}: ${recoveries} ${recoveries === 1 ? 'recovery' : 'recoveries'}${steps}, lost ${lost('rollouts')} rollouts and ${threeDigits(lost('seconds'))} s${rest}`,
    causes: [
      'processes that end: memory, a machine that goes away',
      'a machine that is busy with something else',
      'servers that are away: Temporal, the store',
    ],
    change: [
      'npx ratchet-rl logs RUN train (orchestrator, rollout): what ended them',
      'npx ratchet-rl events RUN',
      '[checkpoints] interval lower: less is trained again',
    ],
  };
};
