/**
 * The search of GEPA (Agrawal et al. 2025, arXiv 2507.19457) as a state machine without a driver: `next(state)` says what
 * has to be evaluated or reflected on, `settle(state, answers)` takes what came of it. A loop, a test and a workflow drive
 * the same search. All of the state is plain JSON and small: scores and references, no traces.
 */

/**
 * One text per component. The search compares texts and never reads them, so whoever drives it may give digests that stand
 * for the texts one to one; what comes back in requests and in the result is what was given.
 */
export type Texts = Readonly<Record<string, string>>;

/** Examples are positions in their set: 0 … size−1. */
export type ExampleSet = 'train' | 'val';

export type CandidateSelection =
  /** A draw from those that are best at something, by how much. */
  | { readonly kind: 'pareto' }
  /** The highest average. */
  | { readonly kind: 'current_best' }
  /** Any candidate with probability `epsilon`, else the highest average. */
  | { readonly kind: 'epsilon_greedy'; readonly epsilon: number }
  /** As pareto, among the `k` highest averages. */
  | { readonly kind: 'top_k_pareto'; readonly k: number }
  /** One of several for each iteration, drawn by weight. */
  | {
      readonly kind: 'mixed';
      readonly of: readonly { readonly weight: number; readonly selection: CandidateSelection }[];
    };

/** What candidates are compared by: each validation example, each objective's mean, both, or each example's objectives. */
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
  /** Validation examples that a merged candidate is tried on first. */
  readonly subsample: number;
}

/**
 * The start is scored on every validation example. At the end the best candidates of the screen are scored on some more, and the best of these
 * on the rest: the screen is too small to tell the best, and who leads there was lucky as well.
 */
export interface FinalSettings {
  /** How many of the screen's best are scored further. */
  readonly candidates: number;
  /** Examples beyond the screen that tell these apart. */
  readonly examples: number;
  /** Standard errors that the best must be above the start, example by example; else the start is the result. */
  readonly lead: number;
}

/** All that decides a search besides what the models answer. */
export interface SearchSettings {
  readonly seed: number;
  /** Metric calls (an example scored under a candidate) that are never exceeded. */
  readonly maxCalls: number;
  /** Texts that the reflection model writes, never exceeded; missing = as many as it takes. */
  readonly maxReflections?: number;
  readonly trainSize: number;
  readonly valSize: number;
  readonly minibatchSize: number;
  /** Minibatches whose every score is at least this are not reflected on. null = all are. */
  readonly perfectScore: number | null;
  readonly candidateSelection: CandidateSelection;
  readonly frontier: FrontierType;
  readonly componentSelection: ComponentSelection;
  readonly acceptance: Acceptance;
  /** Children of one parent and one minibatch, each of a reflection of its own. */
  readonly proposals: number;
  readonly proposalSelection: ProposalSelection;
  /** Iterations that look for a better text at once; they are judged and committed in the order in which they began. */
  readonly parallel: number;
  /** One more for each iteration in a row that brought no candidate, up to so many: from the same parents mostly nothing comes again, and nobody waits for it. Missing = `parallel`. */
  readonly parallelMax?: number;
  /** While an accepted child is validated the next iteration begins, from that child, if there is something to learn from its minibatch. */
  readonly overlapsValidation: boolean;
  /** Validation examples that an accepted candidate is scored on, the same for all; null = every one. The best gets the rest at the end, from a reserve. */
  readonly screen: number | null;
  /** How the best is told at the end. Missing: the start is scored on the screen alone, and the best of the screen gets the rest, as in a search of an earlier Ratchet. */
  readonly final?: FinalSettings;
  readonly merge: MergeSettings | null;
  readonly stop: readonly StopCondition[];
  /** A child that equals its parent is not evaluated. */
  readonly skipsUnchanged: boolean;
  /** Nor one that was tried before. */
  readonly skipsTried: boolean;
  /** A candidate is first reflected on with the minibatch that it was accepted with, whose scores and traces are there already. */
  readonly reusesMinibatch: boolean;
  /** Reflections are given seeds, so that the same question may be answered differently. */
  readonly seedsReflection: boolean;
  /** How often a request is handed out before its iteration is given up. */
  readonly attemptsMax: number;
  /** Iterations in a row without a metric call before the search ends. */
  readonly idleIterationsMax: number;
  /** Begins iterations while any budget is left and exceeds it, as gepa 0.1.4 does. For comparisons with it alone. */
  readonly overshoots: boolean;
}

/** Where the trace of a scored example lies: the request that it was an answer to, and the example's index in it. */
export interface TraceRef {
  readonly request: string;
  readonly index: number;
  readonly example: number;
  readonly score: number;
}

export interface EvaluateRequest {
  readonly kind: 'evaluate';
  /** Unique in the search, and the same however often it is told. Traces are kept under it. */
  readonly id: string;
  readonly iteration: number;
  readonly purpose: 'start' | 'parent' | 'child' | 'validation' | 'merge' | 'final';
  readonly texts: Texts;
  readonly set: ExampleSet;
  /** May name an example twice, where the set is smaller than a minibatch. */
  readonly examples: readonly number[];
  /** Whether a reflection may ask for the traces later. */
  readonly keepsTraces: boolean;
  readonly seed: number;
}

export interface ReflectRequest {
  readonly kind: 'reflect';
  readonly id: string;
  readonly iteration: number;
  /** The component whose new text is asked for. */
  readonly component: string;
  /** Of the candidate that is reflected on. */
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
      /** As many as examples, in their order. null: no score came, through no fault of the candidate's. It is asked for again. */
      readonly scores: readonly (number | null)[];
      /** Of each example, where the environment has several. */
      readonly objectives?: readonly (Readonly<Record<string, number>> | null)[];
      /** Metric calls that were made for it, those without a score included. At most as many as examples. */
      readonly paid: number;
    }
  /** null: the model answered, with nothing that could be used. */
  | { readonly kind: 'text'; readonly id: string; readonly text: string | null }
  /** Nothing came. It is asked for again. */
  | { readonly kind: 'failed'; readonly id: string; readonly paid: number };

export interface Candidate {
  readonly texts: Texts;
  /** Positions in `candidates`; none for the start, two for a merge. */
  readonly parents: readonly number[];
  /** −1 for the start. */
  readonly iteration: number;
  /** [validation example]; null = not scored. */
  readonly scores: (number | null)[];
  /** name → [validation example] */
  readonly objectives: Readonly<Record<string, (number | null)[]>>;
  /** Calls that had been made when it was accepted, before it was validated. */
  readonly callsBefore: number;
  /** The component that is next in turn. */
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
  /** Whether a request for what is missing is out. */
  isOpen: boolean;
}

export interface Reflection {
  readonly id: string;
  readonly component: string;
  attempt: number;
  isAnswered: boolean;
  text: string | null;
}

type ChildOutcome = 'no_text' | 'unchanged' | 'tried' | 'rejected' | 'not_selected' | 'accepted';

export interface Child {
  readonly reflections: Reflection[];
  texts: Texts | null;
  /** As a candidate's, once it is accepted. */
  turn: number;
  minibatch: readonly TraceRef[] | null;
  /** On the minibatch; of a merge, on the subsample. */
  after: Evaluation | null;
  validation: Evaluation | null;
  outcome: ChildOutcome | null;
}

export interface Iteration {
  readonly number: number;
  readonly kind: 'reflect' | 'merge';
  /** Positions in `candidates`, or the ones that accepted children will have which are validated meanwhile. */
  parents: readonly number[];
  /** The text that is reflected on; of a merge, the merged one. */
  readonly texts: Texts;
  readonly components: readonly string[];
  /** Calls set aside for it; `paid` never exceeds it. */
  reserved: number;
  paid: number;
  /** `paid` when validation began. */
  paidBeforeValidation: number;
  /** How many texts had been tried when it began: what it may know of. */
  readonly known: number;
  /** Children that the reflections left allow; missing = as the settings say. */
  readonly proposals?: number;
  stage: 'before' | 'reflect' | 'after' | 'validate' | 'done';
  /** The parent on the minibatch; null for a merge. */
  readonly before: Evaluation | null;
  /** What the sum of a merged candidate's scores must reach. */
  readonly mergeFloor: number | null;
  readonly children: Child[];
  /** How it ended. One that is given up still waits for the requests that are out: they cost something. */
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

/** Of the last `startSearch` or `settle`, for logs and views. Named after the callbacks of gepa. */
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

/** One beside the iterations. */
export interface SingleEvaluation {
  readonly evaluation: Evaluation;
  /** Calls set aside for it and not made yet. */
  reserved: number;
}

/** Everything a search is. Carry it as it is; only the functions of `search.ts` make another. */
export interface SearchState {
  readonly form: 1;
  settings: SearchSettings;
  phase: 'start' | 'search' | 'final' | 'done';
  /** Calls of what is committed, of the start and of the end; those of iterations under way are in `iterations`. */
  spent: number;
  readonly candidates: Candidate[];
  /** What the search begins with; it becomes the first candidate. */
  readonly start: SingleEvaluation & { readonly texts: Texts };
  /** Under way, in the order in which they began. */
  iterations: Iteration[];
  /** Iterations begun, and minibatches drawn. */
  begun: number;
  drawn: number;
  /** Reflections that were answered. */
  reflections: number;
  /** Digests of texts that were tried, in the order of commits. */
  readonly tried: string[];
  readonly merging: { due: number; accepted: number; isReady: boolean; readonly seen: string[] };
  idle: number;
  /** Committed iterations since the best average rose. */
  sinceImprovement: number;
  /** Iterations in a row that brought no candidate. */
  fruitless: number;
  stopReason: StopReason | null;
  /** Whose validation is completed at the end, best first. */
  finals: (SingleEvaluation & { readonly candidate: number; readonly isHeat?: true })[];
  events: SearchEvent[];
}

export interface SearchResult {
  /** Whether nothing is left to ask for. */
  readonly isFinished: boolean;
  readonly stopReason: StopReason | null;
  /** Position of the best in `candidates`. */
  readonly best: number;
  readonly texts: Texts;
  /** Mean over the validation examples it was scored on; null when none was. */
  readonly score: number | null;
  /** How many those are. */
  readonly coverage: number;
  readonly calls: number;
  readonly reflections: number;
  readonly candidates: readonly Candidate[];
}
