import {
  type HeldTrainer,
  type PoolMember,
  type PoolRequest,
  type PoolState,
  type PoolTrainer,
  teamDefaults,
  type TeamSettings,
} from './pool-types.ts';

export interface Decision {
  readonly grants: readonly { readonly run: string; readonly trainer: string; readonly priority: number }[];
  /** Runs that are to give their trainers back, for another one. */
  readonly asks: readonly { readonly run: string; readonly to: string; readonly why: string }[];
  /** Waiting runs, first the one that comes next, with the reason why each waits. */
  readonly waiting: readonly { readonly run: string; readonly why: string }[];
  /** When time alone would change the decision; null: never. */
  readonly wakeAt: number | null;
}

/** A run with what its turn depends on, at one moment. */
interface Ranked {
  readonly member: PoolMember;
  readonly priority: number;
  readonly teamUse: number;
  readonly runUse: number;
}

/** A run that holds a trainer. */
type Holder = PoolMember & { readonly held: HeldTrainer };

/**
 * Decides who gets which trainer, and who is to give one back. A pure function of its arguments.
 *
 * Waiting runs come by priority, then by the use of their team relative to its weight, then by their own use, then in
 * the order in which they came (start-time fair queueing, on two levels). A free trainer goes to the first that it fits.
 * For a run that finds none, the worst-ranked holder is asked: at once if its priority is lower, and after a slice if
 * it has used more by half a slice.
 */
export function decide(state: PoolState, now: number): Decision {
  const plan = new Plan(state, now);
  for (const one of plan.waiting) plan.place(one);
  return plan.decision();
}

export function hasLabels(trainer: Pick<PoolRequest, 'labels'>, wanted: Pick<PoolRequest, 'labels'>): boolean {
  return Object.entries(wanted.labels).every(([name, value]) => trainer.labels[name] === value);
}

export function teamOf({ settings }: Pick<PoolState, 'settings'>, team: string): TeamSettings {
  return Object.hasOwn(settings.teams, team) ? settings.teams[team]! : teamDefaults;
}

class Plan {
  readonly #state: PoolState;
  readonly #now: number;
  readonly waiting: readonly Ranked[];
  readonly #free: Set<string>;
  /** Trainers that come back without more being asked, by their holder. */
  readonly #comingBack: Map<string, Holder>;
  readonly #keeping: Set<Holder>;
  /** All that keep their trainers at first, the one that is asked first in front. */
  readonly #askable: readonly (Ranked & { readonly member: Holder })[];
  /** Free trainers at first, those with the fewest labels in front: others may want more. */
  readonly #freeInOrder: readonly PoolTrainer[];
  /** Names of the trainers that have some labels, by these labels. */
  readonly #fitting = new Map<string, ReadonlySet<string>>();
  /** Waiting runs that are alike and that no holder gives way to: whether there is such a holder, which they may outrank in time. */
  readonly #refused = new Map<string, boolean>();
  /** Trainers that each team holds now, and will hold when all that was asked has happened. */
  readonly #holds = new Map<string, number>();
  readonly #willHold = new Map<string, number>();
  readonly #grants: Decision['grants'][number][] = [];
  readonly #asks: Decision['asks'][number][] = [];
  readonly #reasons: Decision['waiting'][number][] = [];
  #wakeAt: number | null = null;

  constructor(state: PoolState, now: number) {
    this.#state = state;
    this.#now = now;
    const holders = state.members.filter(isHolder);
    const taken = new Set(holders.map(({ held }) => held.trainer));
    this.#free = new Set(state.trainers.map(({ trainer }) => trainer).filter((name) => !taken.has(name)));
    this.#comingBack = new Map(holders.filter(({ held }) => held.giveBack).map((one) => [one.held.trainer, one]));
    this.#keeping = new Set(holders.filter(({ held }) => !held.giveBack));
    this.#askable = [...this.#keeping]
      .map((member) => ({ ...this.#ranked(member), member }))
      .toSorted(before)
      .toReversed();
    this.#freeInOrder = state.trainers
      .filter(({ trainer }) => this.#free.has(trainer))
      .toSorted((a, b) => Object.keys(a.labels).length - Object.keys(b.labels).length || compare(a.trainer, b.trainer));
    for (const { team } of holders) add(this.#holds, team, 1);
    for (const { team } of this.#keeping) add(this.#willHold, team, 1);
    this.waiting = state.members
      .filter((member) => !isHolder(member))
      .map((member) => this.#ranked(member))
      .toSorted(before);
  }

  decision(): Decision {
    return { grants: this.#grants, asks: this.#asks, waiting: this.#reasons, wakeAt: this.#wakeAt };
  }

  /** Finds a trainer for a waiting run: a free one, one that comes back, or one that is asked for. */
  place(one: Ranked): void {
    const why = this.#place(one);
    if (why !== null) this.#reasons.push({ run: one.member.run, why });
  }

  #place(one: Ranked): string | null {
    const { member } = one;
    const { startAt, team } = member;
    if (startAt !== null && startAt > this.#now) {
      this.#wake(startAt);
      return `it starts at ${new Date(startAt).toISOString().slice(0, 16).replace('T', ' ')} UTC`;
    }
    const names = this.#namesFitting(member);
    if (names.size === 0) return this.#missing(member);
    const quota = teamOf(this.#state, team).quota ?? Number.POSITIVE_INFINITY;
    if (count(this.#willHold, team) < quota) {
      const free = count(this.#holds, team) < quota ? this.#bestOf(names, member) : null;
      if (free !== null) return this.#grant(one, free);
      const coming = [...this.#comingBack.values()].find(({ held }) => names.has(held.trainer));
      if (coming) {
        this.#comingBack.delete(coming.held.trainer);
        add(this.#willHold, team, 1);
        return `the trainer ${coming.held.trainer} comes to it at the end of a step of ${coming.run}`;
      }
    }
    const isFull = count(this.#willHold, team) >= quota;
    const mayBeAsked = ({ held, team: own }: Holder): boolean => names.has(held.trainer) && (!isFull || own === team);
    // Who comes later in the same team, with the same priority and wishes, has had no less: it is refused by the same holders.
    const alike = JSON.stringify([team, one.priority, member.labels, isFull]);
    const isRefused = this.#refused.get(alike);
    const asked = isRefused === undefined ? this.#askOneOf(mayBeAsked, one) : null;
    if (isRefused === undefined && asked === null) this.#refused.set(alike, [...this.#keeping].some(mayBeAsked));
    if (isRefused === true) this.#wakeForAging(one);
    if (asked) return `the trainer ${asked.held.trainer} is asked of ${asked.run}`;
    if (quota === 0) return `its team ${team} has a quota of 0`;
    if (isFull)
      return `its team ${team} has a quota of ${quota} ${quota === 1 ? 'trainer' : 'trainers'}, and holds ${count(this.#holds, team)}`;
    return `all ${names.size === 1 ? 'of 1 trainer' : `${names.size} trainers`} that fit are held: ${shown(this.#firstKeeping(names))}`;
  }

  #namesFitting(member: PoolMember): ReadonlySet<string> {
    const key = JSON.stringify(member.labels);
    let names = this.#fitting.get(key);
    if (names === undefined) {
      const fitting = this.#state.trainers.filter((trainer) => hasLabels(trainer, member));
      names = new Set(fitting.map(({ trainer }) => trainer));
      this.#fitting.set(key, names);
    }
    return names;
  }

  /** As many as are shown, and one more where there are more. */
  #firstKeeping(names: ReadonlySet<string>): readonly string[] {
    const found: string[] = [];
    for (const { held, run, priority } of this.#keeping) {
      if (found.length > shownMax) break;
      if (names.has(held.trainer)) found.push(`${run} (priority ${priority})`);
    }
    return found;
  }

  #missing({ labels }: PoolMember): string {
    const { trainers } = this.#state;
    if (trainers.length === 0) return 'no trainer has joined the pool';
    const wanted = Object.entries(labels).map(([name, value]) => `${name}=${value}`);
    return `none of ${trainers.length} trainers has ${wanted.join(', ')}`;
  }

  #grant({ member, priority }: Ranked, trainer: string): null {
    this.#free.delete(trainer);
    add(this.#holds, member.team, 1);
    add(this.#willHold, member.team, 1);
    this.#grants.push({ run: member.run, trainer, priority });
    return null;
  }

  /** The one that it held last, else the first. */
  #bestOf(names: ReadonlySet<string>, { prefers }: PoolMember): string | null {
    const isFree = (trainer: string): boolean => names.has(trainer) && this.#free.has(trainer);
    if (prefers !== null && isFree(prefers)) return prefers;
    return this.#freeInOrder.find(({ trainer }) => isFree(trainer))?.trainer ?? null;
  }

  #askOneOf(mayBeAsked: (holder: Holder) => boolean, waiter: Ranked): Holder | null {
    for (const holder of this.#askable) {
      const { member } = holder;
      if (!this.#keeping.has(member) || !mayBeAsked(member)) continue;
      const why = this.#whyAsk(holder, waiter);
      if (why === null) continue;
      this.#keeping.delete(member);
      add(this.#willHold, member.team, -1);
      add(this.#willHold, waiter.member.team, 1);
      this.#asks.push({ run: member.run, to: waiter.member.run, why });
      return member;
    }
    return null;
  }

  /** Why this holder is to give its trainer to this run; null: it is not, and time may change that. */
  #whyAsk(holder: Ranked & { readonly member: Holder }, waiter: Ranked): string | null {
    const { run } = waiter.member;
    if (waiter.priority > holder.priority)
      return `${run} has a higher priority (${waiter.priority} above ${holder.priority})`;
    const { slice } = this.#state.settings;
    const sliceEnd = holder.member.held.since + slice * 1000;
    this.#wakeForAging(waiter);
    if (waiter.priority < holder.priority) {
      if (holder.member.priority < holder.priority) this.#wake(sliceEnd); // its raised priority ends with the slice
      return null;
    }
    const { ahead, growth } = this.#ahead(holder, waiter);
    const most = slice / 2;
    if (ahead >= most && sliceEnd <= this.#now) return `${run} has had less, and its turn of ${slice} s is over`;
    const behindFor = ahead >= most ? 0 : growth > 0 ? (most - ahead) / growth : null;
    if (behindFor !== null) this.#wake(Math.max(sliceEnd, this.#now + Math.ceil(behindFor * 1000)));
    return null;
  }

  /** How much more the holder has used than the waiter, in seconds of its share, and by how much a second that grows. */
  #ahead(holder: Ranked, waiter: Ranked): { readonly ahead: number; readonly growth: number } {
    const [own, other] = [holder.member.team, waiter.member.team];
    if (own === other) return { ahead: holder.runUse - waiter.runUse, growth: 1 };
    const rate = (team: string) => count(this.#holds, team) / teamOf(this.#state, team).weight;
    return { ahead: holder.teamUse - waiter.teamUse, growth: rate(own) - rate(other) };
  }

  #ranked(member: PoolMember): Ranked {
    const { teams, runs } = this.#state.usage;
    const { team, run } = member;
    return { member, priority: this.#priorityOf(member), teamUse: teams[team] ?? 0, runUse: runs[run] ?? 0 };
  }

  #priorityOf({ priority, held, since, startAt }: PoolMember): number {
    const { slice, aging } = this.#state.settings;
    if (held) return held.since + slice * 1000 > this.#now ? Math.max(priority, held.priority) : priority;
    if (aging === 0) return priority;
    return priority + Math.max(0, Math.floor((this.#now - waitsFrom({ since, startAt })) / (aging * 1000)));
  }

  #wakeForAging({ member }: Ranked): void {
    const { aging } = this.#state.settings;
    if (aging === 0) return;
    const from = waitsFrom(member);
    this.#wake(from + (Math.floor((this.#now - from) / (aging * 1000)) + 1) * aging * 1000);
  }

  #wake(at: number): void {
    if (at > this.#now) this.#wakeAt = Math.min(this.#wakeAt ?? at, at);
  }
}

function waitsFrom({ since, startAt }: Pick<PoolMember, 'since' | 'startAt'>): number {
  return Math.max(since, startAt ?? 0);
}

function before(a: Ranked, b: Ranked): number {
  return (
    b.priority - a.priority ||
    a.teamUse - b.teamUse ||
    a.runUse - b.runUse ||
    a.member.since - b.member.since ||
    compare(a.member.run, b.member.run)
  );
}

function isHolder(member: PoolMember): member is Holder {
  return member.held !== null;
}

/** Not by locale: each machine has the same order. */
function compare(a: string, b: string): number {
  return a < b ? -1 : a > b ? 1 : 0;
}

function count(counts: ReadonlyMap<string, number>, key: string): number {
  return counts.get(key) ?? 0;
}

function add(counts: Map<string, number>, key: string, more: number): void {
  counts.set(key, count(counts, key) + more);
}

const shownMax = 3;

function shown(names: readonly string[]): string {
  return names.slice(0, shownMax).join(', ') + (names.length > shownMax ? ', …' : '');
}
