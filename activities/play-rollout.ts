import { rolloutAttemptsMax } from '../core/limits.ts';
import { onAbort } from '../core/on-abort.ts';
import { outcomeOfFailure } from '../core/rl/failures.ts';
import { isRewardedOutcome, type FailedOutcome, type Outcome, type Rollout } from '../core/rl/rollout.ts';
import type { EnvironmentSpec } from '../core/spec/run-spec.ts';
import type { Environments } from '../backends/environments/index.ts';
import { failedRollout, tracebackOf } from '../backends/environments/score.ts';
import type { Environment, RolloutRecord } from '../backends/environments/types.ts';
import type { PlayedPolicy } from './sample-policy.ts';

export interface PlayOptions {
  readonly environments: Environments;
  readonly entry: Pick<EnvironmentSpec, 'id' | 'args' | 'sha256'>;
  readonly dataset: 'dataset' | 'evalDataset';
  readonly place: Pick<Rollout, 'group' | 'index' | 'exampleId'>;
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
  const { environments, entry, dataset, place, openPolicy, signal } = options;
  let environment = await environments.open(entry);
  for (let attempt = 1; ; attempt++) {
    const policy = openPolicy(environment);
    try {
      const playing = environment.rollout(environment[dataset].at(place.exampleId), policy);
      return { ...place, ...checked(await unlessAborted(playing, signal), environment) };
    } catch (error) {
      signal.throwIfAborted();
      // The environment may have wrapped what the policy told it.
      const outcome = outcomeOfFailure(policy.failure ?? error);
      if (outcome === null) throw policy.failure ?? error;
      const { turns } = policy;
      if (outcome === 'overlong_prompt' && turns.length > 0) return { ...place, turns, outcome: 'truncated' };
      if (attempt === rolloutAttemptsMax || finalOutcomes.includes(outcome)) {
        return failedRollout({ ...place, turns }, outcome, tracebackOf(error));
      }
      environment = await environments.reopen(entry, environment);
    }
  }
}

/** What user code returns is looked at before it is believed. */
function checked(record: RolloutRecord, { name }: Environment): RolloutRecord {
  const { turns, outcome } = (record ?? {}) as Partial<Record<keyof RolloutRecord, unknown>>;
  if (Array.isArray(turns) && isRewardedOutcome(outcome as Outcome)) return record;
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
