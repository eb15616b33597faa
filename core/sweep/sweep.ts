import type { HalvingSettings, RowStanding, SweepGoal } from './halving.ts';
import type { SettingsRow, SweepRun } from './table.ts';
import type { ConfigLayer } from '../config-layer.ts';

/** The metric that rows of settings are compared by. */
export interface SweepMetric {
  /** A committed metric, or one of an evaluation, by its name in `ratchet metrics`. */
  readonly name: string;
  readonly goal: SweepGoal;
  /** Its mean over this many steps up to the rung. */
  readonly lastSteps: number;
}

/** Input of the workflow `sweep`. The command that starts it has checked all of it against the run file. */
export interface SweepInput {
  readonly name: string;
  /** Absolute URI of the folder of its runs. */
  readonly store: string;
  /** The run file, as its children get it. */
  readonly config: string;
  readonly dialect?: string;
  readonly sent?: {
    readonly texts: Readonly<Record<string, string>>;
    readonly beside: Readonly<Record<string, string>>;
  };
  readonly over?: readonly ConfigLayer[];
  readonly rows: readonly SettingsRow[];
  readonly runs: readonly SweepRun[];
  readonly metric: SweepMetric;
  readonly maxSteps: number;
  readonly halving: HalvingSettings | null;
  /** Runs that train at once. */
  readonly atOnce: number;
}

/** How a run of a sweep stands. */
export interface SweepRunStatus {
  readonly name: string;
  readonly row: number;
  readonly seed: number | null;
  /** `dropped` at a rung; `stopped` by a person, before its rung. */
  readonly state: 'waiting' | 'training' | 'at its rung' | 'dropped' | 'finished' | 'failed' | 'stopped';
  /** Steps that it had made when it last ended. */
  readonly step: number;
  /** The metric at its last rung. */
  readonly value: number | null;
  /** Why it failed. */
  readonly failure?: string;
  /** What people changed of what it learns, so that it is no run of its row's settings alone. */
  readonly changed?: readonly string[];
}

export interface SweepRung {
  readonly step: number;
  readonly ranking: readonly RowStanding[];
  readonly survivors: readonly number[];
}

export interface SweepStatus {
  readonly name: string;
  /** `not running`: no workflow is at work on it, and its runs have steps to make. */
  readonly phase: 'training' | 'paused' | 'finished' | 'not running';
  /** Why no further run begins; null when it is not paused. */
  readonly pausedBecause: string | null;
  readonly metric: SweepMetric;
  readonly rows: readonly SettingsRow[];
  /** Steps at which rows are compared. */
  readonly rungSteps: readonly number[];
  /** Index of the rung under way. */
  readonly rung: number;
  /** Rungs that are decided. */
  readonly decided: readonly SweepRung[];
  readonly runs: readonly SweepRunStatus[];
  /** Optimizer steps of all runs so far, and those that all runs would make without halving. */
  readonly steps: { readonly made: number; readonly full: number };
}

export interface SweepResult extends SweepStatus {
  /** The best row at the end; null: no row has the metric there. */
  readonly best: number | null;
}

/** Asks for the metric of a run at a step. */
export interface MeasureSweepRun {
  readonly run: { readonly name: string; readonly store: string };
  readonly metric: SweepMetric;
  readonly step: number;
  /** A step that the run has committed for certain: a worker that finds less does not see the store. */
  readonly made?: number;
}

export interface MeasuredSweepRun {
  /** Its newest committed step; null before its first version. */
  readonly step: number | null;
  /** null: it has none there. */
  readonly value: number | null;
  /** What people changed of what it learns, before that step: `learning_rate=0.0007 after step 2`. Missing: nothing. */
  readonly changed?: readonly string[];
}
