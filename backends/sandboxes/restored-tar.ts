import { RatchetError } from '../../core/errors.ts';
import { cleanTar, TarTrouble } from '../../host/archives/read-tar.ts';
import type { SandboxRequest, SnapshotPlace } from './types.ts';

/**
 * The saved work folder that a sandbox begins with, for an empty folder: every name in it stays inside, and no more
 * comes than the disk may hold. Rejects with `SandboxRefused` at what was made to do harm.
 */
export async function* restoredTar(
  { name, snapshot, limits }: SandboxRequest & Required<Pick<SandboxRequest, 'snapshot'>>,
  snapshots: SnapshotPlace,
): AsyncGenerator<Uint8Array> {
  const where = `Sandbox ${name}: snapshot ${snapshot.key}`;
  try {
    yield* cleanTar(snapshots.open(snapshot), { bytesMax: limits.diskMb * 2 ** 20, where });
  } catch (error) {
    throw error instanceof TarTrouble ? new RatchetError('SandboxRefused', error.message, { cause: error }) : error;
  }
}
