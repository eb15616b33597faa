import type { SandboxProviderSpec } from '../../core/settings/sandboxes.ts';
import { openDockerProvider } from './docker/open-docker.ts';
import { loadSandboxProvider } from './module-provider.ts';
import { openNamespaceProvider } from './namespace/open-namespaces.ts';
import { requireProvider } from './named.ts';
import { restorable } from './snapshot-tars.ts';
import { SshProvider } from './ssh/ssh-provider.ts';
import type { SandboxProvider, SnapshotPlace } from './types.ts';

/** Opens a provider that this user named. Throws `ConfigInvalid` or `SandboxUnavailable` with what is missing, where it cannot be used here. */
export async function openSandboxProvider(spec: SandboxProviderSpec, place: SnapshotPlace): Promise<SandboxProvider> {
  requireProvider(spec);
  const snapshots = restorable(place);
  switch (spec.kind) {
    case 'namespace':
      return openNamespaceProvider({ ...spec, snapshots });
    case 'docker':
      return openDockerProvider({ ...spec, snapshots });
    case 'ssh':
      return new SshProvider({ ...spec, snapshots });
    case 'module':
      return loadSandboxProvider(spec, snapshots);
    default:
      return spec satisfies never;
  }
}
