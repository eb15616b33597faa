/**
 * Completed work that must be repeated, since its process died or was given up. Stored work is not lost: a retry adopts
 * it.
 */
export interface LostWork {
  /**
   * Number of repetitions: a round's generation or scoring whose worker died (once for all of its chunks) or failed
   * (once for all attempts), a trainer that was lost or had to restore, a run that was started again before its end.
   */
  readonly recoveries: number;
  /** In progress on the dead process, and not in the store. */
  readonly rollouts: number;
  /** Tokens sampled for them and not stored. Tokens of an answer that never arrived are unknown. */
  readonly tokens: number;
  /**
   * Wall-clock seconds from the start of the lost work until it was begun again: the work, the time until the death was
   * noticed, the wait for another process, and for a trainer the batches trained again.
   */
  readonly seconds: number;
}

export const nothingLost: LostWork = { recoveries: 0, rollouts: 0, tokens: 0, seconds: 0 };

export function addLost(a: LostWork, b: LostWork): LostWork {
  return {
    recoveries: a.recoveries + b.recoveries,
    rollouts: a.rollouts + b.rollouts,
    tokens: a.tokens + b.tokens,
    seconds: a.seconds + b.seconds,
  };
}

/** The names under which a commit's metrics tell it. */
const names = {
  recoveries: 'recovery/count',
  rollouts: 'lost/rollouts',
  tokens: 'lost/tokens',
  seconds: 'lost/seconds',
} as const satisfies Record<keyof LostWork, string>;

/** Metrics of a commit; zeros are left out. */
export function lostMetrics(lost: LostWork): Record<string, number> {
  const entries = Object.entries(names) as [keyof LostWork, string][];
  return Object.fromEntries(entries.flatMap(([part, name]) => (lost[part] > 0 ? [[name, lost[part]]] : [])));
}

export function lostOf(metrics: Readonly<Record<string, number>>): LostWork {
  const value = (name: string): number => metrics[name] ?? 0;
  return {
    recoveries: value(names.recoveries),
    rollouts: value(names.rollouts),
    tokens: value(names.tokens),
    seconds: value(names.seconds),
  };
}
