import type { ScoredRollout } from '../core/rl/rollout.ts';
import type { TokenRow } from '../core/rl/trajectories.ts';
import { type ChatTokenizer, Detokenizer } from '../engine/index.ts';
import type { TokensAnswer } from './answers.ts';

/** A rollout's sampled tokens, each with its text, its log probability, and whether it counts in the loss. */
export function tokensOf(
  { turns }: ScoredRollout,
  tokenizer: ChatTokenizer,
  { rows, unmaskedBecause }: { readonly rows: readonly TokenRow[]; readonly unmaskedBecause: string | null },
): Pick<TokensAnswer, 'turns' | 'unmaskedBecause'> {
  const counted = unmaskedBecause === null ? countedIn(rows) : null;
  return {
    unmaskedBecause,
    turns: turns.map(
      ({ tokenIds, promptTokenIds, logprobs, samplingLogprobs = null, policyStep, policyStepEnd = policyStep }) => {
        const detokenizer = new Detokenizer(tokenizer, { skipSpecialTokens: false });
        const pieces = tokenIds.map((id) => detokenizer.push(id));
        const rest = detokenizer.finish();
        if (pieces.length > 0) pieces[pieces.length - 1] += rest;
        return {
          pieces,
          logprobs,
          samplingLogprobs,
          mask: counted ? counted(promptTokenIds, tokenIds) : tokenIds.map(() => 0),
          version: policyStep,
          versionEnd: policyStepEnd,
        };
      },
    ),
  };
}

/** Which tokens of a turn count: it stands in the row that begins with its prompt. */
function countedIn(rows: readonly TokenRow[]): (prompt: readonly number[], sampled: readonly number[]) => number[] {
  return (prompt, sampled) => {
    const row = rows.find(({ tokenIds }) => prompt.every((id, i) => tokenIds[i] === id));
    return sampled.map((_, i) => row?.lossMask[prompt.length + i] ?? 0);
  };
}
