import { randomUUID } from 'node:crypto';
import type { RolloutPlace } from '../environments/types.ts';

/** Which of what is to be played belongs together, for those who begin whole groups and for environments that score them in place. */
export type Together = Pick<RolloutPlace, 'group' | 'size' | 'brokenOff'>;

/** What is to be played, group by group. */
export function byGroup<T>(missing: readonly T[], groupOf: (one: T) => number): T[][] {
  const groups = new Map<number, T[]>();
  for (const one of missing) {
    const group = groupOf(one);
    groups.set(group, [...(groups.get(group) ?? []), one]);
  }
  return [...groups.values()];
}

/** Named so that two attempts in one process share nothing. */
export function groupsPlayed(
  missing: readonly { readonly group: number }[],
  brokenOff: AbortSignal,
): (place: { readonly group: number }) => Together {
  const attempt = randomUUID();
  const sizes = new Map<number, number>();
  for (const { group } of missing) sizes.set(group, (sizes.get(group) ?? 0) + 1);
  return ({ group }) => ({ group: `${attempt}/${group}`, size: sizes.get(group) ?? 0, brokenOff });
}
