import { z } from 'zod';
import { atLeastZero, whole } from '../toml/values.ts';
import { costModels, PricedModels } from './budgets.ts';
import { setting, specFields } from './setting.ts';

const label = () =>
  z
    .string()
    .regex(/^\S{1,12}$/u)
    .meta({ expected: 'a short word without blanks, such as "EUR"' });

/** Prices are set by the user: none are known here. They make a run count money beside tokens and hours. */
export const cost = {
  currency: setting(label(), 'what prices are in; only a name', { default: 'USD' }),
  prompt: setting(
    atLeastZero(),
    'price of a million prompt tokens of the server that samples, in training, evaluations and prompt searches',
  ),
  completion: setting(
    atLeastZero(),
    'price of a million tokens that it samples; those that a fault lost are among them',
  ),
  trained: setting(atLeastZero(), 'price of a million tokens of the rows that are trained, in every pass over them'),
  teacher: setting(atLeastZero(), 'price of a million tokens that the teacher scores'),
  reflection_prompt: setting(
    atLeastZero(),
    'price of a million prompt tokens of the model that writes prompts anew (`[gepa]`)',
  ),
  reflection_completion: setting(atLeastZero(), 'price of a million tokens that this model writes'),
  gpu_hour: setting(atLeastZero(), 'price of an hour of one GPU worker; hours are those of the steps'),
  gpu_workers: setting(whole(0), 'GPU workers that are paid for while the run makes steps', { default: 1 }),
  rollout_hour: setting(atLeastZero(), 'price of an hour of one rollout worker'),
  rollout_workers: setting(whole(0), 'rollout workers that are paid for while the run makes steps', { default: 1 }),
};
/** As it is written: with the prices of other models. */
export const costTable = { ...cost, models: costModels };
export const CostSpec = z.strictObject({
  ...specFields(cost),
  /** Of models beside the policy; missing = none. */
  models: PricedModels.optional(),
});
export type CostSpec = z.infer<typeof CostSpec>;
