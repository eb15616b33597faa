import { spawn, type ChildProcess } from 'node:child_process';
import { realpath } from 'node:fs/promises';
import path from 'node:path';
import { setTimeout as delay } from 'node:timers/promises';
import type { Duplex } from 'node:stream';
import { fileURLToPath } from 'node:url';
import { RatchetError } from '../../../core/errors.ts';
import { sandboxes } from '../../../core/kinds/sandboxes.ts';
import { onAbort } from '../../../core/on-abort.ts';
import { checkRequest, processesUsual } from '../check-request.ts';
import { anyUser, inNamespaces, killIfThere, killWhole, systemPath } from '../isolated-child.ts';
import { KeptOutput } from '../kept-output.ts';
import { restoredTar } from '../snapshot-tars.ts';
import type { ListedSandbox, Sandbox, SandboxProvider, SandboxRequest, SnapshotPlace } from '../types.ts';
import { NamespaceSandbox } from './namespace-sandbox.ts';
import { listSupervisors, markOf } from './supervisors-here.ts';
import { SupervisorLink } from './supervisor-link.ts';

/** Time limit for a sandbox's start, on a busy machine. */
const startMs = 60_000;
/** How long a killed sandbox is waited for, and between looks. */
const endedWithinMs = 5_000;
const endedLookMs = 10;
const troubleBytesMax = 4_096;
const supervisor = fileURLToPath(new URL('supervisor.py', import.meta.url));

export interface Here {
  readonly python: string;
  /** Whether each sandbox is a user of its own, who owns nothing. */
  readonly isOtherUser: boolean;
  readonly snapshots: SnapshotPlace;
}

/** Sandboxes in namespaces of this machine. They end with this process; others of this user can see and end them. */
export class NamespaceProvider implements SandboxProvider {
  readonly kind = 'namespace';
  readonly traits = sandboxes.namespace;
  readonly #here: Here;
  readonly #own = new Map<string, { readonly child: ChildProcess; readonly sandbox: Promise<NamespaceSandbox> }>();

  constructor(here: Here) {
    this.#here = here;
  }

  async create(request: SandboxRequest, signal?: AbortSignal): Promise<Sandbox> {
    checkRequest(request, this);
    const { name } = request;
    if (request.image !== undefined)
      throw new RatchetError('SandboxRefused', `Sandbox ${name}: expected no image: a sandbox of namespaces sees the programs of its machine.`); // prettier-ignore
    signal?.throwIfAborted();
    if (this.#own.has(name) || (await this.#outside(name)).length > 0)
      throw new RatchetError('SandboxRefused', `Sandbox ${name}: there is one of this name already.`);
    const child = this.#spawn(request);
    const sandbox = this.#begin(child, request, signal);
    this.#own.set(name, { child, sandbox });
    child.once('exit', () => this.#own.delete(name));
    try {
      return await sandbox;
    } catch (error) {
      killWhole(child);
      throw error;
    }
  }

  /** Only its creator can run something in it; to others it is there to be ended. */
  async find(name: string): Promise<Sandbox | null> {
    const own = this.#own.get(name);
    if (own) return own.sandbox.catch(() => null);
    const [outside] = await this.#outside(name);
    return outside ? foreign(name, () => this.destroy(name)) : null;
  }

  async list(project?: string): Promise<readonly ListedSandbox[]> {
    const all = await listSupervisors();
    return all
      .filter(({ labels }) => project === undefined || labels.project === project)
      .map(({ name, createdAtMs, labels }) => ({ name, createdAtMs, labels }));
  }

  async destroy(name: string): Promise<void> {
    const own = this.#own.get(name);
    if (own) {
      const ended = new Promise((resolve) => own.child.once('exit', resolve));
      killWhole(own.child);
      await ended;
    }
    // A killed one is listed for a moment, in which its name would be refused.
    for (const until = performance.now() + endedWithinMs; performance.now() < until; await delay(endedLookMs)) {
      const outside = await this.#outside(name);
      if (outside.length === 0) return;
      for (const { pid } of outside) killIfThere(pid);
    }
  }

  async close(): Promise<void> {
    await Promise.all([...this.#own.keys()].map((name) => this.destroy(name)));
  }

  async #outside(name: string): Promise<readonly { readonly pid: number }[]> {
    return (await listSupervisors()).filter((one) => one.name === name);
  }

  #spawn({ name, network, labels }: SandboxRequest): ChildProcess {
    const { python, isOtherUser } = this.#here;
    const [command, ...words] = inNamespaces({ isOtherUser, sharesNetwork: network === 'open' });
    const mark = markOf({ name, createdAtMs: Date.now(), labels });
    return spawn(command!, [...words, python, '-s', '-B', '-u', supervisor, mark], {
      cwd: '/',
      detached: true,
      env: { PATH: systemPath, LANG: 'C.UTF-8' },
      stdio: ['ignore', 'ignore', 'pipe', 'pipe'],
    });
  }

  async #begin(child: ChildProcess, request: SandboxRequest, signal?: AbortSignal): Promise<NamespaceSandbox> {
    const { isOtherUser, snapshots } = this.#here;
    const { name, limits, network, files = [], snapshot, route } = request;
    const trouble = new KeptOutput(troubleBytesMax);
    child.stderr!.on('data', (bytes: Buffer) => trouble.add(bytes));
    const link = new SupervisorLink(child.stdio[3] as Duplex);
    const fail = (why: string): void => link.fail(new RatchetError('SandboxUnavailable', `Sandbox ${name}: ${why}`));
    child.once('error', (error) => fail(error.message));
    child.once('close', (code, killedBy) =>
      fail(trouble.text().trim() || `it has ended (${killedBy ?? `code ${code}`}).`),
    );
    const timer = setTimeout(() => fail(`it did not stand after ${startMs / 1000} s.`), startMs);
    const stopListening = onAbort(signal, () => fail('it is wanted no more.'));
    try {
      const { port } = await link.open({
        user: isOtherUser ? anyUser() : null,
        network,
        limits: { ...limits, cpus: limits.cpus ?? null, processes: limits.processes ?? processesUsual },
        folders: await Promise.all((request.folders ?? []).map((folder) => shownFolder(name, folder))),
        env: {
          PATH: systemPath,
          HOME: '/work',
          TMPDIR: '/tmp',
          LANG: 'C.UTF-8',
          USER: isOtherUser ? 'agent' : 'root',
          ...request.env,
        },
        route: route
          ? { folder: path.dirname(route.socket), name: path.basename(route.socket), port: route.port }
          : null,
      });
      const sandbox = new NamespaceSandbox({ name, child, link, routePort: port, limits, snapshots });
      if (snapshot) await sandbox.fill(restoredTar({ ...request, snapshot }, snapshots));
      await sandbox.put(files);
      return sandbox;
    } finally {
      clearTimeout(timer);
      stopListening();
    }
  }
}

/** Shown at the path that was asked for, so that path has to be the real one. */
async function shownFolder(name: string, folder: string): Promise<string> {
  const real = await realpath(folder).catch(() => null);
  if (real === path.resolve(folder)) return real;
  throw new RatchetError(
    'SandboxRefused',
    `Sandbox ${name}: folders: expected a folder by its real path, got ${folder}, which ${real === null ? 'is not there' : `is ${real}`}.`,
  );
}

/** A sandbox of another process of this user. */
function foreign(name: string, destroy: () => Promise<void>): Sandbox {
  const refuse = (): never => {
    throw new RatchetError('SandboxRefused', `Sandbox ${name} belongs to another process of this machine, which alone can use it.`); // prettier-ignore
  };
  const refused = async (): Promise<never> => refuse();
  return {
    name,
    folder: '/work',
    routePort: null,
    exec: refused,
    start: refused,
    read: refused,
    write: refused,
    destroy,
  };
}
