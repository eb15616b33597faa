import { createHash } from 'node:crypto';
import type { SnapshotPlace } from '../../../backends/sandboxes/types.ts';

export function snapshotsInMemory(): SnapshotPlace {
  const kept = new Map<string, Buffer>();
  return {
    async put(key, tar) {
      const parts: Uint8Array[] = [];
      for await (const part of tar) parts.push(part);
      const bytes = Buffer.concat(parts);
      kept.set(key, bytes);
      return { key, sizeBytes: bytes.length, sha256: createHash('sha256').update(bytes).digest('hex') };
    },
    async *open({ key }) {
      yield kept.get(key)!;
    },
  };
}
