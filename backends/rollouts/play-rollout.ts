import { present } from '../../core/present.ts';
import { rolloutAttemptsMax } from '../../core/limits.ts';
import { onAbort } from '../../core/on-abort.ts';
import { outcomeOfFailure } from '../../core/rl/failures.ts';
import {
  type ChatMessage,
  type FailedOutcome,
  isOutcome,
  isRewardedOutcome,
  type PlayedAgain,
  type Rollout,
  type ToolSchema,
  type Turn,
} from '../../core/rl/rollout.ts';
import type { EnvironmentEntry, Environments } from '../environments/index.ts';
import { failedRollout, tookLonger, tracebackOf } from '../environments/score.ts';
import type { Environment, Policy, RolloutPlace, RolloutRecord } from '../environments/types.ts';
import { withSystemPrompt } from '../../core/rl/system-prompt.ts';
import type { TimeoutFate } from '../../config/settings/run.ts';
import { withinLimits } from './rollout-limits.ts';
import type { PlayedPolicy } from './sample-policy.ts';

export interface PlayOptions {
  readonly environments: Environments;
  readonly entry: EnvironmentEntry;
  readonly dataset: 'dataset' | 'evalDataset';
  readonly place: Pick<Rollout, 'group' | 'index' | 'exampleId'>;
  /** Of its group, those that are played together. */
  readonly together: Pick<RolloutPlace, 'group' | 'size' | 'brokenOff'>;
  /** How often it is played in all where its environment spoils it. */
  readonly attemptsMax?: number;
  /** Request fields that its policy is asked with, where that is an API. */
  readonly sampling?: RolloutPlace['sampling'];
  /** In place of the environment's own; '' = none. */
  readonly systemPrompt?: string | undefined;
  /** By name: what the model is told of tools, in place of the environment's own descriptions. */
  readonly toolDescriptions?: Readonly<Record<string, string>> | undefined;
  /** A rollout that ends with an empty reply is played anew, as often as one that its environment spoiled. */
  readonly asksEmptyAgain?: boolean;
  /** Its turns end with `signal`, which is raised also when the rollout has timed out. */
  readonly openPolicy: (environment: Environment, signal: AbortSignal) => PlayedPolicy;
  readonly signal: AbortSignal;
  /** Raised when nothing of it can be trained any more; missing = it does not age. */
  readonly tooOld?: AbortSignal;
  /** What becomes of one that is not finished in time; missing = what its entry's limits say, else it is dropped. */
  readonly onTimeout?: TimeoutFate;
  /** When all that is under way ends, beside the entry's own `timeout`; missing = with `signal`, and nothing is kept. */
  readonly lastCall?: LastCall;
}

/** The end of a last attempt: what is not finished shortly before it is truncated. */
export interface LastCall {
  /** As `performance.now()` tells it. */
  readonly atMs: number;
  /** Likewise: one that is begun later has had too little time for what it did not say to count. */
  readonly begunByMs: number;
  /** What a rollout says that is cut off by it. */
  readonly says: string;
  /** False while nothing can be finished through no fault of the rollouts: then it is not given up. */
  readonly isDue: () => boolean;
}

/** Asking again does not help. */
const finalOutcomes: readonly FailedOutcome[] = ['overlong_prompt', 'rejected', 'timeout', 'stale'];

/**
 * Plays one example through. What the environment does wrong is tried again in a fresh one, and is the rollout's outcome
 * when it goes on; what the inference server cannot do for anyone at the moment is thrown. Throws the signal's reason as
 * soon as it is raised, also while the environment hangs.
 */
export async function playRollout(options: PlayOptions): Promise<Rollout> {
  const { environments, entry, dataset, place, together, openPolicy, signal, sampling, systemPrompt } = options;
  const { maxRetries = null } = entry.limits ?? {};
  const fate = options.onTimeout ?? entry.limits?.onTimeout ?? 'drop';
  const attemptsMax = maxRetries === null ? (options.attemptsMax ?? rolloutAttemptsMax) : maxRetries + 1;
  let environment = await environments.open(entry);
  let spoiled: PlayedAgain | undefined;
  const again = (why: string): void =>
    void (spoiled = { count: (spoiled?.count ?? 0) + 1, first: spoiled?.first ?? why });
  for (let attempt = 1; ; attempt++) {
    const limit = timeLimit(options);
    // A Python process keeps the time itself: what waits there for others of its group is done playing.
    const late = entry.python === undefined && limit !== null ? lateAfter(limit) : null;
    const ends = [late?.signal, options.tooOld].filter((one) => one !== undefined);
    const until = ends.length > 0 ? AbortSignal.any([signal, ...ends]) : signal;
    const policy = withinLimits(openPolicy(environment, until), entry);
    const listening = new ListeningPolicy(policy);
    const asked = present({ sampling, systemPrompt });
    const where: RolloutPlace = {
      ...together,
      index: place.index,
      dataset,
      signal: until,
      ...asked,
      ...(entry.python && limit ? { timeLimit: { seconds: limit.seconds, fate } } : {}),
      ...(options.asksEmptyAgain === true && attempt < attemptsMax ? { givesBackEmpty: true } : {}),
    };
    try {
      const example = withSystemPrompt(environment[dataset].at(place.exampleId), systemPrompt);
      const playing = environment.rollout(example, describingTools(listening, options.toolDescriptions), where);
      const record = checked(await unlessAborted(playing, until), environment);
      const { outcome, isEmptyReply, ...played } = record;
      if (isEmptyReply === true) {
        again('the reply was empty');
        continue;
      }
      if (isRewardedOutcome(outcome)) return { ...place, ...played, outcome, ...present({ playedAgain: spoiled }) };
      throw new ToldFailure(outcome, record);
    } catch (error) {
      signal.throwIfAborted();
      const { failure } = policy;
      const turns = listening.turns(); // one that is under way may end after it was given up
      const ended = ends.find(({ aborted }) => aborted);
      const isTooOld = ended !== undefined && ended === options.tooOld;
      const outcome = isTooOld ? 'stale' : ended ? 'timeout' : outcomeOf(error, failure);
      if (outcome === null) throw failure ?? error;
      if (outcome === 'timeout' && ended && fate === 'truncate' && !environment.judge) {
        return { ...place, turns, outcome: 'truncated', isTimedOut: true };
      }
      if (outcome === 'overlong_prompt' && turns.length > 0 && !environment.judge) {
        return { ...place, turns, outcome: 'truncated' };
      }
      if (attempt >= attemptsMax || finalOutcomes.includes(outcome)) {
        environment.withdraw?.(where);
        const said = ended ? (ended.reason as Error).message : tracebackOf(error);
        const failed = failedRollout({ ...place, turns }, outcome, said);
        return error instanceof ToldFailure ? { ...failed, ...error.kept } : failed;
      }
      again(onOneLine(tracebackOf(error)));
      environment = await environments.reopen(entry, environment);
    } finally {
      late?.stop();
    }
  }
}

/** What was thrown, as a row can keep it. */
function onOneLine(traceback: string): string {
  const lines = traceback.trim().split('\n');
  const said = traceback.startsWith('Traceback') ? lines.at(-1)! : lines[0]!;
  return said.slice(0, 200);
}

/** The same policy, which notes what it heard before each turn: an environment that is cut off does not come to say so. */
class ListeningPolicy implements Policy {
  readonly #policy: PlayedPolicy;
  readonly #heard: (readonly ChatMessage[])[] = [];
  /** Messages of the conversation up to the turn before, its own words included. */
  #told = Infinity;

  constructor(policy: PlayedPolicy) {
    this.#policy = policy;
  }

  sample(...[messages, options]: Parameters<Policy['sample']>): ReturnType<Policy['sample']> {
    this.#heard.push(messages.slice(this.#told));
    this.#told = messages.length + 1;
    return this.#policy.sample(messages, options);
  }

  /** Those that are finished by now. */
  turns(): Turn[] {
    return this.#policy.turns.map((turn, i) => {
      const heard = this.#heard[i] ?? [];
      return heard.length === 0 || turn.heard ? turn : { ...turn, heard };
    });
  }
}

/** The same policy, told other descriptions of the tools that an environment offers it. */
function describingTools(policy: Policy, descriptions: PlayOptions['toolDescriptions']): Policy {
  if (descriptions === undefined) return policy;
  const described = (tool: ToolSchema): ToolSchema => {
    const description = descriptions[tool.function.name];
    return description === undefined ? tool : { ...tool, function: { ...tool.function, description } };
  };
  return {
    sample: (messages, options = {}) =>
      policy.sample(messages, options.tools ? { ...options, tools: options.tools.map(described) } : options),
  };
}

interface TimeLimit {
  readonly seconds: number;
  readonly says: string;
  readonly isDue: () => boolean;
}

/** How long it may be played from here on: as its entry says, and no longer than until the last call. */
function timeLimit({ entry, lastCall }: PlayOptions): TimeLimit | null {
  const { timeoutS = null } = entry.limits ?? {};
  const own = timeoutS === null ? null : { seconds: timeoutS, says: tookLonger(timeoutS), isDue: () => true };
  const now = performance.now();
  if (lastCall === undefined || now > lastCall.begunByMs || (entry.python && !lastCall.isDue())) return own;
  const seconds = (lastCall.atMs - now) / 1000;
  return own !== null && own.seconds <= seconds ? own : { ...lastCall, seconds };
}

/** Raised when the time is over, unless it is stopped. */
function lateAfter({ seconds, says, isDue }: TimeLimit): { readonly signal: AbortSignal; readonly stop: () => void } {
  const late = new AbortController();
  const end = (): void => {
    if (isDue()) late.abort(new Error(says));
  };
  const timer = setTimeout(end, seconds * 1000);
  return { signal: late.signal, stop: () => clearTimeout(timer) };
}

/** A failure that the environment told apart itself, and did not throw. */
class ToldFailure extends Error {
  readonly outcome: FailedOutcome;
  /** What becomes of the rollout keeps these. */
  readonly kept: Pick<Rollout, 'turns' | 'record'>;

  constructor(outcome: FailedOutcome, { turns, record, error = outcome }: RolloutRecord) {
    super(error);
    this.stack = error; // its own words say where it failed
    this.outcome = outcome;
    this.kept = { turns, ...present({ record }) };
  }
}

/** The environment may have wrapped what the policy told it. */
function outcomeOf(error: unknown, failure: unknown): FailedOutcome | null {
  if (failure !== undefined) return outcomeOfFailure(failure);
  return error instanceof ToldFailure ? error.outcome : outcomeOfFailure(error);
}

/** What user code returns is looked at before it is believed. */
function checked(record: RolloutRecord, { name }: Environment): RolloutRecord {
  const { turns, outcome } = (record ?? {}) as Partial<Record<keyof RolloutRecord, unknown>>;
  if (Array.isArray(turns) && isOutcome(outcome)) return record;
  throw new TypeError(
    `Environment "${name}": rollout() must give { turns, outcome } with outcome "ok", "policy_failure" or "truncated"; it gave ${(JSON.stringify(record) ?? 'nothing').slice(0, 200)}.`,
  );
}

function unlessAborted<T>(work: Promise<T>, signal: AbortSignal): Promise<T> {
  return new Promise((resolve, reject) => {
    const stop = (): void => reject(signal.reason as Error);
    if (signal.aborted) stop();
    const forget = onAbort(signal, stop);
    work.then(resolve, reject).finally(forget);
  });
}
