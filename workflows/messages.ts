import { defineQuery, defineSignal, defineUpdate } from '@temporalio/workflow';
import type { TrainerHeld } from '../activities/index.ts';
import { trainerHeldSignalName } from '../core/names.ts';

/** What one may ask a run and tell it. The command line uses these definitions; the Temporal UI shows them by name. */

export interface RunStatus {
  readonly run: string;
  readonly lineage: string;
  readonly phase: 'warm-up' | 'training' | 'paused' | 'finishing' | 'finished' | 'stopped';
  /** Last committed step. */
  readonly step: number;
  readonly maxSteps: number;
  /** Why it is paused, when it is. */
  readonly pausedBecause: string | null;
  /** What the run is waiting for right now, by name, since when (ISO time). */
  readonly waitingOn: readonly { readonly what: string; readonly since: string }[];
  readonly policyDigest: string | null;
  readonly learningRate: number;
  /** Where its files are. */
  readonly store: string;
  /** Absolute URI of the folder that holds the run folders, with what a client needs to reach it. */
  readonly storeUri: string;
  readonly warnings: readonly string[];
}

/** One thing that happened, for people and programs. `sequence` grows by one per event within a run. */
export interface RunEvent {
  readonly sequence: number;
  /** ISO time. */
  readonly time: string;
  readonly kind:
    | 'warm-up'
    | 'eval'
    | 'step'
    | 'checkpoint'
    | 'recovery'
    | 'rewound'
    | 'upgraded'
    | 'refused'
    | 'paused'
    | 'set'
    | 'stopping'
    | 'resumed'
    | 'warning'
    | 'finished'
    | 'stopped';
  readonly step: number;
  /** One line for people. */
  readonly text: string;
  /** The figures in it. */
  readonly values: Readonly<Record<string, number | string>>;
}

export const statusQuery = defineQuery<RunStatus>('status');
/** Events after a sequence number, oldest first; only the last few hundred are kept. */
export const eventsQuery = defineQuery<RunEvent[], [after: number]>('events');

/** From the GPU worker that took the run. */
export const trainerHeldSignal = defineSignal<[TrainerHeld]>(trainerHeldSignalName);

/** What `set` and `stop` did, in words. */
export const setUpdate = defineUpdate<string, [settings: Readonly<Record<string, number>>]>('set');
/** Ends the run after the step under way, its evaluations and its checkpoint; at once where it is paused. */
export const stopUpdate = defineUpdate<string>('stop');
export const pauseUpdate = defineUpdate<string, [reason?: string]>('pause');
export const resumeUpdate = defineUpdate<string>('resume');
/** Peak learning rate from the next plan on; the schedule goes on over it. */
export const setLearningRateUpdate = defineUpdate<string, [learningRate: number]>('set-learning-rate');
/** Ends the run after this step; with a checkpoint of it, unless it is planned already. */
export const stopAfterUpdate = defineUpdate<string, [step: number]>('stop-after');
/** Goes on from this committed step in a new lineage, once what is under way is done. Nothing is overwritten. */
export const rewindUpdate = defineUpdate<string, [step: number]>('rewind');
