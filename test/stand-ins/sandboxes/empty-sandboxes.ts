import type { Sandbox, SandboxProvider } from '../../../backends/sandboxes/types.ts';
import { RatchetError } from '../../../core/errors.ts';

/** Sandboxes in which nothing runs: for tests of who has one. Files that are written can be read. */
export function emptySandboxes(): SandboxProvider {
  const all = new Map<string, Sandbox & { readonly labels: { readonly project: string; readonly owner: string } }>();
  const destroy = async (name: string): Promise<void> => void all.delete(name);
  return {
    kind: 'empty',
    traits: { isolatesNetwork: true, snapshots: false, showsFolders: false, endsWithWorker: false },
    create: async ({ name, labels, route, files = [] }) => {
      const written = new Map(files.map(({ path, bytes }) => [path, Buffer.from(bytes)]));
      const nothing = async () => ({ code: 0, signal: null, stdout: '', stderr: '', isTimedOut: false, isCut: false });
      const sandbox: Sandbox = {
        name,
        folder: '/work',
        routePort: route?.port ?? null,
        exec: async ({ env }) => ({ ...(await nothing()), stdout: JSON.stringify(env ?? {}) }),
        start: async () => ({ wait: nothing, kill: async () => undefined, output: () => ({ stdout: '', stderr: '' }) }),
        read: async (path) => {
          const bytes = written.get(path);
          if (!bytes) throw new RatchetError('SandboxRefused', `${path} is not there`);
          return bytes;
        },
        write: async (path, bytes) => void written.set(path, Buffer.from(bytes)),
        destroy: () => destroy(name),
      };
      all.set(name, { ...sandbox, labels });
      return sandbox;
    },
    find: async (name) => all.get(name) ?? null,
    list: async () => [...all.values()].map(({ name, labels }) => ({ name, labels, createdAtMs: Date.now() })),
    destroy,
    close: async () => undefined,
  };
}
