import { budgetKeys, budgetUnits, type OverBudget } from '../settings/budgets.ts';
import type { Baselines } from './rollout/agents.ts';
import { costMetrics, tokensPer, type Used } from './cost.ts';
import { type DropReason, judgeGroup, solvedCounts } from './filters/difficulty.ts';
import type { DifficultyBounds } from '../settings/rollouts.ts';
import type { GroupFacts } from './rollout/group-facts.ts';
import { addEffects, type EffectCounts } from './rollout/effects.ts';
import { failedOutcomes, hasTimedOut } from './rollout/rollout.ts';
import { staleness } from './sampling/staleness.ts';

/** Tokens that count in the loss; `batch/signal_tokens` are those with a learning signal: no advantage of 0. */
export const trainedTokens = 'batch/trained_tokens';

/**
 * One step as flat numbers. Names are prime-rl's where it has one (`train/agg/all/reward/mean`, `train/<env>/…`,
 * `solved_all`), beside Hosted Training's `train/reward` and `rollout/mean_length`. A metric without a value is left
 * out, never written as 0.
 */
type Metrics = Record<string, number>;

interface StepMetricsInput {
  readonly step: number;
  /** Every group that finished for this step, kept or not: the mean over kept groups alone would be biased. */
  readonly finished: readonly GroupFacts[];
  readonly trained: readonly GroupFacts[];
  readonly filter: DifficultyBounds;
  /** Names of the run's environments; with several, each has metrics of its own. */
  readonly environments: readonly string[];
}

/** A metric's name: mean reward of everything that finished in one environment. */
export function environmentReward(name: string): string {
  return `reward/${name}/mean`;
}

/** Environments and their mean rewards among some metrics. */
export function environmentRewards(
  metrics: Readonly<Record<string, number | string>>,
): [name: string, reward: number][] {
  return Object.entries(metrics).flatMap(([key, reward]): [string, number][] => {
    const name = /^reward\/(.+)\/mean$/.exec(key)?.[1];
    return name === undefined || typeof reward !== 'number' ? [] : [[name, reward]];
  });
}

const timedOutPrefix = 'timed_out/';

/** A metric's name: rollouts of one environment that were not finished in time, dropped or truncated; none is left out. */
export function environmentTimeouts(name: string): string {
  return `${timedOutPrefix}${name}`;
}

/** Reads timed-out rollouts by environment from metrics. */
export function timeoutsIn(metrics: Readonly<Record<string, number | string>>): Record<string, number> {
  const found = Object.entries(metrics).flatMap(([key, count]): [string, number][] => {
    return key.startsWith(timedOutPrefix) && typeof count === 'number'
      ? [[key.slice(timedOutPrefix.length), count]]
      : [];
  });
  return Object.fromEntries(found);
}

const effectsPrefix = 'effects/';

export function isEffectCount(metric: string): boolean {
  return metric.startsWith(effectsPrefix);
}

/** Reads effects by kind and outcome from metrics. */
export function effectsIn(metrics: Readonly<Record<string, number | string>>): EffectCounts {
  const found = Object.entries(metrics).flatMap(([key, count]): [string, number][] =>
    isEffectCount(key) && typeof count === 'number' ? [[key.slice(effectsPrefix.length), count]] : [],
  );
  return Object.fromEntries(found);
}

export function stepMetrics({ step, finished, trained, filter, environments }: StepMetricsInput): Metrics {
  const metrics: Metrics = {};
  addMean(metrics, 'train/reward', finished.flatMap(rewardsOf));
  addMean(
    metrics,
    'rollout/mean_length',
    finished
      .flatMap(({ rollouts }) => rollouts)
      .filter(({ reward }) => reward !== null)
      .map(({ tokens }) => tokens),
  );
  addSubset(metrics, 'train/agg/all', finished);
  addSubset(metrics, 'train/agg/effective', trained);
  if (environments.length > 1) for (const name of environments) addEnvironment(metrics, name, { finished, trained });
  addSolved(metrics, 'train/agg/all', finished);
  addDropped(metrics, finished, filter);
  addTimeouts(metrics, finished, environments);
  const effects = addEffects(finished.flatMap(({ rollouts }) => rollouts.map((rollout) => rollout.effects)));
  for (const [name, count] of Object.entries(effects)) metrics[`${effectsPrefix}${name}`] = count;
  addOffPolicy(metrics, trained, step);
  metrics['batch/groups'] = trained.length;
  metrics['batch/rollouts'] = trained.flatMap(rewardsOf).length;
  const used = sampledFor(finished);
  const rollouts = finished.flatMap((group) => group.rollouts).length;
  const rewards = finished.flatMap(rewardsOf).reduce((sum, reward) => sum + reward, 0);
  return { ...metrics, ...costMetrics(used, undefined), ...tokensPer(used, { rollouts, rewards }) };
}

/** Tokens used by the rollouts of a step, kept or not. */
function sampledFor(finished: readonly GroupFacts[]): Used {
  const rollouts = finished.flatMap((group) => group.rollouts);
  return {
    prompt: rollouts.reduce((sum, { promptTokens }) => sum + promptTokens, 0),
    completion: rollouts.reduce((sum, { tokens }) => sum + tokens, 0),
  };
}

export interface MeasuredRollout {
  /** null = an infrastructure failure. */
  readonly reward: number | null;
  readonly outcome: string;
  /** Sampled tokens of all turns. */
  readonly tokens: number;
  readonly turns: number;
  readonly metrics: Readonly<Record<string, number>>;
  readonly isTimedOut?: true;
  readonly overBudget?: OverBudget['over'];
}

/** Mean reward and the mean of each reward function over some rollouts, for evaluations and reports. */
export function measuredMetrics(rollouts: readonly MeasuredRollout[]): Metrics {
  const metrics: Metrics = {};
  const rewarded = rollouts.filter(({ reward }) => reward !== null);
  addSpread(
    metrics,
    'reward',
    rewarded.map(({ reward }) => reward!),
  );
  addSpread(
    metrics,
    'num_output_tokens',
    rewarded.map(({ tokens }) => tokens),
  );
  addMean(
    metrics,
    'num_turns/mean',
    rewarded.map(({ turns }) => turns),
  );
  addMean(
    metrics,
    'is_truncated/mean',
    rewarded.map(({ outcome }) => Number(outcome === 'truncated')),
  );
  const names = new Set(rewarded.flatMap((rollout) => Object.keys(rollout.metrics)));
  for (const name of [...names].sort()) {
    addMean(
      metrics,
      `metrics/${name}`,
      rewarded.flatMap((rollout) => rollout.metrics[name] ?? []),
    );
  }
  addMean(
    metrics,
    'has_error/mean',
    rollouts.map(({ reward }) => Number(reward === null)),
  );
  for (const outcome of failedOutcomes) {
    const count = rollouts.filter((rollout) => rollout.outcome === outcome).length;
    if (count > 0) metrics[`error/${outcome}`] = count;
  }
  addMean(
    metrics,
    'timed_out/mean',
    rollouts.map((rollout) => Number(hasTimedOut(rollout))),
  );
  for (const unit of [...budgetUnits, 'wallS'] as const) {
    const count = rollouts.filter(({ overBudget }) => overBudget === unit).length;
    if (count > 0) metrics[`over_budget/${budgetKeys[unit]}`] = count;
  }
  return metrics;
}

function rewardsOf(group: GroupFacts): number[] {
  return group.rollouts.flatMap(({ reward }) => reward ?? []);
}

function addSubset(metrics: Metrics, prefix: string, groups: readonly GroupFacts[]): void {
  const rollouts = groups.flatMap((group) => group.rollouts);
  for (const [name, value] of Object.entries(measuredMetrics(rollouts))) metrics[`${prefix}/${name}`] = value;
}

/**
 * The metrics of all environments together, repeated for one: prime-rl's `train/<env>/…`, `reward/<env>/mean` and
 * `batch/<env>`.
 */
function addEnvironment(
  metrics: Metrics,
  name: string,
  { finished, trained }: Pick<StepMetricsInput, 'finished' | 'trained'>,
): void {
  const ofIt = (groups: readonly GroupFacts[]) => groups.filter(({ environment }) => environment === name);
  addMean(metrics, environmentReward(name), ofIt(finished).flatMap(rewardsOf));
  addSubset(metrics, `train/${name}/all`, ofIt(finished));
  addSubset(metrics, `train/${name}/effective`, ofIt(trained));
  addSolved(metrics, `train/${name}/all`, ofIt(finished));
  metrics[`batch/${name}`] = ofIt(trained).flatMap(rewardsOf).length;
}

function addSolved(metrics: Metrics, prefix: string, groups: readonly GroupFacts[]): void {
  const solved = solvedCounts(groups.map(rewardsOf));
  const total = solved.all + solved.none + solved.some;
  if (total === 0) return;
  for (const kind of ['all', 'none', 'some'] as const) metrics[`${prefix}/solved_${kind}`] = solved[kind] / total;
}

function addDropped(metrics: Metrics, groups: readonly GroupFacts[], filter: DifficultyBounds): void {
  const counts: Record<DropReason, number> = { too_easy: 0, too_hard: 0, low_variance: 0, no_signal: 0, non_finite: 0 };
  for (const group of groups) {
    const verdict = judgeGroup(rewardsOf(group), filter);
    if (!verdict.kept) counts[verdict.reason] += 1;
  }
  for (const [reason, count] of Object.entries(counts)) metrics[`filter/${reason}`] = count;
}

function addTimeouts(metrics: Metrics, groups: readonly GroupFacts[], environments: readonly string[]): void {
  for (const name of environments) {
    const own = groups.filter(({ environment }) => environment === name);
    const timedOut = own.flatMap(({ rollouts }) => rollouts.filter(hasTimedOut)).length;
    if (timedOut > 0) metrics[environmentTimeouts(name)] = timedOut;
  }
}

function addOffPolicy(metrics: Metrics, groups: readonly GroupFacts[], step: number): void {
  const levels = groups.map(({ oldestStep }) => staleness(step, oldestStep));
  addMean(metrics, 'off_policy/mean', levels);
  if (levels.length > 0) metrics['off_policy/max'] = Math.max(...levels);
  addMean(
    metrics,
    'sampling/temperature',
    groups.flatMap(({ temperature }) => temperature ?? []),
  );
}

function addSpread(metrics: Metrics, prefix: string, values: readonly number[]): void {
  if (values.length === 0) return;
  addMean(metrics, `${prefix}/mean`, values);
  let [least, most] = [values[0]!, values[0]!];
  for (const value of values) [least, most] = [Math.min(least, value), Math.max(most, value)];
  metrics[`${prefix}/min`] = least;
  metrics[`${prefix}/max`] = most;
}

function addMean(metrics: Metrics, name: string, values: readonly number[]): void {
  if (values.length > 0) metrics[name] = values.reduce((sum, value) => sum + value, 0) / values.length;
}

/** `baseline/ENVIRONMENT/ROLE`: the running mean of its rewards after the step's batch. */
export function baselineMetrics(baselines: Baselines = {}): Record<string, number> {
  const entries = Object.entries(baselines).flatMap(([environment, roles]) =>
    Object.entries(roles).map(([role, mean]) => [`baseline/${environment}/${role}`, mean] as const),
  );
  return Object.fromEntries(entries);
}
