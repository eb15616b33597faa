import type { EvaluatedEnvironment, EvaluatedModel, EvaluatedServer, EvaluationPlace } from '../eval/evaluation.ts';
import type { ObjectRef } from '../rl/run-state.ts';
import type { JsonValue } from '../../config/run-spec.ts';
import type { AskedRollouts, SearchPace } from './leases.ts';
import type { PromptComponent } from './prompt-parts.ts';
import type { SearchTuning } from './tuning.ts';
import type { SearchAnswer, SearchSettings, SearchState, StopReason, Texts } from './search-state.ts';

/** The words of a search for a better prompt as it is run: what is asked, where its results go, what came of it. Plain data. */

/** Who writes prompts anew: any model that answers by messages. */
interface ReflectionModel {
  readonly model: string;
  readonly servers: readonly EvaluatedServer[];
  /** Request fields, as the API names them. */
  readonly fields: Readonly<Record<string, JsonValue>>;
}

/** What the workflow `optimizePrompt` does once. */
export interface PromptSearchInput {
  /** Of several the prompt is one, and their examples are as many of each. */
  readonly environments: readonly EvaluatedEnvironment[];
  readonly model: EvaluatedModel;
  readonly reflection: ReflectionModel;
  /** Rollouts that are scored in all; never exceeded. */
  readonly maxCalls: number;
  /** Texts that the reflection model writes in all; missing = as many as `maxCalls`. */
  readonly maxReflections?: number | undefined;
  readonly minibatchSize: number;
  /** Minibatches whose every reward is at least this are not reflected on; null = all are. */
  readonly perfectScore: number | null;
  /** Columns of a rollout's row that the reflection sees as well. */
  readonly stateColumns: readonly string[];
  /** −1 = all. */
  readonly numTrain: number;
  readonly numVal: number;
  /** Examples, of neither kind, that the first and the best prompt are scored on at the end, beyond the budget; 0 = none. */
  readonly numTest: number;
  /** Rollouts at once; −1 = no bound. */
  readonly maxConcurrent: number;
  readonly seed: number;
  /** gepa's own search. */
  readonly isClassic: boolean;
  /** What is begun with in place of the environment's system prompt. */
  readonly initialPrompt: string | null;
  /** What is written anew; absent: the system prompt alone. */
  readonly components?: readonly PromptComponent[] | undefined;
  /** Candidates that changed different parts are merged as well; absent: they are not. */
  readonly merges?: boolean | undefined;
  /** Absent: the defaults. */
  readonly tuning?: SearchTuning | undefined;
  readonly results: EvaluationPlace;
  /** Whether the files for people are written. */
  readonly savesResults: boolean;
  /** A budget too small to try much is meant. */
  readonly isSmallBudgetMeant: boolean;
  /**
   * Of a training run: all examples are drawn apart from those that are trained on, so that held-out ones stay unseen; those to test on are
   * left to the run, which plays them on the version that it has by then.
   */
  readonly isBranch?: boolean | undefined;
  /** Begun with in place of `initialPrompt`; it lies where the results go. */
  readonly startPrompt?: ObjectRef | undefined;
  /** Told of the end by a signal with {@link PromptSearchNotice}. */
  readonly notify?: { readonly workflowId: string; readonly signal: string } | undefined;
}

/** A file of prompt optimization; relative paths start in the project's folder. */
export interface PromptFileInput {
  readonly config: string;
  /** Dotted keys as on the command line, values as typed; they hold over the file's. */
  readonly overrides?: Readonly<Record<string, string>>;
  /** A budget too small to try much is meant. */
  readonly yes?: boolean;
}

/** An example of one of the environments. */
export type ExampleRef = readonly [environment: number, dataset: 'dataset' | 'evalDataset', example: number];

/** `search/search.json`: what a search is, with its examples drawn. Whoever opens it first decides. */
export interface StoredPromptSearch {
  readonly schemaVersion: 2;
  readonly input: PromptSearchInput;
  readonly settings: SearchSettings;
  /** Names of texts, see {@link PromptSearchHandle.start}. */
  readonly start: Texts;
  /** The texts themselves. */
  readonly startTexts: Texts;
  readonly train: readonly ExampleRef[];
  readonly val: readonly ExampleRef[];
  readonly test: readonly ExampleRef[];
  readonly warnings: readonly string[];
  readonly openedAt: string;
  readonly codeVersion: string;
}

/** What `openPromptSearch` returns: all that is done later refers to it. */
export interface PromptSearchHandle {
  readonly place: EvaluationPlace;
  /** → {@link StoredPromptSearch} */
  readonly spec: ObjectRef;
  readonly environment: string;
  readonly model: string;
  readonly reflectionModel: string;
  readonly settings: SearchSettings;
  /** The search knows texts by the names that the store gives them: digests. */
  readonly start: Texts;
  /** Scored at the end, beyond the budget. */
  readonly numTest: number;
  /** Rollouts in play at once, on all workers; −1 = no bound. Missing in what was opened by a Ratchet that had one worker play all. */
  readonly maxConcurrent?: number;
  /** Rollout workers when it was opened, as far as is known. */
  readonly workers?: number;
  /** Absolute, for people. */
  readonly folder: string;
  readonly warnings: readonly string[];
}

export interface SearchAttemptInput {
  readonly handle: PromptSearchHandle;
  readonly state: SearchState;
  /** Events that were told before it. */
  readonly begunAt: number;
  /** Of rollouts by now. With it the attempt ends when they are slow; without, it plays all, whatever they take. */
  readonly pace?: SearchPace;
}

/** What an attempt gives: the search after it is what its workflow makes of the answers. */
export interface SearchAttempt {
  /** In the order in which they were settled, those together that came together. */
  readonly answers: readonly (readonly SearchAnswer[])[];
  /** Answers that lay in the store already. */
  readonly adopted: number;
  /** Rollouts that failed through infrastructure, and what the first of them failed with. */
  readonly failed: number;
  readonly firstFailure: string | null;
  readonly seconds: number;
  /** Of the rollouts that were played last; null: they were slow, and what was in flight is to be leased. */
  readonly pace?: SearchPace | null;
}

/** How a search stands, in figures. An attempt's heartbeats say it, and so does the query `status`. */
export interface SearchFigures {
  readonly phase: SearchState['phase'];
  readonly calls: number;
  readonly maxCalls: number;
  readonly reflections: number;
  /** Iterations begun. */
  readonly iterations: number;
  readonly candidates: number;
  /** Position of the best so far, its mean score, and on how many validation examples. */
  readonly best: number;
  readonly bestScore: number | null;
  readonly bestCoverage: number;
  /** Mean score of the start on those of them that it was scored on; null before there is one. */
  readonly startScore: number | null;
  /** How many those are. */
  readonly startCoverage: number;
  /** Candidates that are best at something and nowhere dominated. */
  readonly front: readonly number[];
  readonly stopReason: StopReason | null;
  /** What is asked for at the moment, by name. */
  readonly waitingOn: readonly string[];
}

/** The query `status`. */
export interface PromptSearchStatus extends SearchFigures {
  readonly environment: string;
  readonly model: string;
  readonly reflectionModel: string;
  readonly doing: 'opening' | 'searching' | 'comparing' | 'closing' | 'finished';
  readonly folder: string;
  readonly warnings: readonly string[];
  /** Iterations that were given up because of infrastructure. */
  readonly givenUp: number;
  readonly failed: number;
  readonly firstFailure: string | null;
  /** Events told so far. */
  readonly told: number;
  /** Leases that workers have or may take; missing where one worker answers everything. */
  readonly inPlay?: SearchInPlay;
}

/** What a search has in play beside its figures. */
export interface SearchInPlay {
  readonly leases: number;
  readonly rollouts: number;
  /** Rollouts that wait until fewer are in play (`max_concurrent`). */
  readonly waiting: number;
  readonly reflections: number;
}

/** One thing that happened, for people and programs. */
export interface PromptSearchEvent {
  readonly sequence: number;
  /** ISO time. */
  readonly time: string;
  readonly kind: 'start' | 'candidate' | 'given-up' | 'set' | 'stopping' | 'warning' | 'compared' | 'finished';
  /** One line for people. */
  readonly text: string;
  readonly values: Readonly<Record<string, number | string>>;
}

/** Scores of the first and the best prompt on examples that the search has not seen. */
export interface HeldOutScores {
  readonly examples: number;
  /** Mean over the examples that both were scored on; null where there are none. */
  readonly before: number | null;
  readonly after: number | null;
}

/** What came of it: small, it goes through history and signals. */
export interface PromptSearchResult {
  readonly environment: string;
  readonly model: string;
  readonly reflectionModel: string;
  readonly id: string;
  readonly place: EvaluationPlace;
  readonly folder: string;
  /** The best prompt, where it lies, and its digest. */
  readonly best: number;
  readonly bestPrompt: ObjectRef | null;
  readonly bestScore: number | null;
  /** On examples that the best was scored on as well; how many those are, and that. */
  readonly startScore: number | null;
  readonly startCoverage: number;
  readonly bestCoverage: number;
  readonly isImproved: boolean;
  readonly candidates: number;
  readonly calls: number;
  readonly maxCalls: number;
  readonly reflections: number;
  readonly iterations: number;
  readonly givenUp: number;
  readonly failed: number;
  readonly stopReason: StopReason;
  readonly comparison: HeldOutScores | null;
  readonly seconds: number;
}

/** How a search ended, for whoever asked for it. */
export type PromptSearchNotice = { readonly workflowId: string } & (
  | { readonly result: PromptSearchResult }
  | { readonly failed: string }
);

/** A trial before it is played: what is asked for, of the prompt in use and of the winner. */
export interface OpenedTrial {
  /** Of the search that found the winner. */
  readonly handle: PromptSearchHandle;
  readonly asked: readonly AskedRollouts[];
}

/** The winner of a branch and the prompt in use, once more, on the newest version. */
export interface PromptTrial {
  /** Of the winner, in the run's folder. */
  readonly prompt: ObjectRef;
  /** That both have a score of. */
  readonly examples: number;
  /** Means over them; null where there are none. */
  readonly before: number | null;
  readonly after: number | null;
  /** Mean of the paired differences and its 95 % interval (bootstrap); null where there are no examples. */
  readonly difference: { readonly mean: number; readonly low: number; readonly high: number } | null;
}
