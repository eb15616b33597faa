/** Which rollout one is, while it is in play and when it has ended. */
export interface NamedRollout {
  /** Its group's ordinal, and its position in the group. */
  readonly group: number;
  readonly index: number;
  readonly environment: string;
  readonly exampleId: number;
  /** The versions that its first turn began and its last one ended with; before the first, the one its group began from. */
  readonly version: number;
  readonly versionEnd: number;
}

/** Label of a rollout in the index of a run's rollouts, on its page and in its traces. */
export interface RolloutLabel extends NamedRollout {
  readonly lineage: string;
  /** The commit in which its group ended. */
  readonly step: number;
  readonly outcome: string;
  /** How its group ended: `trained`, `filtered:too_easy`, `failed:infra_failure`, …, as the ledger has it. */
  readonly end: string;
  /** float32; null = it has none. */
  readonly reward: number | null;
  /** Sampled, over all turns. */
  readonly tokens: number;
  readonly turns: number;
}
