/** Where a person has gone in the view. */
export interface Place {
  readonly page: 'run' | 'rollouts' | 'evals' | 'faults';
  /** The chosen group of the rollouts page. */
  readonly group: number;
  /** The rollout looked at inside it; null = the list of groups. */
  readonly rollout: number | null;
  /** First line shown of what is longer than the page. */
  readonly scroll: number;
}

export const home: Place = { page: 'run', group: 0, rollout: null, scroll: 0 };

/** What there is to choose from. */
export interface Choice {
  readonly groups: number;
  /** Of the chosen group. */
  readonly rollouts: number;
  /** Of the rollout that is looked at. */
  readonly lines: number;
}

/** A key as `node:readline` names it. */
export interface Key {
  readonly name?: string | undefined;
  readonly ctrl?: boolean | undefined;
}

const pages: Readonly<Record<string, Place['page']>> = { r: 'rollouts', e: 'evals', f: 'faults' };

const scrollsBy: Readonly<Record<string, number>> = { down: 1, up: -1, pagedown: 10, pageup: -10, space: 10 };

/** Where a key leads to; 'leave' for q and Ctrl-C. */
export function afterKey(place: Place, { name = '', ctrl = false }: Key, choice: Choice): Place | 'leave' | 'suspend' {
  if (ctrl) return name === 'c' ? 'leave' : name === 'z' ? 'suspend' : place;
  if (name === 'q') return 'leave';
  const page = pages[name];
  if (page) return place.page === page ? home : { ...home, page };
  const moved = name === 'j' || name === 'down' ? 1 : name === 'k' || name === 'up' ? -1 : 0;
  if (name === 'escape' || name === 'backspace' || name === 'h' || name === 'left') {
    return place.rollout === null ? home : { ...place, rollout: null, scroll: 0 };
  }
  if (place.page !== 'rollouts') return { ...place, scroll: Math.max(0, place.scroll + moved) };
  // Inside a rollout arrows and pages move its text, j and k go to the next rollout.
  const down = place.rollout === null ? undefined : scrollsBy[name];
  if (down !== undefined) {
    return { ...place, scroll: Math.max(0, Math.min(choice.lines - 1, place.scroll + down)) };
  }
  if (name === 'return' || name === 'enter' || name === 'l' || name === 'right') {
    return choice.groups > 0 && place.rollout === null ? { ...place, rollout: 0, scroll: 0 } : place;
  }
  const within = (at: number, count: number): number => Math.max(0, Math.min(count - 1, at + moved));
  return place.rollout === null
    ? { ...place, group: within(place.group, choice.groups) }
    : { ...place, rollout: within(place.rollout, choice.rollouts), scroll: 0 };
}
