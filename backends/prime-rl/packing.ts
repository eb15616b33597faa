/**
 * Packs rows into micro-batches for the ranks, as prime-rl's own packer does (trainer/batch.py of its main branch): only lengths decide. Every
 * rank gets equally many, as ranks wait for one another at each.
 */

/** One micro-batch: these rows one after the other, then padding. */
export interface MicroBatch {
  /** Places of rows in the batch. */
  readonly rows: readonly number[];
  readonly padding: number;
  /** A copy of another one without loss, so that the ranks have equally many. */
  readonly isDummy: boolean;
}

export interface PackingOptions {
  readonly seqLen: number;
  readonly ranks: number;
  /** The length of a micro-batch is a multiple of this. */
  readonly padToMultipleOf?: number;
  /** What a row of n tokens costs: linear · n + quadratic · n². */
  readonly cost?: { readonly linear: number; readonly quadratic: number };
}

/** `lengths` of the rows, each ≤ seqLen. Gives a list of micro-batches for each rank. */
export function packRows(lengths: readonly number[], options: PackingOptions): MicroBatch[][] {
  const { seqLen, ranks, padToMultipleOf = 1, cost = { linear: 1, quadratic: 0 } } = options;
  const costOf = (n: number): number => cost.linear * n + cost.quadratic * n * n;
  const bins = firstFitDecreasing(lengths, seqLen);
  if (ranks > 1) splitUntil(bins, Math.ceil(bins.length / ranks) * ranks, (row) => costOf(lengths[row]!));
  const sizeOf = (rows: readonly number[]): number => rows.reduce((sum, row) => sum + lengths[row]!, 0);
  const made = bins.map((rows): MicroBatch => {
    const size = sizeOf(rows);
    return { rows, padding: Math.ceil(size / padToMultipleOf) * padToMultipleOf - size, isDummy: false };
  });
  while (made.length % ranks !== 0) made.push({ ...made[0]!, isDummy: true });
  if (made.length === 0) return Array.from({ length: ranks }, () => []);
  // Padding lengthens the last row.
  const weights = made.map(({ rows, padding }) =>
    rows.reduce((sum, row, i) => sum + costOf(lengths[row]! + (i === rows.length - 1 ? padding : 0)), 0),
  );
  return refineBySwapping(weights, karmarkarKarp(weights, ranks)).map((part) => part.map((i) => made[i]!));
}

/** Free room of bins as a tree of maxima, so that the first bin with room is found in logarithmic time. */
function firstFitDecreasing(lengths: readonly number[], seqLen: number): number[][] {
  const order = [...lengths.keys()].sort((a, b) => lengths[b]! - lengths[a]!);
  const bins: number[][] = [];
  let leaves = 1;
  while (leaves < lengths.length) leaves *= 2;
  const room = new Float64Array(2 * leaves).fill(seqLen);
  for (const row of order) {
    const need = lengths[row]!;
    let node = 1;
    while (node < leaves) node = room[2 * node]! >= need ? 2 * node : 2 * node + 1;
    const bin = node - leaves;
    if (bin === bins.length) bins.push([]);
    bins[bin]!.push(row);
    room[node] = room[node]! - need;
    for (node >>= 1; node >= 1; node >>= 1) room[node] = Math.max(room[2 * node]!, room[2 * node + 1]!);
  }
  return bins;
}

/** Splits the heaviest bin of several rows until there are so many bins, or none can be split. */
function splitUntil(bins: number[][], count: number, costOf: (row: number) => number): void {
  const loads = bins.map((rows) => rows.reduce((sum, row) => sum + costOf(row), 0));
  while (bins.length < count) {
    let heaviest = -1;
    for (const [i, rows] of bins.entries())
      if (rows.length > 1 && (heaviest < 0 || loads[i]! >= loads[heaviest]!)) heaviest = i;
    if (heaviest < 0) return;
    const sides: [number[], number[]] = [[], []];
    const sums = [0, 0];
    for (const row of [...bins[heaviest]!].sort((a, b) => costOf(b) - costOf(a))) {
      const side = sums[0]! <= sums[1]! ? 0 : 1;
      sides[side].push(row);
      sums[side] = sums[side]! + costOf(row);
    }
    [bins[heaviest], loads[heaviest]] = [sides[0], sums[0]!];
    bins.push(sides[1]);
    loads.push(sums[1]!);
  }
}

interface WeightedSet {
  total: number;
  items: number[];
}

function compareSets(a: WeightedSet, b: WeightedSet): number {
  if (a.total !== b.total) return a.total - b.total;
  for (let i = 0; i < Math.min(a.items.length, b.items.length); i++)
    if (a.items[i] !== b.items[i]) return a.items[i]! - b.items[i]!;
  return a.items.length - b.items.length;
}

/** Descending sets; the state with the widest spread is merged first. */
type Partition = WeightedSet[];

function isBefore(a: Partition, b: Partition): boolean {
  const [spreadA, spreadB] = [a, b].map((sets) => sets[0]!.total - sets.at(-1)!.total);
  return spreadA !== spreadB ? spreadA! > spreadB! : compareSets(a[0]!, b[0]!) > 0;
}

/** Karmarkar and Karp, The Differencing Method of Set Partitioning (1982), with equally many items in each set. */
function karmarkarKarp(weights: readonly number[], parts: number): number[][] {
  const order = [...weights.keys()].sort((a, b) => weights[a]! - weights[b]! || a - b);
  const states: Partition[] = [];
  for (let i = 0; i < order.length; i += parts) {
    const sets = order.slice(i, i + parts).map((item) => ({ total: weights[item]!, items: [item] }));
    push(
      states,
      sets.sort((a, b) => compareSets(b, a)),
    );
  }
  while (states.length > 1) {
    const [first, second] = [pop(states), pop(states)];
    const merged = first.map((set, i) => {
      const other = second[parts - 1 - i]!;
      return { total: set.total + other.total, items: [...set.items, ...other.items] };
    });
    push(
      states,
      merged.sort((a, b) => compareSets(b, a)),
    );
  }
  return states[0]!.map(({ items }) => items.sort((a, b) => a - b));
}

function push(heap: Partition[], state: Partition): void {
  let at = heap.push(state) - 1;
  while (at > 0) {
    const parent = (at - 1) >> 1;
    if (!isBefore(state, heap[parent]!)) break;
    heap[at] = heap[parent]!;
    at = parent;
  }
  heap[at] = state;
}

function pop(heap: Partition[]): Partition {
  const first = heap[0]!;
  const last = heap.pop()!;
  if (heap.length === 0) return first;
  let at = 0;
  for (;;) {
    let child = 2 * at + 1;
    if (child >= heap.length) break;
    if (child + 1 < heap.length && isBefore(heap[child + 1]!, heap[child]!)) child += 1;
    if (!isBefore(heap[child]!, last)) break;
    heap[at] = heap[child]!;
    at = child;
  }
  heap[at] = last;
  return first;
}

/**
 * Pairs that are compared at most, which takes a second: every swap looks at all of them, and thousands of micro-batches have millions. The loads of so
 * many are even before. It is a count and no time, so that the same lengths are always packed alike.
 */
const comparisonsMax = 5e7;

/** Swaps the pair of micro-batches that evens the loads most, until none does. */
function refineBySwapping(weights: readonly number[], given: readonly (readonly number[])[]): number[][] {
  const parts = given.map((part) => [...part]);
  const loads = parts.map((part) => part.reduce((sum, i) => sum + weights[i]!, 0));
  const comparisons = ((parts.length * (parts.length - 1)) / 2) * parts[0]!.length ** 2;
  for (let left = comparisonsMax; ; left -= comparisons) {
    if (comparisons > left) return parts;
    const best = bestSwap(weights, parts, loads);
    if (best === null) return parts;
    const { left: one, right: other, i, j, moved } = best;
    [parts[one]![i], parts[other]![j]] = [parts[other]![j]!, parts[one]![i]!];
    loads[one] = loads[one]! + moved;
    loads[other] = loads[other]! - moved;
  }
}

interface Swap {
  readonly left: number;
  readonly right: number;
  readonly i: number;
  readonly j: number;
  readonly moved: number;
}

function bestSwap(weights: readonly number[], parts: readonly number[][], loads: readonly number[]): Swap | null {
  let most = Math.max(...loads);
  let spread = most - Math.min(...loads);
  let best: Swap | null = null;
  for (let left = 0; left < parts.length; left++)
    for (let right = left + 1; right < parts.length; right++) {
      const others = loads.filter((_, part) => part !== left && part !== right);
      const [othersMost, othersLeast] = [Math.max(...others, -Infinity), Math.min(...others, Infinity)];
      if (othersMost > most) continue; // the heaviest would stay
      for (let i = 0; i < parts[left]!.length; i++)
        for (let j = 0; j < parts[right]!.length; j++) {
          const moved = weights[parts[right]![j]!]! - weights[parts[left]![i]!]!;
          const [a, b] = [loads[left]! + moved, loads[right]! - moved];
          const high = Math.max(a, b, othersMost);
          if (high > most) continue;
          const wide = high - Math.min(a, b, othersLeast);
          if (high === most && wide >= spread) continue;
          [most, spread, best] = [high, wide, { left, right, i, j, moved }];
        }
    }
  return best;
}
