import type { ChildProcess } from 'node:child_process';
import { RatchetError } from '../../../core/errors.ts';
import { tarOfFiles } from '../../../host/archives/write-tar.ts';
import { checkCommand } from '../check-request.ts';
import { CommandRun } from '../command-run.ts';
import { KeptOutput } from '../kept-output.ts';
import { killWhole } from '../isolated-child.ts';
import type {
  CommandResult,
  RunningCommand,
  Sandbox,
  SandboxCommand,
  SandboxFile,
  SandboxLimits,
  SnapshotPlace,
  SnapshotTarget,
} from '../types.ts';
import type { SnapshotRef } from '../../../core/settings/sandboxes.ts';
import { PieceQueue } from '../piece-queue.ts';
import type { CommandStart, LinkedCommand, SupervisorLink, TakeOutput } from './supervisor-link.ts';

/** Time limit of reading, writing and saving files inside. */
const fileTaskS = 600;
const troubleBytesMax = 4_096;

interface Begun {
  readonly name: string;
  readonly child: ChildProcess;
  readonly link: SupervisorLink;
  readonly routePort: number | null;
  readonly limits: SandboxLimits;
  readonly snapshots: SnapshotPlace;
}

/** A sandbox whose first process this process has started. */
export class NamespaceSandbox implements Sandbox {
  readonly folder = '/work';
  readonly name: string;
  readonly routePort: number | null;
  readonly #child: ChildProcess;
  readonly #link: SupervisorLink;
  readonly #limits: SandboxLimits;
  readonly #snapshots: SnapshotPlace;

  constructor({ name, child, link, routePort, limits, snapshots }: Begun) {
    this.name = name;
    this.routePort = routePort;
    this.#child = child;
    this.#link = link;
    this.#limits = limits;
    this.#snapshots = snapshots;
  }

  async exec(command: SandboxCommand, signal?: AbortSignal): Promise<CommandResult> {
    return (await this.start(command, signal)).wait();
  }

  async start(command: SandboxCommand, signal?: AbortSignal): Promise<RunningCommand> {
    checkCommand(command, 'namespace');
    const { argv, cwd = '', env = {}, stdin = null, timeoutS } = command;
    const input = typeof stdin === 'string' ? Buffer.from(stdin) : stdin;
    return new CommandRun(
      command,
      (take) => {
        const { ended, kill } = this.begin({ argv, cwd, env, timeoutS }, input, take);
        const outcome = ended.then(({ isOverMemory, ...how }) => {
          return isOverMemory && how.code !== 0 ? { ...how, note: this.#overMemory() } : how;
        });
        return { ended: outcome, kill };
      },
      signal,
    );
  }

  async read(path: string, bytesMax: number): Promise<Buffer> {
    const parts: Buffer[] = [];
    await this.#task({ task: 'read', arguments: [path, bytesMax] }, null, path, (bytes) => void parts.push(bytes));
    return Buffer.concat(parts);
  }

  async write(path: string, bytes: Uint8Array, mode = 0o644): Promise<void> {
    await this.#task({ task: 'write', arguments: [path, mode] }, bytes, path);
  }

  /** Puts files into the work folder in one go. None of them may be there. */
  async put(files: readonly SandboxFile[]): Promise<void> {
    if (files.length > 0) await this.fill(tarOfFiles(files));
  }

  /** Puts a tar into the work folder, whose names are known to stay inside. */
  async fill(tar: AsyncIterable<Uint8Array>): Promise<void> {
    await this.#task({ task: 'fill', arguments: [] }, tar, 'its files');
  }

  async snapshot({ key, bytesMax }: SnapshotTarget): Promise<SnapshotRef> {
    const queue = new PieceQueue();
    const saved = this.#task({ task: 'save', arguments: [bytesMax] }, null, 'its work folder', (bytes) =>
      queue.add(bytes),
    ).then(
      () => queue.end(),
      (error: unknown) => queue.fail(error),
    );
    const ref = await this.#snapshots.put(key, queue);
    await saved;
    return ref;
  }

  async destroy(): Promise<void> {
    const { exitCode, signalCode } = this.#child;
    if (exitCode !== null || signalCode !== null) return;
    const ended = new Promise<void>((resolve) => this.#child.once('exit', () => resolve()));
    killWhole(this.#child);
    await ended;
  }

  /** Runs a task of the supervisor's; what it says of its failure becomes a refusal. */
  async #task(
    task: Pick<Extract<CommandStart, { readonly task: string }>, 'task' | 'arguments'>,
    input: AsyncIterable<Uint8Array> | Uint8Array | null,
    what: string,
    takeOutput: (bytes: Buffer) => void | Promise<void> = () => undefined,
  ): Promise<void> {
    const trouble = new KeptOutput(troubleBytesMax);
    const take: TakeOutput = (name, bytes) => (name === 'out' ? takeOutput(bytes) : trouble.add(bytes));
    const { ended } = this.begin({ ...task, timeoutS: fileTaskS }, input, take);
    const { code, isOverMemory } = await ended;
    if (code === 0) return;
    const why = trouble.text().trim() || (isOverMemory ? this.#overMemory() : `it took longer than ${fileTaskS} s`);
    throw new RatchetError('SandboxRefused', `Sandbox ${this.name}: ${task.task} ${what}: ${why}`);
  }

  /** Begins a program or a task whose input and output are streams. */
  begin(start: CommandStart, input: AsyncIterable<Uint8Array> | Uint8Array | null, take: TakeOutput): LinkedCommand {
    const { ended, kill } = this.#link.begin(start, input, take);
    return { ended: ended.catch((error: unknown) => Promise.reject(this.#gone(error))), kill };
  }

  #gone(cause: unknown): unknown {
    if (cause instanceof RatchetError) return cause;
    return new RatchetError('SandboxUnavailable', `Sandbox ${this.name}: ${(cause as Error).message}`, { cause });
  }

  #overMemory(): string {
    return `its processes held more than ${this.#limits.memoryMb} MiB together, and the largest was ended (limits.memory_mb).`;
  }
}
