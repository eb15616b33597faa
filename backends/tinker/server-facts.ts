import { z } from 'zod';

/** Settings of Adam that a server may take no notice of, by the names of a run file. */
export const adamSettings = ['beta1 and beta2', 'epsilon', 'weight_decay'] as const;
export type AdamSetting = (typeof adamSettings)[number];

/** How a server makes one number of the losses of tokens: see batch.ts. */
export const reductions = ['sum', 'row_mean', 'token_mean', 'sequence_mean'] as const;

export const ServerLoss = z.strictObject({
  reduction: z.enum(reductions),
  /** What a mean is over: all rows before an optimizer step, or those of one request, whose gradients add up. */
  over: z.enum(['step', 'request']),
  /** What its losses are linear in: the weights of cross_entropy, or advantages, where weights cancel out in a mean. */
  linearIn: z.enum(['weights', 'advantages']),
});
export type ServerLoss = z.infer<typeof ServerLoss>;

/** Losses of the API with a factor of their own, which a server may compute in another way, or not at all. */
export const policyLosses = ['importance_sampling', 'ppo', 'cispo'] as const;
export type PolicyLoss = (typeof policyLosses)[number];

/** What a server was found to do, by asking it: see measure.ts. */
export const ServerFacts = z.strictObject({
  /** null = it tells neither a gradient's norm nor a loss. */
  loss: ServerLoss.nullable(),
  /** Losses that it computes as the API says; others are computed here. null = could not be measured. */
  losses: z.array(z.enum(policyLosses)).nullable(),
  /** Whether it held a second model beside the first. */
  models: z.enum(['one', 'several']),
  /**
   * What a sampler's path is sampled from: its own weights; those as well, which thereby replace what is in training; or
   * what was saved for the sampler last from its model.
   */
  sampling: z.enum(['apart', 'in the model', 'latest']),
  ignored: z.array(z.enum(adamSettings)),
  /** What could not be found out. */
  unknown: z.array(z.enum(adamSettings)),
});
export type ServerFacts = z.infer<typeof ServerFacts>;

/** A server's loss by its reduction alone, where nothing else is known. */
export function lossBy(reduction: ServerLoss['reduction']): ServerLoss {
  const linearIn = reduction === 'sum' || reduction === 'row_mean' ? 'weights' : 'advantages';
  return { reduction, over: 'step', linearIn };
}
