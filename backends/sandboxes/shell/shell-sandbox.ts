import { randomBytes } from 'node:crypto';
import path from 'node:path';
import { RatchetError } from '../../../core/errors.ts';
import { tarOfFiles } from '../../../host/archives/write-tar.ts';
import { checkCommand } from '../check-request.ts';
import { CommandRun } from '../command-run.ts';
import { KeptOutput } from '../kept-output.ts';
import { PieceQueue } from '../piece-queue.ts';
import type {
  CommandResult,
  RunningCommand,
  Sandbox,
  SandboxCommand,
  SandboxFile,
  SnapshotPlace,
  SnapshotTarget,
} from '../types.ts';
import type { SnapshotRef } from '../../../core/settings/sandboxes.ts';
import { killScript, markedScript, quoted } from './scripts.ts';

/** Runs a script of `sh` where the sandbox is. Its text comes by its input, so no list of processes shows it. */
export type RunScript = (
  script: string,
  input: AsyncIterable<Uint8Array> | Uint8Array | null,
  take: (name: 'out' | 'err', bytes: Buffer) => void | Promise<void>,
) => {
  /** Resolves with its exit code at its end; rejects with `SandboxUnavailable` where the sandbox has ended. */
  readonly ended: Promise<number>;
};

export interface ShellPlace {
  readonly kind: string;
  readonly name: string;
  readonly folder: string;
  /** A folder there for what is ours: which processes commands are. */
  readonly ownFolder: string;
  readonly routePort: number | null;
  readonly env: Readonly<Record<string, string>>;
  readonly run: RunScript;
  readonly snapshots: SnapshotPlace;
  readonly destroy: () => Promise<void>;
}

const troubleBytesMax = 4_096;
/** The exit code of what SIGKILL ended, as a shell says it. */
const killed = 137;
const drainMs = 1_000;
/** Exit codes of the scripts below, apart from those of programs. */
const [noFile, tooLarge] = [91, 92];

/** A sandbox that is reached by running scripts of `sh` in it: containers, hosts. */
export class ShellSandbox implements Sandbox {
  readonly name: string;
  readonly folder: string;
  readonly routePort: number | null;
  readonly #place: ShellPlace;

  constructor(place: ShellPlace) {
    this.#place = place;
    this.name = place.name;
    this.folder = place.folder;
    this.routePort = place.routePort;
  }

  async exec(command: SandboxCommand, signal?: AbortSignal): Promise<CommandResult> {
    return (await this.start(command, signal)).wait();
  }

  async start(command: SandboxCommand, signal?: AbortSignal): Promise<RunningCommand> {
    const { kind, run, ownFolder } = this.#place;
    checkCommand(command, kind);
    const { argv, cwd = '.', env = {}, stdin = null, timeoutS } = command;
    const mark = `${ownFolder}/.ratchet-${randomBytes(8).toString('hex')}`;
    const variables = Object.entries({ ...this.#place.env, ...env }).map(
      ([key, value]) => `export ${key}=${quoted(value)}`,
    );
    const input = quoted(`${mark}.in`);
    const script = [
      markedScript(mark),
      // From a file: Podman loses the end of the output of a program that leaves some of its input unread.
      ...(stdin === null ? [] : [`cat >${input} || exit 126`, `exec <${input}`, `rm -f ${input}`]),
      ...variables,
      `cd ${quoted(path.posix.resolve(this.folder, cwd))} || exit 126`,
      `command -v ${quoted(argv[0])} >/dev/null || { echo ${quoted(`${argv[0]}: not found`)} >&2; exit 127; }`,
      `exec ${argv.map(quoted).join(' ')}`,
    ].join('\n');
    return new CommandRun(
      command,
      (take) => {
        const { ended } = run(script, typeof stdin === 'string' ? Buffer.from(stdin) : stdin, take);
        let isTimedOut = false;
        let giveUp: (code: number) => void = () => undefined;
        // What left the tree of the command may still hold its output: that is waited for no longer.
        const stopped = new Promise<number>((resolve) => (giveUp = resolve));
        const kill = async (): Promise<void> => {
          await this.#quietly(killScript(mark));
          setTimeout(() => giveUp(killed), drainMs).unref();
        };
        const timer = setTimeout(() => {
          isTimedOut = true;
          void kill();
        }, timeoutS * 1000);
        const outcome = Promise.race([ended, stopped])
          .finally(() => clearTimeout(timer))
          .then((code) => ({ code, signal: null, isTimedOut }));
        return { ended: outcome, kill };
      },
      signal,
    );
  }

  async read(file: string, bytesMax: number): Promise<Buffer> {
    const at = quoted(this.#at(file));
    const parts: Buffer[] = [];
    await this.#script(
      `test -f ${at} || exit ${noFile}\ntest "$(wc -c <${at})" -le ${bytesMax} || exit ${tooLarge}\ncat ${at}`,
      null,
      `read ${file}`,
      (bytes) => void parts.push(bytes),
    );
    return Buffer.concat(parts).subarray(0, bytesMax);
  }

  async write(file: string, bytes: Uint8Array, mode = 0o644): Promise<void> {
    const at = this.#at(file);
    const beside = quoted(`${at}.${randomBytes(4).toString('hex')}.part`);
    const lines = [
      `mkdir -p ${quoted(path.posix.dirname(at))}`,
      `cat >${beside}`,
      `chmod ${mode.toString(8)} ${beside}`,
      `mv -f ${beside} ${quoted(at)}`,
    ];
    await this.#script(lines.join(' && '), bytes, `write ${file}`);
  }

  /** Puts files into an empty work folder. */
  async put(files: readonly SandboxFile[]): Promise<void> {
    if (files.length > 0) await this.fill(tarOfFiles(files));
  }

  /** Puts a tar into an empty work folder. Its names are known to stay inside, and no entry is behind a link. */
  async fill(tar: AsyncIterable<Uint8Array>): Promise<void> {
    await this.#script(`tar -xof - -C ${quoted(this.folder)}`, tar, 'fill its work folder');
  }

  async snapshot({ key, bytesMax }: SnapshotTarget): Promise<SnapshotRef> {
    const queue = new PieceQueue();
    let bytes = 0;
    // 1: a file changed while it was read.
    const saved = this.#script(
      `tar -cf - -C ${quoted(this.folder)} . || test $? -eq 1`,
      null,
      'save its work folder',
      (part) => {
        bytes += part.length;
        if (bytes > bytesMax) throw this.#refused('save its work folder', `it has more than ${bytesMax} bytes`);
        return queue.add(part);
      },
    ).then(
      () => queue.end(),
      (error: unknown) => queue.fail(error),
    );
    const ref = await this.#place.snapshots.put(key, queue);
    await saved;
    return ref;
  }

  destroy(): Promise<void> {
    return this.#place.destroy();
  }

  #at(file: string): string {
    return path.posix.resolve(this.folder, file);
  }

  async #script(
    script: string,
    input: AsyncIterable<Uint8Array> | Uint8Array | null,
    what: string,
    takeOutput: (bytes: Buffer) => void | Promise<void> = () => undefined,
  ): Promise<void> {
    const trouble = new KeptOutput(troubleBytesMax);
    const { ended } = this.#place.run(script, input, (name, bytes) =>
      name === 'out' ? takeOutput(bytes) : trouble.add(bytes),
    );
    const code = await ended;
    if (code === 0) return;
    const why =
      code === noFile
        ? 'there is no such file'
        : code === tooLarge
          ? 'it is larger than asked for'
          : trouble.text().trim();
    throw this.#refused(what, why || `it ended with code ${code}`);
  }

  async #quietly(script: string): Promise<void> {
    await this.#place.run(script, null, () => undefined).ended.catch(() => undefined); // it has ended
  }

  #refused(what: string, why: string): RatchetError {
    return new RatchetError('SandboxRefused', `Sandbox ${this.name}: ${what}: ${why}`);
  }
}
