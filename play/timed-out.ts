import type { RunSpec } from '../config/run-spec.ts';
import type { Rollout } from '../core/rl/rollout/rollout.ts';
import { failedRollout } from '../backends/environments/score.ts';
import type { RolloutJournal } from '../runs/rollouts/rollout-journal.ts';
import type { LeasedPlace } from './chunk-play.ts';
import { RolloutEffects } from './rollout-effects.ts';
import { timeoutFateOf } from './rollout-limits.ts';

/**
 * Outcome of a rollout that the last attempt has not finished. One that began early enough is truncated, if the run's
 * settings say so.
 */
export async function timedOut(
  { lease, place }: LeasedPlace,
  journal: RolloutJournal,
  spec: RunSpec,
): Promise<Rollout> {
  const turns = journal.turnsOf(place);
  const entry = spec.environments.find(({ name }) => name === lease.environment);
  const isTruncated = turns.length > 0 && entry !== undefined && timeoutFateOf(entry, spec) === 'truncate';
  const said = `${outOfTime(spec)} It had ${turns.length} finished turns.`;
  const late: Rollout = isTruncated
    ? { ...place, turns, outcome: 'truncated', isTimedOut: true }
    : failedRollout({ ...place, turns }, 'timeout', said);
  return new RolloutEffects(journal.notes.of(place)).settle(late);
}

/** Why a rollout ends that no attempt has finished. */
export function outOfTime({ generationTimeoutS }: RunSpec): string {
  return `Not finished within generation_timeout = ${generationTimeoutS} s, three times.`;
}
