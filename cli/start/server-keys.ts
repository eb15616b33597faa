import { RatchetError } from '../../core/errors.ts';
import type { EvaluatedServer } from '../../core/eval/evaluation.ts';
import { readRunningStack } from '../../workers/stack/project-lock.ts';

/** The environment variables with the keys of servers, each once. */
export function keyVariablesOf(servers: readonly EvaluatedServer[]): string[] {
  return [...new Set(servers.flatMap(({ apiKeyVar }) => apiKeyVar ?? []))];
}

/**
 * Throws `ConfigInvalid` when a key is not set here and workers started here would need it. Workers elsewhere, or those
 * of another command, have their own environment.
 */
export async function requireKeys(keys: readonly string[], projectFolder: string): Promise<void> {
  const missing = keys.filter((name) => (process.env[name] ?? '') === '');
  if (missing.length === 0) return;
  const isOurs = !process.env['TEMPORAL_ADDRESS'] && (await readRunningStack(projectFolder)) === null;
  if (!isOurs) return;
  throw new RatchetError(
    'ConfigInvalid',
    `The model's server asks for a key in the environment variable ${missing.join(', ')}, which is not set here. Set it, or name another with -k.`,
  );
}
