/**
 * The fault tests' inference, which is away while one file exists, and has wrong weights while another does. It records
 * the versions it was brought to. `[inference] kind = "module"`; options: see {@link Args}.
 */
import { appendFileSync, existsSync } from 'node:fs';
import type { Inference } from '../../backends/inference/types.ts';
import { RatchetError } from '../../core/errors.ts';
import createInference from '../faults/fake-inference.ts';
import { logprobOfAll } from './salted-trainer.ts';

interface Args {
  /** Same format as the log of the fault tests' inference. */
  readonly log: string;
  /** A line for each version: its name. */
  readonly broughtTo: string;
  readonly isAway: string;
  readonly isWrong: string;
}

/** How far its logprobs are off then. */
export const wrongBy = 0.25;

export default function createMoodyInference({ log, broughtTo, isAway, isWrong }: Args): Inference {
  const inference = createInference({ log });
  return {
    sample: (request) =>
      existsSync(isAway)
        ? Promise.reject(new RatchetError('InferenceUnavailable', 'all of its GPUs are busy elsewhere'))
        : inference.sample(request),
    score: ({ positions }) => Promise.resolve(positions.map(() => logprobOfAll - (existsSync(isWrong) ? wrongBy : 0))),
    bringTo: ({ name }) => Promise.resolve(appendFileSync(broughtTo, `${name}\n`)),
  };
}
