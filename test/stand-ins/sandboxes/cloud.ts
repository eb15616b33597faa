import { setTimeout as delay } from 'node:timers/promises';
import type { ListedSandbox, Sandbox, SandboxProvider, SandboxRequest } from '../../../backends/sandboxes/types.ts';
import { RatchetError } from '../../../core/errors.ts';

/** What goes wrong at a provider of sandboxes. */
export interface CloudFaults {
  /** Sandboxes at once, those included that begin or are being removed; one more is refused for the moment. */
  readonly quota?: number;
  /** `held`: until the test calls `begin`. */
  readonly startMs?: number | 'held';
  /** How long a sandbox is still there after it was told to go. */
  readonly deletionMs?: number;
  /** Whether the answer to the nth request, from 1, is lost. Its sandbox comes all the same, and is not seen before. */
  readonly loses?: (request: number) => boolean;
}

interface Instance {
  readonly listed: ListedSandbox;
  readonly isSeen: () => boolean;
  isGoing: boolean;
  sandbox: Sandbox | null;
}

/** A provider that is far away: it outlives workers, has a quota, starts slowly, loses answers and removes late. */
export class SandboxCloud {
  /** Most that existed at once. */
  most = 0;
  created = 0;
  readonly #inner: SandboxProvider;
  readonly #faults: CloudFaults;
  readonly #instances = new Map<string, Instance>();
  readonly #beginning = new Set<Promise<unknown>>();
  begin: () => void = () => undefined;
  readonly #begun = new Promise<void>((resolve) => (this.begin = resolve));

  constructor(inner: SandboxProvider, faults: CloudFaults = {}) {
    this.#inner = inner;
    this.#faults = faults;
  }

  /** Names of all that exist, by the provider's own account. */
  names(): readonly string[] {
    return [...this.#instances.keys()];
  }

  /** A client, as each worker has one. */
  client(): SandboxProvider {
    return {
      kind: 'cloud',
      traits: { ...this.#inner.traits, endsWithWorker: false },
      create: (request, signal) => this.#create(request, signal),
      find: async (name) => this.#find(name),
      list: async (project) =>
        [...this.#instances.values()]
          .filter(({ listed, isSeen }) => isSeen() && (project === undefined || listed.labels.project === project))
          .map(({ listed }) => listed),
      destroy: (name) => this.#destroy(name),
      close: () => Promise.resolve(),
    };
  }

  async close(): Promise<void> {
    await Promise.allSettled(this.#beginning);
    await this.#inner.close();
  }

  async #create(request: SandboxRequest, signal?: AbortSignal): Promise<Sandbox> {
    const { quota = Infinity, startMs = 0, loses = () => false } = this.#faults;
    const { name, labels } = request;
    if (this.#instances.has(name)) throw new RatchetError('SandboxRefused', `${name} is there already.`);
    if (this.#instances.size >= quota)
      throw new RatchetError('SandboxUnavailable', `the quota of ${quota} is used up`, { retryAfterMs: 20 });
    this.created += 1;
    const isLost = loses(this.created);
    let isUp = false;
    const listed = { name, labels, createdAtMs: Date.now() };
    this.#instances.set(name, { listed, isSeen: () => !isLost || isUp, isGoing: false, sandbox: null });
    this.most = Math.max(this.most, this.#instances.size);
    const begun = (startMs === 'held' ? this.#begun : delay(startMs))
      .then(() => this.#inner.create(request, signal))
      .then(
        (sandbox) => this.#keep(sandbox),
        (error: unknown) => {
          this.#instances.delete(name);
          throw error;
        },
      )
      .finally(() => {
        isUp = true;
        this.#beginning.delete(begun);
      });
    this.#beginning.add(begun);
    begun.catch(() => undefined);
    if (!isLost) return begun;
    throw new RatchetError('SandboxUnanswered', `nothing came back for ${name}`);
  }

  /** Also while it begins or is removed. */
  async #find(name: string): Promise<Sandbox | null> {
    const instance = this.#instances.get(name);
    if (!instance?.isSeen()) return null;
    if (!instance.sandbox && !instance.isGoing) await Promise.allSettled(this.#beginning);
    return this.#instances.get(name)?.sandbox ?? null;
  }

  #keep(sandbox: Sandbox): Sandbox {
    const ours = this.#ours(sandbox);
    const instance = this.#instances.get(sandbox.name);
    if (instance) instance.sandbox = ours;
    return ours;
  }

  async #destroy(name: string): Promise<void> {
    const instance = this.#instances.get(name);
    if (!instance || !instance.isSeen() || instance.isGoing) return;
    instance.isGoing = true;
    await this.#inner.destroy(name);
    const gone = delay(this.#faults.deletionMs ?? 0).then(() => this.#instances.delete(name));
    this.#beginning.add(gone);
    if (this.#faults.deletionMs === undefined) await gone;
  }

  #ours(sandbox: Sandbox): Sandbox {
    const snapshot = sandbox.snapshot?.bind(sandbox);
    return {
      name: sandbox.name,
      folder: sandbox.folder,
      routePort: sandbox.routePort,
      exec: (command, signal) => sandbox.exec(command, signal),
      start: (command, signal) => sandbox.start(command, signal),
      read: (file, bytesMax) => sandbox.read(file, bytesMax),
      write: (file, bytes, mode) => sandbox.write(file, bytes, mode),
      ...(snapshot ? { snapshot } : {}),
      destroy: () => this.#destroy(sandbox.name),
    };
  }
}
