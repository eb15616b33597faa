/** Trainers and runs of simulated speed around a pool: runs give a trainer back at the end of a step, and ask again at once. */
import { Pool } from '../../../core/fleet/pool.ts';
import type { PoolRequest, PoolSettings } from '../../../core/fleet/pool-types.ts';

export interface SimulatedRun extends Partial<PoolRequest> {
  readonly name: string;
  /** Seconds of a step. */
  readonly stepS: number;
  /** When it comes; 0 when missing. */
  readonly comesAtS?: number;
}

export interface SimulatedFleet {
  readonly trainers: readonly { readonly name: string; readonly labels?: Readonly<Record<string, string>> }[];
  readonly runs: readonly SimulatedRun[];
  readonly settings?: PoolSettings;
  readonly forS: number;
  /** Seconds that a run needs with another trainer before its first step. */
  readonly restoreS?: number;
}

export interface Simulated {
  /** Seconds for which each run held a trainer. */
  readonly heldS: ReadonlyMap<string, number>;
  readonly steps: ReadonlyMap<string, number>;
  /** Longest time for which each run waited. */
  readonly waitedMaxS: ReadonlyMap<string, number>;
  readonly switches: number;
  /** Each time at which something changed: who held which trainer. */
  readonly moments: readonly {
    readonly atS: number;
    readonly held: ReadonlyMap<string, string>;
    readonly waiting: readonly string[];
  }[];
}

interface Standing {
  trainer: string | null;
  last: string | null;
  turn: number;
  giveBack: boolean;
  since: number;
  stepEnds: number;
  told: number;
}

export const beganMs = Date.parse('2026-11-30T00:00:00Z');

export function simulate({ trainers, runs, settings, forS, restoreS = 0 }: SimulatedFleet): Simulated {
  const pool = new Pool('simulated', { settings }, beganMs);
  const standings = new Map<string, Standing>();
  const [heldS, steps, waitedMaxS] = [new Map<string, number>(), new Map<string, number>(), new Map<string, number>()];
  const moments: { atS: number; held: Map<string, string>; waiting: string[] }[] = [];
  let switches = 0;
  let [hasNews, wakeAt]: [boolean, number | null] = [true, null];
  for (const { name, labels = {} } of trainers)
    pool.trainer({ trainer: name, labels, heldBy: null, leaves: false }, beganMs);
  const byName = new Map(runs.map((run) => [run.name, run]));
  const tell = (name: string, now: number): void => {
    const standing = standings.get(name)!;
    const { team = 'default', priority = 0, labels = {}, startAt = null } = byName.get(name)!;
    const { trainer, turn } = standing;
    hasNews = true;
    standing.told += 1;
    const state = trainer === null ? 'waits' : 'holds';
    pool.run(
      { run: name, told: standing.told, team, priority, labels, startAt, turn, state, trainer, lost: null },
      now,
    );
  };
  const coming = runs.toSorted((a, b) => (a.comesAtS ?? 0) - (b.comesAtS ?? 0));
  const endMs = beganMs + forS * 1000;
  for (let now = beganMs; now <= endMs;) {
    while (coming.length > 0 && beganMs + (coming[0]!.comesAtS ?? 0) * 1000 <= now) {
      const { name } = coming.shift()!;
      standings.set(name, { trainer: null, last: null, turn: 0, giveBack: false, since: now, stepEnds: 0, told: 0 });
      tell(name, now);
    }
    for (const [name, one] of standings) {
      if (one.trainer === null || one.stepEnds > now) continue;
      steps.set(name, (steps.get(name) ?? 0) + 1);
      if (one.giveBack) {
        heldS.set(name, (heldS.get(name) ?? 0) + (now - one.since) / 1000);
        Object.assign(one, { trainer: null, giveBack: false, since: now, last: one.trainer });
        tell(name, now);
      } else one.stepEnds = now + byName.get(name)!.stepS * 1000;
    }
    const isDue: boolean = hasNews || (wakeAt !== null && wakeAt <= now);
    const decided: ReturnType<Pool['decide']> | null = isDue ? pool.decide(now) : null;
    if (decided) [hasNews, wakeAt] = [false, decided.wakeAt];
    for (const [name, notice] of decided?.notices ?? []) {
      const one = standings.get(name)!;
      if (notice.turn > one.turn) {
        waitedMaxS.set(name, Math.max(waitedMaxS.get(name) ?? 0, (now - one.since) / 1000));
        const isOther = one.last !== notice.trainer;
        if (isOther) switches += 1;
        const restoring = isOther ? restoreS * 1000 : 0;
        Object.assign(one, { turn: notice.turn, trainer: notice.trainer, since: now });
        one.stepEnds = now + restoring + byName.get(name)!.stepS * 1000;
      }
      one.giveBack = notice.giveBack !== null;
    }
    const entries = [...standings].flatMap(([name, { trainer }]) =>
      trainer === null ? [] : [[name, trainer] as const],
    );
    moments.push({
      atS: (now - beganMs) / 1000,
      held: new Map(entries),
      waiting: [...standings].flatMap(([name, { trainer }]) => (trainer === null ? [name] : [])),
    });
    const next = [
      ...[...standings.values()].flatMap(({ trainer, stepEnds }) => (trainer === null ? [] : [stepEnds])),
      ...(coming.length > 0 ? [beganMs + (coming[0]!.comesAtS ?? 0) * 1000] : []),
      ...(wakeAt === null ? [] : [wakeAt]),
    ].filter((at) => at > now);
    if (next.length === 0) break;
    now = Math.min(...next);
  }
  for (const [name, { trainer, since }] of standings) {
    const lasted = (endMs - since) / 1000;
    if (trainer === null) waitedMaxS.set(name, Math.max(waitedMaxS.get(name) ?? 0, lasted));
    else heldS.set(name, (heldS.get(name) ?? 0) + lasted);
  }
  return { heldS, steps, waitedMaxS, switches, moments };
}

/** Jain's index: 1 for equal shares, 1/n when one has all. */
export function jain(shares: readonly number[]): number {
  const sum = shares.reduce((a, b) => a + b, 0);
  const squares = shares.reduce((a, b) => a + b * b, 0);
  return squares === 0 ? 1 : sum ** 2 / (shares.length * squares);
}
