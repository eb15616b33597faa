import { present } from '../../core/present.ts';
import { setTimeout as delay } from 'node:timers/promises';
import { judgeAttemptsMax, judgeRetryMs } from '../../core/limits.ts';
import { type Example, isRewardedOutcome, type Judgement, type Rollout } from '../../core/rl/rollout/rollout.ts';
import type { RewardedOutcome, ScoredRollout } from '../../core/rl/rollout/rollout.ts';
import { type ScoreOptions, inTime, scoreRollout, tracebackOf } from './score.ts';
import type { Environment, JudgeOptions } from './types.ts';

/** The part of an environment that scoring needs. */
type Scoring = Pick<Environment, 'rubric' | 'stateAfter' | 'judge'>;

/**
 * Scores the stored rollouts of one example: each by itself with the rubric, or all rewarded ones together if the
 * environment judges by itself. Rollouts that were judged in place keep their judgement. `onScored` is called for each
 * as soon as its score is known.
 */
export async function scoreGroup(
  environment: Scoring,
  example: Example,
  rollouts: readonly Rollout[],
  options: ScoreOptions & Pick<JudgeOptions, 'dataset'>,
): Promise<ScoredRollout[]> {
  const { judge } = environment;
  const together = judge ? rollouts.filter((one) => isRewardedOutcome(one.outcome) && !one.judged) : [];
  const judgements = judge && together.length > 0 ? await judgePatiently({ judge }, example, together, options) : [];
  const judged = new Map(together.map((rollout, i) => [rollout, judgements[i]]));
  return Promise.all(
    rollouts.map(async (rollout) => {
      const judgement = rollout.judged ?? judged.get(rollout);
      return judgement ? withJudgement(rollout, judgement) : scoreRollout(environment, example, rollout, options);
    }),
  );
}

function withJudgement(rollout: Rollout, judgement: Judgement): ScoredRollout {
  const { outcome } = rollout;
  if (!isRewardedOutcome(outcome)) return { ...rollout, outcome, reward: null, metrics: {} };
  return rewarded(rollout, outcome, judgement);
}

function rewarded(rollout: Rollout, outcome: RewardedOutcome, judgement: Judgement): ScoredRollout {
  const wrong = whyWrong(judgement);
  if (wrong !== null) return { ...rollout, outcome: 'judge_failure', error: wrong, reward: null, metrics: {} };
  const { reward, metrics, turnRewards, raised, scoredS, traces } = judgement as Exclude<Judgement, { error: string }>;
  return { ...rollout, outcome, reward, metrics, ...present({ turnRewards, raised, scoredS, traces }) };
}

/** Checks an environment's judgement; null = it is valid. */
function whyWrong(judgement: Judgement | undefined): string | null {
  if (judgement === undefined) return 'The environment gave no judgement of this rollout.';
  if ('error' in judgement) return judgement.error;
  const { reward, metrics, turnRewards = [], traces = [] } = judgement;
  const numbers = [
    ...Object.entries({ ...metrics, reward }),
    ...turnRewards.map((value) => ['a turn', value] as const),
    ...traces.map((trace) => [`the reward of ${trace.agent}`, trace.reward] as const),
  ];
  const strange = numbers.find(([, value]) => typeof value !== 'number' || !Number.isFinite(value));
  return strange ? `${strange[0]}: expected a finite number, received ${String(strange[1])}` : null;
}

/** Retries with growing pauses while it throws or returns any error. */
async function judgePatiently(
  { judge }: Required<Pick<Environment, 'judge'>>,
  example: Example,
  rollouts: readonly Rollout[],
  { timeoutMs = Infinity, dataset, signal }: ScoreOptions & JudgeOptions,
): Promise<readonly Judgement[]> {
  for (let attempt = 1; ; attempt++) {
    const late = AbortSignal.any([
      ...(signal ? [signal] : []),
      ...(timeoutMs === Infinity ? [] : [AbortSignal.timeout(timeoutMs)]),
    ]);
    const judgements = await inTime(judge(example, rollouts, { dataset, signal: late }), timeoutMs).catch(
      (error: unknown): Judgement[] => {
        signal?.throwIfAborted();
        return rollouts.map(() => ({ error: `The environment could not score it: ${tracebackOf(error)}` }));
      },
    );
    const isGood = rollouts.every((_, i) => whyWrong(judgements[i]) === null);
    if (isGood || attempt === judgeAttemptsMax) return judgements;
    await delay(judgeRetryMs * 2 ** (attempt - 1), undefined, { signal });
  }
}
