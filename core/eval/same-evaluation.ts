import type { EvaluationInput } from './evaluation.ts';

/** Settings that must be equal to continue an evaluation: otherwise its rollouts would belong to two. */
const identity: Readonly<Record<string, (input: EvaluationInput) => unknown>> = {
  environment: ({ environment }) => environment.id,
  env_args: ({ environment }) => environment.args,
  program: ({ environment }) => environment.program,
  extra_env_kwargs: ({ environment }) => environment.extra ?? {},
  state_columns: ({ environment }) => environment.stateColumns ?? [],
  model: ({ model }) => model.model,
  policy: ({ model }) => (model.kind === 'version' ? model.policy.digest : null),
  sampling_args: ({ model }) => samplingOf(model),
  rollouts_per_example: (input) => input.rolloutsPerExample,
  skip_first: (input) => input.skipExamples ?? 0,
  system_prompt: ({ systemPrompt, environment }) => systemPrompt?.sha256 ?? environment.systemPrompt ?? null,
  shuffle_seed: (input) => input.shuffleSeed,
  independent_scoring: (input) => input.independentScoring,
  seed: (input) => (input.model.kind === 'version' ? input.seed : null),
};

/** The differing settings, each as `name: before, now`. Fewer examples than before are a difference, more are not. */
export function differencesOf(
  before: EvaluationInput,
  now: EvaluationInput,
  examples: { readonly before: number; readonly now: number },
): string[] {
  const differences = Object.entries(identity).flatMap(([name, read]) => {
    const [one, other] = [canonical(read(before)), canonical(read(now))];
    return one === other ? [] : [`${name} was ${one}, is ${other}`];
  });
  if (examples.now < examples.before) {
    differences.push(`num_examples was ${examples.before}, is ${examples.now} (it may only grow)`);
  }
  return differences;
}

/** Identity of an evaluation, independent of its number of examples. */
export function identityOf(input: EvaluationInput): string {
  return canonical(Object.fromEntries(Object.entries(identity).map(([name, read]) => [name, read(input)])));
}

/** Requests leave out nulls. */
function samplingOf(model: EvaluationInput['model']): unknown {
  if (model.kind === 'version') return model.sampling;
  return Object.fromEntries(Object.entries(model.sampling).filter(([, value]) => value !== null));
}

/** JSON with sorted keys. */
export function canonical(value: unknown): string {
  if (Array.isArray(value)) return `[${value.map(canonical).join(',')}]`;
  if (typeof value !== 'object' || value === null) return JSON.stringify(value) ?? 'null';
  const entries = Object.entries(value).filter(([, inner]) => inner !== undefined);
  return `{${entries
    .toSorted(([a], [b]) => (a < b ? -1 : 1))
    .map(([key, inner]) => `${JSON.stringify(key)}:${canonical(inner)}`)
    .join(',')}}`;
}
