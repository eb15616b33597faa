import type { EchoWeights, TrajectorySettings } from '../../settings/rollouts.ts';
import { present } from '../../present.ts';
import type { ObservedSpan, PackedRow } from '../learning/batch.ts';
import type { Rollout, Turn } from './rollout.ts';

/**
 * Turns the turns of a rollout into token rows: exactly the tokens that the server saw and sampled, never a text
 * tokenized again.
 */

/** Every token of every turn, once. */
export const defaultTrajectories: TrajectorySettings = {
  trajectoryStrategy: 'interleaved',
  maskTruncated: false,
  seqLen: null,
  overlongRows: 'truncate',
};

/** A row before it has an advantage. */
export interface TokenRow extends Omit<PackedRow, 'advantages'> {
  /** Index among the rollout's sampled tokens, turn after turn; −1 for other tokens. */
  readonly sampledAt: readonly number[];
}

interface RolloutRows {
  /** Only rows with a token that counts in the loss. */
  readonly rows: readonly TokenRow[];
  /** Rows that were longer than `seqLen`, whatever was done with them. */
  readonly overlongRows: number;
  /** Whether the rollout carries no loss because it was truncated, or has a row that is too long. */
  readonly isMasked: boolean;
}

/** The rows of one rollout that are trained. */
export function rowsOfRollout(
  rollout: Pick<Rollout, 'turns' | 'outcome'>,
  settings: TrajectorySettings & { readonly echo?: EchoWeights | undefined } = defaultTrajectories,
): RolloutRows {
  const { seqLen, overlongRows: remedy, maskTruncated, echo } = settings;
  const all = trajectoryRows(rollout.turns, settings.trajectoryStrategy, echo);
  const isOverlong = ({ tokenIds }: TokenRow): boolean => seqLen !== null && tokenIds.length > seqLen;
  const overlongRows = all.filter(isOverlong).length;
  const isCut = rollout.outcome === 'truncated' || overlongRows > 0;
  const isMasked = (maskTruncated && isCut) || (remedy === 'mask' && overlongRows > 0);
  if (isMasked) return { rows: [], overlongRows, isMasked };
  const fitting = remedy === 'drop' ? all.filter((row) => !isOverlong(row)) : all;
  const rows = seqLen === null ? fitting : fitting.map((row) => (isOverlong(row) ? firstTokens(row, seqLen) : row));
  return { rows: rows.filter(({ lossMask }) => lossMask.includes(1)), overlongRows, isMasked };
}

/** Whether a rollout was truncated: a turn at its limit, or a row at `seqLen`, as in verifiers. */
export function isCut(
  rollout: Pick<Rollout, 'turns' | 'outcome'>,
  { trajectoryStrategy, seqLen }: Pick<TrajectorySettings, 'trajectoryStrategy' | 'seqLen'>,
): boolean {
  if (rollout.outcome === 'truncated') return true;
  if (seqLen === null) return false;
  return trajectoryRows(rollout.turns, trajectoryStrategy).some(({ tokenIds }) => tokenIds.length > seqLen);
}

/**
 * interleaved: turns that only append (a turn's prompt begins with all tokens of an earlier one, prompt and sampled) share
 * one row with several trained spans; a turn that rewrites the past, as templates that strip reasoning do, begins a row of
 * its own. Turns may form a tree, of sub-agents or parallel calls: each continues the longest row that it can, so of two
 * that continue the same turn one gets a row of its own. branching: each turn is a row. Either way every sampled token
 * counts once, and nothing else does.
 *
 * If there is echo, a row has the messages of the environment that follow a turn of the policy in it (prime-rl's `echo`,
 * orchestrator/algo/echo.py); those before its first turn are a prompt.
 */
export function trajectoryRows(
  turns: readonly Turn[],
  strategy: TrajectorySettings['trajectoryStrategy'],
  echo?: EchoWeights,
): TokenRow[] {
  const rows: GrowingRow[] = [];
  let sampled = 0;
  for (const turn of turns) {
    const open = strategy === 'interleaved' ? longestContinued(rows, turn) : undefined;
    if (open !== undefined) {
      if (echo) observe(open, turn, echo);
      extend(open, turn, sampled);
    } else rows.push(extend(emptyRow(), turn, sampled));
    sampled += turn.tokenIds.length;
  }
  return rows.map(finish);
}

function longestContinued(rows: readonly GrowingRow[], { promptTokenIds }: Turn): GrowingRow | undefined {
  let longest: GrowingRow | undefined;
  for (const row of rows) {
    const isLonger = longest === undefined || row.tokenIds.length >= longest.tokenIds.length;
    if (isLonger && startsWith(promptTokenIds, row.tokenIds)) longest = row;
  }
  return longest;
}

/** Why a rollout cannot be trained on: its server did not report all sampled tokens. Null if all are known. */
export function missingTokens({ turns }: Pick<Rollout, 'turns'>): string | null {
  for (const [i, { text, tokenIds, promptTokenIds }] of (turns as readonly Partial<Turn>[]).entries()) {
    const isSampled = Array.isArray(tokenIds) && (tokenIds.length > 0 || text === undefined || text === '');
    if (isSampled && Array.isArray(promptTokenIds)) continue;
    const what = isSampled ? 'the token ids of its prompt' : 'the token ids that were sampled';
    return `Turn ${i + 1} came without ${what}. Text is never tokenized again to train on it: the inference server has to answer with token ids (vLLM: return_token_ids).`;
  }
  return null;
}

/**
 * Log probabilities may be missing while it grows: a row that lacks one of the policy's, or of the sampler's, keeps
 * none of them.
 */
interface GrowingRow {
  readonly tokenIds: number[];
  readonly lossMask: number[];
  readonly behaviorLogprobs: (number | null)[];
  readonly samplingLogprobs: (number | null)[];
  readonly sampledAt: number[];
  readonly observed: ObservedSpan[];
}

function emptyRow(): GrowingRow {
  return { tokenIds: [], lossMask: [], behaviorLogprobs: [], samplingLogprobs: [], sampledAt: [], observed: [] };
}

/** Records messages since the previous turn. */
function observe(row: GrowingRow, { heardAt = [] }: Turn, echo: EchoWeights): void {
  for (const { role, tokens } of heardAt) {
    const weight = echo[role] ?? 0;
    if (weight === 0 || tokens === null) continue;
    const [from, to] = [Math.max(tokens[0], row.tokenIds.length), tokens[1]];
    if (from < to) row.observed.push({ from, to, weight });
  }
}

/** Sampling logprobs are kept only if they differ. */
function finish(row: GrowingRow): TokenRow {
  const { tokenIds, lossMask, behaviorLogprobs, samplingLogprobs, sampledAt, observed } = row;
  const isOwn = samplingLogprobs.some((logprob, t) => logprob !== behaviorLogprobs[t]);
  return {
    tokenIds,
    lossMask,
    ...(isWhole(behaviorLogprobs) ? { behaviorLogprobs } : {}),
    ...(isOwn && isWhole(samplingLogprobs) ? { samplingLogprobs } : {}),
    sampledAt,
    ...(observed.length === 0 ? {} : { observed }),
  };
}

function isWhole(values: readonly (number | null)[]): values is readonly number[] {
  return !values.includes(null);
}

/** Appends a turn to a row: the rest of its prompt, then the sampled tokens. */
function extend(row: GrowingRow, turn: Turn, first: number): GrowingRow {
  for (const tokenId of turn.promptTokenIds.slice(row.tokenIds.length)) append(row, { ...context, tokenId });
  for (const [i, tokenId] of turn.tokenIds.entries()) {
    // The first token of a row has nothing before it, so no model gives it a probability.
    const logprob = turn.logprobs === null ? null : turn.logprobs[i]!;
    const samplingLogprob = turn.samplingLogprobs?.[i] ?? logprob;
    if (row.tokenIds.length === 0) append(row, { ...context, tokenId });
    else append(row, { tokenId, mask: 1, logprob, samplingLogprob, sampledAt: first + i });
  }
  return row;
}

/** Values of a token that was given, not sampled. */
const context = { mask: 0, logprob: 0, samplingLogprob: 0, sampledAt: -1 } as const;

function append(
  row: GrowingRow,
  token: {
    tokenId: number;
    mask: 0 | 1;
    logprob: number | null;
    samplingLogprob: number | null;
    sampledAt: number;
  },
): void {
  row.tokenIds.push(token.tokenId);
  row.lossMask.push(token.mask);
  row.behaviorLogprobs.push(token.logprob);
  row.samplingLogprobs.push(token.samplingLogprob);
  row.sampledAt.push(token.sampledAt);
}

function firstTokens(row: TokenRow, count: number): TokenRow {
  const { tokenIds, lossMask, behaviorLogprobs, samplingLogprobs, sampledAt, observed } = row;
  return {
    tokenIds: tokenIds.slice(0, count),
    lossMask: lossMask.slice(0, count),
    ...present({
      behaviorLogprobs: behaviorLogprobs?.slice(0, count),
      samplingLogprobs: samplingLogprobs?.slice(0, count),
      observed: observed?.flatMap(({ from, to, weight }) =>
        from < count ? [{ from, to: Math.min(to, count), weight }] : [],
      ),
    }),
    sampledAt: sampledAt.slice(0, count),
  };
}

/** From the end: rows of one rollout begin with the same tokens. */
function startsWith(tokens: readonly number[], prefix: readonly number[]): boolean {
  if (prefix.length > tokens.length) return false;
  for (let i = prefix.length - 1; i >= 0; i--) if (prefix[i] !== tokens[i]) return false;
  return true;
}
