/**
 * The fault tests' trainer of nothing as an engine that does not promise equal bits: each process has its own, so what another
 * one trains again is something else. It also tells logprobs, the same for every token. `[trainer] kind = "module"`.
 */
import type { Trainer } from '../../backends/trainer/types.ts';
import createTrainer from '../faults/fake-trainer.ts';

/** What {@link createSaltedTrainer} says of any token. */
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
