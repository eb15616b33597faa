/** Thrown by a stage's `surround` where this machine cannot have such a stage: its cells are not run, for this reason. */
export class StageUnavailable extends Error {}
