import type { Store } from '../../store/index.ts';
import { layout, stepsOfBlock } from '../layout.ts';
import { currentLineage, type RunPlace, storeOf, stretchesOf } from '../run-access.ts';
import { type Block, decodeBlock, type IndexedRollout, rowOf } from './block.ts';
import { type RolloutText, textsOfSegment, unpackSegment } from './texts.ts';

/** Conditions on rollouts; absent ones do not restrict. */
export interface RolloutFilter {
  readonly step?: readonly [from: number, to: number];
  readonly environment?: string;
  readonly outcome?: string;
  /** A fate in the ledger, or its kind: `filtered` matches every `filtered:…`. */
  readonly end?: string;
  readonly reward?: readonly [from: number, to: number];
  readonly version?: readonly [from: number, to: number];
  readonly exampleId?: number;
  readonly group?: number;
  /** Text in the prompt or the answer, ignoring case. */
  readonly text?: string;
}

export const rolloutOrders = ['newest', 'reward', '-reward', 'tokens'] as const;
export type RolloutOrder = (typeof rolloutOrders)[number];

interface FoundRollout extends IndexedRollout, RolloutText {}

interface RolloutsFound {
  readonly rollouts: readonly FoundRollout[];
  /** Matches by numbers; with a text, those of them found in the part searched so far. */
  readonly matches: number;
  /** Number of all matches. */
  readonly of: number;
  /** Progress of a text search; absent without a text. A search continues from `next`, which is null at the end. */
  readonly searched?: { readonly rows: number; readonly of: number; readonly next: number | null };
  /** Counts over matches by numbers only, before any text search. */
  readonly counts: Readonly<Record<'environment' | 'outcome' | 'end', Readonly<Record<string, number>>>>;
}

export interface Looked {
  readonly order?: RolloutOrder;
  readonly limit?: number;
  readonly skip?: number;
  /** Position, by age, at which a text search continues: an earlier `searched.next`. */
  readonly from?: number;
  /** Time limit of a text search, which then answers with what it has. */
  readonly budgetMs?: number;
}

/** Columns of blocks that are held; 128 MiB are 2.6 million rollouts. */
const columnsHeldBytes = 128 * 1024 * 1024;
const segmentsHeld = 256;
/** Bytes of text read at once during a search. */
const textReadBytes = 2 * 1024 * 1024;

interface BlockPlace {
  readonly lineage: string;
  readonly first: number;
  readonly last: number;
  /** Steps after this one are another lineage's. */
  readonly upTo: number;
  /** This step and those before it are an earlier lineage's. */
  readonly after: number;
}

interface OpenBlock {
  readonly place: BlockPlace;
  readonly block: Block;
}

/**
 * Finds rollouts of the lineages that led to a run's position. Reads blocks on demand, and drops some when there are
 * many.
 */
export class RolloutIndex {
  readonly #run: RunPlace;
  readonly #store: Store;
  readonly #held = new Map<string, Block>();
  #heldBytes = 0;
  readonly #segments = new Map<string, Promise<readonly RolloutText[]>>();
  #places: readonly BlockPlace[] = [];

  constructor(run: RunPlace) {
    this.#run = run;
    this.#store = storeOf(run);
  }

  /** Looks for new blocks. */
  async refresh(): Promise<void> {
    const places: BlockPlace[] = [];
    for (const { lineage, from, upTo } of await stretchesOf({
      ...this.#run,
      lineage: await currentLineage(this.#run),
    })) {
      const blocks = (await this.#store.list(layout.rolloutIndex(lineage)))
        .map(stepsOfBlock)
        .filter((block) => block !== null)
        .sort((a, b) => b.last - b.first - (a.last - a.first));
      const chosen: BlockPlace[] = [];
      // A joined block replaces those of its steps, which may not be removed yet.
      for (const { first, last } of blocks)
        if (!chosen.some((one) => one.first <= first && last <= one.last) && first <= upTo)
          chosen.push({ lineage, first, last, upTo, after: from });
      places.push(...chosen.sort((a, b) => a.first - b.first));
    }
    const order = new Map(places.map((place) => [place, place.first]));
    this.#places = places.sort((a, b) => order.get(a)! - order.get(b)!);
  }

  /** Last indexed step; null without any. */
  get lastStep(): number | null {
    return this.#places.reduce<number | null>((last, one) => Math.max(last ?? 0, Math.min(one.last, one.upTo)), null);
  }

  async find(filter: RolloutFilter, looked: Looked = {}): Promise<RolloutsFound> {
    const { order = 'newest', limit = 50, skip = 0 } = looked;
    if (filter.text !== undefined && filter.text !== '')
      return this.#findText({ ...filter, text: filter.text }, looked);
    const counts = new Counts();
    const best = new Best(order, skip + limit);
    let [matches, of] = [0, 0];
    for await (const open of this.#blocks(filter)) {
      const { block } = open;
      of += block.rows;
      const isWanted = matcher(filter, open);
      for (let row = block.rows - 1; row >= 0; row--) {
        if (!isWanted(row)) continue;
        matches += 1;
        counts.add(block, row);
        best.offer(open, row);
      }
    }
    const rollouts = await this.#tell(best.sorted().slice(skip));
    return { rollouts, matches, of, counts: counts.told() };
  }

  /** Every attempt at one example in one environment, oldest first, `max` at most. */
  async ofExample(environment: string, exampleId: number, max = 2_000): Promise<IndexedRollout[]> {
    const found: IndexedRollout[] = [];
    const filter = { environment, exampleId };
    for await (const open of this.#blocks(filter)) {
      const isWanted = matcher(filter, open);
      for (let row = open.block.rows - 1; row >= 0 && found.length < max; row--)
        if (isWanted(row)) found.push(rowOf(open.block, open.place.lineage, row));
    }
    return found.reverse();
  }

  /** How many rollouts have which reward, in stretches of steps: `bins` from the least reward to the most. */
  async histogram({ environment }: Pick<RolloutFilter, 'environment'>, columns: number, bins: number) {
    const filter = environment === undefined ? {} : { environment };
    let [least, most, last] = [Infinity, -Infinity, 0];
    const each = async (take: (step: number, reward: number) => void): Promise<void> => {
      for await (const open of this.#blocks(filter)) {
        const isWanted = matcher(filter, open);
        const { step, reward } = open.block.columns;
        for (let row = 0; row < open.block.rows; row++)
          if (!Number.isNaN(reward[row]!) && isWanted(row)) take(step[row]!, reward[row]!);
      }
    };
    await each((step, reward) => {
      [least, most, last] = [Math.min(least, reward), Math.max(most, reward), Math.max(last, step)];
    });
    if (last === 0) return { least: 0, most: 1, columns: [] };
    const width = Math.max(1, Math.ceil(last / columns));
    const counts = Array.from({ length: Math.ceil(last / width) }, () => Array.from({ length: bins }, () => 0));
    const height = (most - least) / bins || 1;
    await each((step, reward) => {
      counts[Math.floor((step - 1) / width)]![Math.min(bins - 1, Math.floor((reward - least) / height))]! += 1;
    });
    return {
      least,
      most,
      columns: counts.map((column, i) => ({
        from: i * width + 1,
        to: Math.min(last, (i + 1) * width),
        counts: column,
      })),
    };
  }

  async #findText(filter: RolloutFilter & { readonly text: string }, looked: Looked): Promise<RolloutsFound> {
    const { limit = 50, from = 0, budgetMs = 250 } = looked;
    const until = performance.now() + budgetMs;
    const word = filter.text.toLowerCase();
    const counts = new Counts();
    const found: FoundRollout[] = [];
    let [matches, of, seen, searched] = [0, 0, 0, 0];
    let next: number | null = null;
    for await (const open of this.#blocks(filter)) {
      const { block, place } = open;
      of += block.rows;
      const isWanted = matcher(filter, open);
      const wanted: number[] = [];
      for (let row = block.rows - 1; row >= 0; row--) if (isWanted(row)) wanted.push(row);
      const begun = seen;
      seen += wanted.length;
      if (next !== null || begun + wanted.length <= from) continue;
      const rest = wanted.slice(Math.max(0, from - begun));
      for (const { segment, rows } of this.#segmentsOf(open, rest)) {
        const text = await segment();
        searched += rows.length;
        const [texts, words] = [textsOfSegment(text), text.toLowerCase()];
        if (!words.includes(word)) continue;
        for (const { row, inSegment } of rows) {
          const said = texts[inSegment] ?? { asked: '', said: '' };
          if (!`${said.asked}\n${said.said}`.toLowerCase().includes(word)) continue;
          matches += 1;
          counts.add(block, row);
          found.push({ ...rowOf(block, place.lineage, row), ...said });
        }
        if (found.length >= limit || performance.now() > until) {
          next = from + searched;
          break;
        }
      }
    }
    if (next !== null && next >= seen) next = null;
    return {
      rollouts: found,
      matches,
      of,
      counts: counts.told(),
      searched: { rows: from + searched, of: seen, next },
    };
  }

  /** Segments with these rows, in descending order; each is unpacked on demand. */
  #segmentsOf(
    open: OpenBlock,
    rows: readonly number[],
  ): { segment: () => Promise<string>; rows: { row: number; inSegment: number }[] }[] {
    const { block, place } = open;
    const bySegment = new Map<number, { row: number; inSegment: number }[]>();
    for (const row of rows) {
      const at = segmentAt(block, row);
      const list = bySegment.get(at) ?? [];
      list.push({ row, inSegment: row - block.segments[at]!.row });
      bySegment.set(at, list);
    }
    const key = layout.indexBlock(place.lineage, place.first, place.last, 'text');
    let window: { at: number; bytes: Uint8Array } | null = null;
    const read = async (at: number, length: number): Promise<Uint8Array> => {
      if (!window || at < window.at || at + length > window.at + window.bytes.byteLength) {
        const from = Math.max(0, at + length - textReadBytes);
        window = { at: from, bytes: (await this.#store.readRange(key, from, at + length - from)) ?? new Uint8Array() };
      }
      return window.bytes.subarray(at - window.at, at - window.at + length);
    };
    return [...bySegment].map(([number, list]) => ({
      rows: list,
      segment: async () => {
        const { at, bytes } = block.segments[number]!;
        return unpackSegment(await read(at, bytes), this.#store.uri + key);
      },
    }));
  }

  /** Adds the texts of rollouts. */
  async #tell(places: readonly (OpenBlock & { readonly row: number })[]): Promise<FoundRollout[]> {
    return Promise.all(
      places.map(async ({ block, place, row }) => {
        const at = segmentAt(block, row);
        const segment = block.segments[at];
        const key = layout.indexBlock(place.lineage, place.first, place.last, 'text');
        const texts = segment ? await this.#segment(key, segment.at, segment.bytes) : [];
        return {
          ...rowOf(block, place.lineage, row),
          ...(texts[row - (segment?.row ?? 0)] ?? { asked: '', said: '' }),
        };
      }),
    );
  }

  #segment(key: string, at: number, bytes: number): Promise<readonly RolloutText[]> {
    const name = `${key}@${at}`;
    const found = this.#segments.get(name) ?? this.#readSegment(key, at, bytes);
    this.#segments.delete(name);
    this.#segments.set(name, found);
    found.catch(() => this.#segments.delete(name));
    if (this.#segments.size > segmentsHeld) this.#segments.delete(this.#segments.keys().next().value!);
    return found;
  }

  async #readSegment(key: string, at: number, bytes: number): Promise<readonly RolloutText[]> {
    const packed = await this.#store.readRange(key, at, bytes);
    return packed === null ? [] : textsOfSegment(await unpackSegment(packed, this.#store.uri + key));
  }

  /** Newest first; skips blocks without any of the requested steps. */
  async *#blocks({ step }: RolloutFilter): AsyncGenerator<OpenBlock> {
    for (const place of this.#places.toReversed()) {
      if (step && (place.last < step[0] || place.first > step[1])) continue;
      const block = await this.#block(place);
      if (block) yield { place, block };
    }
  }

  async #block({ lineage, first, last }: BlockPlace): Promise<Block | null> {
    const key = layout.indexBlock(lineage, first, last, 'columns');
    const held = this.#held.get(key);
    if (held) {
      this.#held.delete(key);
      this.#held.set(key, held);
      return held;
    }
    const bytes = await this.#store.read(key);
    if (bytes === null) return null; // joined meanwhile: the next look finds it
    const block = decodeBlock(bytes, this.#store.uri + key);
    this.#held.set(key, block);
    this.#heldBytes += bytes.byteLength;
    for (const [name, other] of this.#held) {
      if (this.#heldBytes <= columnsHeldBytes || name === key) break;
      this.#held.delete(name);
      this.#heldBytes -= other.columns.step.buffer.byteLength;
    }
    return block;
  }
}

/** Tests rows of a block against the filter: texts are compared once a block, numbers once a row. */
function matcher(filter: RolloutFilter, { block, place }: OpenBlock): (row: number) => boolean {
  const { columns, dictionaries } = block;
  const tests: ((row: number) => boolean)[] = [];
  const among = (name: 'environment' | 'outcome' | 'end', isIt: (text: string) => boolean): void => {
    const wanted = dictionaries[name].map(isIt);
    if (wanted.every(Boolean)) return;
    const column = columns[name];
    tests.push((row) => wanted[column[row]!]!);
  };
  const between = (
    name: 'step' | 'reward' | 'version' | 'group' | 'exampleId',
    [from, to]: readonly [number, number],
  ): void => {
    const column = columns[name];
    tests.push((row) => column[row]! >= from && column[row]! <= to);
  };
  if (place.last > place.upTo) between('step', [0, place.upTo]);
  if (filter.step) between('step', filter.step);
  if (filter.environment !== undefined) among('environment', (text) => text === filter.environment);
  if (filter.outcome !== undefined) among('outcome', (text) => text === filter.outcome);
  const { end } = filter;
  if (end !== undefined) among('end', (text) => text === end || text.startsWith(`${end}:`));
  if (filter.reward) between('reward', filter.reward);
  if (filter.version) between('version', filter.version);
  if (filter.group !== undefined) between('group', [filter.group, filter.group]);
  if (filter.exampleId !== undefined) between('exampleId', [filter.exampleId, filter.exampleId]);
  return (row) => tests.every((test) => test(row));
}

function segmentAt({ segments }: Block, row: number): number {
  let [low, high] = [0, segments.length - 1];
  while (low < high) {
    const middle = Math.ceil((low + high) / 2);
    if (segments[middle]!.row <= row) low = middle;
    else high = middle - 1;
  }
  return low;
}

/** How many of each, by place in the blocks' dictionaries. */
class Counts {
  readonly #of = new Map<Block, Record<'environment' | 'outcome' | 'end', Uint32Array>>();

  add(block: Block, row: number): void {
    let counts = this.#of.get(block);
    if (!counts) {
      const { environment, outcome, end } = block.dictionaries;
      counts = {
        environment: new Uint32Array(environment.length),
        outcome: new Uint32Array(outcome.length),
        end: new Uint32Array(end.length),
      };
      this.#of.set(block, counts);
    }
    counts.environment[block.columns.environment[row]!]! += 1;
    counts.outcome[block.columns.outcome[row]!]! += 1;
    counts.end[block.columns.end[row]!]! += 1;
  }

  told(): RolloutsFound['counts'] {
    const all = { environment: {}, outcome: {}, end: {} } as Record<
      'environment' | 'outcome' | 'end',
      Record<string, number>
    >;
    for (const [{ dictionaries }, counts] of this.#of)
      for (const name of ['environment', 'outcome', 'end'] as const)
        for (const [place, text] of dictionaries[name].entries())
          if (counts[name][place]! > 0) all[name][text] = (all[name][text] ?? 0) + counts[name][place]!;
    return all;
  }
}

type Candidate = OpenBlock & { readonly row: number; readonly value: number };

/** The first `max` rows in an order. Offered newest first. */
class Best {
  readonly #order: RolloutOrder;
  readonly #most: number;
  #all: Candidate[] = [];
  #worst = Number.NEGATIVE_INFINITY;

  constructor(order: RolloutOrder, most: number) {
    this.#order = order;
    this.#most = most;
  }

  offer(open: OpenBlock, row: number): void {
    if (this.#order === 'newest') {
      if (this.#all.length < this.#most) this.#all.push({ ...open, row, value: 0 });
      return;
    }
    const value = this.#valueOf(open.block, row);
    if (this.#all.length >= 2 * this.#most) this.#cut();
    if (value > this.#worst) this.#all.push({ ...open, row, value });
  }

  sorted(): Candidate[] {
    if (this.#order !== 'newest') this.#cut();
    return this.#all;
  }

  /** Rollouts without a reward come last in either order. */
  #valueOf({ columns }: Block, row: number): number {
    if (this.#order === 'tokens') return columns.tokens[row]!;
    const reward = columns.reward[row]!;
    if (Number.isNaN(reward)) return -Number.MAX_VALUE;
    return this.#order === 'reward' ? reward : -reward;
  }

  #cut(): void {
    this.#all = this.#all.toSorted((a, b) => b.value - a.value).slice(0, this.#most);
    if (this.#all.length === this.#most) this.#worst = this.#all.at(-1)!.value;
  }
}
