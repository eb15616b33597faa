import type { z } from 'zod';
import type { LossRequest } from './engine.ts';
import type { LossInput } from './words.ts';

/** A server that knows cross_entropy alone computes it whatever is asked for. */
export function lossRequest(input: z.infer<typeof LossInput>, isOnlyCrossEntropy = false): LossRequest {
  if (isOnlyCrossEntropy) return { data: input.data, loss_fn: 'cross_entropy' };
  return { data: input.data, loss_fn: input.loss_fn, loss_fn_config: input.loss_fn_config };
}

/** The sum of a request's losses. */
export function lossSum(
  { data, loss_fn, loss_fn_config: config }: LossRequest,
  logprobs: readonly (readonly number[])[],
): number {
  let sum = 0;
  for (const [i, { loss_fn_inputs: inputs }] of data.entries()) {
    for (const [t, logprob] of logprobs[i]!.entries()) {
      const advantage = inputs['advantages']?.data[t] ?? 0;
      const ratio = Math.exp(logprob - (inputs['logprobs']?.data[t] ?? 0));
      const low = config?.['clip_low_threshold'] ?? 0.8;
      const clipped = Math.min(Math.max(ratio, low), config?.['clip_high_threshold'] ?? 1.2);
      if (loss_fn === 'cross_entropy') sum -= (inputs['weights']?.data[t] ?? 1) * logprob;
      else if (loss_fn === 'cispo') sum -= clipped * advantage * logprob;
      else if (loss_fn === 'ppo') sum -= Math.min(ratio * advantage, clipped * advantage);
      else sum -= ratio * advantage;
    }
  }
  return sum;
}

export function passOutput(logprobs: readonly (readonly number[])[], metrics: Record<string, number> = {}): unknown {
  const outputs = logprobs.map((data) => ({ logprobs: { data, dtype: 'float32', shape: [data.length] } }));
  return { loss_fn_output_type: 'scalar', loss_fn_outputs: outputs, metrics };
}
