import type { ChatMessage } from '../../core/rl/rollout/rollout.ts';
import type { Judge } from './judge.ts';
import { requireKnownOptions } from './known-options.ts';
import { lastNumber } from './parsers.ts';
import type { RewardFunction, RewardInput } from './types.ts';

interface JudgeRewardOptions<State> {
  readonly name: string;
  readonly weight: number;
  readonly judge: Judge;
  /** Builds the judge's prompt for a rollout. */
  readonly prompt: (rollout: RewardInput<State>) => string | readonly ChatMessage[];
  /** The score in an answer; undefined when there is none. Default: its last number. */
  readonly parse?: (answer: string) => number | undefined;
}

/** A reward function that asks a judge. An unusable answer, like a failing judge, is a `judge_failure`. */
export function judgeReward<State = unknown>(options: JudgeRewardOptions<State>): RewardFunction<State> {
  requireKnownOptions<JudgeRewardOptions<State>>('judgeReward(…)', options, {
    name: true,
    weight: true,
    judge: true,
    prompt: true,
    parse: true,
  });
  const { name, weight, judge, prompt, parse = lastNumber } = options;
  return {
    name,
    weight,
    async score(rollout) {
      const answer = await judge.ask(prompt(rollout));
      const score = parse(answer);
      if (score !== undefined) return score;
      throw new Error(`the judge's answer has no score in it: ${JSON.stringify(answer.slice(0, 200))}`);
    },
  };
}
