import type { Turn } from '../../core/rl/rollout/rollout.ts';
import { isOver } from '../../core/settings/budgets.ts';
import type { PlayedPolicy } from '../policy/sample-policy.ts';
import type { Speak } from '../teacher/teacher.ts';
import { overError, withinBudget } from '../../core/rl/budget-call.ts';
import type { RolloutBudget } from './rollout-budget.ts';

/** Samples within a budget: a turn may have as many tokens as the rollout has left. */
export function speakWithin(budget: RolloutBudget | undefined, speak: Speak): Speak {
  if (budget === undefined) return speak;
  return (request, ...told) => {
    const { promptTokenIds, maxTokens, signal } = request;
    const promptTokens = promptTokenIds.length;
    return withinBudget(
      budget,
      { promptTokens, maxTokens, signal },
      (most) => speak({ ...request, maxTokens: most }, ...told),
      ({ tokenIds }) => ({
        promptTokens,
        completionTokens: (tokenIds as typeof tokenIds | undefined)?.length ?? maxTokens,
      }),
    );
  };
}

/**
 * The policy of a rollout whose tool calls are counted. The environment makes the calls of a turn once it has the turn, so
 * they are reserved before it gets it. The turn is kept if they are too many.
 */
export function withinToolCalls(
  policy: PlayedPolicy,
  budget: RolloutBudget | undefined,
  signal: AbortSignal,
): PlayedPolicy {
  if (budget === undefined) return policy;
  let reached: unknown = undefined;
  return {
    ...(policy.earlier ? { earlier: policy.earlier } : {}),
    ...(policy.keep && {
      keep(ids) {
        const before = policy.turns.length;
        policy.keep!(ids);
        const kept = policy.turns.slice(before);
        budget.adopt({ toolCalls: kept.reduce((sum, { toolCalls = [] }) => sum + toolCalls.length, 0) });
      },
    }),
    ...(policy.countTokens ? { countTokens: policy.countTokens.bind(policy) } : {}),
    ...(policy.tokenTexts ? { tokenTexts: policy.tokenTexts.bind(policy) } : {}),
    get turns() {
      return policy.turns;
    },
    get failure() {
      return reached ?? policy.failure;
    },
    async sample(messages, options): Promise<Turn> {
      const turn = await policy.sample(messages, options);
      const toolCalls = turn.toolCalls?.length ?? 0;
      const answer = toolCalls === 0 ? null : await budget.reserve({ toolCalls }, signal);
      if (answer === null) return turn;
      if (!isOver(answer)) {
        answer.settle({ toolCalls });
        return turn;
      }
      reached = overError(answer);
      throw reached;
    },
  };
}
