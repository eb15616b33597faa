import type { NoticeKind } from '../core/rl/notices.ts';
import type { ChatMessage, ToolCall } from '../core/rl/rollout.ts';

/** What the page asks for and is answered, as JSON: the browser's code and the server's agree on it. */

/** By these a page that asks again is sent what is new. */
export const answerHeaders = {
  /** Of a request: the name of the answer that the page has; nothing where it has none. */
  known: 'ratchet-known',
  /** The name of the answer. */
  name: 'ratchet-answer',
  /** The body is what makes the answer of the one that the page has (core/change-between.ts). */
  isChange: 'ratchet-change',
} as const;

/** A run in the list of those that a folder holds. */
export interface ListedRun {
  readonly run: string;
  readonly state: string;
  readonly step: number | null;
  readonly maxSteps: number | null;
  readonly reward: number | null;
  readonly committedAt: string | null;
  readonly note: string | null;
}

export interface Lost {
  readonly recoveries: number;
  readonly rollouts: number;
  readonly tokens: number;
  readonly seconds: number;
}

/** What the run itself says while somebody answers for it. */
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
  /** Groups in play, by environment: since when the oldest is, and from which version. */
  readonly inPlay: readonly {
    readonly environment: string;
    readonly groups: number;
    readonly since: string;
    readonly policyStep: number;
  }[];
  readonly training: { readonly step: number; readonly rows: number; readonly since: string } | null;
  readonly quarantinedServers: readonly string[];
  /** Environments for which a better prompt was found, and waits for somebody's yes. */
  readonly offeredPrompts: readonly string[];
  /** Searches for a better prompt, by environment: from which version and since when, and what their leases have in play, in words. */
  readonly branches: readonly {
    readonly environment: string;
    readonly step: number;
    readonly since: string;
    /** null while nobody answers for it. */
    readonly calls: { readonly made: number; readonly of: number } | null;
    readonly inPlay: string | null;
  }[];
}

/** `/api/runs/RUN` */
export interface RunOverview {
  readonly run: string;
  readonly model: string;
  /** Without where its files are. */
  readonly modelName: string;
  readonly environments: readonly string[];
  /** `running`, or as its folder tells. */
  readonly state: string;
  readonly live: LiveStatus | null;
  readonly maxSteps: number;
  readonly step: number;
  readonly lineage: string;
  readonly committedAt: string | null;
  readonly store: string;
  /** Of the newest steps; null before the first. */
  readonly stepSeconds: number | null;
  /** Until `maxSteps`, at that pace; null where nothing is to come, or nothing is known. */
  readonly etaSeconds: number | null;
  readonly ettr: number | null;
  /** Accounts for the time that was not effective, in words; null if there is nothing to tell. */
  readonly rest: string | null;
  readonly wallSeconds: number;
  readonly pausedSeconds: number;
  readonly lost: Lost;
  /** Null where nothing was counted yet. */
  readonly cost: CostAnswer | null;
  /** The newest ones, oldest first, of so many. */
  readonly notices: readonly NoticeLine[];
  readonly noticesOf: number;
  /** Why some notices cannot be read. */
  readonly damagedNotices: readonly string[];
  /** All metrics that any step has, and `spent/…`: what the run had spent by then. */
  readonly metrics: readonly string[];
  readonly index: { readonly step: number | null; readonly error: string | null };
  /** Why its newest commit cannot be read, and so what is told is what the metrics say; null where it can. */
  readonly damage: string | null;
  /** The page of this run in Temporal's UI. */
  readonly temporalUrl: string | null;
}

/** What the run has cost, evaluations and searches included, as people read it. */
export interface CostAnswer {
  readonly currency: string;
  /** Null where the run file has no prices. */
  readonly money: string | null;
  /** Of it for steps that a rewind left behind; null where there is none. */
  readonly leftBehind: string | null;
  readonly parts: readonly {
    readonly name: string;
    readonly money: string | null;
    readonly used: readonly string[];
  }[];
  /** In words, what of it is counted nowhere. */
  readonly notCounted: string;
}

/** What somebody wrote about the run, or what it noticed. */
export interface NoticeLine {
  readonly id: string;
  readonly kind: NoticeKind;
  readonly step: number;
  readonly time: string;
  readonly text: string;
}

/** Steps of one lineage, ascending, and metrics of them; null where a step has none. */
export interface SeriesPart {
  readonly lineage: string;
  readonly step: readonly number[];
  /** Milliseconds. */
  readonly time: readonly number[];
  readonly values: Readonly<Record<string, readonly (number | null)[]>>;
}

/** `/api/runs/RUN/series?name=…&points=…` */
export interface SeriesAnswer {
  /** The steps that led to where the run stands. */
  readonly path: SeriesPart;
  /** Steps that a rewind left behind. */
  readonly left: readonly SeriesPart[];
  /** So many steps are one point, their mean. */
  readonly stepsPerPoint: number;
}

export const markerKinds = ['fault', 'settings', 'rewind', 'notice', 'weights'] as const;
export type MarkerKind = (typeof markerKinds)[number];

/** Something that happened, for the charts, the timeline and, but for new weights, the list below them. */
export interface Marker {
  readonly kind: MarkerKind;
  readonly step: number;
  /** ISO time; '' where it is not known. */
  readonly time: string;
  readonly text: string;
}

/** One activity of a worker, as its log tells. */
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
export interface RolloutLine {
  readonly lineage: string;
  readonly step: number;
  readonly group: number;
  readonly index: number;
  readonly environment: string;
  readonly exampleId: number;
  readonly outcome: string;
  readonly end: string;
  readonly reward: number | null;
  readonly version: number;
  readonly versionEnd: number;
  readonly tokens: number;
  readonly turns: number;
  readonly asked: string;
  readonly said: string;
  /** The example's right answer. Absent if it has none, or if it was not looked up. */
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

export interface TurnAnswer {
  /** Who of several agents of the episode says it, and what that one got: `solver 2, reward 1, advantage 0.5`; absent where there is one. */
  readonly agent?: string;
  /** What came since the turn before; for the first the example's prompt. */
  readonly heard: readonly ChatMessage[];
  /** The first prompt as it was sent, where the messages are not known. */
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
  /** By the run's settings; null where there is no reward, or as `withoutAdvantages` says. */
  readonly advantage: number | null;
  readonly flags: readonly string[];
  readonly error: string | null;
  readonly turns: readonly TurnAnswer[];
}

/** `/api/runs/RUN/group?lineage=…&step=…&group=…` */
export interface GroupAnswer {
  readonly lineage: string;
  readonly step: number;
  readonly group: number;
  readonly environment: string;
  readonly exampleId: number;
  readonly epoch: number;
  /** How it ended, as the ledger has it. */
  readonly end: string;
  /** The same for people. */
  readonly why: string;
  readonly version: number;
  readonly answer: string | null;
  /** Where it lies in the store. */
  readonly object: string;
  /** Why none of its rollouts has an advantage that can be told; null where they have. */
  readonly withoutAdvantages: string | null;
  readonly rollouts: readonly RolloutAnswer[];
}

/** Of one turn, aligned by token. */
export interface TurnTokens {
  /** As in `TurnAnswer`. */
  readonly agent?: string;
  /** Of each token that counts: the rollout's, or that of the agent who says it; null where it has none, or none is known. */
  readonly advantage: number | null;
  readonly pieces: readonly string[];
  readonly logprobs: readonly number[] | null;
  /** Of the distribution that was drawn from, where it is another one than the policy's. */
  readonly samplingLogprobs: readonly number[] | null;
  /** What the trainer computed of the tokens that count when it took the step, null of others; null where that is not kept. */
  readonly trained: {
    readonly logprobs: readonly (number | null)[];
    readonly entropies: readonly (number | null)[];
  } | null;
  /** 1 where the token counts in the loss. */
  readonly mask: readonly number[];
  readonly version: number;
  readonly versionEnd: number;
}

/** `/api/runs/RUN/tokens?lineage=…&step=…&group=…&index=…` */
export interface TokensAnswer {
  /** Why none of it counts in the loss; null where some does. */
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

/** What the page was opened with, in its own file. */
export interface PageSettings {
  /** One run, or null where a list is shown first. */
  readonly run: string | null;
  /** A report: everything there is lies in this file. */
  readonly isReport: boolean;
  /** The run may be told what to do. */
  readonly canSteer: boolean;
  readonly madeAt: string;
}

/** What a report has in its file. */
export interface ReportData {
  readonly overview: RunOverview;
  readonly series: SeriesAnswer;
  readonly markers: readonly Marker[];
  readonly timeline: TimelineAnswer;
  readonly history: HistoryAnswer;
  /** By environment; '' = all. */
  readonly histograms: Readonly<Record<string, HistogramAnswer>>;
  readonly evals: EvaluationsAnswer;
  /** By id: of the newest ones. */
  readonly evalRows: Readonly<Record<string, EvaluationAnswer>>;
  readonly searches: SearchesAnswer;
  /** By id. */
  readonly searchesInFull: Readonly<Record<string, SearchAnswer>>;
  /** Newest first: those whose groups are in it, out of so many. */
  readonly rollouts: readonly RolloutLine[];
  readonly of: number;
  /** By `STEP/GROUP`. */
  readonly groups: Readonly<Record<string, GroupAnswer>>;
  /** By `STEP/GROUP/INDEX`. */
  readonly tokens: Readonly<Record<string, TokensAnswer>>;
  /** What of the run could not be read, and why. */
  readonly missing: readonly string[];
}

/** `/api/runs/RUN/history` */
export interface HistoryAnswer {
  /** Oldest first; the last is the current one. */
  readonly lineages: readonly {
    readonly lineage: string;
    /** Null: it began with a model. */
    readonly from: { readonly run: string; readonly lineage: string; readonly step: number } | null;
    readonly begunAt: string | null;
    readonly first: number;
    readonly head: number;
    /** Steps that have a sealed checkpoint. */
    readonly checkpoints: readonly number[];
  }[];
  /** Groups; issued = all counts + pending + superseded, where it is sound. */
  readonly issued: number;
  readonly counts: Readonly<Record<string, number>>;
  readonly pending: number;
  readonly superseded: number;
  /** By environment: rollouts that were not finished in time. */
  readonly timedOut: Readonly<Record<string, number>>;
  readonly isSound: boolean;
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
    /** Its folder in the run. */
    readonly id: string;
    readonly environment: string;
    /** `step_20`, `step_20.greedy`. */
    readonly name: string;
    readonly lineage: string;
    readonly step: number;
    readonly rows: number;
    /** Mean over examples of their mean rewards; null where none has one. */
    readonly mean: number | null;
    /** Of that mean: the middle 95 % where examples are drawn again. */
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
  /** So many more are in its file. */
  readonly leftOut: number;
}

interface TriedPrompt {
  readonly examples: number;
  readonly before: number | null;
  readonly after: number | null;
}

/** A search for a better prompt that branched off the run. */
export interface ListedSearch {
  /** Its folder in the run. */
  readonly id: string;
  readonly environment: string;
  readonly lineage: string;
  /** The step whose version it began from. */
  readonly step: number;
  readonly model: string;
  readonly reflectionModel: string;
  /** The position of the best candidate. */
  readonly best: number;
  /** Means over the validation examples that each was scored on; null where there are none. */
  readonly bestScore: number | null;
  readonly startScore: number | null;
  /** Candidates, and validation examples. */
  readonly count: number;
  readonly examples: number;
  readonly calls: number | null;
  readonly maxCalls: number | null;
  /** null: it goes on, or did not say. */
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
    /** Validation examples that it was scored on, and those that none is better at. */
    readonly scored: number;
    readonly bestAt: number;
    readonly isBest: boolean;
    readonly prompt: string;
    /** As `diff -u` writes it; '' where there is nothing to compare with, or no difference. */
    readonly fromParent: string;
    readonly fromStart: string;
  }[];
}

/** What a page that was opened with --steer may ask of a run. */
export const steerings = ['pause', 'resume', 'stop', 'set', 'rewind', 'fork', 'adopt-prompt'] as const;

/** Posted to `/api/runs/RUN/chat`, which answers with what the model says as it says it. */
export interface ChatAsked {
  /** Of the version; '' = the newest. */
  readonly step: string;
  /** So far, the last of them the question. */
  readonly messages: readonly { readonly role: 'system' | 'user' | 'assistant'; readonly content: string }[];
}

/** Posted to `/api/runs/RUN/steer`. */
export interface Steering {
  readonly what: (typeof steerings)[number];
  /** The reason of a pause, `name=value …` of a set, the step of a rewind, `STEP NAME` of a fork, the environment of a prompt. */
  readonly value: string;
}
