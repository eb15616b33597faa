import { bootstrapMean, type Interval } from './bootstrap.ts';

/** One evaluation: the mean reward of each example, by the example's id. Examples of which no rollout has a reward are left out. */
export interface EvaluatedVersion {
  readonly step: number;
  /** For people; `v50` when missing. */
  readonly name?: string | undefined;
  readonly rewards: Readonly<Record<string, number>>;
}

/** How an evaluation stands beside the best before it, over the examples that both have. */
export interface Regression {
  /** Whether it is worse beyond chance: the whole interval of the difference lies below 0. */
  readonly isWorse: boolean;
  /** The best so far. */
  readonly best: { readonly step: number; readonly name: string; readonly reward: number };
  readonly reward: number;
  /** Of the differences, example by example; 95 %. */
  readonly difference: Interval;
  readonly examples: number;
}

/** Fewer examples say nothing of chance. */
const examplesMin = 2;

/**
 * Holds an evaluation against the best of those before it, paired by example: examples differ more among each other than
 * versions do. Null where there is nothing to compare with. The best of many is also the luckiest, so that an interval
 * that only touches 0 is no regression.
 */
export function judgeRegression(
  evaluated: EvaluatedVersion,
  before: readonly EvaluatedVersion[],
  key: readonly (number | string)[],
): Regression | null {
  const best = bestOf(before.filter(({ rewards }) => commonExamples(rewards, evaluated.rewards).length >= examplesMin));
  if (best === null) return null;
  const examples = commonExamples(best.rewards, evaluated.rewards);
  const differences = examples.map((id) => evaluated.rewards[id]! - best.rewards[id]!);
  const difference = bootstrapMean(differences, { key: [...key, best.step, evaluated.step] });
  return {
    isWorse: difference.high < 0,
    best: { step: best.step, name: best.name ?? `v${best.step}`, reward: meanOf(best.rewards, examples) },
    reward: meanOf(evaluated.rewards, examples),
    difference,
    examples: examples.length,
  };
}

/** By mean reward; of equal ones the earliest. */
function bestOf(evaluated: readonly EvaluatedVersion[]): EvaluatedVersion | null {
  const mean = ({ rewards }: EvaluatedVersion): number => meanOf(rewards, Object.keys(rewards));
  return [...evaluated].sort((a, b) => mean(b) - mean(a) || a.step - b.step)[0] ?? null;
}

/** In the order of their ids: what is drawn is then the same whatever order they were read in. */
function commonExamples(a: Readonly<Record<string, number>>, b: Readonly<Record<string, number>>): string[] {
  return Object.keys(a)
    .filter((id) => b[id] !== undefined)
    .sort((x, y) => Number(x) - Number(y) || (x < y ? -1 : 1));
}

function meanOf(rewards: Readonly<Record<string, number>>, ids: readonly string[]): number {
  return ids.reduce((sum, id) => sum + rewards[id]!, 0) / ids.length;
}

/** For people: what fell, from what to what, and how sure that is. */
export function describeRegression(
  environment: string,
  version: string,
  { best, reward, difference, examples }: Regression,
): string {
  const [low, high] = [difference.low, difference.high].map((end) => end.toFixed(3));
  return `regression: ${environment} fell from ${best.reward.toFixed(3)} (${best.name}, the best so far) to ${reward.toFixed(3)} with ${version}: ${difference.mean.toFixed(3)} per example, 95 % between ${low} and ${high} over ${examples} examples`;
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
