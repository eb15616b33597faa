import { sandboxClosingS } from '../../../core/limits.ts';
import { overError } from '../../../core/rl/budget-call.ts';
import { type Budget, type BudgetUnit, isOver } from '../../../core/settings/budgets.ts';
import type { AgentProgram } from '../../../core/settings/programs.ts';

/** Seconds of a sandbox within a rollout's budget: all that it may take is reserved before it is asked for. */

export interface ReservedSandbox {
  /** The sandbox may be there for so long. */
  readonly lifeS: number;
  /** The program's part of it, where the rollout's budget left less than was asked for; with the limit that it is. */
  readonly cut: { readonly programS: number; readonly by: BudgetUnit } | null;
  /** Gives back what was not used. The first call counts; without an argument nothing was used. */
  settle(usedS?: number): void;
}

/** Waits for its part of the budgets around it. Throws `PromptTooLong` at the rollout's limit, and `BudgetReached` at theirs. */
export async function reserveSandbox(
  budget: Budget | undefined,
  { program: { sandbox, score }, lifeS, signal }: { readonly program: AgentProgram; readonly lifeS: number; readonly signal: AbortSignal }, // prettier-ignore
): Promise<ReservedSandbox> {
  if (budget === undefined) return { lifeS, cut: null, settle: () => undefined };
  const { costPerHour } = sandbox.pool;
  const useOf = (sandboxS: number) => ({
    sandboxS,
    ...(costPerHour > 0 ? { money: (sandboxS / 3600) * costPerHour } : {}),
  });
  const answer = await budget.reserve(useOf(lifeS), signal);
  if (isOver(answer)) throw overError(answer);
  const settle = (usedS?: number): void => answer.settle(usedS === undefined ? undefined : useOf(usedS));
  const { use, cut } = answer;
  if (cut === undefined) return { lifeS, cut: null, settle };
  const grantedS = use.sandboxS ?? 0;
  const after = (score.command === null ? 0 : score.timeoutS) + sandboxClosingS;
  if (grantedS > after) return { lifeS: grantedS, cut: { programS: grantedS - after, by: cut }, settle };
  settle();
  const text = `The rollout's budget has ${grantedS} seconds of sandboxes left, and scoring and ending one may take ${after}.`;
  throw overError({ over: cut, of: 'rollout', text });
}
