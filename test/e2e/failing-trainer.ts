/**
 * The fault tests' trainer of nothing, which runs out of memory at the step whose number is in a file. `[trainer] kind
 * = "module"`; options: { failsAt } = that file; without it, it works. With `exits` it ends its process.
 */
import { existsSync, readFileSync } from 'node:fs';
import type { Trainer } from '../../backends/trainer/types.ts';
import createTrainer from '../faults/fake-trainer.ts';

interface FailingOptions {
  readonly failsAt: string;
  readonly exits?: boolean;
}

export default function createFailingTrainer({ failsAt, exits = false }: FailingOptions): Trainer {
  const trainer = createTrainer({});
  return {
    ...trainer,
    trainStep(input) {
      const isFailing = existsSync(failsAt) && Number(readFileSync(failsAt, 'utf8')) === input.plan.step;
      if (isFailing && exits) process.exit(137);
      return isFailing
        ? Promise.reject(new Error('CUDA out of memory. Tried to allocate 2.00 GiB'))
        : trainer.trainStep(input);
    },
  };
}
