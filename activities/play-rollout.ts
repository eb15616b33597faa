import { rolloutAttemptsMax } from '../core/limits.ts';
import { onAbort } from '../core/on-abort.ts';
import { outcomeOfFailure } from '../core/rl/failures.ts';
import { type FailedOutcome, isOutcome, isRewardedOutcome, type Rollout } from '../core/rl/rollout.ts';
import type { EnvironmentEntry, Environments } from '../backends/environments/index.ts';
import { failedRollout, tracebackOf } from '../backends/environments/score.ts';
import type { Environment, RolloutPlace, RolloutRecord } from '../backends/environments/types.ts';
import { withSystemPrompt } from '../core/rl/system-prompt.ts';
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
  readonly openPolicy: (environment: Environment) => PlayedPolicy;
  readonly signal: AbortSignal;
}

/** Asking again does not help. */
const finalOutcomes: readonly FailedOutcome[] = ['overlong_prompt', 'rejected'];

/**
 * Plays one example through. What the environment does wrong is tried again in a fresh one, and is the rollout's outcome
 * when it goes on; what the inference server cannot do for anyone at the moment is thrown. Throws the signal's reason as
 * soon as it is raised, also while the environment hangs.
 */
export async function playRollout(options: PlayOptions): Promise<Rollout> {
  const { environments, entry, dataset, place, together, openPolicy, signal, sampling, systemPrompt } = options;
  const { attemptsMax = rolloutAttemptsMax } = options;
  const where: RolloutPlace = {
    ...together,
    index: place.index,
    dataset,
    signal,
    ...(sampling && { sampling }),
    ...(systemPrompt === undefined ? {} : { systemPrompt }),
  };
  let environment = await environments.open(entry);
  for (let attempt = 1; ; attempt++) {
    const policy = openPolicy(environment);
    try {
      const example = withSystemPrompt(environment[dataset].at(place.exampleId), systemPrompt);
      const playing = environment.rollout(example, policy, where);
      const record = checked(await unlessAborted(playing, signal), environment);
      const { outcome } = record;
      if (isRewardedOutcome(outcome)) return { ...place, ...record, outcome };
      throw new ToldFailure(outcome, record);
    } catch (error) {
      signal.throwIfAborted();
      const { turns, failure } = policy;
      const outcome = outcomeOf(error, failure);
      if (outcome === null) throw failure ?? error;
      if (outcome === 'overlong_prompt' && turns.length > 0 && !environment.judge) {
        return { ...place, turns, outcome: 'truncated' };
      }
      if (attempt >= attemptsMax || finalOutcomes.includes(outcome)) {
        environment.withdraw?.(where);
        const failed = failedRollout({ ...place, turns }, outcome, tracebackOf(error));
        return error instanceof ToldFailure ? { ...failed, ...error.kept } : failed;
      }
      environment = await environments.reopen(entry, environment);
    }
  }
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
    this.kept = { turns, ...(record ? { record } : {}) };
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
