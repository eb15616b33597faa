import { defineQuery, defineSignal, defineUpdate } from '@temporalio/workflow';
import type { TrainerLeased } from '../../activities/index.ts';
import type { EvaluationNotice } from '../../core/eval/evaluation.ts';
import type { Regression } from '../../core/eval/regression.ts';
import type { EvalSpec } from '../../config/run-spec.ts';
import type { RunOwner } from '../../core/roles.ts';
import type { LostWork } from '../../core/rl/lost-work.ts';
import type { EvalFigures, StepTrend } from '../../core/rl/figures.ts';
import type { PartsNotice, PlayedPart } from '../../core/rl/rollout/played-part.ts';
import type { PromptRef, StoreMissed } from '../../core/rl/run-state.ts';
import type { PromptSearchNotice, SearchInPlay } from '../../core/gepa/prompt-search.ts';
import {
  evaluationEndedSignalName,
  groupsEndedSignalName,
  promptBranchEndedSignalName,
  rolloutsWaitSignalName,
  roundsPlayedSignalName,
  regressionFoundSignalName,
  storeMissedSignalName,
  trainerLeasedSignalName,
} from '../../core/names.ts';

/**
 * Queries, updates and signals of a run. The command line uses these definitions; the Temporal UI shows them by name.
 */

export interface RunStatus {
  readonly run: string;
  readonly lineage: string;
  readonly phase: 'warm-up' | 'training' | 'paused' | 'finishing' | 'finished' | 'stopped';
  /** Last committed step. */
  readonly step: number;
  readonly maxSteps: number;
  /** Why it is paused, when it is. */
  readonly pausedBecause: string | null;
  /** Waits of the run by name, with their begin (ISO time). */
  readonly waitingOn: readonly { readonly what: string; readonly since: string }[];
  readonly policyDigest: string | null;
  readonly learningRate: number;
  /** URI of the run's folder. */
  readonly store: string;
  /** Absolute URI of the folder with the run folders, and the settings that a client needs to reach it. */
  readonly storeUri: string;
  readonly warnings: readonly string[];
  /** Who started it, and its team. Absent where that is not known. */
  readonly owner?: RunOwner;
  readonly model: string;
  readonly environments: readonly string[];
  /** How often the run has been opened: this is the attempt since `since` (ISO time). */
  readonly attempt: number;
  readonly since: string;
  /** Work lost in this attempt, including what was under way when something died. */
  readonly lost: LostWork;
  /** `v12`; null before the first version. */
  readonly policy: string | null;
  readonly progress: StepProgress;
  /** Figures of the newest step, as in its event. */
  readonly latest: RunEvent['values'];
  /** The newest steps, oldest first, `trendKept` at most. */
  readonly trend: readonly StepTrend[];
  /** The newest evaluations, oldest first, `evalsKept` at most. */
  readonly evals: readonly EvalFigures[];
  /** Keyed by environment: set while its newest evaluation is worse than the best before it, beyond chance. */
  readonly regressions: Readonly<Record<string, NotedRegression>>;
  /** One for each environment of a run that looks for better prompts. */
  readonly prompts: readonly PromptStanding[];
  /** Workers that do not see the run's store. They get no tasks until they do. Absent if there are none. */
  readonly workersAway?: readonly WorkerAway[];
  /** Results of the newest branch by environment. Absent without any. */
  readonly branchesEnded?: Readonly<Record<string, EndedBranch>>;
}

export interface WorkerAway {
  /** The worker and its machine, such as `rollout worker 4711 on gpu-b`. */
  readonly worker: string;
  /** ISO time. */
  readonly since: string;
  /** Why the worker does not see the store, with what to do. */
  readonly why: string;
}

/** The prompt in use for an environment, and the search for a better one. */
export interface PromptStanding {
  readonly environment: string;
  /** In place of the environment's own; null = its own. */
  readonly inUse: PromptRef | null;
  /** Found, and waiting for a person's approval. */
  readonly offered: PromptRef | null;
  readonly branch: BranchUnderWay | null;
}

export interface BranchUnderWay {
  /** Step of the version that it began from. */
  readonly step: number;
  /** ISO time. */
  readonly since: string;
  /** Workflow of its search; null without one. */
  readonly workflow: string | null;
  /** Trial of what was found, after the search has ended; absent while no lease of it is in flight. */
  readonly trial?: SearchInPlay;
}

export interface EndedBranch {
  readonly step: number;
  /** `taken`, `offered`, `told`, `no better`, `nothing found`, `failed`, `cancelled` or `unanswered`. */
  readonly verdict: string;
  /** One line for people. */
  readonly text: string;
}

/** A flag that stays up until an evaluation of the environment is no worse than the best before it. */
export interface NotedRegression {
  readonly version: string;
  readonly step: number;
  /** Version with the best result. */
  readonly best: string;
  /** Step of that version. */
  readonly bestStep: number;
  /** Mean difference of rewards over examples. */
  readonly difference: number;
  readonly text: string;
}

/** Result of a chunk, as far as the run does not know it. */
export interface RoundsPlayed {
  readonly lineage: string;
  readonly played:
    | { readonly parts: readonly PlayedPart[]; readonly adopted: number; readonly lost: LostWork }
    | { readonly failed: { readonly message: string; readonly type: string } };
}

/** Steps being made. At async level 1 there are two: one is trained, the next one collected. */
export interface StepProgress {
  readonly collecting: CollectProgress | null;
  /** Groups in flight by environment. */
  readonly inPlay: readonly GroupsInPlay[];
  readonly training: {
    readonly step: number;
    readonly from: string;
    readonly rows: number;
    readonly since: string;
  } | null;
  /**
   * Inference servers that sample from other weights than the newest version, and get no requests. Absent without any.
   */
  readonly quarantinedServers?: readonly string[];
}

/** Groups of one environment in flight. */
export interface GroupsInPlay {
  readonly environment: string;
  readonly groups: number;
  /** When the oldest of them was leased, and the version it is sampled from. */
  readonly since: string;
  readonly policyStep: number;
}

/** Groups on their way into the next batch. */
export interface CollectProgress {
  readonly step: number;
  /** Number of the round since the previous batch, from 1. */
  readonly round: number;
  readonly doing: 'generate' | 'filter' | 'nothing';
  /** The policy that the newest round is sampled from. */
  readonly policyStep: number;
  /** Rollouts in flight when the previous batch was taken, and those leased since; `done` counts scored ones. */
  readonly rollouts: { readonly done: number; readonly of: number };
  /**
   * Groups that a whole batch needs, and the fates of those sampled so far; `kept` includes leftovers of the previous
   * step.
   */
  readonly needed: number;
  readonly kept: number;
  readonly dropped: Readonly<Record<string, number>>;
}

/** One thing that happened, for people and programs. `sequence` grows by one per event within a run. */
export interface RunEvent {
  readonly sequence: number;
  /** ISO time. */
  readonly time: string;
  readonly kind:
    | 'warm-up'
    | 'eval'
    | 'regression'
    | 'prompt'
    | 'step'
    | 'checkpoint'
    | 'recovery'
    | 'rewound'
    | 'upgraded'
    | 'refused'
    | 'paused'
    | 'set'
    | 'change'
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
/** Events after a sequence number, oldest first. Watchers query this and the status about once a second. */
export const eventsQuery = defineQuery<readonly RunEvent[], [after: number]>('events');

/** Sent by an evaluation of the run: its result. */
export const evaluationEndedSignal = defineSignal<[EvaluationNotice], typeof evaluationEndedSignalName>(
  evaluationEndedSignalName,
);

/** Action on an evaluation that was worse than the best before it. */
export interface FoundRegression {
  readonly environment: string;
  readonly version: string;
  readonly step: number;
  readonly regression: Regression;
  readonly action: EvalSpec['onRegression'];
}

/** Sent by a scheduled evaluation. */
export const regressionFoundSignal = defineSignal<[FoundRegression], typeof regressionFoundSignalName>(
  regressionFoundSignalName,
);

/** Sent by the workflow that generates the run's rounds: the result of a chunk, and a reason to wait for a person. */
export const roundsPlayedSignal = defineSignal<[RoundsPlayed], typeof roundsPlayedSignalName>(roundsPlayedSignalName);
export const rolloutsWaitSignal = defineSignal<[{ readonly reason: string }], typeof rolloutsWaitSignalName>(
  rolloutsWaitSignalName,
);

/** Sent by rollout workers. */
export const groupsEndedSignal = defineSignal<[PartsNotice], typeof groupsEndedSignalName>(groupsEndedSignalName);

/** From the GPU worker that took the run. */
export const trainerLeasedSignal = defineSignal<[TrainerLeased], typeof trainerLeasedSignalName>(
  trainerLeasedSignalName,
);

/** Sent by workers of all kinds. */
export const storeMissedSignal = defineSignal<[StoreMissed], typeof storeMissedSignalName>(storeMissedSignalName);

/** Applies settings; returns their effect in words. */
export const setUpdate = defineUpdate<string, [settings: Readonly<Record<string, number>>]>('set');
/** Ends the run after the step under way, its evaluations and its checkpoint; at once when it is paused. */
export const stopUpdate = defineUpdate<string>('stop');
export const pauseUpdate = defineUpdate<string, [reason?: string | null]>('pause');
export const resumeUpdate = defineUpdate<string>('resume');
/** Continues from this committed step in a new lineage, once work under way is done. Overwrites nothing. */
export const rewindUpdate = defineUpdate<string, [step: number]>('rewind');

/** Sent by a branch that looked for a better prompt. */
export const promptBranchEndedSignal = defineSignal<[PromptSearchNotice], typeof promptBranchEndedSignalName>(
  promptBranchEndedSignalName,
);
/** Begins a branch from the newest version that looks for a better prompt: of one environment, or of all that `[gepa]` names. */
export const branchUpdate = defineUpdate<string, [environment?: string | null]>('gepa-branch');
/** Takes the prompt that a branch found (`adopt = "ask"`) for groups that are leased from the next step on. */
export const adoptPromptUpdate = defineUpdate<string, [environment?: string | null]>('adopt-prompt');
