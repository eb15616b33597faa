import { randomUUID } from 'node:crypto';
import { onAbort } from '../../core/on-abort.ts';
import {
  add,
  amountText,
  beyond,
  type Counts,
  isNothing,
  isWithin,
  limitCounts,
  mapUnits,
  minus,
  noCounts,
} from '../../core/rl/budget.ts';
import {
  type BudgetHolder,
  type BudgetState,
  groupedSandboxes,
  type HeldSandboxes,
  isHeard,
  leftIn,
  limitsIn,
  newBudget,
  othersWaiting,
  reported,
  shareOf,
  wallLeftMs,
  withoutSandboxesOf,
} from '../../core/rl/budget-ledger.ts';
import type { BudgetLimits, BudgetOwner, OverBudget } from '../../core/settings/budgets.ts';
import type { BudgetLedger } from '../../runs/budgets/budget-ledger.ts';

export interface SharedBudgetOptions {
  readonly ledger: BudgetLedger;
  readonly of: Exclude<BudgetOwner, 'rollout'>;
  /** Of its file; what a person sets in the meantime is in the ledger. */
  readonly limits: BudgetLimits;
  readonly currency?: string;
  /** Command that raises a limit, and what goes on then; a sentence. */
  readonly advice: (over: OverBudget['over']) => string;
  readonly times?: BudgetTimes;
  /** Whose sandboxes it reserves time for; missing: what a dead worker held for some stays held. */
  readonly sandboxes?: SandboxesOfWorkers;
}

/** Sandboxes whose leases are in one place of runs, by the processes that have them. */
export interface SandboxesOfWorkers {
  readonly place: string;
  /** This process. */
  readonly worker: string;
  /**
   * When all sandboxes of a process had ended, where it is known to have ended itself. `ending`: it has, and one of
   * them may still be there. `unknown`: it may be at work.
   */
  endOf(worker: string): Promise<number | 'ending' | 'unknown'>;
}

interface BudgetTimes {
  /** Between looks at what the other workers do. */
  readonly lookMs: number;
  /** A worker that has not answered one that waits for so long counts as dead. */
  readonly answerMs: number;
}

const usualTimes: BudgetTimes = { lookMs: 1_000, answerMs: 5_000 };

/** One that waits asks again after `answerMs`, then after twice as long, at most after so many times as long. */
const againMax = 16;

/** A worker that asks again within this time takes twice as much in advance. */
const soonMs = 2_000;
const inAdvanceMax = 1_024;
/** Node's timers reach no further. */
const timerMsMax = 2 ** 31 - 1;

/** The others were asked what they can give back. */
interface Asked {
  /** Number of the entry that asked: an entry of another worker after it is an answer. */
  readonly entry: number;
  readonly sinceMs: number;
  /** It asks again after so long: who answered may have died since. */
  readonly againMs: number;
}

interface Waiting {
  readonly needed: Counts;
  /** It ends by itself, unlike a sandbox, which a rollout keeps while it waits for calls. */
  readonly isBrief: boolean;
  readonly isGivenUp: () => boolean;
  /** Where the leases of a sandbox are. */
  readonly leasesAt: string | undefined;
  readonly take: (sandbox?: ReservedSandbox) => void;
  readonly refuse: (over: OverBudget) => void;
  readonly fail: (reason: unknown) => void;
}

/** A sandbox whose whole time is reserved. */
interface ReservedSandbox extends Pick<HeldSandboxes, 'sinceMs' | 'each'> {
  /** Whether its end is known when its worker has died. */
  readonly isLeased: boolean;
}

/**
 * A budget that several workers share, in one of them. It takes shares from the ledger and gives calls their part, so
 * that few calls wait for the store. While a call waits for more than is left, every worker gives back what it holds in
 * advance; the call is refused once nobody has a call under way that may give something back.
 */
export class SharedBudget {
  readonly #ledger: BudgetLedger;
  readonly #of: SharedBudgetOptions['of'];
  readonly #advice: SharedBudgetOptions['advice'];
  readonly #currency: string | undefined;
  readonly #times: BudgetTimes;
  readonly #holder = randomUUID();
  readonly #queue: Waiting[] = [];
  /** Limits of the file. */
  limits: BudgetLimits;
  #free: Counts = noCounts;
  #reserved: Counts = noCounts;
  #used: Counts = noCounts;
  /** Those under way, which the ledger names. */
  readonly #sandboxes = new Set<ReservedSandbox>();
  /** What sandboxes did not use. Nobody has it before the ledger names them no more: after a death it would count twice. */
  #returning: Counts = noCounts;
  readonly #ofWorkers: SandboxesOfWorkers | undefined;
  #lookedForDeadAt = -Infinity;
  /** As of this worker's last entry. */
  #said = { held: noCounts, used: noCounts };
  #state: BudgetState | null = null;
  #calls = 0;
  #briefCalls = 0;
  #users = 0;
  #inAdvance = 4;
  #askedAt = -Infinity;
  /** What it does at the ledger now. */
  #asking: Promise<void> | null = null;
  #looking: ReturnType<typeof setTimeout> | null = null;
  /** null: it does not wait. */
  #waits: Asked | null = null;
  #lastEntryAt = -Infinity;

  constructor({ ledger, of, limits, advice, currency, times = usualTimes, sandboxes }: SharedBudgetOptions) {
    this.#ledger = ledger;
    this.#of = of;
    this.limits = limits;
    this.#advice = advice;
    this.#currency = currency;
    this.#times = times;
    this.#ofWorkers = sandboxes;
  }

  get isMoneyLimited(): boolean {
    return (this.#state ? limitsIn(this.#state, this.limits) : this.limits).money !== null;
  }

  get isUsed(): boolean {
    return this.#users > 0 || this.#calls > 0 || this.#queue.length > 0;
  }

  /** Left according to the newest known state, with this worker's own share; Infinity for what is not limited. */
  get left(): Counts {
    const state = this.#state ?? newBudget(new Date().toISOString());
    return add(leftIn(state, this.limits), add(this.#free, this.#returning));
  }

  /** Infinity without a limit. */
  get wallLeftS(): number {
    return this.#state === null
      ? (this.limits.wallS ?? Infinity)
      : Math.max(0, wallLeftMs(this.#state, this.limits, Date.now()) / 1000);
  }

  /** The end of the wall time, and what it says then; null without a limit. Later limits are not seen. */
  wall(): { readonly signal: AbortSignal; readonly says: () => string } | null {
    if (this.wallLeftS === Infinity) return null;
    const signal = AbortSignal.timeout(Math.min(this.wallLeftS * 1000, timerMsMax));
    return { signal, says: () => this.#wallOver().text };
  }

  /** Begins to use it: the returned function gives back what is not used once all users have ended. */
  async enter(): Promise<() => Promise<void>> {
    this.#users += 1;
    const newest = await this.#ledger.newest();
    if (newest !== null) this.#know(newest);
    await this.#takeFromDead();
    let isIn = true;
    return async () => {
      if (isIn) this.#users -= 1;
      isIn = false;
      await this.#giveBack();
    };
  }

  /** Gives back everything once nobody uses it. A store that is away gets it with the next entry, or never: then it stays held. */
  async #giveBack(): Promise<void> {
    if (this.isUsed) return;
    if (this.#looking) clearTimeout(this.#looking);
    this.#looking = null;
    while (this.#asking) await this.#asking;
    if (this.isUsed || (isNothing(this.#said.held) && isNothing(this.#unsaid()))) return;
    await this.#alone(() => this.#report(false)).catch(() => undefined);
  }

  /** Used since its last entry. */
  #unsaid(): Counts {
    return minus(this.#used, this.#said.used);
  }

  /**
   * Does one thing at a time at the ledger: an entry that does not know what the one before it took would give that away.
   * `work` says whether the calls that wait may go on; those that came meanwhile may if it fails.
   */
  async #alone(work: () => Promise<boolean>): Promise<void> {
    let isMore = true;
    const working = work().then((found) => void (isMore = found));
    this.#asking = working.catch(() => undefined);
    try {
      await working;
    } finally {
      this.#asking = null;
      if (isMore) this.#serve();
    }
  }

  /**
   * Resolves once the counts are reserved, or with why they cannot be. Rejects with the signal's reason. `leasesAt`: the
   * place of runs beside whose runs the lease of a sandbox is.
   */
  reserve(
    needed: Counts,
    signal?: AbortSignal,
    leasesAt?: string,
  ): Promise<{ settle(used: Counts): void } | OverBudget> {
    signal?.throwIfAborted();
    return new Promise((resolve, reject) => {
      let isOver = false;
      const end = (): boolean => {
        if (isOver) return false;
        forget();
        return (isOver = true);
      };
      const forget = onAbort(signal ?? new AbortController().signal, () => {
        if (end()) reject(signal!.reason as Error);
        this.#serve();
      });
      this.#queue.push({
        needed,
        isBrief: needed.sandboxS === 0,
        isGivenUp: () => isOver,
        leasesAt,
        take: (sandbox) => {
          const taken = this.#taken(needed, sandbox);
          if (end()) resolve(taken);
          else taken.settle(noCounts);
        },
        refuse: (over) => end() && resolve(over),
        fail: (reason) => end() && reject(reason),
      });
      this.#serve();
    });
  }

  /** Of a sandbox all is reserved already. */
  #taken(needed: Counts, sandbox?: ReservedSandbox): { settle(used: Counts): void } {
    const isBrief = sandbox === undefined;
    if (isBrief) {
      this.#free = minus(this.#free, needed);
      this.#reserved = add(this.#reserved, needed);
    }
    this.#calls += 1;
    if (isBrief) this.#briefCalls += 1;
    let isSettled = false;
    return {
      settle: (used) => {
        if (isSettled) return;
        isSettled = true;
        this.#calls -= 1;
        if (isBrief) this.#briefCalls -= 1;
        this.#reserved = minus(this.#reserved, needed);
        const rest = minus(needed, used);
        if (isBrief) this.#free = add(this.#free, rest);
        else {
          this.#sandboxes.delete(sandbox);
          this.#returning = add(this.#returning, rest);
        }
        this.#used = add(this.#used, used);
        this.#serve();
        void this.#giveBack();
      },
    };
  }

  /**
   * First come, first served: a call that needs much is not passed over for ever. Sandboxes wait apart: they may wait for
   * those of rollouts that are under way, which end only if their calls go on.
   */
  #serve(): void {
    for (;;) {
      const next = this.#next();
      if (next === undefined) break;
      const over = this.#wallIsOver();
      if (over) {
        this.#forget(next);
        next.refuse(over);
      } else if (next.isBrief && isWithin(next.needed, this.#free) && this.#state !== null) {
        this.#forget(next);
        next.take();
      } else {
        this.#ask(next);
        break;
      }
    }
    if (this.#queue.length === 0) this.#waits = null;
    this.#lookLater();
  }

  #next(): Waiting | undefined {
    for (const one of this.#queue.filter(({ isGivenUp }) => isGivenUp())) this.#forget(one);
    return this.#queue.find(({ isBrief }) => isBrief) ?? this.#queue[0];
  }

  #forget(one: Waiting): void {
    const at = this.#queue.indexOf(one);
    if (at >= 0) this.#queue.splice(at, 1);
  }

  #ask(next: Waiting): void {
    if (this.#asking) return;
    void this.#alone(() =>
      this.#share(next).catch((reason: unknown) => {
        for (const one of this.#queue.splice(0)) one.fail(reason);
        return false;
      }),
    );
  }

  /** Takes a share for the next call, or waits for one. True: there is one. */
  async #share(next: Waiting): Promise<boolean> {
    if (!isNothing(this.#returning)) await this.#report(this.#waits !== null);
    return next.isBrief ? this.#shareForCall(next) : this.#shareForSandbox(next);
  }

  async #shareForCall(next: Waiting): Promise<boolean> {
    const missing = (): Counts => mapUnits((unit) => Math.max(0, next.needed[unit] - this.#free[unit]));
    const now = performance.now();
    const isSoon = now - this.#askedAt < soonMs;
    this.#inAdvance = Math.min(inAdvanceMax, Math.max(1, isSoon ? this.#inAdvance * 2 : this.#inAdvance / 2));
    this.#askedAt = now;
    const wished = (): Counts => mapUnits((unit) => next.needed[unit] * this.#inAdvance);
    const left = await this.#leftNow();
    if (shareOf(left, missing(), noCounts) === null && this.#waits !== null) return this.#goOnWaiting(next);
    const taken = await this.#write((state) => shareOf(leftIn(state, this.limits), missing(), wished()));
    if (taken === null) return this.#goOnWaiting(next);
    this.#free = add(this.#free, taken);
    this.#waits = null;
    return true;
  }

  /**
   * Takes all that a sandbox needs, and nothing in advance. The ledger names it before it begins: if this worker dies,
   * it is known for how long it can have been there.
   */
  async #shareForSandbox(next: Waiting): Promise<boolean> {
    const { needed, leasesAt } = next;
    const left = await this.#leftNow();
    const missing = mapUnits((unit) => Math.max(0, needed[unit] - this.#free[unit]));
    if (shareOf(left, missing, noCounts) === null && this.#waits !== null) return this.#goOnWaiting(next);
    const isLeased = leasesAt !== undefined && leasesAt === this.#ofWorkers?.place;
    const sandbox: ReservedSandbox = { sinceMs: Date.now(), each: needed, isLeased };
    // At once: no call may take it while the entry is on its way.
    let own = mapUnits((unit) => Math.min(Math.max(0, this.#free[unit]), needed[unit]));
    this.#free = minus(this.#free, own);
    this.#reserved = add(this.#reserved, own);
    let taken: Counts | null;
    try {
      taken = await this.#write(
        (state) => {
          const share = shareOf(leftIn(state, this.limits), minus(needed, own), noCounts);
          if (share !== null) return share;
          this.#reserved = minus(this.#reserved, own); // given back: another one that waits may need it
          own = noCounts;
          return null;
        },
        { sandbox },
      );
    } catch (error) {
      this.#reserved = minus(this.#reserved, own);
      this.#returning = add(this.#returning, own); // the entry may be there all the same
      throw error;
    }
    if (taken === null) return this.#goOnWaiting(next);
    this.#reserved = add(this.#reserved, taken);
    this.#sandboxes.add(sandbox);
    this.#waits = null;
    this.#forget(next);
    next.take(sandbox);
    return true;
  }

  /**
   * Gives back what sandboxes of dead workers cannot have used. True: what others of them did not use will come back,
   * once they are known to be gone.
   */
  async #takeFromDead(): Promise<boolean> {
    const ofWorkers = this.#ofWorkers;
    if (ofWorkers === undefined || this.#state === null) return false;
    this.#lookedForDeadAt = performance.now();
    let isMoreToCome = false;
    for (const [name, { worker, sandboxes = [] }] of Object.entries(this.#state.holders)) {
      if (name === this.#holder || worker === undefined || sandboxes.length === 0) continue;
      const endedAtMs = await ofWorkers.endOf(worker);
      if (endedAtMs === 'ending') isMoreToCome = true;
      if (typeof endedAtMs !== 'number') continue;
      const by = this.#holder;
      this.#know(await this.#ledger.change((state) => withoutSandboxesOf(state, name, { endedAtMs, by })));
    }
    return isMoreToCome;
  }

  /** Refuses the call once nobody can give enough back any more. False: it waits on. */
  async #goOnWaiting(next: Waiting): Promise<boolean> {
    const isMoreToCome = await this.#takeFromDead();
    if (this.#waits === null) return true; // all that waited were given up meanwhile
    const { entry, sinceMs, againMs } = this.#waits;
    const left = leftIn(this.#state!, this.limits);
    if (isWithin(next.needed, add(left, this.#free))) return true; // something was given back meanwhile
    const leftIfAllComesBack = add(left, this.#state!.held);
    if (!isWithin(next.needed, leftIfAllComesBack)) return this.#refuse(next);
    if (isMoreToCome || this.#briefCalls > 0 || (!next.isBrief && this.#calls > 0)) return false;
    const others = await this.#othersAlive();
    const waitedMs = performance.now() - sinceMs;
    const isLate = waitedMs > this.#times.answerMs;
    const mayGiveBack = ({ isBusy, held }: BudgetHolder): boolean => isBusy || (!next.isBrief && held.sandboxS > 0);
    const isAwaited = others.some(([, one]) =>
      one.entry > entry ? mayGiveBack(one) : !isLate && (one.isBusy || !isNothing(one.held)),
    );
    if (isAwaited) {
      if (waitedMs > againMs || (isLate && !isHeard(this.#state!, this.#holder))) await this.#askAgain(againMs);
      return false;
    }
    return this.#refuse(next);
  }

  /** The others, without those that are known to be dead: they give nothing back and answer nobody. */
  async #othersAlive(): Promise<readonly (readonly [string, BudgetHolder])[]> {
    const others = Object.entries(this.#state!.holders).filter(([name]) => name !== this.#holder);
    const ends = await Promise.all(
      others.map(async ([, { worker }]) => (worker === undefined ? 'unknown' : this.#ofWorkers?.endOf(worker))),
    );
    return others.filter((_, i) => (ends[i] ?? 'unknown') === 'unknown');
  }

  async #askAgain(afterMs: number): Promise<void> {
    this.#waits = null;
    await this.#report(true, Math.min(2 * afterMs, againMax * this.#times.answerMs));
  }

  #refuse(next: Waiting): true {
    this.#forget(next);
    next.refuse(this.#over(next.needed));
    this.#waits = null;
    return true;
  }

  async #leftNow(): Promise<Counts> {
    this.#know((await this.#ledger.newest()) ?? newBudget(new Date().toISOString()));
    return leftIn(this.#state!, this.limits);
  }

  /** Keeps the newer of two states: what began first may end last. */
  #know(state: BudgetState): void {
    if (this.#state === null || state.entry > this.#state.entry) this.#state = state;
  }

  /** Looks at the others from time to time while it holds something, or waits. */
  #lookLater(): void {
    if (isNothing(this.#said.held) && this.#queue.length === 0) return;
    this.#looking ??= setTimeout(() => {
      this.#looking = null;
      void this.#look().catch(() => this.#lookLater()); // the store is away: the next call says so
    }, this.#times.lookMs);
    if (this.#queue.length === 0) this.#looking.unref();
    else this.#looking.ref();
  }

  async #look(): Promise<void> {
    if (this.#asking === null) await this.#alone(() => this.#answerOthers());
    this.#lookLater();
  }

  /**
   * Answers those that ask. After that it says by itself when it has something for those that wait: two that wait would
   * otherwise answer each other for ever.
   */
  async #answerOthers(): Promise<true> {
    await this.#leftNow();
    if (performance.now() - this.#lookedForDeadAt > this.#times.answerMs) await this.#takeFromDead();
    const waiting = othersWaiting(this.#state!, this.#holder);
    const own = this.#state!.holders[this.#holder]?.entry ?? 0;
    const isAsked = waiting.some(({ entry, asked = entry }) => asked > own);
    const isQuiet = performance.now() - this.#lastEntryAt > this.#times.answerMs / 3;
    const hasMore = !isNothing(add(this.#free, this.#returning));
    const isNews = waiting.length > 0 && (hasMore || !isNothing(this.#unsaid()));
    if (isAsked ? isQuiet || hasMore : isQuiet && isNews) await this.#report(this.#queue.length > 0);
    return true;
  }

  /** Gives back what is free. */
  async #report(isWaiting: boolean, againMs?: number): Promise<true> {
    await this.#write(() => null, { waitsOtherwise: isWaiting, againMs });
    return true;
  }

  /**
   * Writes an entry, in which a share is taken, for a sandbox or for calls, or else what is free is given back; what sandboxes
   * did not use is given back in each. Calls go on meanwhile. Returns the share, which the caller adds to what it has; null: none.
   * Then it waits, unless `waitsOtherwise` is false, and asks the others again after `againMs`.
   */
  async #write(
    shareIn: (state: BudgetState) => Counts | null,
    {
      sandbox,
      waitsOtherwise = true,
      againMs = this.#times.answerMs,
    }: {
      readonly sandbox?: ReservedSandbox;
      readonly waitsOtherwise?: boolean;
      readonly againMs?: number | undefined;
    } = {},
  ): Promise<Counts | null> {
    let said = this.#said;
    let back = noCounts;
    let taken: Counts | null = null;
    let asked: Asked | null = null;
    const written = await this.#ledger.change((newest) => {
      taken = shareIn(newest);
      if (taken === null) this.#free = noCounts; // at once: no call may take it while the entry is on its way
      back = this.#returning;
      const held = add(add(this.#free, this.#reserved), taken ?? noCounts);
      said = { held, used: this.#used };
      const isWaiting = taken === null && waitsOtherwise;
      asked = this.#waits;
      return reported(
        newest,
        {
          holder: this.#holder,
          ...said,
          isBusy: this.#briefCalls > 0 || (taken !== null && sandbox === undefined),
          isWaiting,
          ...(isWaiting && asked && { asked: asked.entry }),
          ...this.#named(taken === null ? undefined : sandbox),
        },
        this.#said,
      );
    });
    this.#know(written);
    this.#said = said;
    this.#returning = minus(this.#returning, back);
    this.#lastEntryAt = performance.now();
    // An answer to another one that waits asks nothing anew: two would put each other's end off for ever.
    if (taken !== null || !waitsOtherwise || this.#queue.length === 0) this.#waits = null;
    else if (asked === null) this.#waits = { entry: written.entry, sinceMs: performance.now(), againMs };
    return taken;
  }

  /** This process, and its sandboxes under way, with one that begins, since when. */
  #named(begins?: ReservedSandbox): Pick<BudgetHolder, 'worker' | 'sandboxes'> {
    if (this.#ofWorkers === undefined) return {};
    const { worker } = this.#ofWorkers;
    const named = [...this.#sandboxes, ...(begins === undefined ? [] : [begins])].filter(({ isLeased }) => isLeased);
    return named.length === 0 ? { worker } : { worker, sandboxes: groupedSandboxes(named) };
  }

  #wallIsOver(): OverBudget | null {
    return this.#state !== null && wallLeftMs(this.#state, this.limits, Date.now()) <= 0 ? this.#wallOver() : null;
  }

  #wallOver(): OverBudget {
    const state = this.#state ?? newBudget(new Date().toISOString());
    const { wallS } = limitsIn(state, this.limits);
    const text = `The ${this.#of}'s budget of ${wallS} seconds of wall time is over: it began at ${state.begunAt}.`;
    return { over: 'wallS', of: this.#of, text: `${text} ${this.#advice('wallS')}` };
  }

  #over(needed: Counts): OverBudget {
    const state = this.#state!;
    const limits = limitsIn(state, this.limits);
    const over = beyond(needed, add(leftIn(state, this.limits), this.#free)) ?? 'tokens';
    const say = (count: number): string => amountText(over, count, this.#currency);
    const used = add(state.used, state.held)[over];
    const limit = limitCounts(limits)[over];
    const text = `The ${this.#of}'s budget of ${say(limit)} is used up: ${say(used)} are used, and the next call may take ${say(needed[over])}.`;
    return { over, of: this.#of, text: `${text} ${this.#advice(over)}` };
  }
}
