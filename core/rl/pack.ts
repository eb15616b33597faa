import { type AdvantageFunction, type AdvantageKind, customAdvantages, groupAdvantages } from './advantage.ts';
import type { TrainBatch, TrainSample } from './batch.ts';
import type { ScoredGroup, ScoredRollout, Turn } from './rollout.ts';

/** From scored groups to the rows a trainer gets. */

export interface PackStats {
  readonly groups: number;
  /** Rollouts with a reward; those without are not trained. */
  readonly rollouts: number;
  readonly rows: number;
  readonly totalTokens: number;
  /** Tokens that count in the loss. */
  readonly trainedTokens: number;
  /** Of those, tokens whose advantage is not 0. Without any, the batch teaches nothing. */
  readonly signalTokens: number;
}

/**
 * Packs groups by ordinal and rollouts by index, whatever the order they arrived in. Turns that only append to the
 * conversation (turn k+1's prompt begins with all of turn k's tokens) share one row with several trained spans; a turn
 * that rewrites the past, as templates that strip reasoning do, begins a row of its own. Every sampled token has its
 * rollout's advantage.
 */
export function packSamples(
  groups: readonly ScoredGroup[],
  options: { readonly advantage: AdvantageKind | AdvantageFunction },
): { readonly batch: TrainBatch; readonly stats: PackStats } {
  const samples: TrainSample[] = [];
  let rollouts = 0;
  for (const group of groups.toSorted((a, b) => a.ordinal - b.ordinal)) {
    const inOrder = group.rollouts.toSorted((a, b) => a.index - b.index);
    const rewards = inOrder.map(({ reward }) => reward);
    const advantages =
      typeof options.advantage === 'string'
        ? groupAdvantages(rewards, options.advantage)
        : customAdvantages({ ...group, rollouts: inOrder }, options.advantage);
    for (const [i, advantage] of advantages.entries()) {
      if (rewards[i] === null) continue;
      requireFinite(inOrder[i]!, advantage);
      rollouts += 1;
      samples.push(...rolloutRows(inOrder[i]!, advantage));
    }
  }
  const totalTokens = sum(samples.map(({ tokenIds }) => tokenIds.length));
  const trainedTokens = sum(samples.map(({ lossMask }) => sum(lossMask)));
  const signalTokens = sum(samples.map(countSignal));
  return {
    batch: { samples },
    stats: { groups: groups.length, rollouts, rows: samples.length, totalTokens, trainedTokens, signalTokens },
  };
}

function countSignal({ lossMask, advantages }: TrainSample): number {
  return lossMask.filter((mask, t) => mask === 1 && advantages[t] !== 0).length;
}

/** Whatever came before, nothing that is not a finite number enters a batch. */
function requireFinite(rollout: ScoredRollout, advantage: number): void {
  const logprobs = rollout.turns.flatMap((turn) => [...turn.logprobs, ...(turn.samplingLogprobs ?? [])]);
  for (const [what, values] of [
    ['reward', [rollout.reward]],
    ['advantage', [advantage]],
    ['log probability', logprobs],
  ] as const) {
    const strange = values.find((value) => !Number.isFinite(value));
    if (strange === undefined) continue;
    throw new Error(`Rollout ${rollout.group}/${rollout.index} has the ${what} ${strange}, which must not be trained.`);
  }
}

/** A row that is still growing. */
interface Row {
  tokenIds: number[];
  lossMask: number[];
  behaviorLogprobs: number[];
  samplingLogprobs: number[];
  advantages: number[];
}

function rolloutRows(rollout: ScoredRollout, advantage: number): TrainSample[] {
  const rows: Row[] = [];
  for (const turn of rollout.turns) {
    if (turn.tokenIds.length !== turn.logprobs.length) {
      throw new Error(
        `Rollout ${rollout.group}/${rollout.index} has ${turn.tokenIds.length} sampled tokens but ${turn.logprobs.length} logprobs.`,
      );
    }
    const open = rows.at(-1);
    if (open !== undefined && startsWith(turn.promptTokenIds, open.tokenIds)) extend(open, turn, advantage);
    else rows.push(extend(emptyRow(), turn, advantage));
  }
  return rows.filter(({ lossMask }) => lossMask.includes(1)).map(finish);
}

function emptyRow(): Row {
  return { tokenIds: [], lossMask: [], behaviorLogprobs: [], samplingLogprobs: [], advantages: [] };
}

/** Sampling logprobs are kept where they say something of their own. */
function finish({ samplingLogprobs, ...row }: Row): TrainSample {
  const isOwn = samplingLogprobs.some((logprob, t) => logprob !== row.behaviorLogprobs[t]);
  return isOwn ? { ...row, samplingLogprobs } : row;
}

/** Appends what the turn adds to a row: the rest of its prompt, then what was sampled. */
function extend(row: Row, turn: Turn, advantage: number): Row {
  for (const tokenId of turn.promptTokenIds.slice(row.tokenIds.length)) append(row, { ...context, tokenId });
  for (const [i, tokenId] of turn.tokenIds.entries()) {
    // The first token of a row has nothing before it, so no model gives it a probability.
    const logprob = turn.logprobs[i]!;
    const samplingLogprob = turn.samplingLogprobs?.[i] ?? logprob;
    if (row.tokenIds.length === 0) append(row, { ...context, tokenId });
    else append(row, { tokenId, mask: 1, logprob, samplingLogprob, advantage });
  }
  return row;
}

interface RowToken {
  readonly tokenId: number;
  readonly mask: 0 | 1;
  readonly logprob: number;
  readonly samplingLogprob: number;
  readonly advantage: number;
}

/** Of a token that was given, not sampled. */
const context = { mask: 0, logprob: 0, samplingLogprob: 0, advantage: 0 } as const;

function append(row: Row, token: RowToken): void {
  row.tokenIds.push(token.tokenId);
  row.lossMask.push(token.mask);
  row.behaviorLogprobs.push(token.logprob);
  row.samplingLogprobs.push(token.samplingLogprob);
  row.advantages.push(token.advantage);
}

function startsWith(tokens: readonly number[], prefix: readonly number[]): boolean {
  return prefix.length <= tokens.length && prefix.every((token, i) => token === tokens[i]);
}

function sum(values: readonly number[]): number {
  return values.reduce((total, value) => total + value, 0);
}
