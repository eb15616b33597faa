import {
  type HeldTrainer,
  type KnownTrainer,
  type PoolMember,
  type PoolSettings,
  poolDefaults,
  type PoolState,
  type PoolStatus,
  type PoolTrainer,
  type PoolUsage,
  type RunStanding,
  teamDefaults,
  type TeamSettings,
  type TrainerStanding,
  type TurnNotice,
} from './pool-types.ts';
import { poolNamePattern } from '../names.ts';
import { decide, type Decision, teamOf } from './schedule.ts';

/**
 * The trainers of a pool, and the runs that hold them or wait. Runs and trainers tell their whole standing, again and
 * again: so a pool that was begun anew, or missed something, comes to know all by itself. It reads no clock.
 */
export class Pool {
  readonly #name: string;
  #settings: PoolSettings;
  /** When somebody made the settings; 0: nobody has. */
  #setAt: number;
  readonly #trainers: Map<string, PoolTrainer>;
  readonly #members: Map<string, PoolMember>;
  #usage: PoolUsage;
  #countedTo: number;
  #nextTurn: number;
  /** Notices beside those of the decision, by run. */
  readonly #notices = new Map<string, TurnNotice>();
  /** Who waits, at a time; null since something has changed. Every waiting run asks for its own reason. */
  #waiting: { readonly at: number; readonly each: Decision['waiting'] } | null = null;

  /** `now`: a pool that begins anew numbers its turns from there, above those of the one before. */
  constructor(name: string, before: PoolState | { readonly settings?: PoolSettings | undefined }, now: number) {
    this.#name = name;
    const state: PoolState = {
      trainers: [],
      members: [],
      usage: { teams: {}, runs: {}, secondsOfTeams: {} },
      countedTo: now,
      nextTurn: now,
      ...before,
      settings: before.settings ?? poolDefaults,
    };
    this.#settings = state.settings;
    this.#setAt = state.setAt ?? (before.settings === undefined ? 0 : 1);
    this.#trainers = new Map(state.trainers.map((one) => [one.trainer, one]));
    this.#members = new Map(state.members.map((one) => [one.run, one]));
    this.#usage = state.usage;
    this.#countedTo = state.countedTo;
    this.#nextTurn = state.nextTurn;
  }

  get settings(): PoolSettings {
    return this.#settings;
  }

  carry(): PoolState {
    return {
      settings: this.#settings,
      setAt: this.#setAt,
      trainers: [...this.#trainers.values()],
      members: [...this.#members.values()],
      usage: this.#usage,
      countedTo: this.#countedTo,
      nextTurn: this.#nextTurn,
    };
  }

  set(settings: PoolSettings, now: number): void {
    this.#count(now);
    this.#settings = settings;
    this.#setAt = Math.max(now, this.#setAt + 1);
  }

  /** A GPU worker joins, leaves, or says whom it is held by. */
  trainer({ trainer, labels, heldBy, leaves, kept }: TrainerStanding, now: number): void {
    this.#count(now);
    if (kept !== undefined && kept.setAt > this.#setAt) [this.#settings, this.#setAt] = [kept.settings, kept.setAt];
    const holder = this.#holderOf(trainer);
    if (leaves) {
      // Its run is told of the loss by the lease that ends, and says so.
      if (holder === undefined) this.#trainers.delete(trainer);
      return;
    }
    this.#trainers.set(trainer, { trainer, labels, joined: this.#trainers.get(trainer)?.joined ?? now });
    if (holder !== undefined && holder.run !== heldBy) this.#ask(holder);
    if (heldBy !== null && holder === undefined && !this.#members.get(heldBy)?.held) this.#adopt(heldBy, trainer, now);
  }

  /** A run says how it stands. */
  run(standing: RunStanding, now: number): void {
    this.#count(now);
    const { run, told, team, priority, labels, startAt, turn, state, trainer, lost } = standing;
    const known = this.#members.get(run);
    if (known && told <= known.told) return;
    if (lost !== null && (known?.held?.trainer === lost || this.#holderOf(lost) === undefined))
      this.#trainers.delete(lost);
    if (state === 'none') return this.forget(run, now);
    const request = { run, told, team, priority, labels, startAt };
    const { held = null, since = now, prefers = null } = known ?? {};
    if (held && turn < held.turn) {
      // It had not heard of its turn yet, and may never have: the signal is sent again.
      this.#enter({ ...request, held, since, prefers });
      this.#notices.set(run, this.#noticeOf(held));
      return;
    }
    if (state === 'waits') {
      this.#enter({ ...request, held: null, since: held ? now : since, prefers: held?.trainer ?? prefers });
    } else if (trainer !== null && held?.trainer === trainer) this.#enter({ ...request, held, since, prefers });
    else this.#takeUp({ ...request, held: null, since, prefers }, trainer, now);
  }

  /** A run is over, or wants nothing more. */
  forget(run: string, now: number): void {
    this.#count(now);
    this.#members.delete(run);
    this.#notices.delete(run);
  }

  /** Takes the next decision; returns what the runs are to hear of it, and when to decide again. */
  decide(now: number): { readonly notices: ReadonlyMap<string, TurnNotice>; readonly wakeAt: number | null } {
    this.#count(now);
    let wakeAt: number | null;
    for (;;) {
      const { grants, asks, ...decided } = decide(this.carry(), now);
      wakeAt = decided.wakeAt;
      for (const { run, trainer, priority } of grants) this.#grant(run, { trainer, priority }, now);
      for (const { run, to, why } of asks) this.#askBack(run, { since: now, to, why });
      // A run that has just been given a trainer has a slice, whose end is a time to decide again.
      if (grants.length + asks.length === 0) break;
    }
    const notices = new Map(this.#notices);
    this.#notices.clear();
    return { notices, wakeAt };
  }

  status(now: number): PoolStatus {
    const members = [...this.#members.values()];
    const state = { ...this.carry(), usage: usageAt(this.carry(), now) };
    const waiting = this.#waitingAt(now);
    const byTrainer = new Map(members.flatMap((one) => (one.held ? [[one.held.trainer, one]] : [])));
    const seconds = state.usage.secondsOfTeams;
    const names = [...new Set([...members.map(({ team }) => team), ...Object.keys(this.#settings.teams)])].toSorted();
    const all = Object.values(seconds).reduce((sum, one) => sum + one, 0);
    return {
      pool: this.#name,
      settings: this.#settings,
      trainers: [...this.#trainers.values()].map((one) => {
        const { run = null, held = null } = byTrainer.get(one.trainer) ?? {};
        return { ...one, run, since: held?.since ?? null, giveBack: held?.giveBack ?? null };
      }),
      waiting: waiting.map(({ run, why }) => {
        const { team, priority, labels, startAt, since } = this.#members.get(run)!;
        return { run, team, priority, labels, startAt, since, why };
      }),
      teams: names.map((team) => ({
        team,
        ...teamOf(state, team),
        holds: members.filter((one) => one.team === team && one.held).length,
        waits: members.filter((one) => one.team === team && !one.held).length,
        share: all > 0 ? (seconds[team] ?? 0) / all : null,
      })),
    };
  }

  /**
   * Maps each team to the share that each of its runs has in the pool's rollout workers, relative to other runs: the team's
   * weight, divided by the number of its runs that hold trainers. A team that is missing has the weight 1.
   */
  shares(): Readonly<Record<string, number>> {
    const state = this.carry();
    const holds = new Map(Object.keys(this.#settings.teams).map((team) => [team, 0]));
    for (const { team, held } of this.#members.values()) holds.set(team, (holds.get(team) ?? 0) + (held ? 1 : 0));
    return Object.fromEntries([...holds].map(([team, held]) => [team, teamOf(state, team).weight / Math.max(1, held)]));
  }

  /** How the pool has a trainer; null if it does not know it. */
  whoHas(trainer: string): KnownTrainer | null {
    if (!this.#trainers.has(trainer)) return null;
    const kept = this.#setAt === 0 ? {} : { kept: { settings: this.#settings, setAt: this.#setAt } };
    return { heldBy: this.#holderOf(trainer)?.run ?? null, trainers: this.#trainers.size, ...kept };
  }

  /** What a waiting run may say of its wait; null if the pool does not know that it waits. */
  whyWaits(run: string, now: number): string | null {
    const waiting = this.#waitingAt(now);
    const place = waiting.findIndex((one) => one.run === run);
    if (place === -1) return null;
    return waiting.length === 1 ? waiting[0]!.why : `place ${place + 1} of ${waiting.length}: ${waiting[place]!.why}`;
  }

  #waitingAt(now: number): Decision['waiting'] {
    if (this.#waiting?.at !== now) {
      const state = { ...this.carry(), usage: usageAt(this.carry(), now) };
      this.#waiting = { at: now, each: decide(state, now).waiting };
    }
    return this.#waiting.each;
  }

  #grant(
    run: string,
    { trainer, priority }: { readonly trainer: string; readonly priority: number },
    now: number,
  ): void {
    const turn = this.#nextTurn++;
    const held = { trainer, turn, since: now, priority, giveBack: null };
    this.#members.set(run, { ...this.#members.get(run)!, held });
    this.#notices.set(run, this.#noticeOf(held));
  }

  #askBack(run: string, giveBack: NonNullable<HeldTrainer['giveBack']>): void {
    const member = this.#members.get(run)!;
    const held = { ...member.held!, giveBack };
    this.#members.set(run, { ...member, held });
    this.#notices.set(run, this.#noticeOf(held));
  }

  /** A run holds a trainer that the pool did not give to it, since the pool was begun anew. */
  #takeUp(member: PoolMember, trainer: string | null, now: number): void {
    if (trainer !== null && this.#holderOf(trainer) === undefined) {
      this.#trainers.set(trainer, this.#trainers.get(trainer) ?? { trainer, labels: member.labels, joined: now });
      this.#enter(member);
      return this.#grant(member.run, { trainer, priority: member.priority }, now);
    }
    // Another run has it: this one is wrong, and waits.
    this.#enter(member);
  }

  /** A trainer says that a run holds it of which the pool knows nothing: the run is asked for its standing. */
  #adopt(run: string, trainer: string, now: number): void {
    const request = { team: 'unknown', priority: 0, labels: {}, startAt: null };
    this.#enter(this.#members.get(run) ?? { run, told: 0, ...request, since: now, held: null, prefers: null });
    this.#grant(run, { trainer, priority: 0 }, now);
    this.#ask(this.#members.get(run)!);
  }

  #ask(member: PoolMember): void {
    this.#notices.set(member.run, { ...this.#noticeOf(member.held!), asks: true });
  }

  #noticeOf({ turn, trainer, giveBack }: NonNullable<PoolMember['held']>): TurnNotice {
    return { pool: this.#name, turn, trainer, giveBack: giveBack?.why ?? null, asks: false };
  }

  #holderOf(trainer: string): PoolMember | undefined {
    return [...this.#members.values()].find(({ held }) => held?.trainer === trainer);
  }

  /** A run that was not here counts as having had as much as the one that had least: absence earns nothing. */
  #enter(member: PoolMember): void {
    const others = [...this.#members.values()].filter(({ run }) => run !== member.run);
    if (!this.#members.has(member.run) || this.#members.get(member.run)!.team !== member.team) {
      const { teams, runs, ...rest } = this.#usage;
      const { team, run } = member;
      const peers = others.filter((one) => one.team === team);
      const least = (used: readonly number[]): number => (used.length === 0 ? 0 : Math.min(...used));
      const ofRuns = least(peers.map((one) => runs[one.run] ?? 0));
      const ofTeams = least(others.filter((one) => one.team !== team).map((one) => teams[one.team] ?? 0));
      this.#usage = {
        ...rest,
        teams: peers.length > 0 ? teams : { ...teams, [team]: Math.max(teams[team] ?? 0, ofTeams) },
        runs: { ...runs, [run]: Math.max(runs[run] ?? 0, ofRuns) },
      };
    }
    this.#members.set(member.run, member);
  }

  #count(now: number): void {
    this.#waiting = null;
    this.#usage = withoutSettled(usageAt(this.carry(), now), [...this.#members.values()]);
    this.#countedTo = Math.max(this.#countedTo, now);
  }
}

/** Counts the seconds since the last count to those who held trainers. */
function usageAt(state: PoolState, now: number): PoolUsage {
  const seconds = Math.max(0, now - state.countedTo) / 1000;
  if (seconds === 0) return state.usage;
  const teams = { ...state.usage.teams };
  const runs = { ...state.usage.runs };
  const secondsOfTeams = { ...state.usage.secondsOfTeams };
  for (const { run, team, held } of state.members) {
    if (!held) continue;
    teams[team] = (teams[team] ?? 0) + seconds / teamOf(state, team).weight;
    runs[run] = (runs[run] ?? 0) + seconds;
    secondsOfTeams[team] = (secondsOfTeams[team] ?? 0) + seconds;
  }
  return { teams, runs, secondsOfTeams };
}

/** Forgets runs that have gone and had no more than one that is here: they would come back as if they were new. */
function withoutSettled(usage: PoolUsage, members: readonly PoolMember[]): PoolUsage {
  const { runs } = usage;
  const here = new Set(members.map(({ run }) => run));
  const gone = Object.entries(runs).filter(([run]) => !here.has(run));
  if (gone.length === 0) return usage;
  const least = Math.min(...[...here].map((run) => runs[run] ?? 0));
  const settled = new Set(gone.filter(([, used]) => here.size === 0 || used <= least).map(([run]) => run));
  return { ...usage, runs: Object.fromEntries(Object.entries(runs).filter(([run]) => !settled.has(run))) };
}

/** Settings of `name=value`: `slice`, `aging`, `TEAM.quota`, `TEAM.weight`; a text says what is wrong. */
export function withPoolSettings(
  settings: PoolSettings,
  asked: Readonly<Record<string, unknown>>,
): PoolSettings | string {
  let { slice, aging } = settings;
  const teams: Record<string, TeamSettings> = { ...settings.teams };
  const names = Object.entries(asked);
  if (names.length === 0) return `nothing to set; ${settable}`;
  for (const [name, value] of names) {
    const [, team, key] = /^(.+)\.(quota|weight)$/.exec(name) ?? [];
    if (name === 'slice') {
      if (!isNumber(value) || value <= 0) return `slice: expected seconds above 0, got ${saidAs(value)}`;
      slice = value;
    } else if (name === 'aging') {
      if (!isNumber(value) || value < 0) return `aging: expected seconds from 0 (0: never), got ${saidAs(value)}`;
      aging = value;
    } else if (team === undefined || !poolNamePattern.test(team))
      return `${name}: no such setting of a pool; ${settable}`;
    else if (key === 'weight') {
      if (!isNumber(value) || value <= 0) return `${name}: expected a number above 0, got ${saidAs(value)}`;
      teams[team] = { ...(teams[team] ?? teamDefaults), weight: value };
    } else {
      if (value !== null && (!Number.isSafeInteger(value) || Number(value) < 0))
        return `${name}: expected a whole number of trainers from 0, or none, got ${saidAs(value)}`;
      teams[team] = { ...(teams[team] ?? teamDefaults), quota: value as number | null };
    }
  }
  return { slice, aging, teams };
}

const settable = 'what can be set: slice, aging, TEAM.quota, TEAM.weight';

/** As it was typed: `none` is sent as null. */
function saidAs(value: unknown): string {
  return value === null ? 'none' : JSON.stringify(value);
}

function isNumber(value: unknown): value is number {
  return typeof value === 'number' && Number.isFinite(value);
}

export type { Decision };
