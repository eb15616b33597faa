import { setTimeout as delay } from 'node:timers/promises';
import { partsPerBatch } from '../core/limits.ts';
import { chunkName, partName } from '../core/rl/sampling/chunks.ts';
import { filterGroups } from '../core/rl/filters/filter-groups.ts';
import { decodeRanges, encodeRanges } from '../core/rl/ledger.ts';
import { batchSizeOf } from '../core/rl/learning/selection.ts';
import type { PlayedPart } from '../core/rl/rollout/played-part.ts';
import type { GroupLease, Rollout, ScoredGroup } from '../core/rl/rollout/rollout.ts';
import { slowPlayS } from '../core/rl/sampling/window.ts';
import type { RunSpec } from '../config/run-spec.ts';
import { layout } from '../runs/layout.ts';
import { playedPartIn } from '../runs/forms/record-shapes.ts';
import { specOf, storeOf } from '../runs/run-access.ts';
import { scoredWithRound } from '../runs/rollouts/scored-groups.ts';
import type { Environments } from '../backends/environments/index.ts';
import { failpoint } from '../store/failpoints.ts';
import { encodeStored } from '../runs/forms/stored-forms.ts';
import { chunkPlace, type StoredWork } from './chunk-play.ts';
import type { GroupTimes } from './groups-in-play.ts';
import { type ChunkScorer, type OfChunk, openScorer, type PlayedGroups, type ScoredChunk } from './score-chunk.ts';

/** A group whose rollouts have all ended. */
interface EndedGroup extends GroupTimes {
  readonly lease: GroupLease;
  readonly members: readonly Rollout[];
  /** Since its chunk was begun by this attempt; seconds. */
  readonly generateS: number;
}

interface Ready extends EndedGroup {
  readonly scored: ScoredGroup;
  readonly scoreS: number;
}

/** Wait of groups in large batches for others: at least this long, or this share of their generation time. */
const waitMsMin = 250;
const waitShare = 0.5;

/** Within this time of the first attempt's begin no other works on its chunk. */
const aloneMs = 1_000;

/** Interval between looks for scores. */
const scoringLookMs = 5;

/**
 * Scores a chunk's groups as they end, and stores scored ones in parts. A chunk slower than quick ones notifies the run
 * of each part; its activity's result has all others. Parts that an earlier attempt stored are in this result as well,
 * since it is unknown which of them the run has received.
 */
export class GroupCollector {
  readonly #of: OfChunk;
  readonly #spec: RunSpec;
  readonly #scorer: ChunkScorer;
  readonly #tell: (part: PlayedPart) => Promise<boolean>;
  readonly #slowPlayS: number;
  readonly #isRetry: boolean;
  readonly #begunAt = performance.now();
  readonly #stored = new Set<number>();
  /** Names of the parts that it knows of. */
  readonly #names = new Set<string>();
  readonly #size = { rollouts: 0, tokens: 0 };
  readonly #untold: PlayedPart[] = [];
  readonly #working = new Set<Promise<void>>();
  #scoring = 0;
  #ready: Ready[] = [];
  #readySince = 0;
  #storing: Promise<void> | null = null;
  #timer: ReturnType<typeof setTimeout> | undefined;
  #isClosing = false;
  #failure: { readonly reason: unknown } | null = null;
  /** Whether the chunk was generated as one object, in an older form. */
  hasWhole = false;
  /** Called with each group once it is stored. */
  onStored: (ordinal: number) => void = () => undefined;

  private constructor(
    of: OfChunk,
    spec: RunSpec,
    scorer: ChunkScorer,
    around: {
      readonly tell: (part: PlayedPart) => Promise<boolean>;
      readonly slowPlayS: number;
      readonly isRetry: boolean;
    },
  ) {
    this.#of = of;
    this.#spec = spec;
    this.#scorer = scorer;
    this.#tell = around.tell;
    this.#slowPlayS = around.slowPlayS;
    this.#isRetry = around.isRetry;
  }

  /** Opens it with the parts that earlier attempts stored. */
  static async open(
    dependencies: { readonly environments?: Environments; readonly slowPlayS?: number },
    of: OfChunk,
    {
      signal,
      tell,
      isRetry,
    }: {
      readonly signal: AbortSignal;
      readonly tell: (part: PlayedPart) => Promise<boolean>;
      readonly isRetry: boolean;
    },
  ): Promise<GroupCollector> {
    const scorer = await openScorer(dependencies, of, signal);
    const collector = new GroupCollector(of, await specOf(of.run), scorer, {
      tell,
      isRetry,
      slowPlayS: dependencies.slowPlayS ?? slowPlayS,
    });
    const { parts, whole, isBegun, isGenerated } = await storedOf(of);
    collector.hasWhole = isGenerated;
    for (const name of parts) await collector.#takeStored(name);
    if (whole !== null) await collector.#adopt(whole, null);
    else if (parts.length === 0 && isBegun) await collector.#adoptOfRound();
    return collector;
  }

  has(ordinal: number): boolean {
    return this.#stored.has(ordinal);
  }

  /** Size of all parts. */
  get size(): StoredWork {
    return this.#size;
  }

  /** Parts that the run may not have received. */
  get untold(): readonly PlayedPart[] {
    return this.#untold;
  }

  add(ended: EndedGroup): void {
    this.#work(async () => {
      const since = performance.now();
      this.#scoring += 1;
      const scored = await this.#scorer.score(ended.lease, ended.members).finally(() => (this.#scoring -= 1));
      if (this.#ready.length === 0) this.#readySince = performance.now();
      this.#ready.push({ ...ended, scored, scoreS: (performance.now() - since) / 1000 });
      this.#look();
    });
  }

  /** Whether everything added is scored, after waiting at most so many milliseconds. */
  async isScoredWithin(ms: number): Promise<boolean> {
    const isScored = (): boolean => this.#scoring === 0 || this.#failure !== null;
    const lastAt = performance.now() + ms;
    while (!isScored() && performance.now() < lastAt) await delay(scoringLookMs);
    return isScored();
  }

  /** Resolves when all added groups are stored and the run was notified. Throws the first failure. */
  async close(): Promise<void> {
    this.#isClosing = true;
    this.#look();
    while (this.#working.size > 0) await Promise.all(this.#working);
    clearTimeout(this.#timer);
    if (this.#failure) throw this.#failure.reason;
  }

  #work(work: () => Promise<void>): void {
    const working = work()
      .catch((reason: unknown) => void (this.#failure ??= { reason }))
      .finally(() => this.#working.delete(working));
    this.#working.add(working);
  }

  /** Stores the ready groups when they are due. */
  #look(): void {
    clearTimeout(this.#timer);
    const [oldest] = this.#ready;
    if (oldest === undefined || this.#storing || this.#failure) return;
    const isMany = this.#ready.length >= Math.ceil(batchSizeOf(this.#spec).groups / partsPerBatch);
    const waitMs = Math.max(waitMsMin, oldest.generateS * 1000 * waitShare);
    const sinceMs = isMany ? 0 : this.#readySince + waitMs;
    // A quick chunk is one part.
    const dueMs = this.#isClosing ? 0 : Math.max(sinceMs, this.#slowFrom) - performance.now();
    if (dueMs > 0) {
      if (dueMs < Infinity) this.#timer = setTimeout(() => this.#look(), dueMs);
      return;
    }
    this.#work(async () => {
      this.#storing = this.#store(this.#ready);
      this.#ready = [];
      await this.#storing.finally(() => (this.#storing = null));
      this.#look();
    });
  }

  async #store(given: readonly Ready[]): Promise<void> {
    if (this.#isRetry || performance.now() > this.#begunAt + aloneMs) await this.#lookForOthers();
    const ready = given.filter(({ lease }) => !this.#stored.has(lease.ordinal));
    if (ready.length === 0) return;
    const first = ready.reduce((least, { lease }) => Math.min(least, lease.ordinal), Infinity);
    const name = partName(this.#of.chunk, first);
    const played: PlayedGroups = new Map(ready.map(({ lease, members }) => [lease.ordinal, members]));
    const groups = ready.map(({ scored }) => scored);
    // An earlier attempt may still be at work: the first to store a part wins.
    const stored = (await this.#scorer.store(name, groups, played))!;
    const part = await this.#describe(name, stored, ready);
    this.#names.add(name);
    this.#count(part);
    const others = ready.filter(({ lease }) => !this.#stored.has(lease.ordinal));
    this.#ready.push(...others);
    this.#work(async () => {
      await failpoint('play.stored');
      const isTold = performance.now() >= this.#slowFrom && (await this.#tell(part));
      if (!isTold) this.#untold.push(part);
    });
  }

  /** An attempt that was given up may only have been slow: parts that another one stored meanwhile are kept. */
  async #lookForOthers(): Promise<void> {
    for (const name of (await storedOf(this.#of)).parts) {
      if (!this.#names.has(name)) await this.#takeStored(name);
    }
  }

  /** A part that another attempt stored; who died, or is slow, has not described it. */
  async #takeStored(name: string): Promise<void> {
    const known = await this.#read(name);
    this.#take(name, known ?? (await this.#describe(name, (await this.#scorer.store(name, null, new Map()))!, [])));
  }

  #take(name: string, part: PlayedPart): void {
    this.#names.add(name);
    this.#untold.push(part);
    this.#count(part);
  }

  /** From then on the chunk is a slow one. */
  get #slowFrom(): number {
    return this.#begunAt + this.#slowPlayS * 1000;
  }

  /**
   * Adopts all groups of the chunk from one object, as level 0 stored them until 28 November 2026. It has no
   * description, which reopened rounds do not need.
   */
  async #adopt(name: string, groups: readonly ScoredGroup[] | null): Promise<void> {
    const stored = await this.#scorer.store(name, groups, new Map());
    if (stored !== null) this.#take(name, this.#partOf(stored, []));
  }

  /** All groups of the round in one object, as until 25 November 2026. */
  async #adoptOfRound(): Promise<void> {
    const { run, round } = this.#of;
    const ordinals = this.#scorer.leases.map(({ ordinal }) => ordinal);
    const groups = await scoredWithRound(storeOf(run), run.lineage, round, ordinals);
    if (groups !== null) await this.#adopt(chunkName(this.#of.chunk), groups);
  }

  /** The part as the run is notified of it, and as a later attempt finds it. */
  async #describe(name: string, { scored, groups }: ScoredChunk, ready: readonly Ready[]): Promise<PlayedPart> {
    const { run, round } = this.#of;
    const part = this.#partOf({ scored, groups }, ready);
    const key = layout.playedPart(run.lineage, round, name);
    const { bytes } = await storeOf(run).putIfAbsent(key, encodeStored(key, part));
    return playedPartIn(bytes, storeOf(run).uri + key);
  }

  #partOf({ scored, groups }: Pick<ScoredChunk, 'scored' | 'groups'>, ready: readonly Ready[]): PlayedPart {
    const { round } = this.#of;
    const rollouts = groups.flatMap((group) => group.rollouts);
    const [playedS, heldS] = ready.reduce(
      ([played, held], one) => [played + sum(one.playedS), held + one.heldS * one.playedS.length],
      [0, 0],
    );
    return {
      scored,
      filtered: filterGroups(groups, { round, scored, spec: this.#spec }),
      ordinals: encodeRanges(groups.map(({ ordinal }) => ordinal)),
      rollouts: rollouts.length,
      tokens: sum(rollouts.flatMap(({ turns }) => turns.map(({ tokenIds }) => tokenIds.length))),
      generateS: Math.max(0, ...ready.map(({ generateS }) => generateS)),
      scoreS: sum(ready.map(({ scoreS }) => scoreS)),
      occupancy: heldS === 0 ? null : Math.min(1, playedS / heldS),
    };
  }

  async #read(name: string): Promise<PlayedPart | null> {
    const { run, round } = this.#of;
    const key = layout.playedPart(run.lineage, round, name);
    const bytes = await storeOf(run).read(key);
    return bytes === null ? null : playedPartIn(bytes, storeOf(run).uri + key);
  }

  #count(part: PlayedPart): void {
    for (const ordinal of decodeRanges(part.ordinals)) {
      this.#stored.add(ordinal);
      this.onStored(ordinal);
    }
    this.#size.rollouts += part.rollouts;
    this.#size.tokens += part.tokens;
  }
}

/** Stored objects of a chunk: names of its parts, and of the one object with all its groups that an older form had. */
async function storedOf(of: OfChunk): Promise<{
  readonly parts: readonly string[];
  readonly whole: string | null;
  /** Whether anything of it is stored. */
  readonly isBegun: boolean;
  /** Whether its rollouts are one object, as in an older form. */
  readonly isGenerated: boolean;
}> {
  const { run, chunk } = of;
  const { prefix } = chunkPlace(of);
  const name = chunkName(chunk);
  const folder = prefix.slice(0, prefix.length - name.length);
  const isOf = (key: string): boolean => ['.', '/', '_from_'].some((next) => key.startsWith(prefix + next));
  const keys = (await storeOf(run).list(prefix)).filter(isOf);
  const scored = keys
    .filter((key) => layout.isScored(key))
    .map((key) => key.slice(folder.length, key.indexOf('.', folder.length)));
  return {
    parts: scored.filter((one) => one !== name),
    whole: scored.includes(name) ? name : null,
    isBegun: keys.length > 0,
    isGenerated: keys.includes(`${prefix}.jsonl`),
  };
}

function sum(values: readonly number[]): number {
  return values.reduce((total, value) => total + value, 0);
}
