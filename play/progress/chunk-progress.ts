import { encodeRanges } from '../../core/rl/ledger.ts';
import { present } from '../../core/present.ts';
import { countEffects, effectNotes } from '../../core/rl/rollout/effects.ts';
import type { ChunkInPlay, RolloutInPlay, SandboxInPlay } from '../../core/rl/rollout/in-play.ts';
import type { Rollout, Turn } from '../../core/rl/rollout/rollout.ts';
import { encodeStored } from '../../runs/forms/stored-forms.ts';
import { type ChunkPlace, chunkInPlayOf, layout } from '../../runs/layout.ts';
import { nameOf } from '../../runs/rollouts/notes.ts';
import type { RolloutJournal } from '../../runs/rollouts/rollout-journal.ts';
import type { Store } from '../../store/index.ts';
import type { RolloutBudget } from '../budget/rollout-budget.ts';
import { thisWorker } from '../../host/worker-process.ts';

type Place = Pick<Rollout, 'group' | 'index'>;

/** Chunks that end sooner write nothing. */
const firstWriteMs = 2_000;
/** A large chunk writes less often: a rollout takes a few hundred bytes. */
const writeMsOfRollout = 2;
/** A worker without news writes after so long all the same, so that its silence means something. */
const quietMs = 30_000;

interface ProgressOptions {
  readonly store: Store;
  readonly chunk: ChunkPlace;
  readonly attempt: number;
  readonly journal: RolloutJournal;
  /** Places of all of its rollouts. */
  readonly places: readonly Place[];
}

/** What a try at a rollout begins with. */
interface BegunTry extends Pick<RolloutInPlay, 'environment' | 'exampleId' | 'version'> {
  readonly earlier: number;
  readonly budget: RolloutBudget | undefined;
}

type Counted = 'versionEnd' | 'turns' | 'promptTokens' | 'tokens' | 'toolCalls';

interface Followed
  extends
    BegunTry,
    Pick<RolloutInPlay, 'group' | 'index' | 'tries' | 'begunAtMs'>,
    Record<Counted, RolloutInPlay[Counted]> {
  readonly recalled: number[];
  readonly kept: number[];
  lastTurnAtMs: number | undefined;
  sandbox: SandboxInPlay | undefined;
}

/** Follows the rollouts of a chunk, and writes down now and then how far they are: see `ChunkInPlay`. */
export class ChunkProgress {
  readonly #options: ProgressOptions;
  readonly #rollouts = new Map<string, Followed>();
  #ended = 0;
  #timer: NodeJS.Timeout | undefined;
  #writing: Promise<void> | null = null;
  #isNews = false;
  #writtenAtMs = -Infinity;
  /** Its own: an attempt that takes it over writes another. */
  readonly #key: string;
  readonly #beganAtMs = Date.now();
  readonly #everyMs: number;
  #areEarlierRemoved = false;

  constructor(options: ProgressOptions) {
    const { chunk, journal, places } = options;
    this.#options = options;
    this.#key = layout.inPlay(chunk, { beganAtMs: this.#beganAtMs, name: journal.notes.attempt });
    this.#everyMs = Math.max(firstWriteMs, places.length * writeMsOfRollout);
  }

  start(): void {
    // Nothing depends on it: what the store does not take now is written the next time.
    this.#timer = setInterval(() => void this.write().catch(() => undefined), this.#everyMs).unref();
  }

  begin({ group, index }: Place, begun: BegunTry): void {
    const before = this.#rollouts.get(nameOf({ group, index }));
    this.#isNews = true;
    this.#rollouts.set(nameOf({ group, index }), {
      group,
      index,
      ...begun,
      tries: (before?.tries ?? 0) + 1,
      begunAtMs: Date.now(),
      recalled: [],
      kept: [],
      lastTurnAtMs: undefined,
      versionEnd: begun.version,
      turns: 0,
      promptTokens: 0,
      tokens: 0,
      toolCalls: 0,
      sandbox: undefined,
    });
  }

  /** A turn was sampled; or, with its place among the stored ones, it was taken from the store. */
  turn(place: Place, turn: Turn, recalled: { readonly at: number; readonly isKept?: boolean } | null): void {
    const followed = this.#rollouts.get(nameOf(place));
    if (followed === undefined) return;
    this.#isNews = true;
    followed.turns += 1;
    followed.promptTokens += turn.promptTokenIds.length;
    followed.tokens += turn.tokenIds.length;
    followed.toolCalls += turn.toolCalls?.length ?? 0;
    followed.versionEnd = Math.max(followed.versionEnd, turn.policyStepEnd ?? turn.policyStep);
    followed.lastTurnAtMs = Date.now();
    if (recalled === null) return;
    followed.recalled.push(recalled.at);
    if (recalled.isKept) followed.kept.push(recalled.at);
  }

  /** It has a sandbox from now on. */
  sandbox(place: Place, sandbox: SandboxInPlay): void {
    const followed = this.#rollouts.get(nameOf(place));
    if (followed === undefined) return;
    this.#isNews = true;
    followed.sandbox = sandbox;
  }

  end(place: Place): void {
    if (!this.#rollouts.delete(nameOf(place))) return;
    this.#isNews = true;
    this.#ended += 1;
  }

  /** Writes if something is new, or nothing was for a while. */
  async write(): Promise<void> {
    const isQuiet = this.#rollouts.size > 0 && performance.now() - this.#writtenAtMs > quietMs;
    if (!this.#isNews && !isQuiet) return;
    this.#writing ??= this.#write().finally(() => (this.#writing = null));
    await this.#writing;
  }

  /** The chunk's attempt is over: nothing of it is in play here. What the store does not remove now goes with the round. */
  async stop(): Promise<void> {
    clearInterval(this.#timer);
    await this.#writing?.catch(() => undefined); // it is removed
    const { store, journal } = this.#options;
    if (this.#writtenAtMs > -Infinity) await store.removeAll(this.#key).catch(() => undefined);
    if (journal.wasBegun) await this.#removeEarlier().catch(() => undefined);
  }

  /** What earlier attempts left, whose workers died. */
  async #removeEarlier(): Promise<void> {
    if (this.#areEarlierRemoved) return;
    const { store, chunk } = this.#options;
    for (const key of await store.list(layout.attemptsInPlay(chunk))) {
      const of = chunkInPlayOf(key);
      if (of !== null && of.chunk === chunk.chunk && of.beganAtMs < this.#beganAtMs) await store.removeAll(key);
    }
    this.#areEarlierRemoved = true;
  }

  async #write(): Promise<void> {
    const { store } = this.#options;
    this.#isNews = false;
    this.#writtenAtMs = performance.now();
    try {
      await store.put(this.#key, encodeStored(this.#key, this.#chunk()));
      await this.#removeEarlier();
    } catch (error) {
      this.#isNews = true;
      throw error;
    }
  }

  #chunk(): ChunkInPlay {
    const { attempt, places } = this.#options;
    const rollouts = [...this.#rollouts.values()].map((one) => this.#line(one));
    const writtenAtMs = Date.now();
    return {
      worker: thisWorker(),
      attempt,
      writtenAtMs,
      nextByMs: writtenAtMs + quietMs + this.#everyMs,
      ordinals: encodeRanges([...new Set(places.map(({ group }) => group))].toSorted((a, b) => a - b)),
      rollouts,
      waiting: places.length - rollouts.length - this.#ended,
      ended: this.#ended,
    };
  }

  #line({ budget, recalled, kept, lastTurnAtMs, sandbox, ...followed }: Followed): RolloutInPlay {
    const { journal } = this.#options;
    const { begun, again, settled } = effectNotes;
    const held = (kind: string) => journal.notes.held(followed, kind);
    const part = journal.notes.newestOf(followed);
    return {
      ...followed,
      recalled: encodeRanges(recalled),
      ...(kept.length > 0 ? { kept: encodeRanges(kept) } : {}),
      ...present({
        lastTurnAtMs,
        sandbox,
        newest: journal.newestTurnOf(followed) ?? undefined,
        effects: countEffects({ begun: held(begun), again: held(again), settled: held(settled) }) ?? undefined,
        notes: part === null ? undefined : { part, by: journal.notes.attempt },
        budget: budget?.inPlay(),
      }),
    };
  }
}
