import { bootstrapMean, type Interval } from './bootstrap.ts';
import type { RowFacts } from './result-rows.ts';

/** A row's facts with the digest of its prompt. */
export type ComparedRow = Pick<RowFacts, 'exampleId' | 'reward' | 'promptStart'> & { readonly promptDigest: string };

/** One example that both evaluations have, with equal id and prompt. */
export interface ExampleDifference {
  readonly exampleId: string;
  readonly promptStart: string;
  /** Rewards of the rewarded rollouts, in the order of the rows. */
  readonly rewards: readonly [a: readonly number[], b: readonly number[]];
  /** Mean reward of b less that of a. */
  readonly difference: number;
}

/** The second evaluation compared with the first. */
export interface Comparison {
  /** Largest gain first. */
  readonly examples: readonly ExampleDifference[];
  /** Mean over the examples of each one's mean reward. Null without a common example. */
  readonly means: readonly [a: number, b: number] | null;
  /** 95 % interval of the mean difference. Null without a common example. */
  readonly difference: Interval | null;
  readonly better: number;
  readonly same: number;
  readonly worse: number;
  readonly leftOut: LeftOut;
}

interface LeftOut {
  readonly onlyInA: number;
  readonly onlyInB: number;
  /** Ids in both, with different prompts. */
  readonly otherPrompt: readonly string[];
  /** Every rollout failed in one of them. */
  readonly withoutReward: readonly string[];
}

interface Seen {
  readonly exampleId: string;
  readonly promptStart: string;
  readonly rewards: number[];
}

/**
 * Pairs two evaluations example by example. Rewards of one example are averaged first, so that its number of rollouts
 * has no weight. The interval is the bootstrap's over examples, with random numbers keyed by `seed`.
 */
export function compareEvaluations(
  a: readonly ComparedRow[],
  b: readonly ComparedRow[],
  { seed = 0 }: { readonly seed?: number } = {},
): Comparison {
  const [ofA, ofB] = [examplesOf(a), examplesOf(b)];
  const [idsA, idsB] = [idsOf(ofA), idsOf(ofB)];
  const both = [...ofA.keys()].filter((key) => ofB.has(key));
  const matched = idsOf(new Map(both.map((key) => [key, ofA.get(key)!])));
  const withoutReward: string[] = [];
  const examples = both.flatMap((key): ExampleDifference[] => {
    const [inA, inB] = [ofA.get(key)!, ofB.get(key)!];
    const { exampleId, promptStart } = inA;
    if (inA.rewards.length === 0 || inB.rewards.length === 0) {
      withoutReward.push(exampleId);
      return [];
    }
    const difference = mean(inB.rewards) - mean(inA.rewards);
    return [{ exampleId, promptStart, rewards: [inA.rewards, inB.rewards], difference }];
  });
  // Sorted by id, so that the interval does not depend on the order of rows.
  examples.sort((x, y) => byId(x.exampleId, y.exampleId));
  const differences = examples.map(({ difference }) => difference);
  return {
    means:
      examples.length === 0
        ? null
        : [
            mean(examples.map(({ rewards }) => mean(rewards[0]))),
            mean(examples.map(({ rewards }) => mean(rewards[1]))),
          ],
    difference: examples.length === 0 ? null : bootstrapMean(differences, { key: ['compare', seed] }),
    better: differences.filter((difference) => difference > 0).length,
    same: differences.filter((difference) => difference === 0).length,
    worse: differences.filter((difference) => difference < 0).length,
    leftOut: {
      onlyInA: [...idsA].filter((id) => !idsB.has(id)).length,
      onlyInB: [...idsB].filter((id) => !idsA.has(id)).length,
      otherPrompt: [...idsA].filter((id) => idsB.has(id) && !matched.has(id)).sort(byId),
      withoutReward: withoutReward.sort(byId),
    },
    examples: examples.toSorted((x, y) => y.difference - x.difference || byId(x.exampleId, y.exampleId)),
  };
}

/** One id may have several prompts in concatenated files. */
function examplesOf(rows: readonly ComparedRow[]): Map<string, Seen> {
  const examples = new Map<string, Seen>();
  for (const { exampleId, promptDigest, promptStart, reward } of rows) {
    const key = `${exampleId}\u0000${promptDigest}`;
    let seen = examples.get(key);
    if (!seen) examples.set(key, (seen = { exampleId, promptStart, rewards: [] }));
    if (reward !== null) seen.rewards.push(reward);
  }
  return examples;
}

function idsOf(examples: ReadonlyMap<string, Seen>): Set<string> {
  return new Set([...examples.values()].map(({ exampleId }) => exampleId));
}

function byId(a: string, b: string): number {
  return Number(a) - Number(b) || (a < b ? -1 : a > b ? 1 : 0);
}

function mean(values: readonly number[]): number {
  return values.reduce((sum, value) => sum + value, 0) / values.length;
}
