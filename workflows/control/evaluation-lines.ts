import type { EvaluationResult, EvaluationStatus } from '../../core/eval/evaluation.ts';
import { plainMarkdown } from '../../core/markdown.ts';

/** State of an evaluation for the Temporal UI, as markdown. */
export function describeEvaluation(status: EvaluationStatus): string {
  const { environment, model, phase, rollouts, avgReward, passAtK, waitingOn, warnings, folder } = status;
  const passes = Object.entries(passAtK).map(([k, value]) => `pass@${k} ${value.toFixed(3)}`);
  return [
    `### ${plainMarkdown(`${environment} with ${model}`)}: ${phase}`,
    `- rollouts ${rollouts.done}${rollouts.of === null ? '' : ` of ${rollouts.of}`}${rollouts.failed === 0 ? '' : `, ${rollouts.failed} failed`}`,
    ...(avgReward === null ? [] : [`- reward ${[avgReward.toFixed(3), ...passes].join(' · ')}`]),
    ...waitingOn.map((what) => `- waits for ${plainMarkdown(what)}`),
    ...warnings.map((line) => `- ${plainMarkdown(line)}`),
    `- results in \`${folder}\``,
  ].join('\n');
}

/** Evaluations of a file: the finished ones, with their rewards. */
export function describeParts(parts: readonly string[], results: readonly (EvaluationResult | null)[]): string {
  const lines = parts.map((name, i) => {
    const part = plainMarkdown(name);
    const result = results[i];
    if (result === undefined) return `- ${part}`;
    return result === null ? `- ${part}: failed` : `- ${part}: reward ${result.avgReward?.toFixed(3) ?? 'none'}`;
  });
  return [`### ${parts.length} evaluations`, ...lines].join('\n');
}
