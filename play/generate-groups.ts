import { randomUUID } from 'node:crypto';
import { setMaxListeners } from 'node:events';
import type { RolloutPlace } from '../backends/environments/types.ts';
import { eachGroup } from './each-group.ts';
import { type Room, workerSlots } from './slots.ts';

/** Members of a group that are begun together: an environment may score them in place, when the last of them is there. */
export type Together = Pick<RolloutPlace, 'group' | 'size' | 'brokenOff'>;

/** Rollouts that are missing, group by group, and what it takes to generate them. */
export interface MissingGroups<Member> {
  readonly groups: readonly (readonly Member[])[];
  /** Tells a group from the others, by its first member. */
  readonly nameOf: (first: Member) => string | number;
  /** Shared by all rollouts of a run, an evaluation or a search in this process. */
  readonly room: Room;
  readonly stop: AbortSignal;
  /** Stores what has finished since the last time. The caller tries again at the end. */
  readonly flush?: () => Promise<unknown>;
  /** Whether the members of a group begin each by itself, as soon as there is room for one; else together. */
  readonly areAlone?: (first: Member) => boolean;
  /** Waited for before a group is begun. */
  readonly begin?: () => Promise<void>;
  readonly generate: (member: Member, together: Together) => Promise<void>;
}

/** How often finished rollouts and turns are stored while others are generated. */
const partIntervalMs = 500;

/**
 * Generates the missing rollouts of some groups: of a chunk of training, of an evaluation, or examples of a search. A group is begun when
 * there is room for all of it, or member by member. When one member fails no other group is begun, and those under way are waited for, so that nothing finished is
 * lost with it. Stopping is no failure.
 */
export async function generateGroups<Member>(missing: MissingGroups<Member>): Promise<void> {
  const {
    groups,
    nameOf,
    room,
    stop,
    flush,
    areAlone = () => false,
    begin = () => Promise.resolve(),
    generate,
  } = missing;
  const brokenOff = new AbortController();
  for (const signal of [stop, brokenOff.signal]) setMaxListeners(0, signal); // every rollout listens
  const attempt = randomUUID(); // two attempts in one process share nothing
  const members = groups.flatMap((group) => {
    let begun: Promise<void> | null = null;
    const begins = (): Promise<void> => (begun ??= begin());
    const together = { group: `${attempt}/${nameOf(group[0]!)}`, size: group.length, brokenOff: brokenOff.signal };
    const each = group.map((member) => ({ begins, play: () => generate(member, together) }));
    return areAlone(group[0]!) ? each.map((one) => [one]) : [each];
  });
  const flushing = flush && setInterval(() => void flush().catch(() => undefined), partIntervalMs);
  try {
    const begun = ({ begins }: { readonly begins: () => Promise<void> }): Promise<void> => begins();
    await eachGroup(members, { slots: [room, workerSlots], stop, brokenOff, begin: begun }, ({ play }) => play());
  } finally {
    clearInterval(flushing);
  }
}
