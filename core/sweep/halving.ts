/** Successive halving: which rows of a sweep go on after a rung, and what that takes. */

/** Beside each: missing = from the number of steps of a run. */
export interface HalvingSettings {
  /** One row of this many goes on after a rung. */
  readonly eta: number;
  /** How many rungs there are, the last one at the end of a run; null: as many as `minSteps` allows. */
  readonly rungs: number | null;
  /** Steps of the first rung; null: so that the last of `rungs` ends with the run. */
  readonly minSteps: number | null;
}

export type SweepGoal = 'max' | 'min';

/** The result of one run at a rung. */
export interface RungResult {
  readonly row: number;
  readonly seed: number | null;
  /** The metric there; null if the run has none: it failed, was stopped, or did not log it. */
  readonly value: number | null;
}

/** A row of settings at a rung, over its seeds. */
export interface RowStanding {
  readonly row: number;
  /** Mean over the seeds that have the metric; null: none has it. */
  readonly mean: number | null;
  /** Standard error of that mean; null with fewer than two seeds. */
  readonly standardError: number | null;
  /** Seeds that have the metric. */
  readonly seeds: number;
  /** Seeds that were to have it. */
  readonly of: number;
}

export interface RungDecision {
  /** Every row of the rung, the best first. */
  readonly ranking: readonly RowStanding[];
  /** Rows that go on, in the order of the table. */
  readonly survivors: readonly number[];
}

/**
 * Steps at which rows are compared, ascending; the last is the end of a run. Without halving, the end alone. With
 * `rungs`, each rung has `eta` times the steps of the one before it, rounded up. With `minSteps`, the first rung has that
 * many. With both, there are at most `rungs`, from `minSteps` on, and then the end.
 */
export function rungSteps(maxSteps: number, halving: HalvingSettings | null): number[] {
  if (halving === null) return [maxSteps];
  const { eta, rungs, minSteps } = halving;
  const steps: number[] = [];
  if (minSteps === null) {
    for (let before = (rungs ?? 1) - 1; before > 0; before--) steps.push(Math.ceil(maxSteps / eta ** before));
  } else {
    const most = rungs === null ? Number.POSITIVE_INFINITY : rungs - 1;
    for (let at = minSteps; at < maxSteps && steps.length < most; at *= eta) steps.push(Math.ceil(at));
  }
  return [...new Set([...steps.filter((at) => at < maxSteps), maxSteps])];
}

/** How many of these rows go on after a rung: one of `eta`, rounded up. */
export function survivorsOf(rows: number, eta: number): number {
  return rows === 0 ? 0 : Math.max(1, Math.ceil(rows / eta));
}

/**
 * Decides a rung. Rows are ranked by the mean over their seeds. A row of which a seed has no metric comes after all rows
 * that are complete, because its mean is over other seeds than theirs. A row without any metric does not go on. Of equal
 * rows, the earlier one in the table is better. The order of `results` does not matter. `eta` null: nothing is
 * dropped but rows without any metric.
 */
export function decideRung(results: readonly RungResult[], goal: SweepGoal, eta: number | null): RungDecision {
  const byRow = new Map<number, RungResult[]>();
  for (const result of results) byRow.set(result.row, [...(byRow.get(result.row) ?? []), result]);
  const ranking = [...byRow].map(([row, own]) => standingOf(row, own)).sort((a, b) => compare(a, b, goal));
  const count = eta === null ? ranking.length : survivorsOf(ranking.length, eta);
  const going = ranking.slice(0, count).filter(({ mean }) => mean !== null);
  return { ranking, survivors: going.map(({ row }) => row).toSorted((a, b) => a - b) };
}

/**
 * Rows that a rung dropped though they were no further behind the last row that goes on than the standard error of the
 * difference: chance may have dropped them. Rows with fewer than two seeds are never among them.
 */
export function narrowlyDropped({ ranking, survivors }: RungDecision): number[] {
  const goesOn = ({ row }: RowStanding): boolean => survivors.includes(row);
  const last = ranking.findLast(goesOn);
  const isNarrow = (standing: RowStanding): boolean => {
    if (last?.standardError == null || standing.standardError === null || standing.seeds < standing.of) return false;
    return Math.abs(standing.mean! - last.mean!) <= Math.hypot(standing.standardError, last.standardError);
  };
  return ranking.filter((standing) => !goesOn(standing) && isNarrow(standing)).map(({ row }) => row);
}

/** Steps of all runs that each row makes with halving, from the rows at each rung; and without it. */
export function stepsOf(
  rows: number,
  seeds: number,
  { steps, eta }: { readonly steps: readonly number[]; readonly eta: number | null },
): { readonly halved: number; readonly full: number } {
  let [halved, left, before] = [0, rows, 0];
  for (const at of steps) {
    halved += left * seeds * (at - before);
    before = at;
    if (eta !== null) left = survivorsOf(left, eta);
  }
  return { halved, full: rows * seeds * before };
}

function standingOf(row: number, results: readonly RungResult[]): RowStanding {
  // In the order of seeds, so that the sum is the same however results come in.
  const inOrder = results.toSorted((a, b) => (a.seed ?? 0) - (b.seed ?? 0));
  const values = inOrder.flatMap(({ value }) => (value !== null && Number.isFinite(value) ? [value] : []));
  const n = values.length;
  const of = results.length;
  if (n === 0) return { row, mean: null, standardError: null, seeds: 0, of };
  const mean = values.reduce((sum, value) => sum + value, 0) / n;
  const squares = values.reduce((sum, value) => sum + (value - mean) ** 2, 0);
  const standardError = n < 2 ? null : Math.sqrt(squares / (n - 1) / n);
  return { row, mean, standardError, seeds: n, of };
}

/** The better one first. */
function compare(a: RowStanding, b: RowStanding, goal: SweepGoal): number {
  return rankOf(a) - rankOf(b) || betterBy(a, b, goal) || a.row - b.row;
}

function rankOf({ mean, seeds, of }: RowStanding): number {
  if (mean === null) return 2;
  return seeds < of ? 1 : 0;
}

function betterBy({ mean: a }: RowStanding, { mean: b }: RowStanding, goal: SweepGoal): number {
  if (a === null || b === null || a === b) return 0;
  return goal === 'max' ? b - a : a - b;
}
