import { z } from 'zod';
import { Datum } from './engine.ts';

/** Requests, in SkyRL's words. */

const losses = ['cross_entropy', 'importance_sampling', 'ppo', 'cispo', 'ppo_critic', 'dppo'] as const;
export const LossInput = z.object({
  data: z.array(Datum),
  loss_fn: z.enum(losses),
  loss_fn_config: z.record(z.string(), z.number()).nullish(),
});
export const Pass = z.object({ model_id: z.string(), forward_backward_input: LossInput });
export const Forward = z.object({ model_id: z.string(), forward_input: LossInput });
export const Adam = z.object({
  learning_rate: z.number().min(0).default(1e-4),
  beta1: z.number().default(0.9),
  beta2: z.number().default(0.95),
  eps: z.number().positive().default(1e-12),
  weight_decay: z.number().default(0),
});
/** `POST /stand_in`: faults to simulate. */
export const Wrong = z.object({ endSessions: z.literal(true) });
export const name = z.string().regex(/^[a-zA-Z0-9_-]+$/);
export const SampleWish = z.object({
  model_path: z.string().nullish(),
  sampling_session_id: z.string().nullish(),
  prompt: Datum.shape.model_input,
  prompt_logprobs: z.boolean().nullish(),
  sampling_params: z.object({
    max_tokens: z.int().positive(),
    seed: z
      .int()
      .min(0)
      .max(2 ** 31 - 1)
      .default(0),
    temperature: z.number().default(1),
    stop: z.array(z.int()).nullish(),
    top_k: z.int().default(-1),
    top_p: z.number().default(1),
  }),
});
