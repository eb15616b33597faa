/** Every bound that more than one room relies on, with its reason. */

/** An activity that has not been heard of for this long is taken to be dead and runs again elsewhere; a run may say otherwise. */
export const heartbeatTimeoutDefaultS = 5;
/**
 * How often an activity is heard of: thrice in its timeout, so that two may be late. Whoever watches a run, and an attempt that takes over,
 * is told how far it is no less often than every half minute. Temporal Cloud bills each, and allows so many a second.
 */
export const heartbeatsInTimeout = 3;
export const heartbeatIntervalMsMax = 30_000;
/** Workers pass heartbeats on to the server no oftener than this; an activity says what is new no oftener than a few times between two. */
export const heartbeatThrottleMs = 500;
export const newsBetweenHeartbeats = 4;

/** How long a GPU worker that held the run before may take to hold it again, before any other is asked. */
export const holdAgainMs = 3_000;

/** A run that is paused for longer than this gives its GPU worker back. */
export const longPauseMs = 60_000;

/** Versions on a GPU worker's own disk: the one that is uploaded, the one in training, and as many again in reserve. */
export const versionsPendingMax = 4;

/** Tokens of the canary, and how far the sampler's and the trainer's logprobs may lie apart: the mean over them, of |Δ|. */
export const canaryTokens = 4;
export const canaryDifferenceMax = 0.05;
export const canaryDifferenceMaxInFloat32 = 1e-3;
/** Of weights in 8 bits: a model of 135 million parameters is 0.13 off, other weights several nats. */
export const canaryDifferenceMaxQuantized = 0.5;

/**
 * What a commit may carry of the run's state, well under Temporal's 2 MB for a payload: all that a window may leave waiting for a batch while
 * no step is trained. History is continued as new by its bytes too.
 */
export const runStateBytesMax = 1536 * 1024;
/** A batch comes in about so many parts, of a group at least: a run remembers each that waits, in 250 bytes. */
export const partsPerBatch = 64;
/** Chunks in play that one commit names, by rounds. */
export const chunksInPlayMax = 192;

/** The least fraction above 0 with which a pool's examples are drawn: a hundred epochs are looked through for one of them. */
export const poolFractionMin = 0.01;

/** Sampling rounds for one step before the run pauses and says why no group carries a signal. */
export const samplingRoundsMax = 8;

/**
 * Fruitless rounds before `on_starvation = "widen"` takes the difficulty filter's bounds away: half of those, so that the
 * widened filter has as many to work with.
 */
export const roundsBeforeWidening = 4;

/** A workflow that plays rounds ends when it has had none to play for so long. */
export const flowIdleMs = 600_000;
/** One of an execution before is looked after soon, as a round may never have reached it, and then less and less often. */
export const flowFirstLookMs = 2_000;
export const flowLookAgainMs = 60_000;

/** How often a rollout that failed of its environment is played again by whoever takes the chunk next. */
export const replaysMax = 1;

/** How often a rollout worker looks which weights are served, for rollouts that grow old in the middle of a turn. */
export const staleLookMs = 5_000;

/** How often generation goes on after its deadline with what is unfinished, before the rest is given up as `timeout`. */
export const generateAttemptsMax = 3;

/** How long a user's environment may take to be imported, and to be made: a dataset may be read, or fetched, in it. */
export const environmentLoadMsMax = 300_000;

/** What a failed rollout keeps of its traceback, and what of it travels into history. */
export const tracebackCharsMax = 2_000;
export const tracebackCharsInHistoryMax = 600;

/** A rollout that its environment spoiled is played this often, each time in a fresh environment. */
export const rolloutAttemptsMax = 3;
/** A config may ask for so many more attempts: an environment that fails more often has to be mended. */
export const rolloutRetriesMax = 20;

/** A reward function that fails is asked this often; between, longer and longer from `judgeRetryMs`. */
export const judgeAttemptsMax = 3;
export const judgeRetryMs = 200;

/** Groups that an environment with a judge of its own scores side by side: each may ask a model, and all of them share one process. */
export const groupsJudgedAtOnce = 32;

/** Refused (non-finite) attempts at one step in a row before the run pauses. */
export const refusedAttemptsMax = 3;

/** How often in a row the engine may die of the same work before the run pauses: by then it is the work, not the weather. */
export const engineFailuresMax = 3;

/** The card of a dataset is read into memory; the longest have some hundred thousand characters. */
export const datasetCardBytesMax = 4 * 1024 * 1024;

/** A file of supervised rows is held in memory, as text and as rows. */
export const sftDataBytesMax = 256 * 1024 * 1024;
/** Supervised rows that a worker holds from step to step, as bytes: those of the largest file, or of several that are smaller. */
export const keptRowsBytesMax = sftDataBytesMax;

/** A chat template is read into memory and stored with the run; those of models have a few thousand characters. */
export const chatTemplateBytesMax = 1024 * 1024;

/** A picture in a message, as a data URL: 15 MB of it. APIs take 20 MB at most, and each turn of a rollout sends it again. */
export const messagePartCharsMax = 20 * 1024 * 1024;
/** Of a picture in `results.jsonl`, which has a row for each rollout of an example: above this it is told in words. */
export const storedPartCharsMax = 64 * 1024;

/** Supervised warm-up steps in one activity: what a killed trainer loses at most. */
export const warmUpStepsPerSegment = 50;

/**
 * A workflow continues as new at this many events of history, or when the server suggests it: an orchestrator that takes the
 * run over replays them within one workflow task of 5 s, also on a machine that is busy with other things. A thousand take 0.8 s on a quiet one.
 */
export const historyEventsMax = 2_000;

/** Steps and evaluations that a run keeps the figures of, for curves: 60 columns of a terminal, and 2 KB of continue-as-new. */
export const trendKept = 60;
export const evalsKept = 20;

/** Evaluations that one ablation may stand for: more is a slip of the keyboard, not a sweep. */
export const evaluationsMax = 10_000;

/** Activities of one evaluation: three events each fit in one history several times. */
export const evaluationChunksMax = 200;
/** Side by side at least: while one waits for its last rollouts the others have some to begin. */
export const evaluationChunksAtOnce = 4;
/** Chunks in play, most of which wait for their last rollouts. */
export const evaluationChunksInPlayMax = 64;
/** Evaluations of one file that are at work side by side. */
export const evaluationsSideBySide = 4;
/** What a file may ask for in one go: their settings travel through one history. */
export const evaluationsInFileMax = 200;
/** One that another execution of its run began tells the run of its end; should it have died without a word, it is begun again after this. */
export const evaluationLookAgainMs = 30_000;
/** An evaluation that says nothing of it gives up what is left when no rollout has come to its end for so long. */
export const evaluationStandstillS = 1_800;

/** Of one text in what a reflection is told; a trace may have many, and all of them go into one request. */
export const reflectionCharsMax = 20_000;
/** An attempt of a search ends with so many answers: they go through history. */
export const searchAnswersMax = 512;
/** Or after so long, or so many times what a request takes: at its end nothing new is begun for the length of one. */
export const searchAttemptMs = 20_000;
export const searchAttemptRequests = 20;
/** An attempt that is to end waits no longer for what is under way. */
export const searchDrainMs = 5_000;

/** How many events a run keeps for those who attach late. */
export const eventsKept = 200;

/** Policy versions an embedded server holds at once: the current one, the one before, and those evals are pinned to. */
export const policyVersionsHeld = 8;

/** Rows that a teacher is asked to score in one request: what a retry may have to pay again. */
export const teacherRowsAtOnce = 32;

/**
 * A part of a batch is one object: written, read and compared as a whole, and small beside what a process has. Of so many parts the rows are
 * held while a batch is read, for micro-batches take rows of one length from all over it.
 */
export const batchPartBytesMax = 32 * 1024 * 1024;
export const batchPartsHeld = 8;

/**
 * Tokens of rows that are in memory at once where rows are not taken one by one: some 50 MB. Those of a smaller batch go to the trainer's
 * process with the call; of a larger one it asks for a micro-batch at a time.
 */
export const rowsAtOnceTokensMax = 1 << 20;

/** Tokens of a step whose log probabilities and entropies are kept for people: 16 MB of the store. Those of later rows are not. */
export const tokenScoresMax = 1 << 21;

/** Stored rows of JSON that are read more than once are kept as values up to this size; larger ones are read a row at a time where that matters. */
export const rowsKeptBytesMax = 2 * 1024 * 1024;
/** Scored groups that are fetched before it is their turn: a bucket takes its time for each, and none of them is large. */
export const scoredReadAhead = 8;

/** Python processes of one virtual environment in one worker, each with one event loop; RATCHET_PYTHON_CHILDREN says otherwise. */
export const pythonChildrenDefault = 2;

/** How long logs of Python processes stay whose worker is gone. */
export const pythonLogsKeptMs = 24 * 3_600_000;
/** And of how many such workers, the newest first. */
export const pythonLogFoldersKept = 20;

/** Rollouts of a run generated by one worker at once; each holds its messages and tokens in memory. */
export const rolloutsInFlightMax = 16_384;

/** How long an activity goes on asking an inference server that does not answer before Temporal's retry takes over. */
export const inferencePatienceMs = 20_000;

/** Of one request to an inference server, where a run does not say: as long as generation_timeout gives an attempt. */
export const inferenceTimeoutDefaultS = 600;

/** Of `system_prompt`: it is in the run's spec, and so in Temporal's history whenever that is handed on. */
export const systemPromptCharsMax = 32 * 1024;

/** Prompts in flight at one inference server, where a run does not say: more wait for their turn here and not there. */
export const inferenceConcurrencyDefault = 2_048;

/** Rollouts and groups whose inference server is remembered, of all runs of a worker: several times what is in flight. */
export const stickySessionsMax = 2 * rolloutsInFlightMax;

/**
 * What a run file may ask for: several times the largest that anybody trains with, and little enough that a step's groups fit into an
 * orchestrator's memory. A number beyond them is a slip.
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
 * Weights are compared with their sha256 before they are served, and after a crash, up to this size: within a minute,
 * also from a slow disk. Of larger ones it is seen that they are there, and what they say by their canary.
 */
export const weightsReadWholeBytesMax = 2 * 2 ** 30;

/**
 * Attempts at an activity that throws a TypeError of ours, with pauses of 1, 3 and 9 seconds. A server that is restarting may give an
 * answer that our code does not expect. After the last attempt it counts as a bug.
 */
export const bugAttemptsMax = 4;

/** An inference server keeps a version that nobody asks for again no longer than this. */
export const versionHeldS = 300;

/** An answer of the Hugging Face Hub is waited for so long, and so is a connection on which nothing comes. */
export const hubAnswerMsMax = 30_000;
export const hubStallMsMax = 60_000;
/** Fewest bytes of a file in that time. Without this bound a server that sends a byte a minute could take years. */
export const hubPaceBytesMin = 16 * 1024;
/** Attempts in a row that bring nothing before fetching a file ends, and the pause after the first; it doubles. */
export const hubAttemptsMax = 5;
export const hubPauseMs = 500;
