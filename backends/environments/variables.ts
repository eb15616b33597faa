import { parseEnv } from 'node:util';
import { isKeptFromEnvironments } from '../../core/child-environment.ts';
import { RatchetError } from '../../core/errors.ts';
import { trustedFile } from '../../engine/trusted-files.ts';
import { secretValues } from '../../config/secrets.ts';
import type { EnvironmentSpec } from '../../config/run-spec.ts';
import type { EnvironmentVariables } from '../../config/settings/environments.ts';
import { NotAFile, readRegularSync, whyUnreadable } from '../../engine/regular-file.ts';

/** Variables that a config lists for its environments: keys of judges and tools. Values are read where they are needed, and never stored. */

interface GivenVariables {
  readonly values: Readonly<Record<string, string>>;
  /** In a file, and not for environments: credentials of the store, of Temporal and of metrics. */
  readonly kept: readonly string[];
}

/** What an environment is to see. One in TypeScript works in the worker's process, so no file is read for it. */
export function variablesFor({
  python,
  variables,
}: Pick<EnvironmentSpec, 'python' | 'variables'>): EnvironmentVariables {
  const { names, files } = variables ?? { names: [], files: [] };
  return { names, files: python === undefined ? [] : files };
}

/** By name; what has a value in `environment` has that one, whatever a file says. Throws `ConfigInvalid` naming what is missing. */
export function givenVariables(
  { names, files }: EnvironmentVariables,
  environment: Readonly<NodeJS.ProcessEnv> = process.env,
): GivenVariables {
  const written = Object.assign({}, ...files.map(readVariablesFile)) as Record<string, string>;
  const all = [...new Set([...names, ...Object.keys(written)])];
  const passed = all.filter((name) => !isKeptFromEnvironments(name));
  const values = Object.fromEntries(passed.map((name) => [name, environment[name] || written[name] || '']));
  const missing = names.filter((name) => !values[name]);
  if (missing.length > 0) throw new RatchetError('ConfigInvalid', whatIsMissing(missing, files));
  for (const value of Object.values(values)) if (value.length >= secretCharsMin) given.add(value);
  return { values, kept: all.filter(isKeptFromEnvironments) };
}

/** Names that a config lists and that have no value, in a process whose environment this is. */
export function missingVariables(
  { names, files }: EnvironmentVariables,
  environment: Readonly<NodeJS.ProcessEnv> = process.env,
): string[] {
  const written = new Set(files.flatMap((file) => Object.keys(readVariablesFile(file))));
  return names.filter((name) => !environment[name] && !written.has(name));
}

/** Lines `NAME=value`, as Node's `--env-file` reads them. Throws `ConfigInvalid` where there is no such file, or nothing in it. */
export function readVariablesFile(file: string): Record<string, string> {
  const refuse = (why: string, cause?: unknown) =>
    new RatchetError('ConfigInvalid', `env_files: ${file} ${why}. Expected a file of lines NAME=value.`, { cause });
  let text: string;
  try {
    text = readRegularSync(trustedFile(file, 'The file of variables')).toString('utf8');
  } catch (cause) {
    if (cause instanceof RatchetError && !(cause instanceof NotAFile)) throw cause;
    throw refuse(`cannot be read here (${whyUnreadable(cause)})`, cause);
  }
  const variables = Object.fromEntries(
    Object.entries(parseEnv(text)).flatMap(([name, value]) => (value === undefined ? [] : [[name, value]])),
  );
  if (Object.keys(variables).length === 0) throw refuse('has no variable in it');
  return variables;
}

/** What must not be told of: the secrets of this process, and what its environments were given. */
export function secretsHere(): string[] {
  return [...secretValues(process.env), ...given];
}

/** Values that environments of this process were given. */
const given = new Set<string>();
/** Shorter ones would tear holes into every text. */
const secretCharsMin = 6;

function whatIsMissing(names: readonly string[], files: readonly string[]): string {
  const are = names.length === 1 ? 'is' : 'are';
  const nor = files.length === 0 ? '' : `, nor in ${files.join(', ')}`;
  return `${names.join(', ')}, which env_vars (or --pass-env) lists, ${are} not set here${nor}. Set ${names.length === 1 ? 'it' : 'them'} where the workers are started (\`train\`, \`eval run\` and \`gepa run\` hand on to workers they start what is listed, \`ratchet dev\` what RATCHET_PYTHON_VARIABLES names), or write ${names.length === 1 ? 'it' : 'them'} into a file that env_files names.`;
}
