import type { ScoredRollout, Turn } from '../core/rl/rollout/rollout.ts';
import type { TokenRow } from '../core/rl/rollout/trajectories.ts';
import { type ChatTokenizer, Detokenizer } from '../engine/index.ts';
import type { ScoredRow } from '../runs/rollouts/batch-parts.ts';
import type { TokensAnswer, TurnTokens } from './answers.ts';

interface OfRollout {
  readonly rows: readonly TokenRow[];
  readonly unmaskedBecause: string | null;
  /** The trainer's values for a row. */
  readonly scoresOf: (tokenIds: readonly number[]) => ScoredRow | null;
  /** The agent that says a turn, where there are several, and the advantage of its tokens. */
  readonly creditOf: (turn: Turn) => Pick<TurnTokens, 'agent' | 'advantage'>;
}

/** A rollout's sampled tokens, each with its text, log probability, whether it is trained, and the trainer's values. */
export function tokensOf(
  { turns }: ScoredRollout,
  tokenizer: ChatTokenizer,
  { rows, unmaskedBecause, scoresOf, creditOf }: OfRollout,
): TokensAnswer {
  const trained = unmaskedBecause === null ? trainedTokens(rows, scoresOf) : new Map<number, TrainedToken>();
  let sampled = 0;
  return {
    unmaskedBecause,
    turns: turns.map((turn) => {
      const { tokenIds, logprobs, samplingLogprobs = null, policyStep, policyStepEnd = policyStep } = turn;
      const detokenizer = new Detokenizer(tokenizer, { skipSpecialTokens: false });
      const pieces = tokenIds.map((id) => detokenizer.push(id));
      const rest = detokenizer.finish();
      if (pieces.length > 0) pieces[pieces.length - 1] += rest;
      const own = tokenIds.map(() => trained.get(sampled++));
      return {
        ...creditOf(turn),
        pieces,
        logprobs,
        samplingLogprobs,
        trained: own.some((token) => token?.isScored)
          ? {
              logprobs: own.map((token) => token?.logprob ?? null),
              entropies: own.map((token) => token?.entropy ?? null),
            }
          : null,
        mask: own.map((token) => (token === undefined ? 0 : 1)),
        version: policyStep,
        versionEnd: policyStepEnd,
      };
    }),
  };
}

/** A token that counts in the loss. */
interface TrainedToken {
  /** Whether anything of its row is kept. */
  readonly isScored: boolean;
  readonly logprob: number | null;
  readonly entropy: number | null;
}

/** Keyed by the index among the rollout's sampled tokens. A row's scores cover its trained tokens only, in order. */
function trainedTokens(rows: readonly TokenRow[], scoresOf: OfRollout['scoresOf']): ReadonlyMap<number, TrainedToken> {
  const found = new Map<number, TrainedToken>();
  for (const { tokenIds, lossMask, sampledAt } of rows) {
    const scores = scoresOf(tokenIds);
    const counted = sampledAt.filter((_, t) => lossMask[t] !== 0);
    for (const [i, at] of counted.entries())
      found.set(at, {
        isScored: scores !== null,
        logprob: scores?.logprobs?.[i] ?? null,
        entropy: scores?.entropies?.[i] ?? null,
      });
  }
  return found;
}
