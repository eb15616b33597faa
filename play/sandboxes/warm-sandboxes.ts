import { link, mkdir, rm } from 'node:fs/promises';
import path from 'node:path';
import type {
  LeasedSandbox,
  LeaseRequest,
  Sandbox,
  SandboxLeases,
  TakeOptions,
} from '../../backends/sandboxes/types.ts';
import { RatchetError } from '../../core/errors.ts';
import { thisWorker } from '../../host/worker-process.ts';
import type { LeasedSandboxes } from './leased-sandboxes.ts';
import { openTemporaryFolder } from '../../host/temporary-folder.ts';

/** A sandbox that stood ready for so long is ended: its machine may be wanted for something else. */
const warmS = 600;
/** Owner of sandboxes that stand ready. */
export const nobodyYet = 'warm';

interface Warm {
  readonly sandbox: Sandbox;
  /** Where the socket of its route is to be. */
  readonly socket: string;
  readonly untilMs: number;
}

/**
 * Keeps sandboxes ready: what a new one takes the longest for is done before it is wanted. Those that differ only in
 * files, variables and the socket of their route are the same until then.
 */
export class WarmSandboxes implements SandboxLeases {
  readonly #leased: LeasedSandboxes;
  readonly #count: number;
  readonly #ready = new Map<string, Warm[]>();
  readonly #filling = new Set<Promise<void>>();
  readonly #closed = new AbortController();
  #folder: Promise<string> | undefined;
  #sockets = 0;

  constructor(leased: LeasedSandboxes, count: number) {
    this.#leased = leased;
    this.#count = count;
    leased.onWait = () => void this.#endReady(); // their places may be what is waited for
  }

  async take(request: LeaseRequest, options: TakeOptions): Promise<LeasedSandbox> {
    if (this.#count === 0 || request.snapshot) return this.#leased.take(request, options);
    const kind = kindOf(request);
    const leased = (await this.#takeReady(kind, request, options)) ?? (await this.#leased.take(request, options));
    this.#fill(kind, request);
    return leased;
  }

  async close(): Promise<void> {
    this.#closed.abort();
    await Promise.all(this.#filling);
    await this.#endReady();
    if (this.#folder) await rm(await this.#folder, { recursive: true, force: true });
    await this.#leased.close();
  }

  async #takeReady(
    kind: string,
    request: LeaseRequest,
    { owner, deadlineS, signal }: TakeOptions,
  ): Promise<LeasedSandbox | null> {
    for (let warm = this.#ready.get(kind)?.shift(); warm; warm = this.#ready.get(kind)?.shift()) {
      signal.throwIfAborted();
      if (Date.now() > warm.untilMs) {
        await this.#giveUp(warm);
        continue;
      }
      try {
        const { sandbox } = warm;
        // Through the same folder, whatever the kind made of it: the socket need not have been there.
        if (request.route) await link(request.route.socket, warm.socket);
        for (const { path: file, bytes, mode } of request.files ?? []) await sandbox.write(file, bytes, mode);
        const leased = await this.#leased.handOver(sandbox, { owner, deadlineAtMs: Date.now() + deadlineS * 1000 });
        return { ...leased, sandbox: withVariables(sandbox, request.env ?? {}) };
      } catch (error) {
        await this.#giveUp(warm);
        // Where the socket lies on another file system, only a new sandbox can be led to it.
        if ((error as NodeJS.ErrnoException).code === 'EXDEV') return null;
        if (!(error instanceof RatchetError) || error.code === 'SandboxRefused') throw error;
      }
    }
    return null;
  }

  /** Begins what is missing, where the quota has room, beside what goes on. */
  #fill(kind: string, request: LeaseRequest): void {
    const missing = this.#count - (this.#ready.get(kind)?.length ?? 0) - this.#filling.size;
    if (missing <= 0 || this.#closed.signal.aborted) return;
    const filling = this.#beginOne(kind, request)
      .catch(() => undefined) // the next one is begun when it is wanted
      .finally(() => this.#filling.delete(filling));
    this.#filling.add(filling);
  }

  async #beginOne(kind: string, request: LeaseRequest): Promise<void> {
    this.#folder ??= openTemporaryFolder('routes');
    const folder = path.join(await this.#folder, `${++this.#sockets}`);
    await mkdir(folder);
    const socket = path.join(folder, 'route.sock');
    const { files: _, env: __, route, limits, ...rest } = request;
    const untilMs = Date.now() + warmS * 1000;
    const sandbox = await this.#leased.begin(
      {
        ...rest,
        limits: { ...limits, seconds: limits.seconds + warmS },
        ...(route ? { route: { ...route, socket } } : {}),
      },
      {
        owner: { run: nobodyYet, worker: thisWorker() },
        deadlineAtMs: untilMs,
        signal: this.#closed.signal,
        waits: false,
      },
    );
    if (sandbox === 'unanswered') return;
    const warm = { sandbox, socket, untilMs };
    if (this.#leased.isWaitedFor) return this.#giveUp(warm);
    this.#ready.set(kind, [...(this.#ready.get(kind) ?? []), warm]);
  }

  async #endReady(): Promise<void> {
    await Promise.all([...this.#ready.values()].flatMap((warm) => warm.splice(0)).map((warm) => this.#giveUp(warm)));
  }

  async #giveUp({ sandbox }: Warm): Promise<void> {
    await this.#leased.giveUp(sandbox.name).catch(() => undefined); // a sweep ends it
  }
}

/** What sandboxes have in common that can stand in for each other. */
function kindOf({ image, folders, limits, network, route }: LeaseRequest): string {
  return JSON.stringify({ image, folders, limits, network, port: route?.port });
}

/** The variables of its owner, which a sandbox that stood ready did not know. */
function withVariables(sandbox: Sandbox, env: Readonly<Record<string, string>>): Sandbox {
  const snapshot = sandbox.snapshot?.bind(sandbox);
  return {
    name: sandbox.name,
    folder: sandbox.folder,
    routePort: sandbox.routePort,
    exec: (command, signal) => sandbox.exec({ ...command, env: { ...env, ...command.env } }, signal),
    start: (command, signal) => sandbox.start({ ...command, env: { ...env, ...command.env } }, signal),
    read: (file, bytesMax) => sandbox.read(file, bytesMax),
    write: (file, bytes, mode) => sandbox.write(file, bytes, mode),
    ...(snapshot ? { snapshot } : {}),
    destroy: () => sandbox.destroy(),
  };
}
