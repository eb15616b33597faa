import { RatchetError } from '../errors.ts';
import type { FrontierType } from './search-state.ts';

/** Candidates that share the best value of something: name of the thing → positions of candidates, ascending. */
export type Fronts = ReadonlyMap<string, readonly number[]>;

interface Scored {
  /** [validation example]; null = no score. */
  readonly scores: readonly (number | null)[];
  readonly objectives: Readonly<Record<string, readonly (number | null)[]>>;
}

/** Mean of the existing scores, −∞ without any. */
export function average(scores: readonly (number | null)[]): number {
  let [sum, count] = [0, 0];
  for (const score of scores) {
    if (score === null) continue;
    sum += score;
    count += 1;
  }
  return count === 0 ? -Infinity : sum / count;
}

/**
 * The fronts of a type. `examples` limits them to some validation examples: if candidates were scored on different
 * ones, only common examples are fair.
 */
export function frontsOf(type: FrontierType, candidates: readonly Scored[], examples: readonly number[]): Fronts {
  const values = new Map<string, { best: number; holders: number[] }>();
  const offer = (name: string, candidate: number, value: number | null | undefined): void => {
    if (value === null || value === undefined || value === -Infinity) return;
    const held = values.get(name);
    if (held === undefined || value > held.best) values.set(name, { best: value, holders: [candidate] });
    else if (value === held.best) held.holders.push(candidate);
  };
  for (const [candidate, { scores, objectives }] of candidates.entries()) {
    if (type === 'instance' || type === 'hybrid')
      for (const example of examples) offer(`val/${example}`, candidate, scores[example]);
    if (type === 'instance') continue;
    requireObjectives(type, objectives);
    for (const [name, byExample] of Object.entries(objectives)) {
      if (type === 'cartesian')
        for (const example of examples) offer(`val/${example}/${name}`, candidate, byExample[example]);
      else offer(`objective/${name}`, candidate, average(examples.map((example) => byExample[example] ?? null)));
    }
  }
  return new Map([...values].map(([name, { holders }]) => [name, holders]));
}

/**
 * Removes redundant candidates: from the lowest average up, one is removed if each of its fronts has another remaining
 * one.
 */
export function withoutDominated(fronts: Fronts, averages: readonly number[]): Fronts {
  const holders = [...new Set([...fronts.values()].flat())].sort((a, b) => a - b);
  const left = new Set(holders);
  for (const candidate of holders.toSorted((a, b) => averageAt(averages, a) - averageAt(averages, b))) {
    const own = [...fronts.values()].filter((front) => front.includes(candidate));
    if (own.every((front) => front.some((other) => other !== candidate && left.has(other)))) left.delete(candidate);
  }
  return new Map([...fronts].map(([name, front]) => [name, front.filter((candidate) => left.has(candidate))]));
}

/** In how many fronts each candidate is, by candidate, ascending. */
export function weightsOf(fronts: Fronts): Map<number, number> {
  const weights = new Map<number, number>();
  for (const candidate of [...fronts.values()].flat()) weights.set(candidate, (weights.get(candidate) ?? 0) + 1);
  return new Map([...weights].sort(([a], [b]) => a - b));
}

function averageAt(averages: readonly number[], candidate: number): number {
  const value = averages[candidate] ?? -Infinity;
  return value === -Infinity ? -Number.MAX_VALUE : value; // −∞ − −∞ is NaN
}

function requireObjectives(type: FrontierType, objectives: Scored['objectives']): void {
  if (Object.keys(objectives).length > 0) return;
  throw new RatchetError(
    'ConfigInvalid',
    `The frontier "${type}" compares candidates by objectives, but the environment gives one score for each example and no ` +
      'objectives. Use the frontier "instance".',
  );
}
