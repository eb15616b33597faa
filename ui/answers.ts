import type { FoundPool } from '../core/fleet/pool-types.ts';
import type { RunAudit } from '../core/rl/lineages.ts';
import type { LostWork } from '../core/rl/lost-work.ts';
import type { Notice } from '../core/rl/notices.ts';
import type { ChatMessage, ToolCall } from '../core/rl/rollout/rollout.ts';
import type { RolloutLabel } from '../core/rl/rollout/rollout-label.ts';

/** JSON requests and answers of the page; the browser's code and the server share these types. */

/** Headers with which the server sends only what is new to a page that asks again. */
export const answerHeaders = {
  /** Request header: the name of the answer that the page holds; empty without one. */
  known: 'ratchet-known',
  /** Response header: the name of the answer. */
  name: 'ratchet-answer',
  /** The body is a change to the answer that the page holds (core/change-between.ts). */
  isChange: 'ratchet-change',
} as const;

/** The pools of the Temporal server, with their machines; null: there is no server, `no answer`: it does not answer. */
export interface FleetAnswer {
  readonly pools: readonly FoundPool[] | 'no answer' | null;
}

/** A run in the list of a folder's runs. */
export interface ListedRun {
  readonly run: string;
  readonly state: string;
  readonly step: number | null;
  readonly maxSteps: number | null;
  readonly reward: number | null;
  readonly committedAt: string | null;
  readonly note: string | null;
}

/** Status from the run's workflow, while a worker answers its queries. */
export interface LiveStatus {
  readonly phase: string;
  readonly pausedBecause: string | null;
  readonly waitingOn: readonly { readonly what: string; readonly since: string }[];
  readonly warnings: readonly string[];
  readonly attempt: number;
  readonly collecting: {
    readonly step: number;
    readonly doing: string;
    readonly rollouts: { readonly done: number; readonly of: number };
    readonly needed: number;
    readonly kept: number;
    readonly dropped: Readonly<Record<string, number>>;
  } | null;
  /** Groups being generated, by environment: since when the oldest is, and from which version. */
  readonly inPlay: readonly {
    readonly environment: string;
    readonly groups: number;
    readonly since: string;
    readonly policyStep: number;
  }[];
  readonly training: { readonly step: number; readonly rows: number; readonly since: string } | null;
  readonly quarantinedServers: readonly string[];
  /** Environments with a better prompt that waits for approval. */
  readonly offeredPrompts: readonly string[];
  /**
   * Searches for a better prompt, by environment: from which version and since when, and in words what their leases
   * generate.
   */
  readonly branches: readonly {
    readonly environment: string;
    readonly step: number;
    readonly since: string;
    /** null while the search's workflow does not answer. */
    readonly calls: { readonly made: number; readonly of: number } | null;
    readonly inPlay: string | null;
  }[];
}

/** `/api/runs/RUN` */
export interface RunOverview {
  readonly run: string;
  readonly model: string;
  /** Without the folder of its files. */
  readonly modelName: string;
  readonly environments: readonly string[];
  /** `running`, or what its folder says. */
  readonly state: string;
  readonly live: LiveStatus | null;
  readonly maxSteps: number;
  readonly step: number;
  readonly lineage: string;
  readonly committedAt: string | null;
  readonly store: string;
  /** Median over the newest steps; null before the first. */
  readonly stepSeconds: number | null;
  /** Time until `maxSteps` at that pace; null when no step is left, or the pace is unknown. */
  readonly etaSeconds: number | null;
  readonly ettr: number | null;
  /** Accounts for the time that was not effective, in words; null if there is none. */
  readonly rest: string | null;
  readonly wallSeconds: number;
  readonly pausedSeconds: number;
  readonly lost: LostWork;
  /** Null where nothing was counted yet. */
  readonly cost: CostAnswer | null;
  /** Used of each limit of its budget, in words. */
  readonly budget: readonly string[];
  /** The newest notices, oldest first. */
  readonly notices: readonly NoticeLine[];
  readonly noticesOf: number;
  /** Error messages of the notices that cannot be read. */
  readonly damagedNotices: readonly string[];
  /** Names of all metrics of any step, and of `spent/…`: amounts that the run had spent by then. */
  readonly metrics: readonly string[];
  readonly index: { readonly step: number | null; readonly error: string | null };
  /**
   * Error message of its newest commit when that cannot be read; the overview then comes from the metrics. Else null.
   */
  readonly damage: string | null;
  /** The page of this run in Temporal's UI. */
  readonly temporalUrl: string | null;
}

/** Cost of the run for people to read, evaluations and searches included. */
export interface CostAnswer {
  readonly currency: string;
  /** Null where the run file has no prices. */
  readonly money: string | null;
  /** Part of it spent on steps that a rewind left behind; null without any. */
  readonly leftBehind: string | null;
  readonly parts: readonly {
    readonly name: string;
    readonly money: string | null;
    readonly used: readonly string[];
  }[];
  /** Usage that no figure includes, in words. */
  readonly notCounted: string;
}

/** Note of a user about the run, or of the run itself. */
export interface NoticeLine extends Pick<Notice, 'kind' | 'step' | 'time' | 'text'> {
  readonly id: string;
}

/** Steps of one lineage, ascending, with metrics; null where a step lacks one. */
export interface SeriesPart {
  readonly lineage: string;
  readonly step: readonly number[];
  /** Milliseconds. */
  readonly time: readonly number[];
  readonly values: Readonly<Record<string, readonly (number | null)[]>>;
}

/** `/api/runs/RUN/series?name=…&points=…` */
export interface SeriesAnswer {
  /** Steps that led to the run's position. */
  readonly path: SeriesPart;
  /** Steps that a rewind left behind. */
  readonly left: readonly SeriesPart[];
  /** Number of steps averaged into one point. */
  readonly stepsPerPoint: number;
}

export const markerKinds = ['fault', 'settings', 'rewind', 'notice', 'weights'] as const;
export type MarkerKind = (typeof markerKinds)[number];

/** An event for the charts, the timeline and, except for new weights, the list below them. */
export interface Marker {
  readonly kind: MarkerKind;
  readonly step: number;
  /** ISO time; '' where it is not known. */
  readonly time: string;
  readonly text: string;
}

/** One activity of a worker, as its log records it. */
export interface Span {
  /** Milliseconds. */
  readonly from: number;
  /** null: it had not ended when the log was read. */
  readonly to: number | null;
  readonly activity: string;
  readonly text: string;
  readonly attempt: number;
  readonly end: 'done' | 'failed' | 'cancelled' | 'unknown';
  readonly error?: string;
}

/** `/api/runs/RUN/timeline?minutes=…` */
export interface TimelineAnswer {
  readonly from: number;
  readonly to: number;
  readonly lanes: readonly {
    readonly worker: string;
    readonly activity: string;
    /** Share of the time shown during which it did something. */
    readonly used: number;
    readonly spans: readonly Span[];
  }[];
  /** There were more than are shown: the shortest ones are left out. */
  readonly leftOut: number;
}

/** A rollout in a list. */
export interface RolloutLine extends RolloutLabel {
  readonly asked: string;
  readonly said: string;
  /** The correct answer. Absent if the example has none, or if it was not looked up. */
  readonly expected?: string;
}

/** `/api/runs/RUN/rollouts?…` */
export interface RolloutsAnswer {
  readonly rollouts: readonly RolloutLine[];
  readonly matches: number;
  readonly of: number;
  readonly searched?: { readonly rows: number; readonly of: number; readonly next: number | null };
  readonly counts: Readonly<Record<'environment' | 'outcome' | 'end', Readonly<Record<string, number>>>>;
}

/** `/api/runs/RUN/playing?environment=…&limit=…` and `/api/runs/RUN/playing-one?group=…&index=…` */
export type {
  ListedRollout,
  ListedRollouts,
  RolloutProgress,
  TurnFrom,
  TurnProgress,
} from '../core/rl/rollout/progress.ts';

export interface TurnAnswer {
  /**
   * The agent that says the turn, in an episode of several, with its reward and advantage: `solver 2, reward 1,
   * advantage 0.5`; absent with one agent.
   */
  readonly agent?: string;
  /** Messages since the previous turn; in the first turn the example's prompt. */
  readonly heard: readonly ChatMessage[];
  /** The first prompt as sent, for turns without messages. */
  readonly prompt: string | null;
  readonly text: string;
  readonly reasoning: string | null;
  readonly toolCalls: readonly ToolCall[];
  readonly finishReason: string;
  readonly version: number;
  readonly versionEnd: number;
  readonly promptTokens: number;
  readonly tokens: number;
}

export interface RolloutAnswer {
  readonly index: number;
  readonly outcome: string;
  readonly reward: number | null;
  /** Every reward function, unweighted. */
  readonly parts: Readonly<Record<string, number>>;
  /** Under the run's settings; null without a reward, or for the reason in `withoutAdvantages`. */
  readonly advantage: number | null;
  readonly flags: readonly string[];
  readonly error: string | null;
  readonly turns: readonly TurnAnswer[];
}

/** `/api/runs/RUN/group?lineage=…&step=…&group=…` */
export interface GroupAnswer extends Pick<
  RolloutLine,
  'lineage' | 'step' | 'group' | 'environment' | 'exampleId' | 'version' | 'end'
> {
  readonly epoch: number;
  /** How it ended, for people. */
  readonly why: string;
  readonly answer: string | null;
  /** Key of its object in the store. */
  readonly object: string;
  /** Why no rollout of the group has a known advantage; null where they have. */
  readonly withoutAdvantages: string | null;
  readonly rollouts: readonly RolloutAnswer[];
}

/** One turn, aligned by token. */
export interface TurnTokens {
  /** Same text as in `TurnAnswer`. */
  readonly agent?: string;
  /** Advantage of each trained token: the rollout's, or its agent's; null without one, or when unknown. */
  readonly advantage: number | null;
  readonly pieces: readonly string[];
  readonly logprobs: readonly number[] | null;
  /** Log probabilities under the distribution that was sampled from; null where that is the policy's own. */
  readonly samplingLogprobs: readonly number[] | null;
  /**
   * The trainer's values for the trained tokens in that step, null for other tokens; null where the run does not keep
   * them.
   */
  readonly trained: {
    readonly logprobs: readonly (number | null)[];
    readonly entropies: readonly (number | null)[];
  } | null;
  /** 1 for trained tokens. */
  readonly mask: readonly number[];
  readonly version: number;
  readonly versionEnd: number;
}

/** `/api/runs/RUN/tokens?lineage=…&step=…&group=…&index=…` */
export interface TokensAnswer {
  /** Reason for which no token is trained; null if some are. */
  readonly unmaskedBecause: string | null;
  readonly turns: readonly TurnTokens[];
}

/** `/api/runs/RUN/example?environment=…&id=…` */
export interface ExampleAnswer {
  readonly attempts: readonly Pick<
    RolloutLine,
    'lineage' | 'step' | 'group' | 'index' | 'outcome' | 'end' | 'reward' | 'version' | 'tokens'
  >[];
}

/** Settings that the server writes into the page's HTML file. */
export interface PageSettings {
  /** The run shown, or null to begin with the list. */
  readonly run: string | null;
  /** Runs to begin with compared, as in the address of that page; none: the list. */
  readonly compare: readonly string[];
  /** A report: the file itself holds all data. */
  readonly isReport: boolean;
  /** Whether the page may steer the run. */
  readonly canSteer: boolean;
  readonly madeAt: string;
}

export interface ReportData {
  readonly overview: RunOverview;
  readonly series: SeriesAnswer;
  readonly markers: readonly Marker[];
  readonly timeline: TimelineAnswer;
  readonly history: HistoryAnswer;
  /** Keyed by environment; '' = all of them. */
  readonly histograms: Readonly<Record<string, HistogramAnswer>>;
  readonly evals: EvaluationsAnswer;
  /** Keyed by id; only the newest evaluations. */
  readonly evalRows: Readonly<Record<string, EvaluationAnswer>>;
  readonly searches: SearchesAnswer;
  /** Keyed by id. */
  readonly searchesInFull: Readonly<Record<string, SearchAnswer>>;
  /** The newest rollouts first, of the groups in the report. */
  readonly rollouts: readonly RolloutLine[];
  readonly of: number;
  /** Keyed by `STEP/GROUP`. */
  readonly groups: Readonly<Record<string, GroupAnswer>>;
  /** Keyed by `STEP/GROUP/INDEX`. */
  readonly tokens: Readonly<Record<string, TokensAnswer>>;
  /** Parts of the run that could not be read, with the reason. */
  readonly missing: readonly string[];
}

/** `/api/runs/RUN/history` */
export interface HistoryAnswer extends Pick<
  RunAudit,
  'issued' | 'counts' | 'pending' | 'superseded' | 'timedOut' | 'effects' | 'isSound'
> {
  /** Oldest first; the last is the current one. */
  readonly lineages: readonly {
    readonly lineage: string;
    /** null: the run began with a model. */
    readonly from: { readonly run: string; readonly lineage: string; readonly step: number } | null;
    readonly begunAt: string | null;
    readonly first: number;
    readonly head: number;
    /** Steps that have a sealed checkpoint. */
    readonly checkpoints: readonly number[];
  }[];
}

/** `/api/runs/RUN/histogram?environment=…`: how many rollouts have which reward, over the steps. */
export interface HistogramAnswer {
  readonly least: number;
  readonly most: number;
  /** Ascending steps; `counts` from the least reward to the most. */
  readonly columns: readonly { readonly from: number; readonly to: number; readonly counts: readonly number[] }[];
}

/** `/api/runs/RUN/evals` */
export interface EvaluationsAnswer {
  readonly evaluations: readonly {
    /** Folder of the evaluation, relative to the run. */
    readonly id: string;
    readonly environment: string;
    /** `step_20`, `step_20.greedy`. */
    readonly name: string;
    readonly lineage: string;
    readonly step: number;
    readonly rows: number;
    /** Mean over examples of their mean rewards; null without any. */
    readonly mean: number | null;
    /** Bootstrap interval of that mean: the middle 95 %. */
    readonly interval: readonly [number, number] | null;
    readonly failed: number;
    readonly truncated: number;
  }[];
  readonly incomplete: readonly string[];
}

/** `/api/runs/RUN/eval?id=…` */
export interface EvaluationAnswer {
  readonly rows: readonly {
    readonly exampleId: string;
    readonly reward: number | null;
    readonly error: string | null;
    readonly asked: string;
    readonly said: string;
    readonly answer: string | null;
  }[];
  /** Number of rows in its file that are left out here. */
  readonly leftOut: number;
}

interface TriedPrompt {
  readonly examples: number;
  readonly before: number | null;
  readonly after: number | null;
}

/** A search for a better prompt that branched off the run. */
export interface ListedSearch {
  /** Folder of the search, relative to the run. */
  readonly id: string;
  readonly environment: string;
  readonly lineage: string;
  /** Step of the version that it began from. */
  readonly step: number;
  readonly model: string;
  readonly reflectionModel: string;
  /** Index of the best candidate. */
  readonly best: number;
  /** Means over the validation examples that each was scored on; null without any. */
  readonly bestScore: number | null;
  readonly startScore: number | null;
  /** Number of candidates, and of validation examples. */
  readonly count: number;
  readonly examples: number;
  readonly calls: number | null;
  readonly maxCalls: number | null;
  /** null: it continues, or gave no reason. */
  readonly stopReason: string | null;
  readonly comparison: TriedPrompt | null;
  /** The best and the prompt in use, on the newest version of the run. */
  readonly trial: (TriedPrompt & { readonly version: string }) | null;
}

/** `/api/runs/RUN/searches` */
export interface SearchesAnswer {
  readonly searches: readonly ListedSearch[];
  /** Why some searches cannot be read. */
  readonly damaged: readonly string[];
}

/** `/api/runs/RUN/search?id=…` */
export interface SearchAnswer extends ListedSearch {
  readonly candidates: readonly {
    readonly parents: readonly number[];
    readonly score: number | null;
    /** Number of validation examples that it was scored on, and of those that none is better at. */
    readonly scored: number;
    readonly bestAt: number;
    readonly isBest: boolean;
    readonly prompt: string;
    /** In the form of `diff -u`; '' without a parent, or without a difference. */
    readonly fromParent: string;
    readonly fromStart: string;
  }[];
}

/** Requests that a page opened with --steer may make of a run. */
export const steerings = ['pause', 'resume', 'stop', 'set', 'rewind', 'fork', 'adopt-prompt'] as const;

/** Posted to `/api/runs/RUN/chat`, which streams the model's answer. */
export interface ChatAsked {
  /** Step of the version; '' = the newest. */
  readonly step: string;
  /** Conversation so far, ending with the question. */
  readonly messages: readonly { readonly role: 'system' | 'user' | 'assistant'; readonly content: string }[];
}

/** Posted to `/api/runs/RUN/steer`. */
export interface Steering {
  readonly what: (typeof steerings)[number];
  /** The reason of a pause, `name=value …` of a set, the step of a rewind, `STEP NAME` of a fork, the environment of a prompt. */
  readonly value: string;
}
