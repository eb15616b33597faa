import { setTimeout as delay } from 'node:timers/promises';
import { parseArgs, uniform, z } from '../backends/environments/kit.ts';
import type { Environment } from '../backends/environments/kit.ts';
import { loadEnvironment as loadWords } from '../environments/reverse-text/index.ts';

/** The demo's words, whose rollouts in training wait, as for a tool: log-normal, by their place. Evaluations do not wait. */
const Args = z.looseObject({
  mean_ms: z.int().min(0),
  /** The standard deviation of the logarithm. */
  sigma: z.number().min(0),
});

export function loadEnvironment(args: unknown): Environment {
  const { mean_ms, sigma, ...words } = parseArgs('tail', Args, args);
  const environment = loadWords(words);
  return {
    ...environment,
    // Or the model would be asked without asking `rollout`.
    isSingleTurn: false,
    async rollout(example, policy, place) {
      const record = await environment.rollout(example, policy, place);
      if (place === undefined || place.dataset === 'evalDataset') return record;
      const at = `${example.id}/${place.index}`;
      // Box and Muller, "A Note on the Generation of Random Normal Deviates" (1958).
      const normal = Math.sqrt(-2 * Math.log(1 - uniform('length', at))) * Math.cos(2 * Math.PI * uniform('angle', at));
      await delay(mean_ms * Math.exp(sigma * normal - sigma ** 2 / 2), undefined, { signal: place.signal });
      return record;
    },
  };
}
