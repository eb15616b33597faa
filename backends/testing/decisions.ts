import type { TrainSample } from '../../core/rl/learning/batch.ts';
import type { StepPlan } from '../../core/rl/run-state.ts';
import { type ContractLoss, contractOptimizer, lossOf } from './material.ts';

interface Decision {
  readonly what: string;
  readonly plan: (first: { readonly learningRate: number }) => Partial<StepPlan>;
  readonly rows?: (rows: readonly TrainSample[]) => readonly TrainSample[];
}

/** Parts of a plan and of a batch that a trainer must not accept and then ignore. */
export function decisions(type: ContractLoss): Decision[] {
  const always: Decision[] = [
    { what: 'the learning rate', plan: ({ learningRate }) => ({ learningRate: learningRate / 3 }) },
    { what: 'β1 of the optimizer', plan: () => ({ optimizer: { ...contractOptimizer, beta1: 0.5 } }) },
    { what: 'the number of passes over a batch', plan: () => ({ numIterations: 2 }) },
    { what: 'the parts of a batch that are a step each', plan: () => ({ numMiniBatches: 2 }) },
  ];
  if (type === 'cross_entropy') return always;
  const shifts = [0.3, -0.1, 0.2];
  const moved = (row: TrainSample): TrainSample => ({
    ...row,
    behaviorLogprobs: row.behaviorLogprobs.map((logprob, i) => logprob + row.lossMask[i]! * shifts[i % shifts.length]!),
  });
  return [
    ...always,
    { what: 'the KL penalty', plan: () => ({ klBeta: 0.5 }) },
    { what: 'the temperature', plan: () => ({ temperature: 0.6 }) },
    { what: 'the aggregation', plan: () => ({ loss: lossOf(type, 'sequence') }) },
    { what: 'the bonus for entropy', plan: () => ({ loss: { ...lossOf(type), entropyCoef: 0.5 } }) },
    { what: 'how likely a token was when it was sampled', plan: () => ({}), rows: (rows) => rows.map(moved) },
  ];
}
