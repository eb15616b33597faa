import type { Room } from './slots.ts';

/**
 * Begins groups one after another, each once `slots` has room for all its members. When one member fails, no other
 * group begins, `brokenOff` is raised, and those under way are awaited, so that nothing finished is lost. Stopping is
 * not a failure.
 */
export async function eachGroup<T>(
  groups: readonly (readonly T[])[],
  {
    slots,
    stop,
    brokenOff,
    begin = () => Promise.resolve(),
  }: {
    readonly slots: readonly Room[];
    readonly stop: AbortSignal;
    readonly brokenOff: AbortController;
    /** Waited for before a group is begun. */
    readonly begin?: ((first: T) => Promise<void>) | undefined;
  },
  work: (member: T) => Promise<void>,
): Promise<void> {
  const failures: unknown[] = [];
  const over = AbortSignal.any([stop, brokenOff.signal]);
  const fail = (reason: unknown): void => {
    failures.push(reason);
    brokenOff.abort();
  };
  const play = async (members: readonly T[]): Promise<void> => {
    if (!(await taken(slots, members.length, over))) return;
    await begin(members[0]!).catch((reason: unknown) => void (stop.aborted || fail(reason)));
    await Promise.all(
      members.map(async (member) => {
        try {
          if (!over.aborted) await work(member);
        } catch (reason) {
          fail(reason);
        } finally {
          for (const one of slots) one.give();
        }
      }),
    );
  };
  await Promise.all(groups.map(play));
  if (failures.length > 0 && !stop.aborted) throw failures[0];
}

/** False, with nothing taken, when it is over before there was room. */
async function taken(slots: readonly Room[], count: number, over: AbortSignal): Promise<boolean> {
  const held: Room[] = [];
  try {
    for (const one of slots) {
      await one.take(count, over);
      held.push(one);
    }
    return true;
  } catch {
    for (const one of held) one.give(count);
    return false;
  }
}
