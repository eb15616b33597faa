/**
 * The fault tests' trainer of nothing, which runs out of memory at the step whose number lies in a file. `[trainer] kind =
 * "module"`; options: { failsAt } = that file; missing, it works.
 */
import { existsSync, readFileSync } from 'node:fs';
import type { Trainer } from '../../backends/trainer/types.ts';
import createTrainer from '../faults/fake-trainer.ts';

export default function createFailingTrainer({ failsAt }: { readonly failsAt: string }): Trainer {
  const trainer = createTrainer({});
  return {
    ...trainer,
    trainStep(input) {
      const isFailing = existsSync(failsAt) && Number(readFileSync(failsAt, 'utf8')) === input.plan.step;
      return isFailing
        ? Promise.reject(new Error('CUDA out of memory. Tried to allocate 2.00 GiB'))
        : trainer.trainStep(input);
    },
  };
}
