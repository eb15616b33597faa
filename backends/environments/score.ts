import { rewardedOutcomes } from '../../core/rl/rollout.ts';
import type { Example, Rollout, ScoredRollout } from '../../core/rl/rollout.ts';
import type { Environment } from './types.ts';

/**
 * Scores a stored rollout with its environment's rubric: reward = Σ weight · score. Only outcomes that carry a reward
 * are looked at. A reward function that throws, or answers with something that is not a finite number, makes the
 * rollout a `judge_failure` without a reward; the tokens stay good and may be scored again.
 */
export async function scoreRollout(
  environment: Pick<Environment, 'rubric'>,
  example: Example,
  rollout: Rollout,
): Promise<ScoredRollout> {
  if (!rewardedOutcomes.includes(rollout.outcome)) return { ...rollout, reward: null, metrics: {} };
  const completion = rollout.turns.at(-1)?.text ?? '';
  const metrics: Record<string, number> = {};
  let reward = 0;
  for (const judge of environment.rubric.functions) {
    try {
      const score: unknown = await judge.score({ example, turns: rollout.turns, completion });
      if (typeof score !== 'number' || !Number.isFinite(score)) {
        throw new TypeError(`expected a finite number, received ${String(score)}`);
      }
      metrics[judge.name] = score;
      reward += judge.weight * score;
    } catch (error) {
      const reason = error instanceof Error ? error.message : String(error);
      return {
        ...rollout,
        outcome: 'judge_failure',
        error: `Reward function "${judge.name}": ${reason}`,
        reward: null,
        metrics,
      };
    }
  }
  return { ...rollout, reward, metrics };
}
