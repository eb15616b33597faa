import { existsSync } from 'node:fs';
import { RatchetError } from '../../../core/errors.ts';
import type { SnapshotPlace } from '../types.ts';
import { DockerProvider } from './docker-provider.ts';

interface OpenDocker {
  /** null = the usual one of Docker or Podman. */
  readonly socket: string | null;
  readonly snapshots: SnapshotPlace;
}

/** Throws `ConfigInvalid` where there is no socket, and `SandboxUnavailable` where nobody answers at it. */
export async function openDockerProvider({ socket, snapshots }: OpenDocker): Promise<DockerProvider> {
  const places = socket === null ? usualSockets() : [socket];
  const found = places.find((place) => existsSync(place));
  if (found === undefined)
    throw new RatchetError(
      'ConfigInvalid',
      `Expected the socket of Docker or Podman at ${places.join(' or ')}, and there is none: start one (podman system service), or name its socket.`,
    );
  const provider = new DockerProvider({ socket: found, snapshots });
  await provider.requireHere();
  return provider;
}

function usualSockets(): readonly string[] {
  const { DOCKER_HOST = '', XDG_RUNTIME_DIR = `/run/user/${process.getuid?.() ?? 0}` } = process.env;
  const named = DOCKER_HOST.startsWith('unix://') ? [DOCKER_HOST.slice('unix://'.length)] : [];
  return [...named, '/var/run/docker.sock', `${XDG_RUNTIME_DIR}/docker.sock`, `${XDG_RUNTIME_DIR}/podman/podman.sock`];
}
