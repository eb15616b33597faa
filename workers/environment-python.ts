import { fileURLToPath } from 'node:url';
import { pythonForVerifiers } from '../backends/python/interpreter.ts';
import type { PythonEnvironmentSpec } from '../core/spec/run-spec.ts';
import { ensurePython } from './python-environment.ts';

export type VerifiersApi = PythonEnvironmentSpec['api'];

/** The version of verifiers that each API is spoken with. */
export const verifiersVersions = { v0: '0.3.1', v1: '0.4.0' } as const satisfies Record<VerifiersApi, string>;

/**
 * The Python of an environment below the cache that has verifiers and nothing else: what those of projects are laid over, and what
 * bundled code is tried with. Throws `ServerUnavailable` where there is no Python, or no package index.
 */
export function ensureVerifiers(
  api: VerifiersApi,
  options: { readonly log: (line: string) => void; readonly environment?: Readonly<NodeJS.ProcessEnv> },
): Promise<string> {
  const requirements = fileURLToPath(new URL(`../python/verifiers-${api}-requirements.txt`, import.meta.url));
  const name = `package verifiers ${verifiersVersions[api]}`;
  return ensurePython({ name, requirements, needs: pythonForVerifiers, ...options });
}
