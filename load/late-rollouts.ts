import { environmentTraits } from '../core/kinds/environments.ts';
import type { EnvironmentSpec, RunSpec } from '../config/run-spec.ts';
import { timeoutFateOf } from '../play/rollout-limits.ts';

/**
 * Warnings about late rollouts that would be dropped instead of truncated, because none of their turns is stored and
 * they began too late.
 */
export function lateRolloutWarnings(
  spec: Pick<RunSpec, 'onTimeout' | 'generationTimeoutS'>,
  environments: readonly EnvironmentSpec[],
): string[] {
  const names = environments
    .filter((entry) => environmentTraits(entry).process === 'child' && (entry.limits?.timeoutS ?? null) === null)
    .filter((entry) => timeoutFateOf(entry, spec) === 'truncate')
    .map(({ name }) => name);
  if (names.length === 0) return [];
  return [
    `on_timeout = "truncate": of ${names.join(', ')} a rollout is dropped that begins in the second half of its last attempt within generation_timeout = ${spec.generationTimeoutS} s, for want of time. Where rollouts wait long for room, set the timeout of its [[env]], which counts from the beginning of each.`,
  ];
}
