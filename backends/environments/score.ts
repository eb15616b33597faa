import { setTimeout as delay } from 'node:timers/promises';
import { judgeAttemptsMax, judgeRetryMs, tracebackCharsMax } from '../../core/limits.ts';
import { isRewardedOutcome } from '../../core/rl/rollout.ts';
import type { Example, FailedOutcome, Rollout, ScoredRollout } from '../../core/rl/rollout.ts';
import { secretValues, withoutSecrets } from '../../core/spec/secrets.ts';
import type { Environment, RewardFunction } from './types.ts';

/**
 * Scores a stored rollout with its environment's rubric: reward = Σ weight · score. Only outcomes that carry a reward
 * are looked at. A reward function that throws, answers with something that is not a finite number, or does not answer within
 * `timeoutMs`, is asked again; if it goes on, the rollout is a `judge_failure` without a reward. The tokens stay good and may
 * be scored again.
 */
export async function scoreRollout(
  environment: Pick<Environment, 'rubric'>,
  example: Example,
  rollout: Rollout,
  { timeoutMs = Infinity }: { readonly timeoutMs?: number } = {},
): Promise<ScoredRollout> {
  const { outcome } = rollout;
  if (!isRewardedOutcome(outcome)) return { ...rollout, outcome, reward: null, metrics: {} };
  const completion = rollout.turns.at(-1)?.text ?? '';
  const metrics: Record<string, number> = {};
  let reward = 0;
  try {
    for (const judge of environment.rubric.functions) {
      const score = await scorePatiently(judge, { example, turns: rollout.turns, completion }, timeoutMs);
      metrics[judge.name] = score;
      reward += judge.weight * score;
    }
    if (!Number.isFinite(reward)) {
      throw new JudgeFailure(`The weighted sum of ${Object.keys(metrics).join(', ')} is ${reward}.`);
    }
  } catch (error) {
    if (!(error instanceof JudgeFailure)) throw error;
    return { ...rollout, outcome: 'judge_failure', error: error.message, reward: null, metrics };
  }
  return { ...rollout, outcome, reward, metrics };
}

class JudgeFailure extends Error {}

/** One finite number, asked for a few times: judges are services too. */
async function scorePatiently(
  judge: RewardFunction,
  rollout: Parameters<RewardFunction['score']>[0],
  timeoutMs: number,
): Promise<number> {
  for (let attempt = 1; ; attempt++) {
    try {
      const score: unknown = await inTime(judge.score(rollout), timeoutMs);
      if (typeof score === 'number' && Number.isFinite(score)) return score;
      throw new TypeError(`expected a finite number, received ${String(score)}`);
    } catch (error) {
      if (attempt === judgeAttemptsMax)
        throw new JudgeFailure(`Reward function "${judge.name}": ${tracebackOf(error)}`);
      await delay(judgeRetryMs * 2 ** (attempt - 1));
    }
  }
}

async function inTime<T>(work: T | Promise<T>, timeoutMs: number): Promise<T> {
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

/** A failure as it may be kept: message and stack, bounded, without the secrets of this process. */
export function tracebackOf(error: unknown): string {
  const text = error instanceof Error ? (error.stack ?? String(error)) : String(error);
  return withoutSecrets(text, secretValues(process.env)).slice(0, tracebackCharsMax);
}

/** A rollout that its environment gave up, or that was given up. */
export function failedRollout(
  place: Pick<Rollout, 'group' | 'index' | 'exampleId' | 'turns'>,
  outcome: FailedOutcome,
  error: string,
): Rollout {
  return { ...place, outcome, error };
}
