import { Context } from '@temporalio/activity';
import { addLost, type LostWork, nothingLost } from '../../core/rl/lost-work.ts';

/** What an attempt's heartbeats say of its work, for the attempt after it. */
export interface WorkProgress {
  /** From 1, as Temporal counts. */
  readonly attempt: number;
  /** When it was said; ms since 1970. */
  readonly at: number;
  /** When the oldest of what is under way was begun, ms since 1970; null = nothing is. */
  readonly since: number | null;
  /** Rollouts, or whatever the work is made of, begun by now; those that were in the store before included. */
  readonly pieces: number;
  /** Of those, how many are finished. */
  readonly done: number;
  /** Tokens sampled for them by now, those that were in the store before included. */
  readonly tokens: number;
  /** The attempt has ended by itself, as when it failed. */
  readonly isOver: boolean;
  /** An attempt before it failed, which is counted once. */
  readonly hasFailed: boolean;
  /** By the attempts before it. */
  readonly lost: LostWork;
}

/** Rollouts of a chunk that lie in the store, and the tokens sampled for them and for those that are unfinished. */
interface StoredWork {
  readonly rollouts: number;
  readonly tokens: number;
}

/**
 * What one attempt of an activity has under way, and what the attempts before it lost. Only the attempt that begins anew
 * counts a loss: one that was given up and goes on nevertheless counts nothing.
 */
export class WorkUnderWay {
  readonly #attempt: number;
  readonly #firstScheduledAt: number;
  readonly #before: WorkProgress | undefined;
  readonly #underWay = new Map<string, { readonly since: number; tokens: number }>();
  /** In the store, or finished since. */
  #done = { pieces: 0, tokens: 0 };
  #hasFailed: boolean;
  #isOver = false;
  /** Until it has looked at what the attempts before left, it says what they said. */
  #hasLooked = false;
  #lost: LostWork;

  constructor(before: WorkProgress | undefined) {
    const { attempt, scheduledTimestampMs } = Context.current().info;
    this.#attempt = attempt;
    this.#firstScheduledAt = scheduledTimestampMs;
    this.#before = before;
    this.#hasFailed = before?.hasFailed ?? false;
    this.#lost = before?.lost ?? nothingLost;
  }

  /** By the attempts before this one. */
  get lost(): LostWork {
    return this.#lost;
  }

  /**
   * Called once, before anything is begun: what the attempts before had begun and is not in the store is lost. `stored`
   * null: all of it is there, or it is no rollouts; then time is lost at most.
   */
  goOnFrom(stored: StoredWork | null): void {
    this.#hasLooked = true;
    this.#done = { pieces: stored?.rollouts ?? 0, tokens: stored?.tokens ?? 0 };
    if (this.#attempt === 1) return;
    const before = this.#before;
    const attempts = this.#attempt - (before?.attempt ?? 0);
    const isFailedAgain = before?.isOver === true && before.hasFailed;
    this.#hasFailed ||= before?.isOver === true;
    this.#lost = addLost(this.#lost, {
      recoveries: attempts - (before === undefined || isFailedAgain ? 1 : 0),
      // While a server is away attempt after attempt begins the same rollouts and gets no answer.
      rollouts: isFailedAgain || stored === null ? 0 : Math.max(0, (before?.pieces ?? 0) - stored.rollouts),
      tokens: stored === null ? 0 : Math.max(0, (before?.tokens ?? 0) - stored.tokens),
      seconds: Math.max(0, (Date.now() - (before?.since ?? before?.at ?? this.#firstScheduledAt)) / 1000),
    });
  }

  /** Begins a piece, or begins it over. */
  begin(piece: string): void {
    this.#underWay.set(piece, { since: this.#underWay.get(piece)?.since ?? Date.now(), tokens: 0 });
  }

  sampled(piece: string, tokens: number): void {
    const work = this.#underWay.get(piece);
    if (work) work.tokens += tokens;
  }

  finish(piece: string): void {
    this.#done.pieces += 1;
    this.#done.tokens += this.#underWay.get(piece)?.tokens ?? 0;
    this.#underWay.delete(piece);
  }

  end(): void {
    this.#isOver = true;
  }

  /** What is lost when this attempt stops here, and something takes its place. */
  ifItStopsHere(stored: StoredWork): LostWork {
    const { pieces, tokens, since, at } = this.progress();
    return addLost(this.#lost, {
      recoveries: 1,
      rollouts: Math.max(0, pieces - stored.rollouts),
      tokens: Math.max(0, tokens - stored.tokens),
      seconds: (at - (since ?? at)) / 1000,
    });
  }

  progress(): WorkProgress {
    if (!this.#hasLooked && this.#before) return this.#before;
    const underWay = [...this.#underWay.values()];
    return {
      attempt: this.#attempt,
      at: Date.now(),
      since: underWay.length === 0 ? null : underWay.reduce((oldest, { since }) => Math.min(oldest, since), Infinity),
      pieces: this.#done.pieces + underWay.length,
      done: this.#done.pieces,
      tokens: this.#done.tokens + underWay.reduce((sum, { tokens }) => sum + tokens, 0),
      isOver: this.#isOver,
      hasFailed: this.#hasFailed,
      lost: this.#lost,
    };
  }
}

/** As a part of an activity's result; nothing lost is left out. */
export function lostIn(lost: LostWork): { readonly lost?: LostWork } {
  return lost.recoveries === 0 && lost.seconds === 0 ? {} : { lost };
}
