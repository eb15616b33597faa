/** Position of the user in the view. */
export interface ViewPosition {
  readonly page: 'run' | 'rollouts' | 'evals' | 'faults';
  /** The chosen group of the rollouts page. */
  readonly group: number;
  /** The rollout shown inside it; null = the list of groups. */
  readonly rollout: number | null;
  /** First visible line of a text longer than the page. */
  readonly scroll: number;
}

export const home: ViewPosition = { page: 'run', group: 0, rollout: null, scroll: 0 };

/** Sizes of the lists that the keys move in. */
interface Choice {
  readonly groups: number;
  readonly rollouts: number;
  /** Lines of the rollout shown. */
  readonly lines: number;
}

/** A key as `node:readline` names it, with the letters it typed. */
export interface TypedKey {
  readonly name?: string | undefined;
  readonly ctrl?: boolean | undefined;
  readonly shift?: boolean | undefined;
  readonly text?: string | undefined;
}

/** Rows that a key moves by, or to one of the ends; null for keys that do not move. The same in every view. */
export function movedBy({ name = '', ctrl = false, shift = false, text }: TypedKey, page: number): number | null {
  if (name === 'j' || name === 'down') return 1;
  if (name === 'k' || name === 'up') return -1;
  if (name === 'pagedown' || name === 'space' || (ctrl && name === 'd')) return Math.max(1, page - 1);
  if (name === 'pageup' || (ctrl && name === 'u')) return -Math.max(1, page - 1);
  if (name === 'home' || (name === 'g' && !shift && text !== 'G')) return Number.NEGATIVE_INFINITY;
  if (name === 'end' || name === 'g') return Number.POSITIVE_INFINITY;
  return null;
}

/** Ctrl-C and Ctrl-Z, the same in every view. */
export function signalOf({ name, ctrl = false }: TypedKey): 'leave' | 'suspend' | null {
  if (!ctrl) return null;
  return name === 'c' ? 'leave' : name === 'z' ? 'suspend' : null;
}

export const isEnter = ({ name = '' }: TypedKey): boolean => ['return', 'enter', 'l', 'right'].includes(name);
export const isBack = ({ name = '' }: TypedKey): boolean => ['b', 'escape', 'backspace'].includes(name);
/** Back, on pages that do not fold. */
export const isLeft = ({ name = '' }: TypedKey): boolean => ['h', 'left'].includes(name);

export function within(at: number, count: number): number {
  return Math.max(0, Math.min(count - 1, at));
}

const pages: Readonly<Record<string, ViewPosition['page']>> = { r: 'rollouts', e: 'evals', f: 'faults' };

/** Rows that a page key moves by; one row stays visible. */
const pageRows = 11;

/** Position after a key; 'leave' for q and Ctrl-C. */
export function afterKey(place: ViewPosition, key: TypedKey, choice: Choice): ViewPosition | 'leave' | 'suspend' {
  const { name = '' } = key;
  const signal = signalOf(key);
  if (signal !== null || name === 'q') return signal ?? 'leave';
  const moved = movedBy(key, pageRows);
  if (key.ctrl === true && moved === null) return place;
  const page = pages[name];
  if (page) return place.page === page ? home : { ...home, page };
  if (isBack(key) || isLeft(key)) return place.rollout === null ? home : { ...place, rollout: null, scroll: 0 };
  if (isEnter(key)) {
    const isOpened = place.page === 'rollouts' && choice.groups > 0 && place.rollout === null;
    return isOpened ? { ...place, rollout: 0, scroll: 0 } : place;
  }
  if (moved === null) return place;
  if (place.page !== 'rollouts') return { ...place, scroll: scrolledBy(place.scroll, moved) };
  if (place.rollout === null) return { ...place, group: within(place.group + moved, choice.groups) };
  // Inside a rollout j and k go to the next one, everything else moves its text.
  if (name === 'j' || name === 'k') {
    return { ...place, rollout: within(place.rollout + moved, choice.rollouts), scroll: 0 };
  }
  return { ...place, scroll: within(place.scroll + moved, choice.lines) };
}

/** Scroll of a page whose length is unknown here, so that End has no effect. */
function scrolledBy(scroll: number, moved: number): number {
  return moved === Number.POSITIVE_INFINITY ? scroll : Math.max(0, scroll + moved);
}
