import { bootstrapMean, type Interval } from './bootstrap.ts';
import { studentQuantile } from './quantiles.ts';

/**
 * One evaluation: the mean reward of each example, by the example's id. Examples without a rewarded rollout are left
 * out.
 */
export interface EvaluatedVersion {
  readonly step: number;
  /** Name for people; `v50` when missing. */
  readonly name?: string | undefined;
  readonly rewards: Readonly<Record<string, number>>;
}

/** An evaluation compared with the best before it, over their common examples. */
export interface Regression {
  /**
   * Whether it is worse beyond chance. Only a hint: it holds for two to four in a hundred evaluations of an unchanging
   * policy.
   */
  readonly isWorse: boolean;
  /** Whether it and the evaluation before it are worse together, beyond doubt: this may pause or stop a run. */
  readonly isRepeated?: boolean;
  /** Best version so far. */
  readonly best: { readonly step: number; readonly name: string; readonly reward: number };
  readonly reward: number;
  /** 95 % interval of the differences, example by example. */
  readonly difference: Interval;
  readonly examples: number;
}

/** Minimum for a comparison. */
const examplesMin = 2;
/** Fewer examples do not show the spread of their differences. */
const examplesToJudge = 10;

/**
 * How often chance may look like a fall, over all comparisons of one evaluation together. `repeated` ends 3 % of unchanging runs in twenty
 * evaluations and finds a fall of 0.1 on 256 examples by the third evaluation in nine of ten runs (`test/core/eval/regression-chance.test.ts`).
 * `each` of the two falls by itself too, so that a single bad evaluation ends nothing.
 */
const chance = { worse: 0.025, repeated: 0.003, each: 0.025 };
/** Evaluations in a row that serve as the reference of two: the best single one was lucky as well. */
const windowMax = 3;

interface JudgeOptions {
  /** Key of the interval's random numbers. */
  readonly key: readonly (number | string)[];
  /** Environments that are judged beside this one, itself included: one of several is flagged more easily. */
  readonly environments?: number;
}

/** The evaluations that a new one is compared with. */
interface References<Of> {
  readonly best: Of;
  readonly last: Of;
  /** The best evaluations in a row before `last`; empty without any. */
  readonly window: readonly Of[];
  /** Number of earlier evaluations. */
  readonly count: number;
}

/**
 * Compares an evaluation with those before it, paired by example: examples differ more among each other than versions
 * do. Null without an earlier one. The best of many is also the luckiest, so levels are divided by their number
 * (Bonferroni).
 */
export function judgeRegression(
  evaluated: EvaluatedVersion,
  before: readonly EvaluatedVersion[],
  key: readonly (number | string)[],
  { environments = 1 }: Pick<JudgeOptions, 'environments'> = {},
): Regression | null {
  const known = before
    .filter(({ rewards }) => commonExamples([rewards, evaluated.rewards]).length >= examplesMin)
    .map((one) => ({ ...one, reward: meanOf(one.rewards, Object.keys(one.rewards)) }));
  const references = referencesAmong(known);
  return references && judgeAgainst(evaluated, references, { key, environments });
}

/** Judges an evaluation when only its references were read. */
export function judgeAgainst(
  evaluated: EvaluatedVersion,
  { best, last, window, count }: References<EvaluatedVersion>,
  { key, environments = 1 }: JudgeOptions,
): Regression | null {
  const differences = differencesFrom([best], [evaluated]);
  if (differences.length < examplesMin) return null;
  const pair = differencesFrom(window, [last, evaluated]);
  const isEachBelow = [last, evaluated].every((one) => isBelow(differencesFrom(window, [one]), chance.each));
  const windows = Math.max(1, count - window.length);
  const isRepeated = isEachBelow && isBelow(pair, chance.repeated / (windows * environments));
  const examples = commonExamples([best.rewards, evaluated.rewards]);
  return {
    isWorse: isRepeated || isBelow(differences, chance.worse / (count * environments)),
    isRepeated,
    best: { step: best.step, name: best.name ?? `v${best.step}`, reward: meanOf(best.rewards, examples) },
    reward: meanOf(evaluated.rewards, examples),
    difference: bootstrapMean(differences, { key: [...key, best.step, evaluated.step] }),
    examples: examples.length,
  };
}

/** Chooses references by mean rewards, so that only their examples are read; null without any. */
export function referencesAmong<Of extends { readonly step: number; readonly reward: number }>(
  before: readonly Of[],
): References<Of> | null {
  const inOrder = before.toSorted((a, b) => a.step - b.step);
  const last = inOrder.at(-1);
  if (last === undefined) return null;
  const earlier = inOrder.slice(0, -1);
  const size = Math.min(windowMax, earlier.length);
  const windows = earlier.slice(0, earlier.length - size + 1).map((_, i) => earlier.slice(i, i + size));
  const rewardOf = (some: readonly Of[]): number => meanOfAll(some.map(({ reward }) => reward));
  const firstBest = <Some>(all: readonly Some[], of: (some: Some) => number): Some =>
    all.reduce((best, some) => (of(some) > of(best) ? some : best));
  return {
    best: firstBest(inOrder, ({ reward }) => reward),
    last,
    window: size === 0 ? [] : firstBest(windows, rewardOf),
    count: inOrder.length,
  };
}

/** Mean of `after` less mean of `before`, of each example that all of `after` and one of `before` have. */
function differencesFrom(before: readonly EvaluatedVersion[], after: readonly EvaluatedVersion[]): number[] {
  const reference: Record<string, number> = {};
  for (const id of new Set(before.flatMap(({ rewards }) => Object.keys(rewards))))
    reference[id] = meanOfAll(before.flatMap(({ rewards }) => rewards[id] ?? []));
  const ids = commonExamples([reference, ...after.map(({ rewards }) => rewards)]);
  return ids.map((id) => meanOfAll(after.map(({ rewards }) => rewards[id]!)) - reference[id]!);
}

/** Whether the mean is below 0 beyond chance (Student's t test). */
function isBelow(differences: readonly number[], level: number): boolean {
  const count = differences.length;
  if (count < examplesToJudge) return false;
  const mean = meanOfAll(differences);
  const squares = differences.reduce((sum, difference) => sum + (difference - mean) ** 2, 0);
  const standardError = Math.sqrt(squares / (count - 1) / count);
  // Means of equal rewards differ by their rounding.
  return mean < -1e-9 && mean < studentQuantile(level, count - 1) * standardError;
}

function meanOfAll(values: readonly number[]): number {
  return values.reduce((sum, value) => sum + value, 0) / values.length;
}

/** Sorted by id, so that random draws do not depend on the order of reading. */
function commonExamples([first = {}, ...others]: readonly EvaluatedVersion['rewards'][]): string[] {
  return Object.keys(first)
    .filter((id) => others.every((other) => other[id] !== undefined))
    .sort((x, y) => Number(x) - Number(y) || (x < y ? -1 : 1));
}

function meanOf(rewards: EvaluatedVersion['rewards'], ids: readonly string[]): number {
  return meanOfAll(ids.map((id) => rewards[id]!));
}

/** A sentence for people: the figure that fell, its values before and after, and the certainty. */
export function describeRegression(
  environment: string,
  version: string,
  { best, reward, difference, examples, isRepeated = false }: Regression,
): string {
  const [low, high] = [difference.low, difference.high].map((end) => end.toFixed(3));
  return `regression: ${environment} fell from ${best.reward.toFixed(3)} (${best.name}, the best so far) to ${reward.toFixed(3)} with ${version}: ${difference.mean.toFixed(3)} per example, 95 % between ${low} and ${high} over ${examples} examples${isRepeated ? '; the evaluation before it fell as well' : ''}`;
}

/** The mean reward of each example of some rows of results; rollouts without a reward are left out. */
export function rewardsByExample(
  rows: readonly { readonly example_id: number; readonly reward: number | null }[],
): Record<string, number> {
  const sums = new Map<number, { sum: number; count: number }>();
  for (const { example_id: id, reward } of rows) {
    if (reward === null) continue;
    const { sum, count } = sums.get(id) ?? { sum: 0, count: 0 };
    sums.set(id, { sum: sum + reward, count: count + 1 });
  }
  return Object.fromEntries([...sums].map(([id, { sum, count }]) => [String(id), sum / count]));
}
