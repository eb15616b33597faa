/**
 * The search of GEPA (Agrawal et al. 2025, arXiv 2507.19457) as a state machine without a driver: `next(state)` returns
 * open evaluations and reflections, `settle(state, answers)` takes their results. A loop, a test and a workflow drive
 * the same search. The state is plain JSON and small: scores and references, no traces.
 */

/**
 * One text per component. The search only compares texts, so its caller may pass digests in their place; requests and
 * the result return the given values.
 */
export type Texts = Readonly<Record<string, string>>;

/** Examples are indices in their set: 0 … size−1. */
export type ExampleSet = 'train' | 'val';

export type CandidateSelection =
  /** A draw among candidates that are best at something, weighted by how much. */
  | { readonly kind: 'pareto' }
  /** The highest average. */
  | { readonly kind: 'current_best' }
  /** Any candidate with probability `epsilon`, else the highest average. */
  | { readonly kind: 'epsilon_greedy'; readonly epsilon: number }
  /** Pareto selection among the `k` highest averages. */
  | { readonly kind: 'top_k_pareto'; readonly k: number }
  /** One of several for each iteration, drawn by weight. */
  | {
      readonly kind: 'mixed';
      readonly of: readonly { readonly weight: number; readonly selection: CandidateSelection }[];
    };

/** Criteria of comparison: each validation example, each objective's mean, both, or each example's objectives. */
export type FrontierType = 'instance' | 'objective' | 'hybrid' | 'cartesian';

export type ComponentSelection = 'round_robin' | 'all';

export type Acceptance = 'strict_improvement' | 'improvement_or_equal';

/** Which accepted proposals of one iteration are validated. */
export type ProposalSelection = 'all' | 'best' | { readonly top: number };

export type StopCondition =
  | { readonly kind: 'max_proposals'; readonly n: number }
  | { readonly kind: 'score_threshold'; readonly threshold: number }
  | { readonly kind: 'no_improvement'; readonly iterations: number }
  | { readonly kind: 'max_candidates'; readonly n: number }
  | { readonly kind: 'any' | 'all'; readonly of: readonly StopCondition[] };

export interface MergeSettings {
  readonly maxInvocations: number;
  /** Validation examples that both parents must have been scored on. */
  readonly overlapFloor: number;
  /** Validation examples that a merged candidate is first tried on. */
  readonly subsample: number;
}

/**
 * The initial prompt is scored on every validation example. At the end the best candidates of the screen are scored on
 * some more, and the best of these on the rest. The screen alone is too small to find the best, and its leader was also
 * lucky.
 */
export interface FinalSettings {
  /** How many of the screen's best are scored further. */
  readonly candidates: number;
  /** Examples beyond the screen that distinguish these. */
  readonly examples: number;
  /** Standard errors that the best must be above the start, example by example; else the start is the result. */
  readonly lead: number;
}

/** Everything that decides a search besides the models' answers. */
export interface SearchSettings {
  readonly seed: number;
  /** Metric calls (an example scored under a candidate) that are never exceeded. */
  readonly maxCalls: number;
  /** Texts that the reflection model writes, never exceeded; missing = as many as it takes. */
  readonly maxReflections?: number;
  /**
   * A text that the reflection model wrote counts once, also where it holds no prompt. Missing: such a text counts twice while
   * its iteration is in progress, as in a search of an earlier Ratchet, whose end depends on the order of answers.
   */
  readonly countsTextsOnce?: true;
  readonly trainSize: number;
  readonly valSize: number;
  readonly minibatchSize: number;
  /** Minibatches whose every score is at least this are not reflected on. null = reflect on all. */
  readonly perfectScore: number | null;
  readonly candidateSelection: CandidateSelection;
  readonly frontier: FrontierType;
  readonly componentSelection: ComponentSelection;
  readonly acceptance: Acceptance;
  /** Children of one parent and one minibatch, each from its own reflection. */
  readonly proposals: number;
  readonly proposalSelection: ProposalSelection;
  /** Parallel iterations; they are judged and committed in order of their start. */
  readonly parallel: number;
  /**
   * Parallel iterations grow by one for each iteration in a row without a candidate, up to this number: repeating the
   * same parents mostly fails again, so no work waits for them. Missing = `parallel`.
   */
  readonly parallelMax?: number;
  /** While an accepted child is validated the next iteration begins, from that child, if there is something to learn from its minibatch. */
  readonly overlapsValidation: boolean;
  /**
   * Number of validation examples for each accepted candidate, the same for all; null = every one. The best is scored
   * on the rest at the end, from a reserve.
   */
  readonly screen: number | null;
  /**
   * Rules for the final choice. Missing: only the screen scores the start, and the best of the screen gets the rest, as
   * in a search of an earlier Ratchet.
   */
  readonly final?: FinalSettings;
  readonly merge: MergeSettings | null;
  readonly stop: readonly StopCondition[];
  /** A child that equals its parent is not evaluated. */
  readonly skipsUnchanged: boolean;
  /** Also skips texts that were tried before. */
  readonly skipsTried: boolean;
  /**
   * A candidate is first reflected on with the minibatch that it was accepted with, since its scores and traces exist.
   */
  readonly reusesMinibatch: boolean;
  /** Reflections get seeds, so that an equal question may get different answers. */
  readonly seedsReflection: boolean;
  /** Attempts of a request before its iteration is given up. */
  readonly attemptsMax: number;
  /** Iterations in a row without a metric call before the search ends. */
  readonly idleIterationsMax: number;
  /** Begins iterations while any budget is left and exceeds it, as gepa 0.1.4 does. Used only in comparisons with it. */
  readonly overshoots: boolean;
}

/** Location of a scored example's trace: the answered request, and the example's index in it. */
export interface TraceRef {
  readonly request: string;
  readonly index: number;
  readonly example: number;
  readonly score: number;
}

export interface EvaluateRequest {
  readonly kind: 'evaluate';
  /** Unique in the search and deterministic. Keys the stored traces. */
  readonly id: string;
  readonly iteration: number;
  readonly purpose: 'start' | 'parent' | 'child' | 'validation' | 'merge' | 'final';
  readonly texts: Texts;
  readonly set: ExampleSet;
  /** May contain an example twice, if the set is smaller than a minibatch. */
  readonly examples: readonly number[];
  /** Whether a reflection may need the traces later. */
  readonly keepsTraces: boolean;
  readonly seed: number;
}

export interface ReflectRequest {
  readonly kind: 'reflect';
  readonly id: string;
  readonly iteration: number;
  readonly component: string;
  /** Texts of the candidate under reflection. */
  readonly texts: Texts;
  readonly records: readonly TraceRef[];
  /** null = none is sent, the model decides. */
  readonly seed: number | null;
}

export type SearchRequest = EvaluateRequest | ReflectRequest;

export type SearchAnswer =
  | {
      readonly kind: 'scores';
      readonly id: string;
      /**
       * One for each example, in their order. null: no score, through no fault of the candidate; it will be requested
       * again.
       */
      readonly scores: readonly (number | null)[];
      /** Objectives of each example, if the environment has several. */
      readonly objectives?: readonly (Readonly<Record<string, number>> | null)[];
      /** Metric calls made for it, including those without a score. At most one per example. */
      readonly paid: number;
    }
  /** null: the model answered without anything usable. */
  | { readonly kind: 'text'; readonly id: string; readonly text: string | null }
  /** No answer came; the request is repeated. */
  | { readonly kind: 'failed'; readonly id: string; readonly paid: number };

export interface Candidate {
  readonly texts: Texts;
  /** Positions in `candidates`; none for the start, two for a merge. */
  readonly parents: readonly number[];
  /** −1 for the start. */
  readonly iteration: number;
  /** [validation example]; null = no score. */
  readonly scores: (number | null)[];
  /** name → [validation example] */
  readonly objectives: Readonly<Record<string, (number | null)[]>>;
  /** Calls that had been made when it was accepted, before it was validated. */
  readonly callsBefore: number;
  /** Index of the next component in turn. */
  turn: number;
  /** The minibatch it was accepted with, until it is reflected on. */
  minibatch: readonly TraceRef[] | null;
}

/** Scores of some examples under one candidate, until all are there. */
export interface Evaluation {
  readonly id: string;
  readonly set: ExampleSet;
  readonly examples: readonly number[];
  readonly scores: (number | null)[];
  readonly objectives: (Readonly<Record<string, number>> | null)[];
  /** Request and index of each score. */
  readonly sources: (readonly [string, number] | null)[];
  attempt: number;
  /** Whether missing scores are requested. */
  isOpen: boolean;
}

export interface Reflection {
  readonly id: string;
  readonly component: string;
  attempt: number;
  isAnswered: boolean;
  /** No attempt brought an answer, so nothing was written. */
  isFailed?: true;
  /** null also for an answer that holds no prompt. */
  text: string | null;
}

type ChildOutcome = 'no_text' | 'unchanged' | 'tried' | 'rejected' | 'not_selected' | 'accepted';

export interface Child {
  readonly reflections: Reflection[];
  texts: Texts | null;
  /** The candidate's turn, once it is accepted. */
  turn: number;
  minibatch: readonly TraceRef[] | null;
  /** Scores on the minibatch; for a merge, on the subsample. */
  after: Evaluation | null;
  validation: Evaluation | null;
  outcome: ChildOutcome | null;
}

export interface Iteration {
  readonly number: number;
  readonly kind: 'reflect' | 'merge';
  /** Positions in `candidates`, or the ones that accepted children will have which are validated meanwhile. */
  parents: readonly number[];
  /** The text under reflection; for a merge, the merged one. */
  readonly texts: Texts;
  readonly components: readonly string[];
  /** Calls reserved for it; `paid` never exceeds it. */
  reserved: number;
  paid: number;
  /** Value of `paid` when validation began. */
  paidBeforeValidation: number;
  /** Number of texts tried when it began: it knows of no later ones. */
  readonly known: number;
  /** Number of children that the remaining reflections allow; missing = as in the settings. */
  readonly proposals?: number;
  stage: 'before' | 'reflect' | 'after' | 'validate' | 'done';
  /** The parent's scores on the minibatch; null for a merge. */
  readonly before: Evaluation | null;
  /** Minimum for the sum of a merged candidate's scores. */
  readonly mergeFloor: number | null;
  readonly children: Child[];
  /** How it ended. One that is given up still waits for its open requests, since they cost something. */
  outcome: 'perfect' | 'given_up' | 'finished' | null;
}

export type StopReason =
  | 'budget'
  | 'idle'
  | 'start_not_evaluated'
  | 'asked'
  | 'max_proposals'
  | 'max_reflections'
  | 'score_threshold'
  | 'no_improvement'
  | 'max_candidates'
  | 'all';

/** Events of the last `startSearch` or `settle`, for logs and views. Names follow gepa's callbacks. */
export type SearchEvent =
  | { readonly kind: 'optimization_start' }
  | { readonly kind: 'iteration_start'; readonly iteration: number }
  | { readonly kind: 'candidate_selected'; readonly iteration: number; readonly candidate: number }
  | { readonly kind: 'minibatch_sampled'; readonly iteration: number; readonly examples: readonly number[] }
  | { readonly kind: 'evaluation_start' | 'evaluation_skipped'; readonly iteration: number }
  | { readonly kind: 'evaluation_end'; readonly iteration: number; readonly sum: number }
  | { readonly kind: 'reflective_dataset_built' | 'proposal_start'; readonly iteration: number }
  | { readonly kind: 'proposal_end'; readonly iteration: number; readonly outcome: 'new' | ChildOutcome }
  | { readonly kind: 'merge_attempted'; readonly iteration: number; readonly parents: readonly number[] }
  | { readonly kind: 'pareto_front_updated'; readonly iteration: number; readonly front: readonly number[] }
  | {
      readonly kind: 'valset_evaluated';
      readonly iteration: number;
      readonly candidate: number;
      readonly average: number;
    }
  | { readonly kind: 'candidate_accepted' | 'merge_accepted'; readonly iteration: number; readonly candidate: number }
  | { readonly kind: 'candidate_rejected' | 'merge_rejected'; readonly iteration: number; readonly why: ChildOutcome }
  | { readonly kind: 'iteration_given_up'; readonly iteration: number }
  | { readonly kind: 'budget_updated'; readonly used: number; readonly delta: number; readonly remaining: number }
  | { readonly kind: 'iteration_end'; readonly iteration: number }
  | { readonly kind: 'optimization_end'; readonly reason: StopReason };

/** An evaluation outside the iterations. */
export interface SingleEvaluation {
  readonly evaluation: Evaluation;
  /** Calls reserved for it and not made yet. */
  reserved: number;
}

/** The whole state of a search. Treat it as opaque; only the functions of `search.ts` make another. */
export interface SearchState {
  readonly form: 1;
  settings: SearchSettings;
  phase: 'start' | 'search' | 'final' | 'done';
  /**
   * Calls of committed iterations, of the start and of the end; those of iterations in progress are in `iterations`.
   */
  spent: number;
  readonly candidates: Candidate[];
  /** Initial texts; they become the first candidate. */
  readonly start: SingleEvaluation & { readonly texts: Texts };
  /** In progress, in order of their start. */
  iterations: Iteration[];
  /** Number of iterations begun, and of minibatches drawn. */
  begun: number;
  drawn: number;
  reflections: number;
  /** Digests of texts that were tried, in the order of commits. */
  readonly tried: string[];
  readonly merging: { due: number; accepted: number; isReady: boolean; readonly seen: string[] };
  idle: number;
  /** Committed iterations since the best average rose. */
  sinceImprovement: number;
  /** Iterations in a row that brought no candidate. */
  rejectedInARow: number;
  stopReason: StopReason | null;
  /** Candidates whose validation is completed at the end, best first. */
  finals: (SingleEvaluation & { readonly candidate: number; readonly isHeat?: true })[];
  events: SearchEvent[];
}

export interface SearchResult {
  /** Whether no request is left. */
  readonly isFinished: boolean;
  readonly stopReason: StopReason | null;
  /** Index of the best in `candidates`. */
  readonly best: number;
  readonly texts: Texts;
  /** Mean over the validation examples it was scored on; null when none was. */
  readonly score: number | null;
  /** Number of those examples. */
  readonly coverage: number;
  readonly calls: number;
  readonly reflections: number;
  readonly candidates: readonly Candidate[];
}
