import type { EndpointsSpec } from '../../config/models/endpoints-spec.ts';
import { evaluationDefaults, type EvaluationSpec } from '../../config/evaluations/eval-file.ts';
import type { GepaSpec } from '../../config/searches/gepa-spec.ts';
import type { ParsedConfigFile } from '../../config/parse-config-file.ts';

/** A few lines on a file that is not a run file. */
export function summaryOf(parsed: ParsedConfigFile & { readonly ok: true }): string[] {
  switch (parsed.kind) {
    case 'eval':
      return evalSummary(parsed.spec.evaluations);
    case 'gepa':
      return gepaSummary(parsed.spec);
    case 'endpoints':
      return endpointsSummary(parsed.spec);
    case 'run':
      return [];
    default:
      return parsed satisfies never;
  }
}

/** Lines of one kind that are shown; the rest is counted. */
const shownMax = 12;

function evalSummary(evaluations: readonly EvaluationSpec[]): string[] {
  const models = new Set(evaluations.map(({ model }) => model.model ?? model.endpointId));
  const environments = new Set(evaluations.map(({ environment }) => environment.id));
  const names = evaluations.map(({ environment }) => environment.name);
  const width = Math.max(...names.slice(0, shownMax).map(({ length }) => length));
  const lines = evaluations.map(
    (each) =>
      `  ${each.environment.name.padEnd(width)}  ${each.model.model ?? `endpoint ${each.model.endpointId}`}, ${size(each)}${changed(each)}`,
  );
  return [
    `${counted(evaluations.length, 'evaluation')} of ${counted(environments.size, 'environment')} with ${counted(models.size, 'model')}`,
    ...lines.slice(0, shownMax),
    ...(lines.length > shownMax ? [`  … and ${lines.length - shownMax} more`] : []),
  ];
}

/** `20 examples × 3 rollouts = 60`. */
function size({ numExamples, rolloutsPerExample }: EvaluationSpec): string {
  const rollouts = rolloutsPerExample ?? evaluationDefaults.rolloutsPerExample;
  if (numExamples === -1) return `all examples × ${counted(rollouts, 'rollout')}`;
  const examples = numExamples ?? evaluationDefaults.numExamples;
  const unless = numExamples === null || rolloutsPerExample === null ? ' unless its package says otherwise' : '';
  return `${counted(examples, 'example')} × ${counted(rollouts, 'rollout')} = ${examples * rollouts}${unless}`;
}

/** Settings by which the evaluations of an ablation differ. */
function changed({ sampling, environment }: EvaluationSpec): string {
  const said = [...Object.entries(sampling), ...Object.entries(environment.args)]
    .filter(([, value]) => typeof value !== 'object')
    .map(([key, value]) => `${key} ${JSON.stringify(value).replaceAll('"', '')}`);
  return said.length === 0 ? '' : `; ${said.join(', ')}`;
}

function gepaSummary(spec: GepaSpec): string[] {
  const { environments, model, reflectionModel, maxCalls, numTrain, numVal, minibatchSize } = spec;
  const count = (value: number): string => (value === -1 ? 'all' : String(value));
  return [
    `the system prompt of ${environments.map(({ name }) => name).join(', ')} optimized for ${model.model ?? model.endpointId}, reflection by ${reflectionModel ?? 'the same model'}`,
    `  ${maxCalls} rollouts in all; ${count(numTrain)} training and ${count(numVal)} validation examples, minibatches of ${minibatchSize}`,
  ];
}

function endpointsSummary({ endpoints }: EndpointsSpec): string[] {
  const replicated = endpoints.filter(({ replicas }) => replicas.length > 1);
  const keys = new Set(endpoints.flatMap(({ replicas }) => replicas.flatMap(({ apiKeyVar }) => apiKeyVar ?? [])));
  const servers = new Set(endpoints.flatMap(({ replicas }) => replicas.map(({ baseUrl }) => baseUrl)));
  return [
    `${counted(endpoints.length, 'alias')} at ${counted(servers.size, 'server')}`,
    ...replicated.map(({ id, replicas }) => `  ${id}: ${replicas.length} replicas, taken in turn`),
    `  keys of ${[...keys].join(', ') || 'none'} (environment variables)`,
  ];
}

function counted(count: number, what: string): string {
  if (count === 1) return `1 ${what}`;
  return `${count} ${what.endsWith('s') ? `${what}es` : `${what}s`}`;
}
