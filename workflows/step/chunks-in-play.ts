import { CancellationScope } from '@temporalio/workflow';
import type { LeasedChunk } from '../../core/rl/sampling/chunks.ts';
import { decodeRanges, encodeRanges } from '../../core/rl/ledger.ts';
import type { OpenRound, SamplingRound } from '../../core/rl/run-state.ts';
import { isStale } from '../../core/rl/sampling/staleness.ts';
import type { GroupsInPlay } from '../control/messages.ts';

/** A chunk between its lease and the end of its generation. */
export interface ChunkInPlay {
  readonly round: SamplingRound;
  readonly chunk: LeasedChunk;
  /** Ordinals of its groups that have not ended. */
  readonly left: Set<number>;
  /** ms since 1970. */
  readonly since: number;
  readonly scope: CancellationScope;
}

/** Groups in flight, by chunk: each until its result is added. */
export class ChunksInPlay {
  readonly #chunks = new Set<ChunkInPlay>();
  /** Chunks among them that a worker has. */
  readonly #playing = new Set<ChunkInPlay>();
  #groups = 0;
  /** Groups × ms since the last call. */
  #groupMs = 0;
  #observedAt = Date.now();

  /** Number of groups in flight. */
  get groups(): number {
    return this.#groups;
  }

  get chunks(): number {
    return this.#chunks.size;
  }

  /**
   * Groups of rounds leased for this step or a later one, except those that a whole batch has overtaken, of which this
   * is the youngest group.
   */
  groupsFor(step: number, youngest = 0): number {
    const chunks = [...this.#chunks].filter(({ round }) => round.step >= step);
    return chunks.reduce((groups, { left }) => groups + [...left].filter((ordinal) => ordinal > youngest).length, 0);
  }

  /** `left`: those of its groups that have not ended; absent: none has. */
  add(of: Pick<ChunkInPlay, 'round' | 'chunk'>, left = decodeRanges(of.chunk.ordinals)): ChunkInPlay {
    const one = { ...of, left: new Set(left), since: Date.now(), scope: new CancellationScope() };
    this.#observe();
    this.#chunks.add(one);
    this.#groups += one.left.size;
    return one;
  }

  *each(): Generator<{ readonly ordinal: number; readonly policyStep: number }> {
    for (const { round, left } of this.#chunks) {
      for (const ordinal of left) yield { ordinal, policyStep: round.policyStep };
    }
  }

  /** Marks chunks as being at workers until the work ends. */
  async playing<T>(chunks: readonly ChunkInPlay[], work: () => Promise<T>): Promise<T> {
    for (const one of chunks) this.#playing.add(one);
    try {
      return await work();
    } finally {
      for (const one of chunks) this.#playing.delete(one);
    }
  }

  /** The chunk with this group in flight. */
  of(ordinal: number): ChunkInPlay | undefined {
    return [...this.#chunks].find(({ left }) => left.has(ordinal));
  }

  /** These groups of a chunk have ended. */
  end(one: ChunkInPlay, ordinals: Iterable<number>): void {
    this.#observe();
    for (const ordinal of ordinals) if (one.left.delete(ordinal)) this.#groups -= 1;
    if (one.left.size > 0) return;
    this.#chunks.delete(one);
    this.#playing.delete(one);
  }

  /** Gives up those chunks. Returns for each the ordinals in flight, as ranges, and the first of its round. */
  giveUp(which: (one: ChunkInPlay) => boolean): { readonly first: number; readonly ordinals: string }[] {
    return [...this.#chunks].filter(which).map((one) => {
      const ordinals = encodeRanges([...one.left]);
      this.end(one, [...one.left]);
      one.scope.cancel();
      return { first: one.round.first, ordinals };
    });
  }

  /** Chunks whose groups the step may no longer train on. */
  giveUpStale(step: number, maxOffPolicySteps: number): { readonly first: number; readonly ordinals: string }[] {
    return this.giveUp(({ round }) => isStale(round.policyStep, step, maxOffPolicySteps));
  }

  /** Rounds with groups in flight, in the form of a commit. */
  get open(): readonly OpenRound[] {
    const rounds = new Map<number, ChunkInPlay[]>();
    for (const one of this.#chunks) rounds.set(one.round.first, [...(rounds.get(one.round.first) ?? []), one]);
    return [...rounds.values()].map((chunks) => {
      const { step, first, last, leases } = chunks[0]!.round;
      const left = chunks.flatMap((one) => [...one.left]);
      const groups = left.length === last - first + 1 ? {} : { groups: encodeRanges(left) };
      return { step, first, last, leases: leases.sha256, ...groups };
    });
  }

  /** Ordinals in flight, as ranges. */
  get ordinals(): string {
    return encodeRanges([...this.#chunks].flatMap(({ left }) => [...left]));
  }

  /** Groups in flight × ms since the last call. */
  takeGroupMs(): number {
    this.#observe();
    const taken = this.#groupMs;
    this.#groupMs = 0;
    return taken;
  }

  /** Summary for watchers. `only` is the name of the run's environment if it has just one. */
  byEnvironment(only: string): GroupsInPlay[] {
    const found = new Map<string, GroupsInPlay>();
    for (const { round, chunk, since, left } of this.#playing) {
      const environment = chunk.environment ?? only;
      const before = found.get(environment);
      found.set(environment, {
        environment,
        groups: (before?.groups ?? 0) + left.size,
        since: before?.since ?? new Date(since).toISOString(), // they are in the order of their leases
        policyStep: Math.min(before?.policyStep ?? Infinity, round.policyStep),
      });
    }
    return [...found.values()];
  }

  describe(rolloutsPerExample: string): string {
    const chunks = [...this.#playing];
    const versions = [...new Set(chunks.map(({ round }) => round.policyStep))].toSorted((a, b) => a - b);
    const from = versions.length > 1 ? `v${versions[0]}-v${versions.at(-1)}` : `v${versions[0] ?? '?'}`;
    const steps = [...new Set(chunks.map(({ round }) => round.step))].toSorted((a, b) => a - b);
    const names = [...new Set(chunks.flatMap(({ chunk }) => chunk.environment ?? []))].toSorted();
    const of = names.length === 0 ? '' : `, of ${names.join(', ')}`;
    return `generate step ${steps.join(', ')}: ${sum(chunks)} groups × ${rolloutsPerExample} from ${from}${of}`;
  }

  /** Must be called before groups in flight change. */
  #observe(): void {
    const now = Date.now();
    this.#groupMs += this.#groups * (now - this.#observedAt);
    this.#observedAt = now;
  }
}

function sum(chunks: readonly ChunkInPlay[]): number {
  return chunks.reduce((groups, { left }) => groups + left.size, 0);
}
