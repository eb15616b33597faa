import { createHash, randomBytes } from 'node:crypto';
import { createWriteStream } from 'node:fs';
import path from 'node:path';
import { pipeline } from 'node:stream/promises';
import { ofRollouts, ofThisProcess, type SnapshotRef } from '../../core/settings/sandboxes.ts';
import { damaged } from '../../store/objects.ts';
import { inTemporaryFolder } from '../../host/temporary-folder.ts';
import { dayOf, type LeaseStore, sandboxKeys } from './lease-store.ts';

/** Bytes of a snapshot that are read at once. */
const pieceBytes = 4 * 1024 * 1024;

/** Saved work folders in the store, for any worker: `SnapshotPlace` of backends/sandboxes/types.ts. */
export class StoredSnapshots {
  readonly #leases: LeaseStore;

  readonly #worker: string;

  /** `worker`: this process, as leases name it. */
  constructor(leases: LeaseStore, worker: string) {
    this.#leases = leases;
    this.#worker = worker;
  }

  /**
   * Durable when it returns. One of this process gets a place of its own, so that two processes that save the same do not
   * write over each other; its key in the answer is another one.
   */
  async put(asked: string, tar: AsyncIterable<Uint8Array>): Promise<SnapshotRef> {
    const isOwn = asked.startsWith(ofThisProcess);
    const name = `${asked.slice(ofThisProcess.length)}-${randomBytes(4).toString('hex')}`;
    const key = isOwn ? `${placeOf(this.#worker)}${dayOf(Date.now())}/${name}` : asked;
    return inTemporaryFolder('snapshot', async (folder) => {
      const file = path.join(folder, 'work.tar');
      const hash = createHash('sha256');
      let sizeBytes = 0;
      await pipeline(
        tar,
        async function* (parts: AsyncIterable<Uint8Array>) {
          for await (const part of parts) {
            hash.update(part);
            sizeBytes += part.length;
            yield part;
          }
        },
        createWriteStream(file, { mode: 0o600 }),
      );
      await this.#leases.store.putFile(sandboxKeys.snapshot(key), file);
      return { key, sizeBytes, sha256: hash.digest('hex') };
    });
  }

  /** Throws `CheckpointDamaged` at its end when its bytes are others than those that were put. */
  async *open({ key, sizeBytes, sha256 }: SnapshotRef): AsyncGenerator<Uint8Array> {
    const place = sandboxKeys.snapshot(key);
    const hash = createHash('sha256');
    for (let at = 0; at < sizeBytes;) {
      const part = await this.#leases.store.readRange(place, at, Math.min(pieceBytes, sizeBytes - at));
      if (part === null || part.length === 0)
        throw damaged(this.#leases.store.uri + place, `it ends at byte ${at} of ${sizeBytes}`);
      hash.update(part);
      at += part.length;
      // The last piece comes when all of it is known to be right: a tar is not whole without it.
      if (at >= sizeBytes && hash.digest('hex') !== sha256)
        throw damaged(this.#leases.store.uri + place, 'its bytes are others than those that were saved');
      yield part;
    }
  }

  /** Processes that have some, with the newest day on which they saved one. */
  async byProcess(): Promise<ReadonlyMap<string, string>> {
    const newest = new Map<string, string>();
    for (const key of await this.#leases.store.list(sandboxKeys.snapshot(ofThisProcess))) {
      const [, , worker = '', day = ''] = key.split('/');
      const name = decodeURIComponent(worker);
      if (day > (newest.get(name) ?? '')) newest.set(name, day);
    }
    return newest;
  }

  /** Workflows for whose rollouts some were saved, with the prefix of their keys. */
  async byWorkflow(): Promise<readonly { readonly workflow: string; readonly prefix: string }[]> {
    const keys = await this.#leases.store.list(sandboxKeys.snapshot(ofRollouts));
    const parts = new Set(keys.map((key) => key.slice(sandboxKeys.snapshot(ofRollouts).length).split('/', 1)[0]!));
    return [...parts].map((part) => ({ workflow: decodeURIComponent(part), prefix: `${ofRollouts}${part}/` }));
  }

  async removeOf(worker: string): Promise<void> {
    await this.remove(placeOf(worker));
  }

  /** Removes those whose keys begin so: nobody goes on from them. */
  async remove(prefix: string): Promise<void> {
    await this.#leases.store.removeAll(sandboxKeys.snapshot(prefix));
  }
}

/** Without what the names of folders may not have. */
function placeOf(worker: string): string {
  return `${ofThisProcess}${encodeURIComponent(worker)}/`;
}
