import { rewardMoments } from '../learning/advantage.ts';
import { byUrgency, type Finding, rules } from './rules-of-thumb.ts';
import type { ScoredGroup } from '../rollout/rollout.ts';
import { temperatureAt } from '../sampling/schedule.ts';
import type { RunSettings } from '../../settings/run.ts';

/** Results of an untrained policy on the examples of one environment. Shares are from 0 to 1. */
export interface Baseline {
  readonly environment: string;
  readonly groups: number;
  /** Rollouts that have a reward. */
  readonly attempts: number;
  /** Share of all rollouts lost to infrastructure. */
  readonly failedShare: number;
  /** Null if no rollout has a reward. */
  readonly meanReward: number | null;
  readonly least: number | null;
  readonly most: number | null;
  /** Share of groups with unequal rewards, among those with a reward. */
  readonly diverseShare: number;
  readonly truncatedShare: number;
  /** Different answers in a group ÷ its size, on average. */
  readonly distinctShare: number;
  /** All rewards are 0 or 1. */
  readonly isBinary: boolean;
  readonly meanTokens: number;
}

/** The settings that the rules refer to. */
export interface BaselineSettings {
  readonly temperature: number;
  readonly maxTokens: number;
  readonly rolloutsPerExample: number;
  readonly batchSize: number;
}

/** At which a baseline is sampled: that of version 0. */
export function firstTemperature(spec: Pick<RunSettings, 'sampling' | 'temperatureSchedule' | 'maxSteps'>): number {
  return temperatureAt(0, spec) ?? spec.sampling.temperature;
}

/** One for each environment, in the order of their first group. */
export function measureBaseline(groups: readonly ScoredGroup[]): Baseline[] {
  const environments = [...new Set(groups.map(({ environment }) => environment))];
  return environments.map((environment) =>
    measure(
      environment,
      groups.filter((group) => group.environment === environment),
    ),
  );
}

function measure(environment: string, groups: readonly ScoredGroup[]): Baseline {
  const rollouts = groups.flatMap((group) => group.rollouts);
  const rewards = rollouts.flatMap(({ reward }) => (reward === null ? [] : [reward]));
  const rewarded = groups.filter((group) => group.rollouts.some(({ reward }) => reward !== null));
  const diverse = rewarded.filter((group) => rewardMoments(group.rollouts.map(({ reward }) => reward)).variance > 0);
  const tokens = rollouts.map(({ turns }) => turns.reduce((sum, turn) => sum + turn.tokenIds.length, 0));
  return {
    environment,
    groups: groups.length,
    attempts: rewards.length,
    failedShare: share(rollouts.length - rewards.length, rollouts.length),
    meanReward: rewards.length === 0 ? null : mean(rewards),
    least: rewards.length === 0 ? null : Math.min(...rewards),
    most: rewards.length === 0 ? null : Math.max(...rewards),
    diverseShare: share(diverse.length, rewarded.length),
    truncatedShare: share(rollouts.filter(({ outcome }) => outcome === 'truncated').length, rewards.length),
    distinctShare: mean(rewarded.map(distinctAnswers)),
    isBinary: rewards.length > 0 && rewards.every((reward) => reward === 0 || reward === 1),
    meanTokens: mean(tokens),
  };
}

function distinctAnswers({ rollouts }: ScoredGroup): number {
  const answers = rollouts
    .filter(({ reward }) => reward !== null)
    .map(({ turns }) => turns.map(({ text }) => text).join('\0'));
  return share(new Set(answers).size, answers.length);
}

/** Findings by the rules of thumb; empty if all is well. */
export function judgeBaseline(baselines: readonly Baseline[], settings: BaselineSettings): Finding[] {
  return byUrgency([...baselines.flatMap((baseline) => judgeOne(baseline, settings)), ...judgeSettings(settings)]);
}

function judgeOne(baseline: Baseline, settings: BaselineSettings): Finding[] {
  const judges = [difficulty, diversity, failures, truncation, exploration, sparseness];
  return judges.flatMap((judge) => judge(baseline, settings) ?? []);
}

type Judge = (baseline: Baseline, settings: BaselineSettings) => Finding | null;

const difficulty: Judge = ({ environment: about, attempts, meanReward, least, most }) => {
  if (meanReward === null || least === null || most === null) return null;
  const tried = `mean reward ${percent(meanReward)} over ${attempts} rollouts`;
  if (most <= 0 && attempts >= rules.attemptsMin) {
    return {
      level: 'stop',
      symptom: 'too hard',
      about,
      evidence: `${tried}: not one above 0`,
      causes: [
        'the task is too hard for this model',
        'the answer is not in the form that the reward function reads',
        'answers are cut off before they are given',
      ],
      change: [
        'easier examples ([[env]] args), or a stronger model',
        '[sft] steps: a supervised warm-up on demonstrations',
        'a reward that gives part of the points for part of the answer',
        'look at what it says: npx ratchet-rl rollouts',
      ],
    };
  }
  if (least < 0 || most > 1) {
    const evidence = `rewards from ${figure(least)} to ${figure(most)}: the rules on 10 % and 80 % are for rewards from 0 to 1, and are not applied`;
    return { level: 'note', symptom: 'settings', about, evidence, causes: [], change: [] };
  }
  if (meanReward >= rules.tooEasyReward) {
    return {
      level: 'look',
      symptom: 'too easy',
      about,
      evidence: `${tried}: ${percent(rules.tooEasyReward)} or more before training`,
      causes: ['most groups will be all right, and have no gradient'],
      change: [
        'harder examples ([[env]] args)',
        '[difficulty_filter] online_difficulty_filtering = true, so that batches hold what still differs',
      ],
    };
  }
  if (meanReward < rules.hardReward && attempts >= rules.attemptsMin) {
    return {
      level: 'look',
      symptom: 'too hard',
      about,
      evidence: `${tried}: below ${percent(rules.hardReward)}`,
      causes: ['most groups will be all wrong, and have no gradient'],
      change: [
        'easier examples to begin with',
        'more rollouts_per_example, so that a group holds a success',
        '[sft] steps: a supervised warm-up',
      ],
    };
  }
  return null;
};

const diversity: Judge = ({ environment: about, groups, diverseShare, attempts, most, meanReward }) => {
  const isSaidAlready = most !== null && most <= 0;
  if (attempts === 0 || isSaidAlready || diverseShare >= rules.diverseGroupsMin) return null;
  const isEasy = meanReward !== null && meanReward >= 0.5;
  return {
    level: 'look',
    symptom: 'little signal',
    about,
    evidence: `rewards differ in ${percent(diverseShare)} of ${groups} groups; the others have no gradient`,
    causes: [
      isEasy ? 'the examples are easy for this model' : 'the examples are hard for this model',
      'all answers to an example are alike',
    ],
    change: [
      'more rollouts_per_example (16 to 32 give more diversity)',
      `[sampling] temperature from ${rules.temperature.low} to ${rules.temperature.high}`,
      'a reward with more than two values',
      isEasy ? 'harder examples' : 'easier examples',
    ],
  };
};

const failures: Judge = ({ environment: about, failedShare, attempts }) =>
  failedShare <= rules.failedMax
    ? null
    : {
        level: attempts === 0 ? 'stop' : 'look',
        symptom: 'lost work',
        about,
        evidence: `${percent(failedShare)} of the rollouts failed through infrastructure, and have no reward`,
        causes: ['the environment, its judge or its sandbox throws', 'generation_timeout is too short'],
        change: [
          'npx ratchet-rl rollouts RUN --outcome infra_failure shows what they threw (also timeout, judge_failure)',
          'generation_timeout',
        ],
      };

const truncation: Judge = ({ environment: about, truncatedShare, meanTokens }, { maxTokens }) =>
  truncatedShare <= rules.truncatedMax
    ? null
    : {
        level: 'look',
        symptom: 'little signal',
        about,
        evidence: `${percent(truncatedShare)} of the answers are cut off at max_tokens = ${maxTokens} (${figure(meanTokens)} tokens on average)`,
        causes: ['answers need more room', 'the model does not end its answers'],
        change: [
          `[sampling] max_tokens above ${maxTokens}`,
          '[sampling] stop, where an answer has an end one can name',
          'a prompt that asks for less',
        ],
      };

const exploration: Judge = ({ environment: about, distinctShare, attempts }, { temperature }) =>
  attempts === 0 || distinctShare >= rules.distinctAnswersMin
    ? null
    : {
        level: 'look',
        symptom: 'little signal',
        about,
        evidence: `${percent(distinctShare)} of the answers in a group differ, at temperature ${temperature}`,
        causes: ['sampling hardly explores'],
        change:
          temperature < rules.temperature.low
            ? [`[sampling] temperature from ${rules.temperature.low} to ${rules.temperature.high}`]
            : ['examples that have more than one way to answer', 'top_p, top_k and min_p nearer to their defaults'],
      };

const sparseness: Judge = ({ environment: about, isBinary, attempts, diverseShare }) =>
  !isBinary || attempts < rules.attemptsMin
    ? null
    : {
        level: diverseShare < rules.diverseGroupsMin ? 'look' : 'note',
        symptom: 'slow',
        about,
        evidence: `every reward is 0 or 1 (${attempts} rollouts)`,
        causes: ['sparse, binary rewards say less per rollout than continuous ones'],
        change: ['a rubric with a function for part of the way (format, nearness), weighted beside the exact one'],
      };

function judgeSettings({ rolloutsPerExample, batchSize, temperature }: BaselineSettings): Finding[] {
  const about = 'the run';
  const small = (name: string, value: number, least: number): Finding => ({
    level: 'note',
    symptom: 'settings',
    about,
    evidence: `${name} = ${value}; ${least} or more is usual`,
    causes: ['small groups and batches give noisy gradients'],
    change: [`${name} = ${least}`],
  });
  return [
    ...(rolloutsPerExample < rules.groupSizeMin
      ? [small('rollouts_per_example', rolloutsPerExample, rules.groupSizeMin)]
      : []),
    ...(batchSize < rules.batchSizeMin ? [small('batch_size', batchSize, rules.batchSizeMin)] : []),
    ...(temperature < rules.temperature.low
      ? [
          {
            level: 'note',
            symptom: 'settings',
            about,
            evidence: `[sampling] temperature = ${temperature}`,
            causes: ['low temperatures make the answers of a group alike'],
            change: [`[sampling] temperature from ${rules.temperature.low} to ${rules.temperature.high}`],
          } satisfies Finding,
        ]
      : []),
  ];
}

function mean(values: readonly number[]): number {
  return values.length === 0 ? 0 : values.reduce((sum, value) => sum + value, 0) / values.length;
}

function share(part: number, whole: number): number {
  return whole === 0 ? 0 : part / whole;
}

function percent(value: number): string {
  return `${Number((value * 100).toPrecision(value < 0.1 ? 2 : 3))} %`;
}

function figure(value: number): string {
  return String(Number(value.toPrecision(3)));
}
