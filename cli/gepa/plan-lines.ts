import { leastBudget } from '../../core/gepa/settings.ts';
import type { EvaluatedServer } from '../../core/eval/evaluation.ts';
import type { PlannedPromptSearch } from '../../load/searches/load-prompt-search.ts';

/** The planned search and its greatest cost. */
export function planLines({ spec, input }: PlannedPromptSearch): string[] {
  const { environments, model, reflection, maxCalls, minibatchSize, numTrain, numVal, numTest } = input;
  const { maxReflections = maxCalls } = input;
  const asked = (servers: readonly EvaluatedServer[]) => [...new Set(servers.map(({ baseUrl }) => baseUrl))].join(', ');
  const count = (n: number) => (n < 0 ? 'all' : String(n));
  const names = environments.map(({ name }) => name).join(', ');
  const least = numVal < 0 ? null : leastBudget({ valSize: numVal, minibatchSize }).calls;
  return [
    `${names}: ${whatOf(spec)} of ${model.model} (${model.kind === 'endpoint' ? asked(model.servers) : 'a version of a run'}), reflected on by ${reflection.model} (${asked(reflection.servers)})`,
    `at most ${maxCalls} rollouts and ${maxReflections} reflections${numTest === 0 ? '' : `, and 2 × ${count(numTest)} rollouts to compare`}; ${count(numTrain)} examples to reflect on, ${count(numVal)} to choose by, minibatches of ${minibatchSize}${spec.classic ? ', classic search' : ''}${spec.merge ? ', with merges' : ''}${least !== null && maxCalls < least ? ` (little is tried below ${least})` : ''}`,
  ];
}

/** Names of the rewritten components. */
function whatOf({ components }: PlannedPromptSearch['spec']): string {
  const words = {
    system_prompt: 'the prompt',
    system_prompts: 'the prompt of each environment',
    tool_descriptions: 'descriptions of tools',
  };
  return components.map((component) => words[component]).join(' and ');
}
