/** Rollouts group by group, in the order in which they are given. */
export function byGroup<T>(rollouts: readonly T[], groupOf: (one: T) => number): T[][] {
  const groups = new Map<number, T[]>();
  for (const one of rollouts) {
    const members = groups.get(groupOf(one));
    if (members) members.push(one);
    else groups.set(groupOf(one), [one]);
  }
  return [...groups.values()];
}

/** How long this attempt had a group: each of its rollouts, and from the begin of the first to the end of the last; seconds. */
export interface GroupTimes {
  readonly playedS: readonly number[];
  readonly heldS: number;
}

interface GroupInPlay {
  missing: number;
  begunAt: number;
  readonly playedS: number[];
}

/** Groups of a chunk that are not scored yet. Each is handed on once, when the last of its rollouts has ended. */
export class GroupsInPlay<Handed = void> {
  readonly #groups = new Map<number, GroupInPlay>();
  readonly #onEnded: (group: number, times: GroupTimes) => Handed;

  constructor(onEnded: (group: number, times: GroupTimes) => Handed) {
    this.#onEnded = onEnded;
  }

  /** Takes a group of which so many rollouts are missing. One of which none is ends at once. */
  add(group: number, missing: number): Handed | undefined {
    this.#groups.set(group, { missing, begunAt: performance.now(), playedS: [] });
    return missing === 0 ? this.#end(group) : undefined;
  }

  /** A rollout has ended; `playedS` is null for one that was given up. */
  finish(group: number, playedS: number | null): Handed | undefined {
    const of = this.#groups.get(group)!;
    of.missing -= 1;
    if (playedS !== null) {
      const since = performance.now() - playedS * 1000;
      of.begunAt = of.playedS.length === 0 ? since : Math.min(of.begunAt, since);
      of.playedS.push(playedS);
    }
    return of.missing === 0 ? this.#end(group) : undefined;
  }

  #end(group: number): Handed {
    const { playedS, begunAt } = this.#groups.get(group)!;
    this.#groups.delete(group);
    return this.#onEnded(group, { playedS, heldS: (performance.now() - begunAt) / 1000 });
  }
}
