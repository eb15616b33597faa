import { leastBudget } from '../../../core/gepa/settings.ts';
import { withNames } from '../environments.ts';
import type { RatchetConfig } from '../index.ts';
import { problem, type Relations } from './problem.ts';

/** `[gepa]` must name environments of the run, reachable steps, and a budget for at least one attempt. */
export function* branchRelations({ gepa, env, max_steps }: RatchetConfig): Relations {
  if (gepa === undefined) return;
  const names = withNames(env).map(({ name }) => name);
  for (const [i, name] of (gepa.environments ?? []).entries()) {
    const at = [`gepa.environments.${i}`, 'gepa.environments'];
    if (!names.includes(name)) yield problem(at, `a name of [[env]]: ${names.join(', ')}`, JSON.stringify(name));
  }
  for (const [i, step] of gepa.at_steps.entries()) {
    const at = [`gepa.at_steps.${i}`, 'gepa.at_steps', 'max_steps'];
    if (step >= max_steps) yield problem(at, `a step below max_steps (${max_steps}): a branch ends with its run`, step);
  }
  const ending = /\/(?:chat\/completions|completions|responses|models)\/*$/.exec(new URL(gepa.url).pathname)?.[0];
  if (ending !== undefined) {
    const expected = `the URL that ${ending} is added to, such as "https://api.openai.com/v1"`;
    yield problem('gepa.url', expected, JSON.stringify(gepa.url));
  }
  const least = leastBudget({ valSize: gepa.num_val, minibatchSize: gepa.minibatch_size });
  if (gepa.max_calls < least.calls) {
    const expected = `at least ${least.calls} calls, or fewer examples to choose by (num_val): ${least.arithmetic}`;
    yield problem(['gepa.max_calls', 'gepa.num_val', 'gepa'], expected, gepa.max_calls);
  }
}
