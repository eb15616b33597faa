import type { StopCondition, StopReason } from './search-state.ts';

/** State for stop conditions, checked between iterations. */
interface Progress {
  /** Number of the last iteration, −1 before the first. */
  readonly iteration: number;
  readonly bestScore: number;
  readonly candidates: number;
  /** Iterations since the best score rose. */
  readonly sinceImprovement: number;
}

/** Which of the conditions holds, or null. */
export function metCondition(conditions: readonly StopCondition[], progress: Progress): StopReason | null {
  for (const condition of conditions) {
    const reason = reasonOf(condition, progress);
    if (reason !== null) return reason;
  }
  return null;
}

function reasonOf(condition: StopCondition, progress: Progress): StopReason | null {
  const { kind } = condition;
  switch (kind) {
    case 'max_proposals':
      return progress.iteration >= condition.n - 1 ? kind : null;
    case 'score_threshold':
      return progress.bestScore >= condition.threshold ? kind : null;
    case 'no_improvement':
      return progress.sinceImprovement >= condition.iterations ? kind : null;
    case 'max_candidates':
      return progress.candidates >= condition.n ? kind : null;
    case 'any':
      return metCondition(condition.of, progress);
    case 'all':
      return condition.of.length > 0 && condition.of.every((part) => reasonOf(part, progress) !== null) ? kind : null;
    default:
      return condition satisfies never;
  }
}
