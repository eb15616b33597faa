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
  yield* cleaned(snapshots.open(snapshot), {
    bytesMax: limits.diskMb * 2 ** 20,
    where: `Sandbox ${name}: snapshot ${snapshot.key}`,
  });
}

/**
 * Refuses what no sandbox could begin with when it is saved, such as a name with a backslash: its program goes on, and
 * nobody relies on the snapshot. Rejects with `SandboxRefused`.
 */
export function restorable(snapshots: SnapshotPlace): SnapshotPlace {
  return {
    put: (key, tar) => snapshots.put(key, cleaned(tar, { bytesMax: Infinity, where: `Snapshot ${key}` })),
    open: (ref) => snapshots.open(ref),
  };
}

async function* cleaned(
  tar: AsyncIterable<Uint8Array>,
  bounds: Parameters<typeof cleanTar>[1],
): AsyncGenerator<Uint8Array> {
  try {
    yield* cleanTar(tar, bounds);
  } catch (error) {
    throw error instanceof TarTrouble ? new RatchetError('SandboxRefused', error.message, { cause: error }) : error;
  }
}
