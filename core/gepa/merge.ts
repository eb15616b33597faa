import { average } from './fronts.ts';
import { drawWeighted } from './select-candidate.ts';
import type { Candidate, MergeSettings, Texts } from './search-state.ts';

/**
 * Merge, GEPA's crossover of two candidates with a common ancestor that changed different components. Follows gepa 0.1.4,
 * except that components are taken in the candidate's own order.
 */

type Relative = Pick<Candidate, 'texts' | 'parents'>;

interface Merge {
  readonly texts: Texts;
  /** The merged two, ascending. */
  readonly parents: readonly [number, number];
  readonly ancestor: number;
  /** Identifies this merge among those tried. */
  readonly key: string;
}

/** Draws of a pair and its components before an iteration gives up merging. */
const drawsMax = 10;

/** A merge of two of `pool` that has not been seen, or null when ten draws of a pair find none. */
export function findMerge(
  candidates: readonly Candidate[],
  pool: readonly number[],
  { overlapFloor }: Pick<MergeSettings, 'overlapFloor'>,
  seen: readonly string[],
  random: () => number,
): Merge | null {
  if (pool.length < 2 || candidates.length < 3) return null;
  for (let draw = 0; draw < drawsMax; draw++) {
    const pair = drawPair(candidates, pool, random);
    if (pair === null) continue;
    const merge = mergePair(candidates, pair, seen, random);
    if (merge === null) continue;
    if (sharedExamples(candidates[pair[0]]!.scores, candidates[pair[1]]!.scores).length >= overlapFloor) return merge;
  }
  return null;
}

function drawPair(
  candidates: readonly Relative[],
  pool: readonly number[],
  random: () => number,
): readonly [number, number] | null {
  for (let draw = 0; draw < drawsMax; draw++) {
    const first = Math.floor(random() * pool.length);
    const second = (first + 1 + Math.floor(random() * (pool.length - 1))) % pool.length;
    const pair = [Math.min(pool[first]!, pool[second]!), Math.max(pool[first]!, pool[second]!)] as const;
    if (!areRelated(candidates, pair) && commonAncestors(candidates, pair).length > 0) return pair;
  }
  return null;
}

/** The merge of a pair over one of its allowed ancestors, or null. */
export function mergePair(
  candidates: readonly (Relative & { readonly scores: Candidate['scores'] })[],
  pair: readonly [number, number],
  seen: readonly string[],
  random: () => number,
): Merge | null {
  const averages = candidates.map(({ scores }) => average(scores));
  const ancestors = allowedAncestors(candidates, pair, averages).filter((a) => !seen.includes([...pair, a].join()));
  if (ancestors.length === 0) return null;
  const ancestor = drawWeighted(
    ancestors.map((a) => [a, Math.max(averages[a]!, 0)] as const),
    random(),
  );
  const { texts, from } = mergeTexts(candidates, pair, ancestor, averages, random);
  const key = `${pair.join()}:${from.join()}`;
  return seen.includes(key) ? null : { texts, parents: pair, ancestor, key };
}

/** Marks of a merge that was tried: its three candidates, and the origin of each text. */
export function marksOf({ parents, ancestor, key }: Merge): string[] {
  return [[...parents, ancestor].join(), key];
}

/** Common ancestors of both, worse than neither, such that one side kept a component that the other changed. */
export function allowedAncestors(
  candidates: readonly Relative[],
  pair: readonly [number, number],
  averages: readonly number[],
): number[] {
  if (areRelated(candidates, pair)) return [];
  const [i, j] = pair;
  return commonAncestors(candidates, pair).filter(
    (a) =>
      averages[a]! <= averages[i]! &&
      averages[a]! <= averages[j]! &&
      Object.entries(candidates[a]!.texts).some(([name, text]) => {
        const [left, right] = [candidates[i]!.texts[name], candidates[j]!.texts[name]];
        return (left === text || right === text) && left !== right;
      }),
  );
}

export function commonAncestors(candidates: readonly Relative[], [i, j]: readonly [number, number]): number[] {
  const right = ancestorsOf(candidates, j);
  return [...ancestorsOf(candidates, i)].filter((a) => right.has(a)).sort((a, b) => a - b);
}

export function areRelated(candidates: readonly Relative[], [i, j]: readonly [number, number]): boolean {
  return ancestorsOf(candidates, i).has(j) || ancestorsOf(candidates, j).has(i);
}

/** The validation examples both were scored on. */
function sharedExamples(a: readonly (number | null)[], b: readonly (number | null)[]): number[] {
  return a.flatMap((score, example) => (score !== null && b[example] != null ? [example] : []));
}

/**
 * Examples for a merged candidate: a third each where one parent is better, where the other is, and where they are
 * equal; filled up at random, and repeated if there are too few.
 */
export function drawSubsample(
  a: readonly (number | null)[],
  b: readonly (number | null)[],
  size: number,
  random: () => number,
): number[] {
  const shared = sharedExamples(a, b);
  const each = Math.ceil(size / 3);
  const where = (sign: number): number[] => shared.filter((example) => Math.sign(a[example]! - b[example]!) === sign);
  const picked = [...drawSome(where(1), each, random), ...drawSome(where(-1), each, random)];
  picked.push(...drawSome(where(0), size - picked.length, random));
  const unused = shared.filter((example) => !picked.includes(example));
  picked.push(...drawSome(unused, size - picked.length, random));
  while (picked.length < size && shared.length > 0) picked.push(shared[Math.floor(random() * shared.length)]!);
  return picked.slice(0, size);
}

function mergeTexts(
  candidates: readonly Relative[],
  [i, j]: readonly [number, number],
  ancestor: number,
  averages: readonly number[],
  random: () => number,
): { texts: Texts; from: number[] } {
  const texts: Record<string, string> = {};
  const from: number[] = [];
  for (const [name, text] of Object.entries(candidates[ancestor]!.texts)) {
    const [left, right] = [candidates[i]!.texts[name]!, candidates[j]!.texts[name]!];
    let taken = i;
    if (left === text || right === text) taken = left === text ? j : i;
    else if (averages[i] !== averages[j]) taken = averages[i]! > averages[j]! ? i : j;
    else if (left !== right) taken = random() < 0.5 ? i : j;
    texts[name] = candidates[taken]!.texts[name]!;
    from.push(taken);
  }
  return { texts, from };
}

function ancestorsOf(candidates: readonly Relative[], candidate: number): Set<number> {
  const found = new Set<number>();
  const open = [...candidates[candidate]!.parents];
  for (let next = open.pop(); next !== undefined; next = open.pop()) {
    if (found.has(next)) continue;
    found.add(next);
    open.push(...candidates[next]!.parents);
  }
  return found;
}

function drawSome(from: readonly number[], count: number, random: () => number): number[] {
  const left = [...from];
  const drawn: number[] = [];
  while (drawn.length < count && left.length > 0) drawn.push(left.splice(Math.floor(random() * left.length), 1)[0]!);
  return drawn;
}
