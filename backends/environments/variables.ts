import { parseEnv } from 'node:util';
import { environmentTraits } from '../../core/kinds/environments.ts';
import { isKeptFromEnvironments } from '../../core/child-environment.ts';
import { RatchetError } from '../../core/errors.ts';
import { trustedFile } from '../../host/trusted-files.ts';
import { secretValues } from '../../config/toml/secrets.ts';
import type { EnvironmentVariables, EnvironmentEntry } from '../../core/settings/environments.ts';
import { NotAFile, readRegularSync, whyUnreadable } from '../../host/regular-file.ts';

/**
 * Variables that a config lists for its environments: keys of judges and tools. Values are read on use, and never
 * stored.
 */

interface GivenVariables {
  readonly values: Readonly<Record<string, string>>;
  /** Variables of a file that environments must not see: credentials of the store, of Temporal and of metrics. */
  readonly kept: readonly string[];
}

/** The variables that an environment sees. */
export function variablesFor(entry: Pick<EnvironmentEntry, 'python' | 'variables' | 'program'>): EnvironmentVariables {
  const { names, files } = entry.variables ?? { names: [], files: [] };
  return { names, files: environmentTraits(entry).readsVariableFiles ? files : [] };
}

/** Values by name; `environment` wins over files. Throws `ConfigInvalid` with the missing names. */
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
  for (const value of [...Object.values(values), ...secretValues(values)])
    if (value.length >= secretCharsMin) given.add(value);
  return { values, kept: all.filter(isKeptFromEnvironments) };
}

/** Listed names without a value, in a process with this environment. */
export function missingVariables(
  { names, files }: EnvironmentVariables,
  environment: Readonly<NodeJS.ProcessEnv> = process.env,
): string[] {
  const written = new Set(files.flatMap((file) => Object.keys(readVariablesFile(file))));
  return names.filter((name) => !environment[name] && !written.has(name));
}

/** Variables that workers need for environments. Throws `ConfigInvalid` with those that are not set here. */
export function variablesOfWorkers(
  entries: readonly Pick<EnvironmentEntry, 'python' | 'variables' | 'program'>[],
  environment: Readonly<NodeJS.ProcessEnv> = process.env,
): string[] {
  const seen = entries.map(variablesFor);
  for (const variables of seen) givenVariables(variables, environment);
  const missing = missingAgentKeys(entries, environment);
  if (missing.length > 0)
    throw new RatchetError(
      'ConfigInvalid',
      `${missing.join(', ')}, named by api_key_var of [[env.models]] or [env.score.judge], has no value here. Set it where the workers are started.`,
    );
  return [...seen.flatMap(({ names }) => names), ...agentKeys(entries)];
}

/** Variables without a value that have the keys of servers which agents and their judges ask. */
export function missingAgentKeys(
  entries: readonly Pick<EnvironmentEntry, 'program'>[],
  environment: Readonly<NodeJS.ProcessEnv> = process.env,
): string[] {
  return agentKeys(entries).filter((name) => !environment[name]);
}

/** Workers read them when they ask; the program never sees them. */
function agentKeys(entries: readonly Pick<EnvironmentEntry, 'program'>[]): string[] {
  const servers = entries.flatMap(({ program }) => (program ? [program.models, program.score.judge ?? []].flat() : []));
  return [...new Set(servers.flatMap(({ apiKeyVar }) => apiKeyVar ?? []))];
}

/** Lines `NAME=value`, in the format of Node's `--env-file`. Throws `ConfigInvalid` for a missing or empty file. */
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

/** Values that must not appear in messages: the secrets of this process, and the variables of its environments. */
export function secretsHere(): string[] {
  return [...secretValues(process.env), ...given];
}

/** Values given to environments of this process, and passwords in them. */
const given = new Set<string>();
/** Shorter values would occur in every text. */
const secretCharsMin = 6;

function whatIsMissing(names: readonly string[], files: readonly string[]): string {
  const are = names.length === 1 ? 'is' : 'are';
  const nor = files.length === 0 ? '' : `, nor in ${files.join(', ')}`;
  return `${names.join(', ')}, which env_vars (or --pass-env) lists, ${are} not set here${nor}. Set ${names.length === 1 ? 'it' : 'them'} where the workers are started (\`train\`, \`eval run\` and \`gepa run\` hand on to workers they start what is listed, \`ratchet dev\` what RATCHET_PYTHON_VARIABLES names), or write ${names.length === 1 ? 'it' : 'them'} into a file that env_files names.`;
}
