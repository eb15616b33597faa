import { z } from 'zod';
import { atLeastZero, positive, whole } from '../toml/values.ts';
import { inSpec, optionalTable, setting, specFields, type WrittenIn } from './setting.ts';

/**
 * `[trainer.length_penalty]` and `[trainer.overlong_penalty]`: penalties on rewards for length. Formulas:
 * core/rl/learning/length-penalty.ts.
 */

const weights = {
  output_tokens: setting(atLeastZero(), 'weight of sampled tokens ÷ the most of the group, times its mean reward', {
    neutral: 0,
  }),
  input_tokens: setting(atLeastZero(), 'the same of tokens that were not sampled: prompts, answers of tools', {
    neutral: 0,
  }),
  turns: setting(atLeastZero(), 'the same of turns', { neutral: 0 }),
};
export const lengthPenalty = optionalTable(weights);
export const LengthPenaltySpec = z.strictObject(specFields(weights));

const overlong = {
  max_tokens: setting(whole(1), 'tokens of an answer at which it loses `factor`', { default: 1024 }),
  buffer: setting(whole(1), 'the last tokens before that, over which the loss grows from 0', { default: 256 }),
  factor: setting(positive(), 'of the reward, at `max_tokens`', { default: 1 }),
};
export const overlongPenalty = optionalTable(overlong);
export const OverlongPenaltySpec = z.strictObject(specFields(overlong));

export function lengthPenaltySpec(
  written: WrittenIn<typeof weights> | undefined,
): z.infer<typeof LengthPenaltySpec> | null {
  return written === undefined ? null : inSpec(weights, written);
}

export function overlongPenaltySpec(
  written: WrittenIn<typeof overlong> | undefined,
): z.infer<typeof OverlongPenaltySpec> | null {
  return written === undefined ? null : inSpec(overlong, written);
}
