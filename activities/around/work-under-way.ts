import { Context } from '@temporalio/activity';
import { addLost, type LostWork, nothingLost } from '../../core/rl/lost-work.ts';

/** Heartbeat details of an attempt's work, for the next attempt. */
export interface WorkProgress {
  /** From 1, as Temporal counts. */
  readonly attempt: number;
  /** Time of the report, ms since 1970. */
  readonly at: number;
  /** Begin of the oldest work under way, ms since 1970; null = none. */
  readonly since: number | null;
  /** Rollouts, or other pieces of work, begun so far; includes those stored before. */
  readonly pieces: number;
  /** Finished ones among them. */
  readonly done: number;
  /** Tokens sampled for them by now, those that were in the store before included. */
  readonly tokens: number;
  /** Whether the attempt has ended by itself, for instance by a failure. */
  readonly isOver: boolean;
  /** An attempt before it failed, which is counted once. */
  readonly hasFailed: boolean;
  /** Work that earlier attempts lost. */
  readonly lost: LostWork;
}

/** Rollouts of a chunk in the store, and the tokens sampled for them and for unfinished ones. */
interface StoredWork {
  readonly rollouts: number;
  readonly tokens: number;
}

/**
 * Work under way in one attempt of an activity, and losses of earlier attempts. Only an attempt that starts over counts
 * a loss; one that was given up but continues counts none.
 */
export class WorkUnderWay {
  readonly #attempt: number;
  readonly #firstScheduledAt: number;
  readonly #before: WorkProgress | undefined;
  readonly #passedOn: number;
  readonly #underWay = new Map<string, { readonly since: number; tokens: number }>();
  /** Pieces stored before, or finished since. */
  #done = { pieces: 0, tokens: 0 };
  #scoringSince = Infinity;
  #hasFailed: boolean;
  #isOver = false;
  /** Until stored work is read, heartbeats repeat the previous attempt's progress. */
  #hasLooked = false;
  #lost: LostWork;

  /** `passedOn`: attempts since `before` that began nothing. */
  constructor(before: WorkProgress | undefined, passedOn = 0) {
    this.#passedOn = passedOn;
    const { attempt, scheduledTimestampMs } = Context.current().info;
    this.#attempt = attempt;
    this.#firstScheduledAt = scheduledTimestampMs;
    this.#before = before;
    this.#hasFailed = before?.hasFailed ?? false;
    this.#lost = before?.lost ?? nothingLost;
  }

  /** Losses of earlier attempts. */
  get lost(): LostWork {
    return this.#lost;
  }

  /**
   * Called once, before anything begins: work that earlier attempts began and did not store is lost. `stored` null:
   * everything is stored, or the work is not rollouts; then at most time is lost.
   */
  goOnFrom(stored: StoredWork | null): void {
    this.#hasLooked = true;
    this.#done = { pieces: stored?.rollouts ?? 0, tokens: stored?.tokens ?? 0 };
    if (this.#attempt === 1) return;
    const before = this.#before;
    const attempts = this.#attempt - (before?.attempt ?? 0) - this.#passedOn;
    if (attempts <= 0) return; // the others began nothing
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

  /** All pieces are done and are scored: only time can be lost. */
  beginScoring(): void {
    this.#scoringSince = Date.now();
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

  /** Loss if this attempt stops here and another takes its place. */
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
    const oldest = underWay.reduce((least, { since }) => Math.min(least, since), this.#scoringSince);
    return {
      attempt: this.#attempt,
      at: Date.now(),
      since: oldest === Infinity ? null : oldest,
      pieces: this.#done.pieces + underWay.length,
      done: this.#done.pieces,
      tokens: this.#done.tokens + underWay.reduce((sum, { tokens }) => sum + tokens, 0),
      isOver: this.#isOver,
      hasFailed: this.#hasFailed,
      lost: this.#lost,
    };
  }
}

/** Part of an activity's result; absent without a loss. */
export function lostIn(lost: LostWork): { readonly lost?: LostWork } {
  return lost.recoveries === 0 && lost.seconds === 0 ? {} : { lost };
}
