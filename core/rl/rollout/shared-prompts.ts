import type { Turn } from './rollout.ts';

/**
 * Turns as they are stored: each token of a conversation once. The prompt of a turn is most often an earlier turn's
 * prompt with what was sampled, and a little more. So it refers to that turn.
 */
export type SharedTurn =
  | (Turn & { readonly prompt?: undefined })
  | (Omit<Turn, 'promptTokenIds'> & { readonly prompt: SharedPrompt });

/** The prompt begins as an earlier turn of the rollout: with its prompt, then the ids that it sampled. */
export interface SharedPrompt {
  /** Position of that turn, from 0. */
  readonly as: number;
  /** Number of ids in common. */
  readonly take: number;
  /** The rest of the prompt. */
  readonly rest: readonly number[];
}

/** Earlier turns that are compared: a branch often continues a turn that is not the last one. */
const comparedMax = 32;
/** A reference takes about as many bytes as so many ids. */
const worthIds = 8;

/** The prompt in terms of earlier turns; null if it has little in common with any. */
export function sharePrompt(promptTokenIds: readonly number[], earlier: readonly Turn[]): SharedPrompt | null {
  let best: { readonly as: number; readonly take: number } | null = null;
  const last = Math.max(0, earlier.length - comparedMax);
  for (let as = earlier.length - 1; as >= last; as--) {
    const turn = earlier[as]!;
    const take = inCommon(promptTokenIds, turn);
    if (take > (best?.take ?? worthIds)) best = { as, take };
    if (take === turn.promptTokenIds.length + turn.tokenIds.length) break; // it continues this turn
  }
  return best && { ...best, rest: promptTokenIds.slice(best.take) };
}

/** The ids of a shared prompt; null if the earlier turns cannot have been those that it was shared with. */
export function wholePrompt({ as, take, rest }: SharedPrompt, earlier: readonly Turn[]): number[] | null {
  const turn = earlier[as];
  if (turn === undefined || take > turn.promptTokenIds.length + turn.tokenIds.length) return null;
  const own = turn.promptTokenIds.slice(0, take);
  return [...own, ...turn.tokenIds.slice(0, take - own.length), ...rest];
}

export function sharePrompts(turns: readonly Turn[]): SharedTurn[] {
  return turns.map((turn, i) => {
    const prompt = i === 0 ? null : sharePrompt(turn.promptTokenIds, turns.slice(0, i));
    if (prompt === null) return turn;
    const { promptTokenIds: _, ...rest } = turn;
    return { prompt, ...rest };
  });
}

/** Turns with whole prompts; null if a shared prompt refers to something that is not there. */
export function wholePrompts(stored: readonly SharedTurn[]): Turn[] | null {
  const turns: Turn[] = [];
  for (const one of stored) {
    if (one.prompt === undefined) {
      turns.push(one);
      continue;
    }
    const { prompt, ...rest } = one;
    const promptTokenIds = wholePrompt(prompt, turns);
    if (promptTokenIds === null) return null;
    turns.push({ promptTokenIds, ...rest });
  }
  return turns;
}

function inCommon(promptTokenIds: readonly number[], { promptTokenIds: before, tokenIds }: Turn): number {
  const length = Math.min(promptTokenIds.length, before.length + tokenIds.length);
  for (let i = 0; i < length; i++) {
    if (promptTokenIds[i] !== (i < before.length ? before[i] : tokenIds[i - before.length])) return i;
  }
  return length;
}
