import { leastBudget } from '../../core/gepa/settings.ts';
import type { RatchetConfig } from '../settings/index.ts';
import type { RelationProblem } from './ratchet-relations.ts';
import { withNames } from '../settings/environments.ts';

/** Of `[gepa]`: it names environments of the run, steps that are made, and a budget that lets a branch try something. */
export function branchRelations({ gepa, env, max_steps }: RatchetConfig): RelationProblem[] {
  if (gepa === undefined) return [];
  const problems: RelationProblem[] = [];
  const names = withNames(env).map(({ name }) => name);
  for (const [i, name] of (gepa.environments ?? []).entries()) {
    if (names.includes(name)) continue;
    problems.push({
      paths: [
        ['gepa', 'environments', i],
        ['gepa', 'environments'],
      ],
      expected: `a name of [[env]]: ${names.join(', ')}`,
      received: JSON.stringify(name),
    });
  }
  for (const [i, step] of gepa.at_steps.entries()) {
    if (step < max_steps) continue;
    problems.push({
      paths: [['gepa', 'at_steps', i], ['gepa', 'at_steps'], ['max_steps']],
      expected: `a step below max_steps (${max_steps}): a branch ends with its run`,
      received: String(step),
    });
  }
  const ending = /\/(?:chat\/completions|completions|responses|models)\/*$/.exec(new URL(gepa.url).pathname)?.[0];
  if (ending !== undefined) {
    problems.push({
      paths: [['gepa', 'url']],
      expected: `the URL that ${ending} is added to, such as "https://api.openai.com/v1"`,
      received: JSON.stringify(gepa.url),
    });
  }
  const least = leastBudget({ valSize: gepa.num_val, minibatchSize: gepa.minibatch_size });
  if (gepa.max_calls < least.calls) {
    problems.push({
      paths: [['gepa', 'max_calls'], ['gepa', 'num_val'], ['gepa']],
      expected: `at least ${least.calls} calls, or fewer examples to choose by (num_val): ${least.arithmetic}`,
      received: String(gepa.max_calls),
    });
  }
  return problems;
}
