import { z } from 'zod';
import { present } from '../../core/present.ts';
import { defaultWeightMax } from '../../core/rl/learning/correction.ts';
import { divergenceNames } from '../../core/settings/learning.ts';
import { atLeastZero, choice, positive } from '../toml/values.ts';
import { inSpec, optionalTable, setting, specFields, table, type WrittenIn } from './setting.ts';

/** `[trainer.correction]`: corrects for tokens that were sampled from another distribution than the one in training. */

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
    default: defaultWeightMax,
  }),
  token_mask: setting(
    bounds(),
    'tokens whose ratio of the policy that the step begins from to the sampler lies outside have the weight 0',
  ),
  sequence_mask: setting(bounds(), 'rows whose product of these ratios lies outside'),
  geometric_mask: setting(bounds(), 'rows whose geometric mean of them lies outside'),
  extreme_mask: setting(bounds(), 'rows with a token whose ratio lies outside'),
};

const divergence = (what: string) => setting(positive(), what, { isLeftOut: true });
/** Names of verl's `rollout_rs`. */
const divergences = {
  token_k2: divergence(
    'tokens whose k2 = (ln r)² / 2 is larger have the weight 0, r the policy that the step begins from over the sampler',
  ),
  token_k3: divergence('the same of k3 = r − 1 − ln r'),
  seq_sum_k2: divergence('rows in which the sum of k2 is larger'),
  seq_sum_k3: divergence('rows in which the sum of k3 is'),
  seq_mean_k2: divergence('rows in which its mean is'),
  seq_mean_k3: divergence('rows in which that of k3 is'),
  seq_max_k2: divergence('rows with a token whose k2 is larger'),
  seq_max_k3: divergence('rows with a token whose k3 is'),
};
export const correction = table({ ...fields, divergence_mask: optionalTable(divergences) });
type Written = WrittenIn<typeof fields> & { readonly divergence_mask?: WrittenIn<typeof divergences> | undefined };

/** Formulas: core/rl/learning/correction.ts. */
export const CorrectionSpec = z.strictObject({
  ...specFields(fields),
  /** Upper bound of each divergence; absent = unbounded. */
  divergenceMask: z.partialRecord(z.enum(divergenceNames), z.number().positive()).optional(),
});
export type CorrectionSpec = z.infer<typeof CorrectionSpec>;

export function correctionSpec({ divergence_mask: most, ...written }: Written): CorrectionSpec {
  return { ...inSpec(fields, written), ...(most === undefined ? {} : { divergenceMask: present(most) }) };
}
