import type { EnvironmentSpec, RunSpec } from '../../config/run-spec.ts';
import { timeoutFateOf } from '../rollouts/rollout-limits.ts';

/** Of rollouts that are to be truncated when they are late: which are dropped, because no turn of them is stored and they began too late. */
export function lateRolloutWarnings(
  spec: Pick<RunSpec, 'onTimeout' | 'generationTimeoutS'>,
  environments: readonly EnvironmentSpec[],
): string[] {
  const names = environments
    .filter(({ python, limits }) => python !== undefined && (limits?.timeoutS ?? null) === null)
    .filter((entry) => timeoutFateOf(entry, spec) === 'truncate')
    .map(({ name }) => name);
  if (names.length === 0) return [];
  return [
    `on_timeout = "truncate": of ${names.join(', ')} a rollout is dropped that begins in the second half of its last attempt within generation_timeout = ${spec.generationTimeoutS} s, for want of time. Where rollouts wait long for room, set the timeout of its [[env]], which counts from the beginning of each.`,
  ];
}
