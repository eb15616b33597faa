import type { RescoreStatus } from '../../core/eval/rescore.ts';
import { plainMarkdown } from '../../core/markdown.ts';

/** State of a rescore for the Temporal UI, as markdown. */
export function describeRescore({ name, rubric, phase, chunks, rollouts, judge, waitingOn }: RescoreStatus): string {
  const { done, changed, failed } = rollouts;
  return [
    `### ${plainMarkdown(name === '' ? 'rescore' : `${name} with ${rubric}`)}: ${phase}`,
    `- rollouts ${done}, ${changed} with another reward${failed === 0 ? '' : `, ${failed} without one`}`,
    ...(chunks.of === null ? [] : [`- chunks ${chunks.done} of ${chunks.of}`]),
    ...(judge.calls === 0 ? [] : [`- judges: ${judge.calls} calls, ${judge.tokens} tokens`]),
    ...waitingOn.map((what) => `- waits for ${plainMarkdown(what)}`),
  ].join('\n');
}
