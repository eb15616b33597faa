import type { EvaluatedEnvironment, EvaluatedModel, EvaluatedServer, EvaluationPlace } from '../eval/evaluation.ts';
import type { ObjectRef } from '../rl/run-state.ts';
import type { JsonValue } from '../json-value.ts';
import type { BudgetLimits } from '../settings/budgets.ts';
import type { AskedRollouts } from './leases.ts';
import type { PromptComponent } from './prompt-parts.ts';
import type { SearchTuning } from './tuning.ts';
import type { SearchSettings, SearchState, StopReason, Texts } from './search-state.ts';

/** The nouns of a prompt search: its input, the place of its results, and the results. Plain data. */

/** The model that rewrites prompts: any model with a chat API. */
interface ReflectionModel {
  readonly model: string;
  readonly servers: readonly EvaluatedServer[];
  /** Request fields, by the API's names. */
  readonly fields: Readonly<Record<string, JsonValue>>;
}

/** Input of one workflow `optimizePrompt`. */
export interface PromptSearchInput {
  /** Several environments share the prompt and have equally many examples. */
  readonly environments: readonly EvaluatedEnvironment[];
  readonly model: EvaluatedModel;
  readonly reflection: ReflectionModel;
  /** Rollouts that are scored in all; never exceeded. */
  readonly maxCalls: number;
  /** Texts that the reflection model writes in all; missing = as many as `maxCalls`. */
  readonly maxReflections?: number | undefined;
  readonly minibatchSize: number;
  /** Minibatches whose every reward is at least this are not reflected on; null = reflect on all. */
  readonly perfectScore: number | null;
  /** Columns of a rollout's row that the reflection sees as well. */
  readonly stateColumns: readonly string[];
  /** −1 = all. */
  readonly numTrain: number;
  readonly numVal: number;
  /** Examples, of neither kind, that the first and the best prompt are scored on at the end, beyond `maxCalls`; 0 = none. */
  readonly numTest: number;
  /** Rollouts at once; −1 = no bound. */
  readonly maxConcurrent: number;
  readonly seed: number;
  /** Use gepa's own search. */
  readonly isClassic: boolean;
  /** Initial prompt that replaces the environment's system prompt. */
  readonly initialPrompt: string | null;
  /** Components to optimize; absent: the system prompt alone. */
  readonly components?: readonly PromptComponent[] | undefined;
  /** Candidates that changed different parts are merged as well; absent: they are not. */
  readonly merges?: boolean | undefined;
  /** Absent: the defaults. */
  readonly tuning?: SearchTuning | undefined;
  readonly results: EvaluationPlace;
  /** Whether the files for people are written. */
  readonly savesResults: boolean;
  /** Confirms a budget too small for much. */
  readonly isSmallBudgetMeant: boolean;
  /**
   * Part of a training run: examples are disjoint from the run's training examples, so that held-out ones stay unseen.
   * The final test is left to the run, which uses its current version.
   */
  readonly isBranch?: boolean | undefined;
  /** Replaces `initialPrompt`; stored with the results. */
  readonly startPrompt?: ObjectRef | undefined;
  /** What it may use, with its reflections and its comparison; missing = not limited but by its calls. */
  readonly budget?: BudgetLimits | undefined;
  /** US dollars of a million tokens, of its model and of the one that reflects; for models of an API. */
  readonly prices?: SearchPrices | undefined;
  /** Receiver of a {@link PromptSearchNotice} at the end. */
  readonly notify?: { readonly workflowId: string; readonly signal: string } | undefined;
}

export interface SearchPrices {
  readonly model: ModelPrices;
  /** null = not known. */
  readonly reflection: ModelPrices | null;
}

interface ModelPrices {
  readonly input: number;
  readonly output: number;
}

/** A file of prompt optimization; relative paths start in the project's folder. */
export interface PromptFileInput {
  readonly config: string;
  /** Dotted keys as on the command line, with typed values; they override the file's. */
  readonly overrides?: Readonly<Record<string, string>>;
  /** Confirms a budget too small for much. */
  readonly yes?: boolean;
}

/** An example of one of the environments. */
export type ExampleRef = readonly [environment: number, dataset: 'dataset' | 'evalDataset', example: number];

/** `search/search.json`: a search with its drawn examples. Idempotent: the first opening decides. */
export interface StoredPromptSearch {
  readonly schemaVersion: 2;
  readonly input: PromptSearchInput;
  readonly settings: SearchSettings;
  /** Names of texts, see {@link PromptSearchHandle.start}. */
  readonly start: Texts;
  readonly startTexts: Texts;
  readonly train: readonly ExampleRef[];
  readonly val: readonly ExampleRef[];
  readonly test: readonly ExampleRef[];
  readonly warnings: readonly string[];
  readonly openedAt: string;
  readonly codeVersion: string;
}

/** Result of `openPromptSearch`; later activities refer to it. */
export interface PromptSearchHandle {
  readonly place: EvaluationPlace;
  /** → {@link StoredPromptSearch} */
  readonly spec: ObjectRef;
  readonly environment: string;
  readonly model: string;
  readonly reflectionModel: string;
  readonly settings: SearchSettings;
  /** The search knows texts by digests, the names that the store gives them. */
  readonly start: Texts;
  /** Scored at the end, beyond `maxCalls`. */
  readonly numTest: number;
  /** Bound on rollouts in flight on all workers; −1 = unbounded. */
  readonly maxConcurrent: number;
  /** Rollout workers when it was opened, as far as is known. */
  readonly workers?: number;
  /** Limits and prices of this start, which may be others than those of the first; absent in older histories: those. */
  readonly limited?: Pick<PromptSearchInput, 'budget' | 'prices'>;
  /** Absolute path, for people. */
  readonly folder: string;
  readonly warnings: readonly string[];
}

/** How a search stands, in figures. The heartbeats of a lease say it where it has the whole search, and so does the query `status`. */
export interface SearchFigures {
  readonly phase: SearchState['phase'];
  readonly calls: number;
  readonly maxCalls: number;
  readonly reflections: number;
  readonly iterations: number;
  readonly candidates: number;
  /** Position of the best so far, its mean score, and on how many validation examples. */
  readonly best: number;
  readonly bestScore: number | null;
  readonly bestCoverage: number;
  /** Mean score of the start on those of them that it was scored on; null before there is one. */
  readonly startScore: number | null;
  /** Number of these examples. */
  readonly startCoverage: number;
  /** Candidates that are best at something and nowhere dominated. */
  readonly front: readonly number[];
  readonly stopReason: StopReason | null;
  /** Names of the open requests. */
  readonly waitingOn: readonly string[];
}

/** Answer to the query `status`. */
export interface PromptSearchStatus extends SearchFigures {
  readonly environment: string;
  readonly model: string;
  readonly reflectionModel: string;
  readonly doing: 'opening' | 'searching' | 'comparing' | 'closing' | 'finished';
  readonly folder: string;
  readonly warnings: readonly string[];
  /** Iterations that were given up due to infrastructure. */
  readonly givenUp: number;
  readonly failed: number;
  readonly firstFailure: string | null;
  /** Number of events reported so far. */
  readonly told: number;
  /** Leases that workers have or may take; */
  readonly inPlay?: SearchInPlay;
}

/** Work of a search in flight, beside its figures. */
export interface SearchInPlay {
  readonly leases: number;
  readonly rollouts: number;
  /** Rollouts held back by `max_concurrent`. */
  readonly waiting: number;
  readonly reflections: number;
}

/** One thing that happened, for people and programs. */
export interface PromptSearchEvent {
  readonly sequence: number;
  readonly time: string;
  readonly kind: 'start' | 'candidate' | 'given-up' | 'set' | 'stopping' | 'warning' | 'compared' | 'finished';
  /** One line for people. */
  readonly text: string;
  readonly values: Readonly<Record<string, number | string>>;
}

/** Scores of the first and the best prompt on examples unseen by the search. */
export interface HeldOutScores {
  readonly examples: number;
  /** Mean over examples with a score for both; null without any. */
  readonly before: number | null;
  readonly after: number | null;
}

/** Result of a search: small, since it passes through history and signals. */
export interface PromptSearchResult {
  readonly environment: string;
  readonly model: string;
  readonly reflectionModel: string;
  readonly id: string;
  readonly place: EvaluationPlace;
  readonly folder: string;
  /** Index, location and digest of the best prompt. */
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

/** End of a search, for its requester. */
export type PromptSearchNotice = { readonly workflowId: string } & (
  | { readonly result: PromptSearchResult }
  | { readonly failed: string }
);

/** Requests of a trial, for the prompt in use and the winner. */
export interface OpenedTrial {
  /** The search that found the winner. */
  readonly handle: PromptSearchHandle;
  readonly asked: readonly AskedRollouts[];
}

/** The winner of a branch and the prompt in use, compared again on the newest version. */
export interface PromptTrial {
  /** The winner's prompt, in the run's folder. */
  readonly prompt: ObjectRef;
  /** Examples with a score for both. */
  readonly examples: number;
  /** Means over these examples; null without any. */
  readonly before: number | null;
  readonly after: number | null;
  /** Mean of the paired differences and its 95 % interval (bootstrap); null without examples. */
  readonly difference: { readonly mean: number; readonly low: number; readonly high: number } | null;
}

/** How far branches are, by their workflows. */
export type BranchFigures = Readonly<Record<string, BranchFigure>>;

interface BranchFigure {
  /** null: nobody answers for it at the moment. */
  readonly figures: PromptSearchStatus | null;
  /** Activities that are tried again, with what they failed with. */
  readonly retries: readonly string[];
}
