/** Times are milliseconds since 1970, durations seconds. */

/** What a run asks of a pool, as its file says. */
export interface PoolRequest {
  readonly team: string;
  readonly priority: number;
  /** A trainer must have all of these. */
  readonly labels: Readonly<Record<string, string>>;
  /** It gets no trainer before this time; null: at once. */
  readonly startAt: number | null;
}

/** A run's whole standing, as it tells the pool. A later one replaces it. */
export interface RunStanding extends PoolRequest {
  /** Id of the run's workflow. */
  readonly run: string;
  /** Grows with each telling of a run: an earlier one that arrives late is ignored. */
  readonly told: number;
  /** The newest turn that the run has heard of; 0: none. */
  readonly turn: number;
  readonly state: 'waits' | 'holds' | 'none';
  /** The trainer that it holds; null unless `holds`. */
  readonly trainer: string | null;
  /** A trainer that did not answer it. */
  readonly lost: string | null;
  /** Absolute URI of the folder that holds it: the pool keeps its changes there. Missing from older code. */
  readonly store?: string;
}

/** Settings that somebody made. GPU workers keep them for a pool that is begun anew. */
export interface KeptSettings {
  readonly settings: PoolSettings;
  /** When they were made. */
  readonly setAt: number;
}

/** A GPU worker's whole standing, as it tells the pool. */
export interface TrainerStanding {
  /** Names the queues of the process: `trainerQueues(trainer)`. */
  readonly trainer: string;
  readonly labels: Readonly<Record<string, string>>;
  /** Id of the workflow that holds the process; null: none does. */
  readonly heldBy: string | null;
  /** It ends, and takes no run any more. */
  readonly leaves: boolean;
  /** The newest settings of the pool that it has heard of; missing: none were made. */
  readonly kept?: KeptSettings | undefined;
}

/** How a pool has a trainer, for that trainer. */
export interface KnownTrainer {
  /** Id of the workflow that holds it; null: none does. */
  readonly heldBy: string | null;
  readonly kept?: KeptSettings | undefined;
  /** How many the pool has; missing in answers of versions before December 2026. */
  readonly trainers?: number;
}

/** From the pool to a run: how the pool has it. */
export interface TurnNotice {
  readonly pool: string;
  readonly turn: number;
  readonly trainer: string;
  /** Why the run is to give the trainer back at its next step boundary; null: it may keep it. */
  readonly giveBack: string | null;
  /** The pool does not know the run's standing, and asks for it. */
  readonly asks: boolean;
}

export interface TeamSettings {
  /** Most trainers that its runs hold at once; null: no bound. */
  readonly quota: number | null;
  /** Its share relative to other teams' whose runs have the same priority. */
  readonly weight: number;
}

export interface PoolSettings {
  /** Seconds for which a run keeps a trainer before another one of the same priority may have it. */
  readonly slice: number;
  /** Seconds of waiting that raise a run's priority by 1; 0: waiting raises it never. */
  readonly aging: number;
  /** Teams that are not named have no quota and the weight 1. */
  readonly teams: Readonly<Record<string, TeamSettings>>;
}

export const poolDefaults: PoolSettings = { slice: 600, aging: 3_600, teams: {} };
export const teamDefaults: TeamSettings = { quota: null, weight: 1 };

/** The pool that a `[queue]` names if it names none. */
export const poolDefault = 'default';
export const teamDefault = 'default';

export interface HeldTrainer {
  readonly trainer: string;
  readonly turn: number;
  readonly since: number;
  /** Priority with which it was granted, which waiting may have raised; it counts for the first slice. */
  readonly priority: number;
  readonly giveBack: { readonly since: number; readonly to: string; readonly why: string } | null;
}

/** A run that holds a trainer or waits for one. */
export interface PoolMember extends PoolRequest {
  readonly run: string;
  readonly told: number;
  /** Since when it waits, or waited for what it holds. */
  readonly since: number;
  readonly held: HeldTrainer | null;
  /** The trainer that it held last, which may hold its newest version still. */
  readonly prefers: string | null;
}

export interface PoolTrainer {
  readonly trainer: string;
  readonly labels: Readonly<Record<string, string>>;
  readonly joined: number;
}

/** Seconds for which trainers were held, by name. */
export interface PoolUsage {
  /** Divided by the team's weight. A team or run that comes begins with as much as the one that has least. */
  readonly teams: Readonly<Record<string, number>>;
  readonly runs: Readonly<Record<string, number>>;
  /** As they were, for people. */
  readonly secondsOfTeams: Readonly<Record<string, number>>;
}

/** All that a pool knows. Plain data: one execution of its workflow hands it to the next. */
export interface PoolState {
  readonly settings: PoolSettings;
  /** When somebody made the settings; missing: nobody has, or code of before 1 December 2026 did not say. */
  readonly setAt?: number;
  readonly trainers: readonly PoolTrainer[];
  readonly members: readonly PoolMember[];
  readonly usage: PoolUsage;
  /** Up to when `usage` counts. */
  readonly countedTo: number;
  readonly nextTurn: number;
}

/** For people: `ratchet queue --json`. */
export interface PoolStatus {
  readonly pool: string;
  readonly settings: PoolSettings;
  readonly trainers: readonly (PoolTrainer & {
    readonly run: string | null;
    readonly since: number | null;
    /** Whom it is asked for, and why; null: its run may keep it. */
    readonly giveBack: { readonly to: string; readonly why: string; readonly since: number } | null;
  })[];
  /** First the one that comes next. */
  readonly waiting: readonly (PoolRequest & {
    readonly run: string;
    readonly since: number;
    readonly why: string;
  })[];
  readonly teams: readonly (TeamSettings & {
    readonly team: string;
    readonly holds: number;
    readonly waits: number;
    /** Share of all trainer seconds that were counted since the pool had its first run; null before. */
    readonly share: number | null;
  })[];
}

/** A rollout worker of a pool. */
export interface PlayingWorker {
  /** `PROCESS@HOST`. */
  readonly worker: string;
  /** Workflows for which it plays; none: it waits for work. */
  readonly plays: readonly string[];
}

/** An evaluation or a prompt search that plays with the rollout workers of a pool. It needs no trainer, and takes no turns. */
export interface PlayedWork {
  /** Id of its workflow. */
  readonly workflow: string;
  readonly kind: 'evaluation' | 'search';
  readonly since: number;
  /** null: it plays, or begins, or ends. */
  readonly waitsFor: string | null;
}

/** A pool with what Temporal knows of its machines; `trouble` where its workflow does not answer. */
export type FoundPool =
  | (PoolStatus & {
      /** Trainers that nobody holds, and that have not polled for over a minute: they were killed, or are cut off. */
      readonly gone: readonly string[];
      readonly workers: readonly PlayingWorker[];
      readonly played: readonly PlayedWork[];
    })
  | { readonly pool: string; readonly trouble: string };
