import { processesOpen } from '../../../host/processes-open.ts';
import { RatchetError } from '../../../core/errors.ts';
import type { ProgramSandbox } from '../../../core/settings/programs.ts';
import { openSandboxProvider } from '../../sandboxes/index.ts';
import type { SandboxProvider, SnapshotPlace } from '../../sandboxes/types.ts';
import type { SnapshotRef } from '../../../core/settings/sandboxes.ts';
import { sha256 } from '../../../store/file-store.ts';
import type { RolloutSandboxes } from '../types.ts';
import { unleased } from './program-sandbox.ts';

const opened = new Map<string, Promise<SandboxProvider>>();

/** Sandboxes of this process without leases: for a person who looks at an environment, and for tests. */
export async function sandboxesHere({ pool: { provider } }: Pick<ProgramSandbox, 'pool'>): Promise<RolloutSandboxes> {
  const key = JSON.stringify(provider);
  const opening = opened.get(key) ?? open(provider);
  opened.set(key, opening);
  opening.catch(() => opened.delete(key)); // its caller gets the error
  return unleased(await opening);
}

async function open(spec: ProgramSandbox['pool']['provider']): Promise<SandboxProvider> {
  const provider = await openSandboxProvider(spec, new SnapshotsInMemory());
  processesOpen.add(() => provider.close());
  return provider;
}

const snapshotsMax = 16;

class SnapshotsInMemory implements SnapshotPlace {
  readonly #kept = new Map<string, Buffer>();

  async put(key: string, tar: AsyncIterable<Uint8Array>): Promise<SnapshotRef> {
    const parts: Uint8Array[] = [];
    for await (const part of tar) parts.push(part);
    const bytes = Buffer.concat(parts);
    this.#kept.set(key, bytes);
    if (this.#kept.size > snapshotsMax) this.#kept.delete(this.#kept.keys().next().value!);
    return { key, sizeBytes: bytes.byteLength, sha256: sha256(bytes) };
  }

  async *open({ key }: SnapshotRef): AsyncIterable<Uint8Array> {
    const bytes = this.#kept.get(key);
    if (bytes === undefined) throw new RatchetError('SandboxUnavailable', `The snapshot ${key} is no longer kept.`);
    yield bytes;
  }
}
