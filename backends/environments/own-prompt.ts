import { withSystemPrompt } from '../../core/rl/rollout/system-prompt.ts';
import type { Dataset, Environment, Policy, RolloutPlace } from './types.ts';
import type { Example } from '../../core/rl/rollout/rollout.ts';

/**
 * An environment whose examples begin with this system prompt; '' = with none, undefined = unchanged. A Python
 * environment builds its own conversations, so it receives the prompt with each rollout, unless the rollout has another
 * one.
 */
export function underSystemPrompt(environment: Environment, systemPrompt: string | undefined): Environment {
  if (systemPrompt === undefined) return environment;
  const over = (dataset: Dataset): Dataset => ({
    get length() {
      return dataset.length;
    },
    at: (index) => withSystemPrompt(dataset.at(index), systemPrompt),
  });
  const changed: Pick<Environment, 'dataset' | 'evalDataset' | 'rollout'> = {
    dataset: over(environment.dataset),
    evalDataset: over(environment.evalDataset),
    rollout: (example: Example, policy: Policy, place?: RolloutPlace) =>
      environment.rollout(example, policy, place && { ...place, systemPrompt: place.systemPrompt ?? systemPrompt }),
  };
  // A user's environment may be an instance of a class: its methods are not its own keys, and need it as `this`.
  return new Proxy(environment, {
    get(target, key) {
      if (Object.hasOwn(changed, key)) return Reflect.get(changed, key);
      const value: unknown = Reflect.get(target, key, target);
      return typeof value === 'function' ? value.bind(target) : value;
    },
  });
}
