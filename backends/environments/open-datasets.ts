import { RatchetError } from '../../core/errors.ts';
import type { EnvironmentSpec, RunSpec } from '../../config/run-spec.ts';
import { openEnvironment } from './index.ts';
import { requireTextOf } from './unlike-text.ts';
import { whatIsLacking } from './what-is-lacking.ts';

/** Opens all environments of a run: their numbers of training examples, and their warnings. */
export async function openDatasets(spec: RunSpec): Promise<{
  readonly datasets: readonly { readonly name: string; readonly weight: number; readonly datasetLength: number }[];
  readonly warnings: readonly string[];
}> {
  const { environments, eval: evaluation } = spec;
  const warnings = new Set<string>();
  const open = async (entry: Parameters<typeof openEnvironment>[0]) => {
    const environment = await openEnvironment(entry);
    for (const warning of environment.warnings ?? []) warnings.add(warning);
    return environment;
  };
  for (const entry of evaluation?.environments ?? []) {
    const { evalDataset } = await open(entry);
    if (evalDataset.length === 0) throw withoutExamples(entry, 'held-out examples');
    requireTextOf(entry.name, evalDataset, 'The model that is trained');
  }
  const datasets = [];
  const opened = [];
  for (const entry of environments) {
    const environment = await open(entry);
    opened.push({ entry, environment });
    const datasetLength = environment.dataset.length;
    if (datasetLength === 0) throw withoutExamples(entry, 'examples');
    datasets.push({ name: entry.name, weight: entry.weight, datasetLength });
  }
  const lacking = whatIsLacking(spec, opened);
  for (const { at, expected, received } of lacking.problems) {
    const setting = at.length === 1 ? `[${at[0]!}]` : at.join('.');
    throw new RatchetError('ConfigInvalid', `${setting}: expected ${expected}; ${received}.`);
  }
  return { datasets, warnings: [...warnings, ...lacking.warnings] };
}

function withoutExamples({ name, args }: Pick<EnvironmentSpec, 'name' | 'args'>, what: string): RatchetError {
  return new RatchetError(
    'ConfigInvalid',
    `The environment ${name} has no ${what} with args = ${JSON.stringify(args)}; expected at least one.`,
  );
}
