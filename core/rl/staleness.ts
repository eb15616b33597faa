/** How far behind a group is when its step trains. */

/** Step n trains on top of version n−1; a group that began with that version is 0 versions stale. */
export function staleness(step: number, policyStep: number): number {
  return step - 1 - policyStep;
}

/** Whether a group that started from version `policyStep` is too old to be trained in `step`. */
export function isStale(group: { readonly policyStep: number }, step: number, maxOffPolicySteps: number): boolean {
  return staleness(step, group.policyStep) > maxOffPolicySteps;
}
