import { defineQuery, defineSignal, defineUpdate } from '@temporalio/workflow';
import type { TrainerLeased } from '../../activities/index.ts';
import type { EvaluationNotice } from '../../core/eval/evaluation.ts';
import type { Regression } from '../../core/eval/regression.ts';
import type { EvalSpec } from '../../config/run-spec.ts';
import type { LostWork } from '../../core/rl/lost-work.ts';
import type { PartsNotice, PlayedPart } from '../../core/rl/played-part.ts';
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
  readonly model: string;
  readonly environments: readonly string[];
  /** How often the run has been opened: this is the attempt since `since` (ISO time). */
  readonly attempt: number;
  readonly since: string;
  /** By this attempt, what was under way when something died included. */
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
  /** By environment: its newest evaluation was worse than the best before it, beyond chance. */
  readonly regressions: Readonly<Record<string, NotedRegression>>;
  /** Of a run that looks for better prompts, one of each environment. */
  readonly prompts: readonly PromptStanding[];
  /** Workers that do not see the run's store. They get no tasks until they do. Absent if there are none. */
  readonly workersAway?: readonly WorkerAway[];
  /** By environment: what became of its newest branch. Absent where there was none. */
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

/** Which prompt an environment is played with, and what is under way to better it. */
export interface PromptStanding {
  readonly environment: string;
  /** In place of the environment's own; null = its own. */
  readonly inUse: PromptRef | null;
  /** Found, and waiting for somebody's yes. */
  readonly offered: PromptRef | null;
  /** Under way. */
  readonly branch: BranchUnderWay | null;
}

export interface BranchUnderWay {
  /** Of the version that it began from. */
  readonly step: number;
  /** ISO time. */
  readonly since: string;
  /** Its search; null while there is none. */
  readonly workflow: string | null;
  /** Of what was found, which is tried once the search has ended; absent: no lease of it is in play. */
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
  /** The version that was best. */
  readonly best: string;
  /** Its step; missing in what a run carried from before this was noted. */
  readonly bestStep?: number;
  /** Mean over examples, of rewards. */
  readonly difference: number;
  readonly text: string;
}

/** What came of a chunk that was played, where the run does not know it. */
export interface RoundsPlayed {
  readonly lineage: string;
  readonly played:
    | { readonly parts: readonly PlayedPart[]; readonly adopted: number; readonly lost: LostWork }
    | { readonly failed: { readonly message: string; readonly type: string } };
}

/** What is under way of the steps being made. At async level 1 two steps are: one is trained, the next one collected. */
export interface StepProgress {
  readonly collecting: CollectProgress | null;
  /** By environment. */
  readonly inPlay: readonly GroupsInPlay[];
  readonly training: {
    readonly step: number;
    readonly from: string;
    readonly rows: number;
    readonly since: string;
  } | null;
  /** Inference servers that sample from other weights than the newest version, and are asked for nothing. Absent when there are none. */
  readonly quarantinedServers?: readonly string[];
}

/** Groups of one environment that are in play. */
export interface GroupsInPlay {
  readonly environment: string;
  readonly groups: number;
  /** When the oldest of them was leased, and from which version it is sampled. */
  readonly since: string;
  readonly policyStep: number;
}

/** Groups on their way into the next batch. */
export interface CollectProgress {
  readonly step: number;
  /** Of those leased since the batch before, from 1. */
  readonly round: number;
  readonly doing: 'generate' | 'filter' | 'nothing';
  /** The policy that the newest round is sampled from. */
  readonly policyStep: number;
  /** Rollouts that were in play when the batch before was taken, and those leased since; `done` counts those that are scored. */
  readonly rollouts: { readonly done: number; readonly of: number };
  /** Groups that a whole batch needs, and what became of those sampled so far; `kept` includes what the step before left. */
  readonly needed: number;
  readonly kept: number;
  readonly dropped: Readonly<Record<string, number>>;
}

/** A step in short: its number, mean reward, share of exact answers, and wall time in seconds; null = not measured. */
export type StepTrend = readonly [step: number, reward: number | null, exact: number | null, seconds: number];

/** Null where every rollout failed. */
export interface EvalFigures {
  readonly step: number;
  readonly environment: string;
  readonly reward: number | null;
  readonly exact: number | null;
  readonly greedyReward: number | null;
  readonly greedyExact: number | null;
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
/** Those after a sequence number, oldest first. Whoever watches a run asks for both, about once a second. */
export const eventsQuery = defineQuery<readonly RunEvent[], [after: number]>('events');

/** From an evaluation that the run asked for: what came of it. */
export const evaluationEndedSignal = defineSignal<[EvaluationNotice], typeof evaluationEndedSignalName>(
  evaluationEndedSignalName,
);

/** What is to be done about an evaluation that was worse than the best before it. */
export interface FoundRegression {
  readonly environment: string;
  readonly version: string;
  readonly step: number;
  readonly regression: Regression;
  readonly action: EvalSpec['onRegression'];
}

/** From an evaluation on a schedule. */
export const regressionFoundSignal = defineSignal<[FoundRegression], typeof regressionFoundSignalName>(
  regressionFoundSignalName,
);

/** From the workflow that plays the run's rounds: what came of a chunk, and why it waits for a person. */
export const roundsPlayedSignal = defineSignal<[RoundsPlayed], typeof roundsPlayedSignalName>(roundsPlayedSignalName);
export const rolloutsWaitSignal = defineSignal<[{ readonly reason: string }], typeof rolloutsWaitSignalName>(
  rolloutsWaitSignalName,
);

/** From rollout workers. */
export const groupsEndedSignal = defineSignal<[PartsNotice], typeof groupsEndedSignalName>(groupsEndedSignalName);

/** From the GPU worker that took the run. */
export const trainerLeasedSignal = defineSignal<[TrainerLeased], typeof trainerLeasedSignalName>(
  trainerLeasedSignalName,
);

/** Sent by workers of all kinds. */
export const storeMissedSignal = defineSignal<[StoreMissed], typeof storeMissedSignalName>(storeMissedSignalName);

/** What `set` and `stop` did, in words. */
export const setUpdate = defineUpdate<string, [settings: Readonly<Record<string, number>>]>('set');
/** Ends the run after the step under way, its evaluations and its checkpoint; at once where it is paused. */
export const stopUpdate = defineUpdate<string>('stop');
export const pauseUpdate = defineUpdate<string, [reason?: string | null]>('pause');
export const resumeUpdate = defineUpdate<string>('resume');
/** Goes on from this committed step in a new lineage, once what is under way is done. Nothing is overwritten. */
export const rewindUpdate = defineUpdate<string, [step: number]>('rewind');

/** From a branch that looked for a better prompt. */
export const promptBranchEndedSignal = defineSignal<[PromptSearchNotice], typeof promptBranchEndedSignalName>(
  promptBranchEndedSignalName,
);
/** Begins a branch from the newest version that looks for a better prompt: of one environment, or of all that `[gepa]` names. */
export const branchUpdate = defineUpdate<string, [environment?: string | null]>('gepa-branch');
/** Takes the prompt that a branch found (`adopt = "ask"`) for groups that are leased from the next step on. */
export const adoptPromptUpdate = defineUpdate<string, [environment?: string | null]>('adopt-prompt');
