import { z } from 'zod';
import { usualWeightMax } from '../../core/rl/correction.ts';
import { atLeastZero, choice, positive } from '../values.ts';
import { inSpec, setting, specFields, table, type WrittenIn } from './setting.ts';

/** `[trainer.correction]`: what makes good that tokens were drawn from another distribution than the one that is trained. */

const bounds = () =>
  z
    .tuple([z.number().min(0), z.number().positive()])
    .refine(([low, high]) => low < high)
    .meta({ expected: 'two numbers, [least, largest]' });

const fields = {
  weight: setting(
    choice('token', 'sequence', 'none'),
    'what an advantage is multiplied by: the old policy’s probability over the sampler’s, of each token, or the product over its row, or nothing',
    { default: 'token' },
  ),
  weight_min: setting(atLeastZero(), 'the weight is at least this', { neutral: 0 }),
  weight_max: setting(positive(), 'the weight is at most this (truncated importance sampling)', {
    default: usualWeightMax,
  }),
  token_mask: setting(
    bounds(),
    'tokens whose ratio of the policy that the step begins from to the sampler lies outside have the weight 0',
  ),
  sequence_mask: setting(bounds(), 'rows whose product of these ratios lies outside'),
  geometric_mask: setting(bounds(), 'rows whose geometric mean of them lies outside'),
  extreme_mask: setting(bounds(), 'rows with a token whose ratio lies outside'),
};
export const correction = table(fields);

/** The formulas stand in core/rl/correction.ts. */
export const CorrectionSpec = z.strictObject(specFields(fields));
export type CorrectionSpec = z.infer<typeof CorrectionSpec>;

export function correctionSpec(written: WrittenIn<typeof fields>): CorrectionSpec {
  return inSpec(fields, written);
}
