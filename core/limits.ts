/** Every bound that more than one room relies on, with its reason. */

/** Time without a heartbeat after which an activity counts as dead and runs again elsewhere; a run may set another. */
export const heartbeatTimeoutDefaultS = 5;
/**
 * Heartbeats per timeout: three, so that two may be late. Observers of a run, and a next attempt, learn of its progress
 * at least every half minute. Temporal Cloud bills each heartbeat and limits their rate.
 */
export const heartbeatsInTimeout = 3;
export const heartbeatIntervalMsMax = 30_000;
/** Shortest interval between heartbeats that workers send; an activity reports progress only a few times more often. */
export const heartbeatThrottleMs = 500;
export const newsBetweenHeartbeats = 4;

/** Time in which a GPU worker that held the run may take it again, before any other may. */
export const holdAgainMs = 3_000;

/** A run paused for longer returns its GPU worker. */
export const longPauseMs = 60_000;

/** Versions on a GPU worker's own disk: the one being uploaded, the one in training, and as many again in reserve. */
export const versionsPendingMax = 4;

/** Tokens of the canary, and the largest mean |Δ| between the sampler's and the trainer's logprobs of them. */
export const canaryTokens = 4;
export const canaryDifferenceMax = 0.05;
export const canaryDifferenceMaxInFloat32 = 1e-3;
/** The bound for 8-bit weights: a model of 135 million parameters is 0.13 off, wrong weights several nats. */
export const canaryDifferenceMaxQuantized = 0.5;

/**
 * Bytes of a commit's run state, well under Temporal's 2 MB for a payload: covers everything that a window may leave
 * waiting for a batch while no step is trained. The size of history also triggers continue-as-new.
 */
export const runStateBytesMax = 1536 * 1024;
/** Parts of a batch, of one group at least: a run remembers each waiting part, in 250 bytes. */
export const partsPerBatch = 64;
/** Most chunks in flight that one commit names, by rounds. */
export const chunksInPlayMax = 192;

/** The smallest fraction above 0 for drawing a pool's examples: the search for one covers a hundred epochs. */
export const poolFractionMin = 0.01;

/** Sampling rounds for one step before the run pauses and says why no group carries a signal. */
export const samplingRoundsMax = 8;

/**
 * Rejected rounds before `on_starvation = "widen"` removes the difficulty filter's bounds: half of `samplingRoundsMax`,
 * so that the widened filter has as many rounds.
 */
export const roundsBeforeWidening = 4;

/** A workflow that generates rounds ends after this time without one. */
export const flowIdleMs = 600_000;
/**
 * Time before the first check of a workflow from an earlier execution, since a round may never have reached it; later
 * checks become rarer.
 */
export const flowFirstLookMs = 2_000;
export const flowLookAgainMs = 60_000;

/** Repetitions of a rollout that failed in its environment, by the next attempt of its chunk. */
export const replaysMax = 1;

/** Interval at which a rollout worker checks the served weights, for rollouts that become stale within a turn. */
export const staleLookMs = 5_000;

/** Attempts of generation after its deadline with the unfinished rollouts, before the rest is given up as `timeout`. */
export const generateAttemptsMax = 3;

/** Time limit for importing and for making a user's environment: it may read or fetch a dataset. */
export const environmentLoadMsMax = 300_000;

/** Characters of a failed rollout's traceback, in the store and in history. */
export const tracebackCharsMax = 2_000;
export const tracebackCharsInHistoryMax = 600;

/** Attempts of a rollout that its environment failed, each in a fresh environment. */
export const rolloutAttemptsMax = 3;
/** Most further attempts of a config: an environment that fails more often must be repaired. */
export const rolloutRetriesMax = 20;

/** Attempts of a failing reward function, with growing pauses from `judgeRetryMs`. */
export const judgeAttemptsMax = 3;
export const judgeRetryMs = 200;

/**
 * Groups that an environment with its own judge scores concurrently: each may call a model, and all of them share one
 * process.
 */
export const groupsJudgedAtOnce = 32;

/** Refused (non-finite) attempts at one step in a row before the run pauses. */
export const refusedAttemptsMax = 3;

/**
 * Deaths of the engine in a row on one piece of work before the run pauses: by then the work is the cause, not chance.
 */
export const engineFailuresMax = 3;

/** The card of a dataset is read into memory; the longest have some hundred thousand characters. */
export const datasetCardBytesMax = 4 * 1024 * 1024;

/** A file of supervised rows is held in memory, as text and as rows. */
export const sftDataBytesMax = 256 * 1024 * 1024;
/** Supervised rows that a worker holds from step to step, as bytes: those of the largest file, or of several that are smaller. */
export const keptRowsBytesMax = sftDataBytesMax;

/** Tasks of an agent are held in memory, as text. */
export const tasksBytesMax = 256 * 1024 * 1024;
/** Files of one task, and those that a run file puts into every sandbox: they travel with each sandbox that is created. */
export const taskFileBytesMax = 16 * 1024 * 1024;
export const sandboxFilesBytesMax = 64 * 1024 * 1024;
export const sandboxFilesMax = 5_000;
/** Seconds an agent's program may take where its file says nothing: a lease needs a deadline. */
export const programSecondsMax = 6 * 3600;
/** Longest deadline of a rollout and its parts, 24 days: a timer of Node ends at once beyond 2³¹ milliseconds. */
export const deadlineSecondsMax = 24 * 86_400;
/** Seconds beyond those of a rollout that its sandbox may exist; and those of them that a budget leaves it. */
export const sandboxEndS = 120;
export const sandboxClosingS = 30;
/** Ends of a program's output that are stored with its rollout: enough for a traceback, twice. */
export const programOutputBytesMax = 8 * 1024;
/** Files that are collected for scoring; they are stored with the rollout. */
export const collectedBytesMax = 256 * 1024;
export const collectedFilesMax = 64;

/** A chat template is read into memory and stored with the run; those of models have a few thousand characters. */
export const chatTemplateBytesMax = 1024 * 1024;

/** A picture in a message, as a data URL: 15 MB of it. APIs take 20 MB at most, and each turn of a rollout sends it again. */
export const messagePartCharsMax = 20 * 1024 * 1024;
/**
 * Bound on a picture in `results.jsonl`, which has a row for each rollout of an example; a larger one is replaced by a
 * description.
 */
export const storedPartCharsMax = 64 * 1024;

/** Supervised warm-up steps in one activity: the most that a killed trainer loses. */
export const warmUpStepsPerSegment = 50;

/**
 * A workflow continues as new at this many events of history, or when the server suggests it: an orchestrator that takes the
 * run over replays them within one workflow task of 5 s, also on a machine that is busy with other things. A thousand take 0.8 s on a quiet one.
 */
export const historyEventsMax = 2_000;

/** Steps and evaluations that a run keeps the figures of, for curves: 60 columns of a terminal, and 2 KB of continue-as-new. */
export const trendKept = 60;
export const evalsKept = 20;

/** Most evaluations of one ablation; more is a typing error, not a sweep. */
export const evaluationsMax = 10_000;

/** Activities of one evaluation: three events each fit in one history several times. */
export const evaluationChunksMax = 200;
/** Least concurrent chunks: while one waits for its last rollouts the others have some to begin. */
export const evaluationChunksAtOnce = 4;
/** Most chunks in flight; most of them wait for their last rollouts. */
export const evaluationChunksInPlayMax = 64;
/** Chunks of a rescore in flight: a worker takes several, so that one that waits for a judge does not keep it idle. */
export const rescoreChunksAtOnce = 16;
/** Evaluations of one file that run in parallel. */
export const evaluationsSideBySide = 4;
/** Most evaluations of one file: their settings pass through one history. */
export const evaluationsInFileMax = 200;
/**
 * An evaluation begun by an earlier execution of a run signals its end. If it died silently, the run starts it again
 * after this time.
 */
export const evaluationLookAgainMs = 30_000;
/** Default time without a finished rollout after which an evaluation gives up the rest. */
export const evaluationStandstillS = 1_800;

/** Bound on one text in a reflection prompt; a trace may have many, and all of them go into one request. */
export const reflectionCharsMax = 20_000;
/** An attempt of a search ends after this many answers: they pass through history. */
export const searchAnswersMax = 512;
/** Or after so long, or so many times what a request takes: at its end nothing new is begun for the length of one. */
export const searchLeaseMs = 20_000;
export const searchLeaseRequests = 20;
/** A lease of a whole search that is to end waits no longer for what is under way. */
export const searchDrainMs = 5_000;

/** Number of events that a run keeps for late observers. */
export const eventsKept = 200;

/** Newest changes that the workflow of a pool carries, and stores of its runs that it writes them to: some 50 kB of its input. */
export const poolChangesKept = 100;
export const poolStoresMax = 64;

/** Policy versions an embedded server holds at once: the current one, the one before, and those evals are pinned to. */
export const policyVersionsHeld = 8;

/** Rows that a teacher scores in one request: a retry may have to pay for all of them. */
export const teacherRowsAtOnce = 32;

/**
 * A part of a batch is one object: written, read and compared as a whole, and small in memory. This many parts are held
 * while a batch is read, since micro-batches take rows of one length from all over it.
 */
export const batchPartBytesMax = 32 * 1024 * 1024;
export const batchPartsHeld = 8;

/**
 * Tokens of rows in memory at once: some 50 MB. A smaller batch is sent to the trainer's process with the call; of a
 * larger one the process requests a micro-batch at a time.
 */
export const rowsAtOnceTokensMax = 1 << 20;

/**
 * Tokens of a step whose log probabilities and entropies are kept for people: 16 MB of the store. Later rows are
 * dropped.
 */
export const tokenScoresMax = 1 << 21;

/**
 * Largest stored rows that are cached as values when read more than once; larger ones are read row by row if memory
 * matters.
 */
export const rowsKeptBytesMax = 2 * 1024 * 1024;
/** Scored groups fetched in advance: a bucket is slow for each, and none of them is large. */
export const scoredReadAhead = 8;

/** Python processes of one virtual environment in one worker, each with one event loop; RATCHET_PYTHON_CHILDREN says otherwise. */
export const pythonChildrenDefault = 2;

/** Time for which logs of Python processes without a worker are kept. */
export const pythonLogsKeptMs = 24 * 3_600_000;
/** Bound on the number of such workers, newest first. */
export const pythonLogFoldersKept = 20;

/** Rollouts of a run generated by one worker at once; each holds its messages and tokens in memory. */
export const rolloutsInFlightMax = 16_384;

/**
 * Notes of a rollout: bytes of one as JSON, their number, and their bytes. A worker holds those of all rollouts that it
 * generates, so one note is the output of a tool rather than a file.
 */
export const noteBytesMax = 1024 * 1024;
export const notesOfRolloutMax = 20_000;
export const notesOfRolloutBytesMax = 64 * 1024 * 1024;
/** Characters of an answer of a call with an effect: what is longer is cut, also for the model. */
export const effectAnswerCharsMax = 256 * 1024;

/** Time for which an activity keeps asking an unresponsive inference server before Temporal's retry takes over. */
export const inferencePatienceMs = 20_000;

/** Default timeout of a request to an inference server: as long as generation_timeout gives an attempt. */
export const inferenceTimeoutDefaultS = 600;

/** Bound on `system_prompt`: it is in the run's spec, and so in Temporal's history each time that is passed on. */
export const systemPromptCharsMax = 32 * 1024;

/** Default of prompts in flight at one inference server: more wait for their turn here, not there. */
export const inferenceConcurrencyDefault = 2_048;

/**
 * Rollouts and groups whose inference server is remembered, over all runs of a worker: several times those in flight.
 */
export const stickySessionsMax = 2 * rolloutsInFlightMax;

/**
 * Bounds on a run file: several times the largest known training runs, and small enough that a step's groups fit into
 * an orchestrator's memory. A larger number is an error.
 */
export const batchRolloutsMax = 262_144;
export const groupRolloutsMax = 16_384;
export const rolloutTokensMax = 16_777_216;
export const stepsMax = 10_000_000;

if (roundsBeforeWidening >= samplingRoundsMax) throw new Error('widening must come before the run pauses');
if (heartbeatThrottleMs * heartbeatsInTimeout > heartbeatTimeoutDefaultS * 1000) {
  throw new Error('heartbeats must be let through three times in their timeout');
}

/**
 * Weights up to this size are compared with their sha256 before they are served, and after a crash: within a minute,
 * even from a slow disk. Larger ones are checked for existence, and by their canary.
 */
export const weightsReadWholeBytesMax = 2 * 2 ** 30;

/**
 * Attempts at an activity that throws a TypeError of ours, with pauses of 1, 3 and 9 seconds. A server that is restarting may give an
 * answer that our code does not expect. After the last attempt it counts as a bug.
 */
export const bugAttemptsMax = 4;

/** Longest time for which an inference server keeps an unused version. */
export const versionHeldS = 300;

/** Timeout for an answer of the Hugging Face Hub, and for a silent connection. */
export const hubAnswerMsMax = 30_000;
export const hubStallMsMax = 60_000;
/** Fewest bytes of a file in that time. Without this bound a server that sends a byte a minute could take years. */
export const hubPaceBytesMin = 16 * 1024;
/** Attempts in a row without progress before a download ends; the pause doubles after each. */
export const hubAttemptsMax = 5;
export const hubPauseMs = 500;

/** Priorities of runs in a pool are from −1000 to 1000. */
export const priorityMax = 1_000;
