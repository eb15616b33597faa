import { inferenceTimeoutDefaultS } from '../core/limits.ts';
import type { Example, Rollout, ScoredRollout } from '../core/rl/rollout/rollout.ts';
import { withSystemPrompt } from '../core/rl/rollout/system-prompt.ts';
import { scoreGroup } from '../backends/environments/score-group.ts';
import type { Environment } from '../backends/environments/types.ts';

interface ScoredWith {
  readonly dataset: 'dataset' | 'evalDataset';
  readonly exampleId: number;
  /** The one that the rollouts were generated with, in place of the environment's own. */
  readonly systemPrompt: string | undefined;
  /** Of a request of a judge; the usual one by default. */
  readonly timeoutMs?: number;
  readonly signal: AbortSignal;
}

/** Scores rollouts of one example together, as they are stored; gives the example as they saw it. */
export async function scoreExample(
  environment: Environment,
  rollouts: readonly Rollout[],
  { dataset, exampleId, systemPrompt, timeoutMs = inferenceTimeoutDefaultS * 1000, signal }: ScoredWith,
): Promise<{ readonly example: Example; readonly scored: readonly ScoredRollout[] }> {
  const example = withSystemPrompt(environment[dataset].at(exampleId), systemPrompt);
  return { example, scored: await scoreGroup(environment, example, rollouts, { timeoutMs, dataset, signal }) };
}
