import { RatchetError } from '../core/errors.ts';
import { type ParsedEndpoints, parseEndpoints } from './models/parse-endpoints.ts';
import { type ParsedEvalFile, parseEvalFile } from './evaluations/parse-eval-file.ts';
import { type ParsedGepaFile, parseGepaFile } from './searches/parse-gepa-file.ts';
import { parseRunConfig } from './parse-run-config.ts';
import type { ParsedRunConfig, ParseOptions } from './run-config.ts';
import { parseToml, type TomlFile } from './toml/parse-toml.ts';
import { isTable, type Table } from './toml/tables.ts';
import { shownAsVerifiersEval } from './evaluations/verifiers-eval-file.ts';

/** Purpose of a file. */
type ConfigKind = 'run' | 'eval' | 'gepa' | 'endpoints';

/** A parsed file of any kind: its kind, the evidence, and the result of its own reader. */
export type ParsedConfigFile = { readonly why: string } & (
  | ({ readonly kind: 'run' } & ParsedRunConfig)
  | ({ readonly kind: 'eval' } & ParsedEvalFile)
  | ({ readonly kind: 'gepa' } & ParsedGepaFile)
  | ({ readonly kind: 'endpoints' } & ParsedEndpoints)
);

/** Detects a file's kind from its content, and reads it. */
export function parseConfigFile(written: string | TomlFile, options: ParseOptions): ParsedConfigFile {
  // A Python file is no TOML, and has its own reader.
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

/** The purpose of a file, and the key that shows it. Default: a run, even with a syntax error. */
export function kindOf(source: string | TomlFile, file: string): { readonly kind: ConfigKind; readonly why: string } {
  if (file.endsWith('.py')) return { kind: 'endpoints', why: 'a Python file: only registries of endpoints are' };
  const { table } = typeof source === 'string' ? parseToml(source, file) : source;
  if (table === undefined) return { kind: 'run', why: 'no other kind shows' };
  if ('endpoint' in table) return { kind: 'endpoints', why: '[[endpoint]]' };
  if ('ablation' in table) return { kind: 'eval', why: '[[ablation]]' };
  const { eval: evaluation, env } = table;
  if (Array.isArray(evaluation)) return { kind: 'eval', why: '[[eval]]' };
  const isRun = runKeys.some((key) => key in table);
  const named = isTable(evaluation) && namesOfEnvironment.find((key) => typeof evaluation[key] === 'string');
  if (named && !isRun) return { kind: 'eval', why: `[eval] ${named}` };
  const gepa = gepaKeys.find((key) => key in table);
  // A run file may configure prompt searches.
  if (gepa !== undefined && !(isRun && gepa === 'gepa'))
    return { kind: 'gepa', why: isTable(table[gepa]) ? `[${gepa}]` : gepa };
  const verifiers = isRun ? undefined : shownAsVerifiersEval(table);
  if (verifiers !== undefined) return { kind: 'eval', why: verifiers };
  if (!isRun && environmentsOf(env).some((entry) => 'env_id' in entry)) return { kind: 'gepa', why: '[env] env_id' };
  return { kind: 'run', why: 'no other kind shows' };
}

/** Refuses a run file in place of another kind; `expected` names that kind. */
export function refuseRunFile(toml: TomlFile, expected: string): void {
  const { file, table = {} } = toml;
  const key = runKeys.find((name) => name in table);
  if (key === undefined || kindOf(toml, file).kind !== 'run') return;
  throw new RatchetError(
    'ConfigInvalid',
    `${file}: expected ${expected}, got a run file, because of ${key}. To train with it: npx ratchet-rl train ${file}`,
  );
}

/** Keys that may name an evaluation's environment. */
const namesOfEnvironment = ['id', 'env_id', 'environment', 'environment_id', 'env'];
const gepaKeys = ['gepa', 'reflection_model'];
/** Keys of runs in any dialect. */
const runKeys = ['max_steps', 'batch_size', 'learning_rate', 'trainer', 'orchestrator', 'inference', 'rollouts_per_example', 'num_generations']; // prettier-ignore

function environmentsOf(env: unknown): Table[] {
  return (Array.isArray(env) ? env : [env]).filter(isTable);
}

/** The ids of a file's environments, each once, as written. */
export function environmentIdsOf(parsed: ParsedConfigFile): string[] {
  if (!parsed.ok) return [];
  const { kind } = parsed;
  if (kind === 'endpoints') return [];
  if (kind === 'eval') return [...new Set(parsed.spec.evaluations.map(({ environment }) => environment.id))];
  if (kind === 'gepa') return [...new Set(parsed.spec.environments.map(({ id }) => id))];
  const { environments, eval: evaluation } = parsed.spec;
  return [...new Set([...environments, ...(evaluation?.environments ?? [])].map(({ id }) => id))];
}
