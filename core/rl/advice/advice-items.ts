import type { Finding } from './rules-of-thumb.ts';

/**
 * Two moves of one thing in different directions exclude each other: "raise the learning rate" and "lower it" cannot
 * both be right. `ratchet advise` names at most one direction for each thing.
 */
interface Move {
  readonly of: string;
  readonly to: string;
}

/**
 * A cause or a change. `move` is a requested direction of a setting, or states that the setting is too far the other
 * way.
 */
type Item = string | { readonly says: string; readonly move: Move };

/** A finding before contradictions are taken out. */
export interface Draft extends Omit<Finding, 'causes' | 'change'> {
  readonly causes: readonly Item[];
  readonly change: readonly Item[];
  /** Moves that this finding excludes, though it requests none. */
  readonly rulesOut?: readonly Move[];
}

export function moving(of: string, to: string, says: string): Item {
  return { says, move: { of, to } };
}

/** In an unstable run a higher rate is never the answer. */
const ruledOutWhenUnstable: readonly Move[] = [{ of: 'learning rate', to: 'higher' }];

/**
 * Keeps the direction of the most urgent finding; drops items with the opposite one, and items that a finding excludes.
 */
export function withoutContradiction(drafts: readonly Draft[]): Finding[] {
  const ruledOut = drafts.flatMap(({ symptom, rulesOut = [] }) => [
    ...rulesOut,
    ...(symptom === 'unstable' ? ruledOutWhenUnstable : []),
  ]);
  const directions = new Map<string, string>();
  const isAllowed = ({ of, to }: Move): boolean => !ruledOut.some((move) => move.of === of && move.to === to);
  for (const { causes, change } of drafts) {
    for (const item of [...change, ...causes]) {
      if (typeof item === 'string' || !isAllowed(item.move) || directions.has(item.move.of)) continue;
      directions.set(item.move.of, item.move.to);
    }
  }
  const kept = (items: readonly Item[]): string[] =>
    items.flatMap((item) => {
      if (typeof item === 'string') return [item];
      const { says, move } = item;
      return isAllowed(move) && directions.get(move.of) === move.to ? [says] : [];
    });
  return drafts.map(({ level, symptom, about, evidence, causes, change }) => ({
    level,
    symptom,
    about,
    evidence,
    causes: kept(causes),
    change: kept(change),
  }));
}
