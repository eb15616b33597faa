/**
 * Starts, follows, steers and reads runs of Ratchet from a program of yours.
 *
 * Every failure that a caller can act on is an `Error` with a `code`, such as `ServerUnavailable`, `RunNotFound` or
 * `ConfigInvalid`, and a message that says what to do.
 */

/** Where Temporal is. */
export interface Connecting {
  /** `host:port`. Default: `TEMPORAL_ADDRESS`, else the server that runs for `folder` (`ratchet dev`, `ratchet train`). */
  readonly address?: string;
  /** Default: `TEMPORAL_NAMESPACE`, else `default`. Only beside an address. */
  readonly namespace?: string;
  /** The project's folder: that of `ratchet dev`. Default: the working directory. */
  readonly folder?: string;
}

export interface StartOptions extends Connecting {
  /** The run's name. Default: the file's `name`, or its file name without `.toml`. */
  readonly name?: string;
  /** Settings over those of the file, by dotted key: `{ max_steps: 6, 'sampling.temperature': 0.7 }`. */
  readonly overrides?: Readonly<Record<string, unknown>>;
  /** Continues from this committed step in a new lineage. */
  readonly rewind?: number;
}

/**
 * Starts a run, or continues it from its newest commit where it has one.
 *
 * @param file The path of a run file, from `folder`. The orchestrator reads it, and what it names, in its own folder.
 *   Or the settings themselves, with the keys of a run file and a name: they are written to `NAME.toml` in `folder`.
 * @throws `ConfigInvalid` with all that is wrong with the settings, or if the run is running; `ServerUnavailable` without
 *   a Temporal server, or if no orchestrator polls. A file that they name and that is not there fails `result()`.
 */
export function startRun(file: string | Readonly<Record<string, unknown>>, options?: StartOptions): Promise<Run>;

/**
 * Finds a run by its name, whether it is running or has ended.
 *
 * @throws `RunNotFound` if this server does not know it.
 */
export function attach(run: string, options?: Connecting): Promise<Run>;

/**
 * Opens a run's folder; no server is needed, and nothing is written.
 *
 * @param place The folder of a run, such as `outputs/words`, or its URI: `s3://bucket/runs/words`, `file:///…`.
 * @throws `RunNotFound` if no run is there.
 */
export function readRun(place: string): Promise<StoredRun>;

/** A run at a Temporal server. */
export interface Run {
  readonly name: string;
  /** Id of its workflow: the run's name, unless it was started by hand under another one. */
  readonly workflowId: string;
  /** @throws `ServerUnavailable` if no orchestrator answers for the run; `ConfigInvalid` and others if it has failed. */
  status(): Promise<RunStatus>;
  /**
   * Changes settings of the running run from its next step on, such as `{ learning_rate: 5e-4, max_steps: 40 }`
   * (`ratchet set --help` lists them). This and the next four return the run's own words about what it does.
   *
   * @throws `ConfigInvalid` if it refuses, `NotAllowed` if the file of roles does; nothing has changed then.
   */
  set(settings: Readonly<Record<string, number>>): Promise<string>;
  /** Lets what is under way finish, then starts no further step. */
  pause(reason?: string): Promise<string>;
  resume(): Promise<string>;
  /** Ends the run after the step under way, with its evaluations and its checkpoint. */
  stop(): Promise<string>;
  /** Continues from a committed step in a new lineage; nothing is overwritten. */
  rewind(step: number): Promise<string>;
  /** Waits until the run ends. @throws With the run's own code and words if it failed, was cancelled or terminated. */
  result(): Promise<RunResult>;
  /** Events after number `after`, oldest first, until the run ends; with `follow: false`, those there are. */
  events(options?: { readonly after?: number; readonly follow?: boolean }): AsyncGenerator<RunEvent, void, undefined>;
  /** As `StoredRun.rollouts`, of the folder that the run says it has. */
  rollouts(options?: RolloutOptions): AsyncGenerator<Rollout, void, undefined>;
  /** Its folder, which must be readable from here. */
  read(): Promise<StoredRun>;
  /** Closes the connection; the run goes on. What still waits on it, such as `result()`, throws `ServerUnavailable`. */
  close(): Promise<void>;
}

export interface RunStatus {
  readonly run: string;
  readonly lineage: string;
  readonly phase: 'warm-up' | 'training' | 'paused' | 'finishing' | 'finished' | 'stopped';
  /** Last committed step. */
  readonly step: number;
  readonly maxSteps: number;
  readonly pausedBecause: string | null;
  /** What it waits for, since when (ISO time). */
  readonly waitingOn: readonly { readonly what: string; readonly since: string }[];
  /** `v12`; null before the first version. */
  readonly policy: string | null;
  readonly policyDigest: string | null;
  readonly learningRate: number;
  /** Absolute URI of the folder with the run folders. */
  readonly storeUri: string;
  readonly model: string;
  readonly environments: readonly string[];
  readonly warnings: readonly string[];
  /** Who started it first, and the team that its settings name. Absent where that is not known. */
  readonly owner?: { readonly who: string; readonly team: string | null };
  /** How often the run has been opened; `since` (ISO time) is when this attempt began. */
  readonly attempt: number;
  readonly since: string;
  /** Figures of the newest step, as in its event. */
  readonly latest: Readonly<Record<string, number | string>>;
  /** The newest evaluations, oldest first; null where every rollout failed. */
  readonly evals: readonly {
    readonly step: number;
    readonly environment: string;
    readonly reward: number | null;
    readonly greedyReward: number | null;
  }[];
}

export interface RunEvent {
  /** Grows by one per event within a run. */
  readonly sequence: number;
  /** ISO time. */
  readonly time: string;
  /** `step`, `eval`, `checkpoint`, `recovery`, `paused`, `finished`, …: docs/guide/ndjson.md has all. */
  readonly kind: string;
  readonly step: number;
  /** One line for people. */
  readonly text: string;
  /** The figures in it. */
  readonly values: Readonly<Record<string, number | string>>;
}

export interface RunResult {
  readonly run: string;
  /** Last committed step. */
  readonly step: number;
  readonly policyDigest: string;
  /** Folder of its weights, relative to the run's. */
  readonly weights: string;
  /** The account of every group; `isSound`: each issued one has exactly one end. */
  readonly ledger: {
    readonly issued: number;
    readonly pending: number;
    readonly counts: Readonly<Record<string, number>>;
    readonly isSound: boolean;
  };
  /** Effective training time ratio, from 0 to 1; null before the first step. */
  readonly ettr: number | null;
}

/** What is stored of a run. Each call reads anew. */
export interface StoredRun {
  readonly name: string;
  /** URI of its folder. */
  readonly uri: string;
  /** Committed steps that led to where the run is, ascending, with their metrics and those of their evaluations. */
  steps(): Promise<StepRecord[]>;
  /** One metric by step, such as `train/reward`; steps without it are left out. */
  metric(name: string): Promise<{ readonly step: number; readonly value: number }[]>;
  /** Finished evaluations of all lineages, by step, environment and variant. */
  evaluations(): Promise<Evaluation[]>;
  /**
   * Scored rollouts, by step, group and index; an object of a store is in memory at a time. The newest step may be
   * partial.
   */
  rollouts(options?: RolloutOptions): AsyncGenerator<Rollout, void, undefined>;
}

export interface RolloutOptions {
  /** Of this step alone. Default: of every step. */
  readonly step?: number;
  readonly environment?: string;
}

export interface StepRecord {
  readonly step: number;
  readonly lineage: string;
  /** By name, as `ratchet metrics RUN --names` lists them. */
  readonly metrics: Readonly<Record<string, number>>;
}

export interface Evaluation {
  readonly step: number;
  readonly lineage: string;
  readonly environment: string;
  readonly model: string;
  /** `greedy` at temperature 0; null as sampled. */
  readonly variant: string | null;
  readonly numExamples: number | null;
  readonly rolloutsPerExample: number | null;
  /** Mean over all rollouts; null if all failed. */
  readonly reward: number | null;
  readonly seconds: number | null;
  /** Its folder or URI; `results.jsonl` there has its rows. */
  readonly uri: string;
}

export interface Rollout {
  /** The step that it was sampled for. */
  readonly step: number;
  /** Number of its group, and its index in the group. */
  readonly group: number;
  readonly index: number;
  readonly environment: string;
  readonly exampleId: number;
  /** The version whose weights its group began with. */
  readonly policyStep: number;
  /** `ok`, `policy_failure` and `truncated` have a reward; others, such as `infra_failure`, have none. */
  readonly outcome: string;
  readonly reward: number | null;
  /** Every reward function by name, unweighted. */
  readonly metrics: Readonly<Record<string, number>>;
  readonly turns: readonly Turn[];
  /** Null without one. */
  readonly error: string | null;
}

export interface Turn {
  /** What the model said, with thoughts and tool calls. */
  readonly text: string;
  readonly finishReason: 'stop' | 'length';
  readonly promptTokenIds: readonly number[];
  /** Sampled ids. */
  readonly tokenIds: readonly number[];
  /** Natural log, one per sampled id; null if the server reported none. */
  readonly logprobs: readonly number[] | null;
}
