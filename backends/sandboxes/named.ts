import { canonical } from '../../core/eval/same-evaluation.ts';
import type { SandboxProviderSpec } from '../../core/settings/sandboxes.ts';
import { grants, requireGrant } from '../../host/grants.ts';

/** The interpreter of namespaces where nobody names another. */
const usualPython = 'python3';

/**
 * Lines that identify where sandboxes come from as named by this user; empty for namespaces of this machine. A socket of
 * Docker gives its machine to whoever may open it, a host is reached with this user's keys, and a module is executed.
 */
export function linesOfProvider(spec: SandboxProviderSpec): string[] {
  if (spec.kind === 'namespace' && spec.python === usualPython) return [];
  if (spec.kind !== 'module') return [`${grants.sandboxes}${canonical(spec)}`];
  const { path } = spec.import;
  return [path, `${grants.sandboxes}${canonical({ ...spec, import: path })}`];
}

/** Refuses a provider that this user did not name, when other users may name some. */
export function requireProvider(spec: SandboxProviderSpec): void {
  for (const line of linesOfProvider(spec))
    if (line.startsWith(grants.sandboxes)) requireGrant(line, `Sandboxes of kind "${spec.kind}"`);
}
