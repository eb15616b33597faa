import { RatchetError } from '../core/errors.ts';
import type { EvaluationSpec } from './eval-spec.ts';
import { evaluationDefaults } from './eval-spec.ts';
import { type ParsedEndpoints, parseEndpoints } from './parse-endpoints.ts';
import { type ParsedEvalFile, parseEvalFile } from './parse-eval-file.ts';
import { type ParsedGepaFile, parseGepaFile } from './parse-gepa-file.ts';
import { type ParsedRunConfig, type ParseOptions, parseRunConfig } from './parse-run-config.ts';
import { parseToml, type TomlFile } from './parse-toml.ts';
import { isTable, type Table } from './tables.ts';

/** What a file is for. */
export type ConfigKind = 'run' | 'eval' | 'gepa' | 'endpoints';

/** A file of any kind, read: which kind, what showed it, and what its own reader says. */
export type ParsedConfigFile = { readonly why: string } & (
  | ({ readonly kind: 'run' } & ParsedRunConfig)
  | ({ readonly kind: 'eval' } & ParsedEvalFile)
  | ({ readonly kind: 'gepa' } & ParsedGepaFile)
  | ({ readonly kind: 'endpoints' } & ParsedEndpoints)
);

/** Finds out by its shape what a file is for, and reads it. */
export function parseConfigFile(written: string | TomlFile, options: ParseOptions): ParsedConfigFile {
  // A Python file is no TOML, and its reader's alone.
  const isParsed = typeof written !== 'string' || options.file.endsWith('.py');
  const source = isParsed ? written : parseToml(written, options.file);
  const { kind, why } = kindOf(source, options.file);
  switch (kind) {
    case 'eval':
      return { kind, why, ...parseEvalFile(source, options) };
    case 'gepa':
      return { kind, why, ...parseGepaFile(source, options) };
    case 'endpoints':
      return { kind, why, ...parseEndpoints(source, options) };
    case 'run':
      return { kind, why, ...parseRunConfig(source, options) };
    default:
      return kind satisfies never;
  }
}

/** What a file is for, and which of its keys says so. A run is what nothing speaks against, also where the syntax is wrong. */
export function kindOf(source: string | TomlFile, file: string): { readonly kind: ConfigKind; readonly why: string } {
  if (file.endsWith('.py')) return { kind: 'endpoints', why: 'a Python file: only registries of endpoints are' };
  const { table } = typeof source === 'string' ? parseToml(source, file) : source;
  if (table === undefined) return { kind: 'run', why: 'no other kind shows' };
  if ('endpoint' in table) return { kind: 'endpoints', why: '[[endpoint]]' };
  if ('ablation' in table) return { kind: 'eval', why: '[[ablation]]' };
  const { eval: evaluation, env } = table;
  if (Array.isArray(evaluation)) return { kind: 'eval', why: '[[eval]]' };
  const isRun = runKeys.some((key) => key in table);
  const named = isTable(evaluation) && ['id', 'env_id'].find((key) => key in evaluation);
  if (named && !isRun) return { kind: 'eval', why: `[eval] ${named}` };
  const gepa = gepaKeys.find((key) => key in table);
  // A run may say what branches of it look for.
  if (gepa !== undefined && !(isRun && gepa === 'gepa'))
    return { kind: 'gepa', why: isTable(table[gepa]) ? `[${gepa}]` : gepa };
  if (!isRun && environmentsOf(env).some((entry) => 'env_id' in entry)) return { kind: 'gepa', why: '[env] env_id' };
  return { kind: 'run', why: 'no other kind shows' };
}

/** Refuses a run file where a file of another kind is expected; `expected` says which. */
export function refuseRunFile(text: string, file: string, expected: string): void {
  const { table = {} } = parseToml(text, file);
  const key = runKeys.find((name) => name in table);
  if (key === undefined || kindOf(text, file).kind !== 'run') return;
  throw new RatchetError(
    'ConfigInvalid',
    `${file}: expected ${expected}, got a run file, because of ${key}. To train with it: npx ratchet train ${file}`,
  );
}

const gepaKeys = ['gepa', 'reflection_model'];
/** Of runs in any dialect. */
const runKeys = ['max_steps', 'batch_size', 'learning_rate', 'trainer', 'orchestrator', 'inference', 'rollouts_per_example', 'num_generations']; // prettier-ignore

function environmentsOf(env: unknown): Table[] {
  return (Array.isArray(env) ? env : [env]).filter(isTable);
}

/** The ids of environments that a file names, each once, as written. */
export function environmentIdsOf(parsed: ParsedConfigFile): string[] {
  if (!parsed.ok) return [];
  const { kind } = parsed;
  if (kind === 'endpoints') return [];
  if (kind === 'eval') return [...new Set(parsed.spec.evaluations.map(({ environment }) => environment.id))];
  if (kind === 'gepa') return [...new Set(parsed.spec.environments.map(({ id }) => id))];
  const { environments, eval: evaluation } = parsed.spec;
  return [...new Set([...environments, ...(evaluation?.environments ?? [])].map(({ id }) => id))];
}

/** What a file that is no run means, in a few lines. */
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
  const usual = numExamples === null || rolloutsPerExample === null ? ' unless its package says otherwise' : '';
  return `${counted(examples, 'example')} × ${counted(rollouts, 'rollout')} = ${examples * rollouts}${usual}`;
}

/** What tells the evaluations of an ablation apart. */
function changed({ sampling, environment }: EvaluationSpec): string {
  const said = [...Object.entries(sampling), ...Object.entries(environment.args)]
    .filter(([, value]) => typeof value !== 'object')
    .map(([key, value]) => `${key} ${JSON.stringify(value).replaceAll('"', '')}`);
  return said.length === 0 ? '' : `; ${said.join(', ')}`;
}

function gepaSummary(spec: (ParsedGepaFile & { readonly ok: true })['spec']): string[] {
  const { environments, model, reflectionModel, maxCalls, numTrain, numVal, minibatchSize } = spec;
  const count = (value: number): string => (value === -1 ? 'all' : String(value));
  return [
    `the system prompt of ${environments.map(({ name }) => name).join(', ')} optimized for ${model.model ?? model.endpointId}, reflection by ${reflectionModel ?? 'the same model'}`,
    `  ${maxCalls} rollouts in all; ${count(numTrain)} training and ${count(numVal)} validation examples, minibatches of ${minibatchSize}`,
  ];
}

function endpointsSummary({ endpoints }: (ParsedEndpoints & { readonly ok: true })['spec']): string[] {
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
