import type { ToolCall } from '../../core/rl/rollout.ts';

/** What a model said beside its thoughts. */
export interface Heard {
  readonly content: string;
  readonly toolCalls: readonly ToolCall[];
}
