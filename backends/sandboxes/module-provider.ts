import { RatchetError } from '../../core/errors.ts';
import { sandboxes } from '../../core/kinds/sandboxes.ts';
import type { SandboxProviderSpec } from '../../core/settings/sandboxes.ts';
import { importUserFunction } from '../../engine/train/user-code.ts';
import { registerKit } from '../environments/load.ts';
import { checkRequest } from './check-request.ts';
import type { Sandbox, SandboxProvider, SandboxRequest, SnapshotPlace } from './types.ts';

const methods = ['create', 'find', 'list', 'destroy', 'close'] as const satisfies readonly (keyof SandboxProvider)[];
const ofSandbox = ['exec', 'start', 'read', 'write', 'destroy'] as const satisfies readonly (keyof Sandbox)[];

type Spec = Extract<SandboxProviderSpec, { readonly kind: 'module' }>;

/**
 * The user's own provider: what the default export of `import` gives for `options` and the place of snapshots. Its
 * requests are checked before it sees them.
 */
export async function loadSandboxProvider(
  { import: code, options }: Spec,
  snapshots: SnapshotPlace,
): Promise<SandboxProvider> {
  await registerKit();
  const create = (await importUserFunction(code, 'sandbox provider')) as (options: Spec['options'], snapshots: SnapshotPlace) => unknown; // prettier-ignore
  const made = (await create(options, snapshots)) as Partial<Record<string, unknown>> | null | undefined;
  requireMethods(made, methods, `${code.path}: its default export must give a provider of sandboxes`);
  const provider = made as unknown as SandboxProvider; // every method exists
  const named = { kind: provider.kind ?? 'module', traits: { ...sandboxes.module, ...provider.traits } };
  return {
    ...named,
    create: async (request: SandboxRequest, signal) => {
      checkRequest(request, named);
      const sandbox = await provider.create(request, signal);
      requireMethods(sandbox, ofSandbox, `${code.path}: create() must give a sandbox`);
      return sandbox;
    },
    find: async (name) => provider.find(name),
    list: async (project) => provider.list(project),
    destroy: async (name) => provider.destroy(name),
    close: async () => provider.close(),
  };
}

function requireMethods(made: unknown, names: readonly string[], what: string): void {
  const missing = names.filter(
    (name) => typeof (made as Record<string, unknown> | null | undefined)?.[name] !== 'function',
  );
  if (missing.length === 0) return;
  throw new RatchetError(
    'Unsupported',
    `${what} with ${names.join(', ')} (backends/sandboxes/types.ts); missing: ${missing.join(', ')}.`,
  );
}
