import type { ServerKey } from '../../engine/index.ts';
import { makeSecret } from '../../host/project-secret.ts';

/**
 * The key of a server that a command starts: the value of `variable`, else one that is made of this folder's secret,
 * which the workers of the folder know.
 */
export function serverKey(variable: string): ServerKey {
  const value = process.env[variable];
  if (value) return { kind: 'chosen', value, variable };
  return { kind: 'secret', value: makeSecret(process.cwd()) };
}
