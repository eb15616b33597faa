import type { ToolCall } from '../../core/rl/rollout/rollout.ts';

/** A model's output, split into content, thoughts and calls. */
export interface Heard {
  readonly content: string;
  readonly toolCalls: readonly ToolCall[];
}
