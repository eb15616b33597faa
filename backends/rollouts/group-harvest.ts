import { partsPerBatch } from '../../core/limits.ts';
import { chunkName, partName } from '../../core/rl/chunks.ts';
import { filterGroups } from '../../core/rl/filter-groups.ts';
import { decodeRanges, encodeRanges } from '../../core/rl/ledger.ts';
import { batchSizeOf } from '../../core/rl/selection.ts';
import type { PlayedPart } from '../../core/rl/played-part.ts';
import type { GroupLease, Rollout, ScoredGroup } from '../../core/rl/rollout.ts';
import type { RunSpec } from '../../config/run-spec.ts';
import { layout } from '../../runs/layout.ts';
import { playedPartIn } from '../../runs/record-shapes.ts';
import { specOf, storeOf } from '../../runs/run-access.ts';
import type { Environments } from '../environments/index.ts';
import { failpoint } from '../failpoints.ts';
import { encodeStored } from '../../runs/stored-forms.ts';
import type { StoredWork } from './chunk-play.ts';
import { type ChunkScorer, type OfChunk, openScorer, type PlayedGroups, type ScoredChunk } from './score-chunk.ts';

/** A group whose rollouts have all ended. */
export interface EndedGroup {
  readonly lease: GroupLease;
  readonly members: readonly Rollout[];
  /** What each took that was played by this attempt, and from the begin of the first of them to the end of the last; seconds. */
  readonly playedS: readonly number[];
  readonly heldS: number;
  /** Since its chunk was begun by this attempt; seconds. */
  readonly generateS: number;
}

interface Ready extends EndedGroup {
  readonly scored: ScoredGroup;
  readonly scoreS: number;
}

/** Groups of large batches wait for others so long, or for a part of the time that they were in play. */
const waitMsMin = 250;
const waitShare = 0.5;

/**
 * Scores groups of a chunk as they end, stores those that are scored in parts, and tells the run of each. Parts that an attempt before stored
 * are told again with this one's end: it is not known which of them the run has heard of.
 */
export class GroupHarvest {
  readonly #of: OfChunk;
  readonly #spec: RunSpec;
  readonly #scorer: ChunkScorer;
  readonly #tell: (part: PlayedPart) => Promise<boolean>;
  readonly #stored = new Set<number>();
  readonly #size = { rollouts: 0, tokens: 0 };
  readonly #untold: PlayedPart[] = [];
  readonly #working = new Set<Promise<void>>();
  #ready: Ready[] = [];
  #readySince = 0;
  #storing: Promise<void> | null = null;
  #timer: ReturnType<typeof setTimeout> | undefined;
  #isClosing = false;
  #failure: { readonly reason: unknown } | null = null;
  /** Told of each group when it is stored. */
  onStored: (ordinal: number) => void = () => undefined;

  private constructor(of: OfChunk, spec: RunSpec, scorer: ChunkScorer, tell: (part: PlayedPart) => Promise<boolean>) {
    this.#of = of;
    this.#spec = spec;
    this.#scorer = scorer;
    this.#tell = tell;
  }

  /** With what attempts before this one stored. */
  static async open(
    dependencies: { readonly environments?: Environments },
    of: OfChunk,
    { signal, tell }: { readonly signal: AbortSignal; readonly tell: (part: PlayedPart) => Promise<boolean> },
  ): Promise<GroupHarvest> {
    const scorer = await openScorer(dependencies, of, signal);
    const harvest = new GroupHarvest(of, await specOf(of.run), scorer, tell);
    for (const name of await storedParts(of)) {
      const known = await harvest.#read(name);
      harvest.#untold.push(known ?? (await harvest.#describe(name, (await scorer.store(name, null, new Map()))!, [])));
    }
    for (const part of harvest.#untold) harvest.#count(part);
    return harvest;
  }

  has(ordinal: number): boolean {
    return this.#stored.has(ordinal);
  }

  /** In its parts. */
  get size(): StoredWork {
    return this.#size;
  }

  /** Parts that the run may not have heard of. */
  get untold(): readonly PlayedPart[] {
    return this.#untold;
  }

  add(ended: EndedGroup): void {
    this.#work(async () => {
      const since = performance.now();
      const scored = await this.#scorer.score(ended.lease, ended.members);
      if (this.#ready.length === 0) this.#readySince = performance.now();
      this.#ready.push({ ...ended, scored, scoreS: (performance.now() - since) / 1000 });
      this.#look();
    });
  }

  /** Ends when all that was added is stored, and the run was told. Throws what went wrong with any of it. */
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

  /** Stores what is ready, when it is due. */
  #look(): void {
    clearTimeout(this.#timer);
    const [oldest] = this.#ready;
    if (oldest === undefined || this.#storing || this.#failure) return;
    const isMany = this.#ready.length >= Math.ceil(batchSizeOf(this.#spec).groups / partsPerBatch);
    const waitMs = Math.max(waitMsMin, oldest.generateS * 1000 * waitShare);
    const dueMs = this.#isClosing || isMany ? 0 : this.#readySince + waitMs - performance.now();
    if (dueMs > 0) {
      this.#timer = setTimeout(() => this.#look(), dueMs);
      return;
    }
    this.#work(async () => {
      this.#storing = this.#store(this.#ready);
      this.#ready = [];
      await this.#storing.finally(() => (this.#storing = null));
      this.#look();
    });
  }

  async #store(ready: readonly Ready[]): Promise<void> {
    const first = ready.reduce((least, { lease }) => Math.min(least, lease.ordinal), Infinity);
    const name = partName(this.#of.chunk, first);
    const played: PlayedGroups = new Map(ready.map(({ lease, members }) => [lease.ordinal, members]));
    const groups = ready.map(({ scored }) => scored);
    // An attempt that was given up may still be at work: whoever is first decides.
    const stored = (await this.#scorer.store(name, groups, played))!;
    const part = await this.#describe(name, stored, ready);
    this.#count(part);
    const others = ready.filter(({ lease }) => !this.#stored.has(lease.ordinal));
    this.#ready.push(...others);
    this.#work(async () => {
      await failpoint('play.stored');
      if (!(await this.#tell(part))) this.#untold.push(part);
    });
  }

  /** As it is told, and found by whoever takes up what was in play. */
  async #describe(name: string, { scored, groups }: ScoredChunk, ready: readonly Ready[]): Promise<PlayedPart> {
    const { run, round } = this.#of;
    const rollouts = groups.flatMap((group) => group.rollouts);
    const [playedS, heldS] = ready.reduce(
      ([played, held], one) => [played + sum(one.playedS), held + one.heldS * one.playedS.length],
      [0, 0],
    );
    const part: PlayedPart = {
      scored,
      filtered: filterGroups(groups, { round, scored, spec: this.#spec }),
      ordinals: encodeRanges(groups.map(({ ordinal }) => ordinal)),
      rollouts: rollouts.length,
      tokens: sum(rollouts.flatMap(({ turns }) => turns.map(({ tokenIds }) => tokenIds.length))),
      generateS: Math.max(0, ...ready.map(({ generateS }) => generateS)),
      scoreS: sum(ready.map(({ scoreS }) => scoreS)),
      occupancy: heldS === 0 ? null : Math.min(1, playedS / heldS),
    };
    const key = layout.playedPart(run.lineage, round, name);
    const { bytes } = await storeOf(run).putIfAbsent(key, encodeStored(key, part));
    return playedPartIn(bytes, storeOf(run).uri + key);
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

/** Names of the parts of a chunk that are stored. */
export async function storedParts({ run, round, chunk }: OfChunk): Promise<readonly string[]> {
  const folder = layout.round(run.lineage, round.step, round.first, round.last);
  const prefix = `${folder}${chunkName(chunk)}_from_`;
  const keys = await storeOf(run).list(prefix);
  return keys
    .filter((key) => layout.isScored(key))
    .map((key) => key.slice(folder.length, key.indexOf('.', folder.length)));
}

function sum(values: readonly number[]): number {
  return values.reduce((total, value) => total + value, 0);
}
