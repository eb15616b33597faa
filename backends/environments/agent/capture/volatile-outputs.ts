import type { ChatMessage } from '../../../../core/rl/rollout/rollout.ts';

/**
 * Outputs of tools that are another text each time though a program does the same: free space of a disk, lists of
 * processes, what a network answers. No pattern knows what in them differs.
 */

/** Share of its words that an output must have in common with another to count as the same one. */
const commonMin = 0.5;

/** Whether an output is most likely the same one: half of its words are, with any number for a number. */
export function isAlike(recorded: string, live: string): boolean {
  const [was, is] = [wordsOf(recorded), wordsOf(live)];
  const left = new Map<string, number>();
  for (const word of was) left.set(word, (left.get(word) ?? 0) + 1);
  let common = 0;
  for (const word of is) {
    const count = left.get(word) ?? 0;
    if (count === 0) continue;
    left.set(word, count - 1);
    common++;
  }
  return common > 0 && common >= commonMin * Math.max(was.length, is.length);
}

function wordsOf(text: string): readonly string[] {
  return text.replaceAll(/\d[\d.,:]*/g, '#').match(/[^\s]+/g) ?? [];
}

/** Whether two messages answer one call of a tool. */
export function isOneOutput(a: ChatMessage, b: ChatMessage): boolean {
  return a.role === 'tool' && b.role === 'tool' && a.tool_call_id !== undefined && a.tool_call_id === b.tool_call_id;
}
