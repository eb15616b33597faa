import { createHash } from 'node:crypto';
import type { ObjectRef } from '../../core/rl/run-state.ts';
import type { Store } from '../../store/index.ts';

/** A store in memory: the part of the port that journals and notes use. `pass` is awaited before and after each write. */
export function memoryStore(objects: Map<string, Uint8Array>, pass: () => Promise<void> = async () => {}): Store {
  const refOf = (key: string, bytes: Uint8Array): ObjectRef => {
    return { key, sha256: createHash('sha256').update(bytes).digest('hex'), bytes: bytes.byteLength };
  };
  const own: Partial<Store> = {
    uri: 'memory:/',
    async put(key, bytes) {
      await pass();
      objects.set(key, bytes);
      await pass();
      return refOf(key, bytes);
    },
    async putIfAbsent(key, bytes) {
      await pass();
      const there = objects.get(key);
      if (there === undefined) objects.set(key, bytes);
      await pass();
      return { stored: there === undefined, bytes: there ?? bytes };
    },
    read: async (key) => {
      await pass();
      return objects.get(key) ?? null;
    },
    list: async (prefix) => {
      await pass();
      return [...objects.keys()].filter((key) => key.startsWith(prefix)).sort();
    },
  };
  return own as Store;
}
