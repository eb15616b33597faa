/**
 * The fault tests' trainer of nothing, as an engine without equal bits: each process has its own salt, so a replay by
 * another one differs. It also reports logprobs, the same for every token. `[trainer] kind = "module"`.
 */
import type { Trainer } from '../../backends/trainer/types.ts';
import createTrainer from '../faults/fake-trainer.ts';

/** Log probability of every token by {@link createSaltedTrainer}. */
export const logprobOfAll = -0.5;

export default function createSaltedTrainer({ isSalted = true }: { readonly isSalted?: boolean }): Trainer {
  const trainer = createTrainer({});
  const salt = isSalted ? process.pid : 0;
  return {
    ...trainer,
    trainStep: (input) =>
      trainer.trainStep({ ...input, plan: { ...input.plan, learningRate: input.plan.learningRate + salt } }),
    logprobs: (samples) =>
      Promise.resolve(samples.map(({ tokenIds }) => new Float32Array(tokenIds.length).fill(logprobOfAll))),
  };
}
