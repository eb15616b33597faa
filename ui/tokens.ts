import type { ScoredRollout } from '../core/rl/rollout.ts';
import type { TokenRow } from '../core/rl/trajectories.ts';
import { type ChatTokenizer, Detokenizer } from '../engine/index.ts';
import type { ScoredRow } from '../runs/batch-parts.ts';
import type { TokensAnswer, TurnTokens } from './answers.ts';

interface TrainedRows {
  readonly rows: readonly TokenRow[];
  readonly unmaskedBecause: string | null;
  /** What the trainer computed of a row. */
  readonly scoresOf: (tokenIds: readonly number[]) => ScoredRow | null;
}

/** A rollout's sampled tokens, each with its text, its log probability, whether it counts in the loss, and what the trainer made of it. */
export function tokensOf(
  { turns }: ScoredRollout,
  tokenizer: ChatTokenizer,
  { rows, unmaskedBecause, scoresOf }: TrainedRows,
): Pick<TokensAnswer, 'turns' | 'unmaskedBecause'> {
  const trained = unmaskedBecause === null ? rows.map((row) => ({ row, scores: scoresOf(row.tokenIds) })) : [];
  return {
    unmaskedBecause,
    turns: turns.map(
      ({ tokenIds, promptTokenIds, logprobs, samplingLogprobs = null, policyStep, policyStepEnd = policyStep }) => {
        const detokenizer = new Detokenizer(tokenizer, { skipSpecialTokens: false });
        const pieces = tokenIds.map((id) => detokenizer.push(id));
        const rest = detokenizer.finish();
        if (pieces.length > 0) pieces[pieces.length - 1] += rest;
        // It stands in the row that begins with its prompt.
        const own = trained.find(({ row }) => promptTokenIds.every((id, i) => row.tokenIds[i] === id));
        const masks = own?.row.lossMask ?? [];
        return {
          pieces,
          logprobs,
          samplingLogprobs,
          trained: own?.scores
            ? trainedOf(own.scores, masks, { from: promptTokenIds.length, count: tokenIds.length })
            : null,
          mask: tokenIds.map((_, i) => masks[promptTokenIds.length + i] ?? 0),
          version: policyStep,
          versionEnd: policyStepEnd,
        };
      },
    ),
  };
}

/** Of some tokens of a row: its scores are of those that count, one after the other. */
function trainedOf(
  { logprobs, entropies }: ScoredRow,
  lossMask: readonly number[],
  { from, count }: { readonly from: number; readonly count: number },
): NonNullable<TurnTokens['trained']> {
  const before = lossMask.slice(0, from).filter((mask) => mask !== 0).length;
  let next = before;
  const places = Array.from({ length: count }, (_, i) => ((lossMask[from + i] ?? 0) === 0 ? null : next++));
  const at = (values: Float32Array | null) =>
    places.map((place) => (place === null ? null : (values?.[place] ?? null)));
  return { logprobs: at(logprobs), entropies: at(entropies) };
}
