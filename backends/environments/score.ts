import { present } from '../../core/present.ts';
import { setTimeout as delay } from 'node:timers/promises';
import { judgeAttemptsMax, judgeRetryMs, tracebackCharsMax } from '../../core/limits.ts';
import { contentOf, isRewardedOutcome } from '../../core/rl/rollout/rollout.ts';
import type {
  ChatMessage,
  Example,
  FailedOutcome,
  Rollout,
  ScoredRollout,
  Turn,
} from '../../core/rl/rollout/rollout.ts';
import { withoutSecrets } from '../../config/toml/secrets.ts';
import { secretsHere } from './variables.ts';
import type { Environment, RewardFunction, RewardInput } from './types.ts';

/**
 * Scores a stored rollout with its environment's rubric: reward = Σ weight · score. Only outcomes that carry a reward
 * are scored. A reward function is called again if it throws, returns no finite number, or does not return within
 * `timeoutMs`. If it keeps failing, the rollout is a `judge_failure` without a reward. Its tokens stay valid and may be
 * scored again.
 */
export async function scoreRollout(
  environment: Pick<Environment, 'rubric' | 'stateAfter'>,
  example: Example,
  rollout: Rollout,
  { timeoutMs = Infinity }: ScoreOptions = {},
): Promise<ScoredRollout> {
  const { outcome } = rollout;
  if (!isRewardedOutcome(outcome)) return { ...rollout, outcome, reward: null, metrics: {} };
  const { turns } = rollout;
  const metrics: Record<string, number> = {};
  let reward = 0;
  let turnRewards: number[] | undefined;
  try {
    const state = await rebuildState(environment, example, turns, timeoutMs);
    const input = {
      example,
      turns,
      completion: turns.length === 0 ? '' : contentOf(turns.at(-1)!),
      messages: conversationOf(example, turns, contentOf),
      state,
    };
    for (const judge of environment.rubric.functions) {
      const score = await scorePatiently(judge, input, timeoutMs);
      const sum = typeof score === 'number' ? score : score.reduce((total, value) => total + value, 0);
      metrics[judge.name] = sum;
      reward += judge.weight * sum;
      if (typeof score === 'number') continue;
      turnRewards = turns.map((_, k) => (turnRewards?.[k] ?? 0) + judge.weight * score[k]!);
    }
    if (!Number.isFinite(reward)) {
      throw new JudgeFailure(`The weighted sum of ${Object.keys(metrics).join(', ')} is ${reward}.`);
    }
  } catch (error) {
    if (!(error instanceof JudgeFailure)) throw error;
    return { ...rollout, outcome: 'judge_failure', error: error.message, reward: null, metrics };
  }
  return { ...rollout, outcome, reward, metrics, ...present({ turnRewards }) };
}

export interface ScoreOptions {
  readonly timeoutMs?: number;
  readonly signal?: AbortSignal;
}

type SaidTurn = Pick<Turn, 'heard' | 'text' | 'content'>;

/**
 * The conversation of a rollout: its prompt, then environment and policy in turn, entirely or the part that `read`
 * returns.
 */
export function conversationOf(
  example: Example,
  turns: readonly SaidTurn[],
  read: (turn: SaidTurn) => string = ({ text }) => text,
): ChatMessage[] {
  const said = turns.flatMap((turn) => [...(turn.heard ?? []), { role: 'assistant' as const, content: read(turn) }]);
  return [...example.prompt, ...said];
}

async function rebuildState(
  environment: Pick<Environment, 'stateAfter'>,
  example: Example,
  turns: readonly Turn[],
  timeoutMs: number,
): Promise<unknown> {
  try {
    return await inTime(environment.stateAfter?.(example, turns), timeoutMs);
  } catch (error) {
    throw new JudgeFailure(`The state after the rollout cannot be made again: ${tracebackOf(error)}`);
  }
}

class JudgeFailure extends Error {}

/** One finite number, or one for each turn, with a few retries: judges are services too. */
async function scorePatiently(
  judge: RewardFunction,
  rollout: RewardInput,
  timeoutMs: number,
): Promise<number | readonly number[]> {
  for (let attempt = 1; ; attempt++) {
    try {
      const score: unknown = await inTime(judge.score(rollout), timeoutMs);
      if (typeof score === 'number' && Number.isFinite(score)) return score;
      if (isOfTurns(score, rollout.turns.length)) return score;
      const wanted = Array.isArray(score) ? `${rollout.turns.length} finite numbers, one per turn` : 'a finite number';
      throw new TypeError(`expected ${wanted}, received ${String(score)}`);
    } catch (error) {
      if (attempt === judgeAttemptsMax)
        throw new JudgeFailure(`Reward function "${judge.name}": ${tracebackOf(error)}`);
      await delay(judgeRetryMs * 2 ** (attempt - 1));
    }
  }
}

function isOfTurns(score: unknown, turns: number): score is readonly number[] {
  return Array.isArray(score) && score.length === turns && score.every((value) => Number.isFinite(value));
}

/** Throws when the result takes longer. */
export async function inTime<T>(work: T | Promise<T>, timeoutMs: number): Promise<T> {
  if (!(work instanceof Promise) || timeoutMs === Infinity) return work;
  const over = new AbortController();
  const late = delay(timeoutMs, undefined, { signal: over.signal }).then(() => {
    throw new Error(`no answer within generation_timeout = ${timeoutMs / 1000} s`);
  });
  try {
    return await Promise.race([work, late]);
  } finally {
    over.abort();
  }
}

/** A failure for storage: message and stack, bounded, without the secrets of this process. */
export function tracebackOf(error: unknown): string {
  const text = error instanceof Error ? (error.stack ?? String(error)) : String(error);
  return withoutSecrets(text, secretsHere()).slice(0, tracebackCharsMax);
}

/** Message for a rollout that reached the `timeout` of its [[env]]. */
export function tookLonger(seconds: number): string {
  return `Not finished after ${seconds} s, the timeout of its [[env]].`;
}

/** A rollout that failed or was given up. */
export function failedRollout(
  place: Pick<Rollout, 'group' | 'index' | 'exampleId' | 'turns'>,
  outcome: FailedOutcome,
  error: string,
): Rollout {
  return { ...place, outcome, error };
}
