import type { SandboxProviderSpec } from '../../core/settings/sandboxes.ts';
import { RatchetError } from '../../core/errors.ts';
import { openDockerProvider } from './docker/open-docker.ts';
import { openNamespaceProvider } from './namespace/open-namespaces.ts';
import type { SandboxProvider, SnapshotPlace } from './types.ts';

/** Opens a provider. Throws `ConfigInvalid` or `SandboxUnavailable` with what is missing, where it cannot be used here. */
export async function openSandboxProvider(
  spec: SandboxProviderSpec,
  snapshots: SnapshotPlace,
): Promise<SandboxProvider> {
  switch (spec.kind) {
    case 'namespace':
      return openNamespaceProvider({ ...spec, snapshots });
    case 'docker':
      return openDockerProvider({ ...spec, snapshots });
    case 'ssh':
    case 'module':
      throw new RatchetError('Unsupported', `sandboxes of ${spec.kind} are not there yet`);
    default:
      return spec satisfies never;
  }
}
