/**
 * Work that was done and has to be done again, since the process that did it died or was given up. What had been stored by
 * then is not lost: a retry adopts it.
 */
export interface LostWork {
  /**
   * How often something had to be done again or elsewhere: a round's generation or scoring whose worker died (once,
   * however many of its chunks it took along) or failed (once, however often it was tried), a trainer that was lost or had
   * to restore, a run that was started again before it had reached its end.
   */
  readonly recoveries: number;
  /** Under way on the dead process, and not in the store. */
  readonly rollouts: number;
  /** Sampled for them and not in the store. What a server had sampled of an answer that never came is not known. */
  readonly tokens: number;
  /**
   * Wall-clock seconds, from the start of what was lost until it was begun again: the work, the silence until the death was
   * noticed, the wait for another process, and for a trainer the batches trained again.
   */
  readonly seconds: number;
}

export const nothingLost: LostWork = { recoveries: 0, rollouts: 0, tokens: 0, seconds: 0 };

/** One after the other. */
export function addLost(a: LostWork, b: LostWork): LostWork {
  return {
    recoveries: a.recoveries + b.recoveries,
    rollouts: a.rollouts + b.rollouts,
    tokens: a.tokens + b.tokens,
    seconds: a.seconds + b.seconds,
  };
}

/** Side by side, as the chunks of a round: a process that takes two of them along dies once, for as long as one of them. */
export function lostBeside(parts: readonly LostWork[]): LostWork {
  return parts.reduce(
    (all, part) => ({
      recoveries: Math.max(all.recoveries, part.recoveries),
      rollouts: all.rollouts + part.rollouts,
      tokens: all.tokens + part.tokens,
      seconds: Math.max(all.seconds, part.seconds),
    }),
    nothingLost,
  );
}

/** The names under which a commit's metrics tell it. */
const names = {
  recoveries: 'recovery/count',
  rollouts: 'lost/rollouts',
  tokens: 'lost/tokens',
  seconds: 'lost/seconds',
} as const satisfies Record<keyof LostWork, string>;

/** As metrics of a commit; what did not happen is left out. */
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
