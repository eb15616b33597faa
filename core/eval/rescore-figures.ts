/** How rewards changed: sums that add up chunk by chunk, and what is read from them. */

/** One rollout whose reward changed. */
export interface RewardChange {
  readonly environment: string;
  /** The step that a run sampled it for; null in an evaluation. */
  readonly step: number | null;
  readonly group: number;
  readonly index: number;
  readonly exampleId: number;
  readonly before: number | null;
  readonly after: number | null;
}

export interface RescoreFigures {
  readonly rollouts: number;
  /** Rollouts that the rubric was asked about. */
  readonly rescored: number;
  /** Those whose reward is another one now, or is there now, or is gone. */
  readonly changed: number;
  /** Without a reward. */
  readonly failedBefore: number;
  readonly failedAfter: number;
  readonly before: readonly [sum: number, count: number];
  readonly after: readonly [sum: number, count: number];
  /** Pairs of rollouts of one example, by how the two rubrics order them. Pairs that both call equal are left out. */
  readonly pairs: {
    readonly concordant: number;
    readonly discordant: number;
    readonly tiedBefore: number;
    readonly tiedAfter: number;
  };
  /** Over rollouts with both rewards, x before and y after. */
  readonly sums: {
    readonly n: number;
    readonly x: number;
    readonly y: number;
    readonly xx: number;
    readonly yy: number;
    readonly xy: number;
  };
  /** The largest changes first. */
  readonly largest: readonly RewardChange[];
}

export const noFigures: RescoreFigures = {
  rollouts: 0,
  rescored: 0,
  changed: 0,
  failedBefore: 0,
  failedAfter: 0,
  before: [0, 0],
  after: [0, 0],
  pairs: { concordant: 0, discordant: 0, tiedBefore: 0, tiedAfter: 0 },
  sums: { n: 0, x: 0, y: 0, xx: 0, yy: 0, xy: 0 },
  largest: [],
};

/** Changes that are shown. */
export const changesShown = 10;

/** Two rewards of a rollout; null = it has none. */
export interface RewardPair {
  readonly index: number;
  readonly before: number | null;
  readonly after: number | null;
  readonly isRescored: boolean;
}

/** Figures of the rollouts of one example. */
export function figuresOf(
  rollouts: readonly RewardPair[],
  place: Pick<RewardChange, 'environment' | 'step' | 'group' | 'exampleId'>,
): RescoreFigures {
  const both = rollouts.flatMap(({ before, after }) => (before === null || after === null ? [] : [[before, after] as const])); // prettier-ignore
  const changed = rollouts.filter(({ before, after }) => before !== after);
  return {
    rollouts: rollouts.length,
    rescored: rollouts.filter(({ isRescored }) => isRescored).length,
    changed: changed.length,
    failedBefore: rollouts.filter(({ before }) => before === null).length,
    failedAfter: rollouts.filter(({ after }) => after === null).length,
    before: sumOf(rollouts.map(({ before }) => before)),
    after: sumOf(rollouts.map(({ after }) => after)),
    pairs: pairsOf(both),
    sums: sumsOf(both),
    largest: largestOf(changed.map(({ index, before, after }) => ({ ...place, index, before, after }))),
  };
}

/** The sum of both. Sums of floats depend on their order: chunks are added by their number. */
export function addFigures(a: RescoreFigures, b: RescoreFigures): RescoreFigures {
  return {
    rollouts: a.rollouts + b.rollouts,
    rescored: a.rescored + b.rescored,
    changed: a.changed + b.changed,
    failedBefore: a.failedBefore + b.failedBefore,
    failedAfter: a.failedAfter + b.failedAfter,
    before: [a.before[0] + b.before[0], a.before[1] + b.before[1]],
    after: [a.after[0] + b.after[0], a.after[1] + b.after[1]],
    pairs: added(a.pairs, b.pairs),
    sums: added(a.sums, b.sums),
    largest: b.largest.length === 0 ? a.largest : largestOf([...a.largest, ...b.largest]),
  };
}

/** Null without any. */
export function meanOf([sum, count]: readonly [sum: number, count: number]): number | null {
  return count === 0 ? null : sum / count;
}

/**
 * Kendall's τ-b: (C − D) / √((C + D + X)(C + D + Y)), with X and Y the pairs that only one of the two calls equal
 * (Kendall 1945, "The treatment of ties in ranking problems").
 */
export function rankAgreementOf({ pairs }: RescoreFigures): number | null {
  const { concordant, discordant, tiedBefore, tiedAfter } = pairs;
  const ordered = concordant + discordant;
  const scale = Math.sqrt((ordered + tiedBefore) * (ordered + tiedAfter));
  return scale === 0 ? null : (concordant - discordant) / scale;
}

/** Pearson's correlation; null if one of the two does not vary. */
export function correlationOf({ sums: { n, x, y, xx, yy, xy } }: RescoreFigures): number | null {
  const [ofX, ofY] = [n * xx - x * x, n * yy - y * y];
  if (n < 2 || ofX <= 0 || ofY <= 0) return null;
  return Math.max(-1, Math.min(1, (n * xy - x * y) / Math.sqrt(ofX * ofY)));
}

function sumOf(rewards: readonly (number | null)[]): readonly [number, number] {
  let [sum, count] = [0, 0];
  for (const reward of rewards) {
    if (reward === null) continue;
    sum += reward;
    count += 1;
  }
  return [sum, count];
}

type Pair = readonly [before: number, after: number];

function pairsOf(both: readonly Pair[]): RescoreFigures['pairs'] {
  let [concordant, discordant, tiedBefore, tiedAfter] = [0, 0, 0, 0];
  for (let i = 0; i < both.length; i++) {
    for (let j = i + 1; j < both.length; j++) {
      const before = Math.sign(both[i]![0] - both[j]![0]);
      const after = Math.sign(both[i]![1] - both[j]![1]);
      if (before === 0 && after === 0) continue;
      if (before === 0) tiedBefore += 1;
      else if (after === 0) tiedAfter += 1;
      else if (before === after) concordant += 1;
      else discordant += 1;
    }
  }
  return { concordant, discordant, tiedBefore, tiedAfter };
}

function sumsOf(both: readonly Pair[]): RescoreFigures['sums'] {
  const sums = { n: 0, x: 0, y: 0, xx: 0, yy: 0, xy: 0 };
  for (const [x, y] of both) {
    sums.n += 1;
    sums.x += x;
    sums.y += y;
    sums.xx += x * x;
    sums.yy += y * y;
    sums.xy += x * y;
  }
  return sums;
}

function added<T extends Readonly<Record<string, number>>>(a: T, b: T): T {
  return Object.fromEntries(Object.entries(a).map(([name, value]) => [name, value + b[name]!])) as T;
}

/** A reward that came or went counts as a change from or to 0. Equal ones stay in the order they came in. */
function largestOf(changes: readonly RewardChange[]): RewardChange[] {
  const size = ({ before, after }: RewardChange): number => Math.abs((after ?? 0) - (before ?? 0));
  return changes.toSorted((a, b) => size(b) - size(a)).slice(0, changesShown);
}
