import { RatchetError } from '../errors.ts';
import { present } from '../present.ts';
import { type Budget, isOver, type OverBudget, type Use } from '../settings/budgets.ts';

/**
 * Makes a call for a turn of the policy with as many tokens as it may sample. A call that failed may have used all that
 * was reserved, unless it was refused unseen. Throws `PromptTooLong` at the rollout's limit, which ends it as truncated,
 * and `BudgetReached` at one around it.
 */
export async function withinBudget<Said>(
  budget: Budget | undefined,
  { promptTokens, maxTokens, model, signal }: CallToReserve,
  call: (maxTokens: number) => Promise<Said>,
  usedBy: (said: Said) => Use,
): Promise<Said> {
  if (budget === undefined) return call(maxTokens);
  const of = present({ model });
  const answer = await budget.reserve({ promptTokens, completionTokens: maxTokens, ...of }, signal);
  if (isOver(answer)) throw overError(answer);
  try {
    const said = await call(answer.use.completionTokens ?? maxTokens);
    answer.settle({ ...usedBy(said), ...of });
    return said;
  } catch (error) {
    answer.settle(isRefusal(error) ? undefined : answer.use);
    throw error;
  }
}

interface CallToReserve {
  /** Another model than the policy. */
  readonly model?: string;
  readonly promptTokens: number;
  readonly maxTokens: number;
  readonly signal: AbortSignal | undefined;
}

export function overError({ of, text }: OverBudget): RatchetError {
  return new RatchetError(of === 'rollout' ? 'PromptTooLong' : 'BudgetReached', text);
}

function isRefusal(error: unknown): boolean {
  return error instanceof RatchetError && ['InferenceRejected', 'PromptTooLong', 'VersionNotHeld'].includes(error.code);
}

/** Tokens that a chat template adds to a request, and to each of its messages. */
const templateTokens = { request: 256, message: 16 };

/** Upper bound of a prompt at a server that counts it itself: no tokenizer makes more tokens of a text than it has bytes. */
export function promptTokensMost(asked: { readonly messages: readonly unknown[]; readonly tools: unknown }): number {
  const bytes = new TextEncoder().encode(JSON.stringify(asked)).length;
  return bytes + templateTokens.request + templateTokens.message * asked.messages.length;
}
