import path from 'node:path';
import { z } from 'zod';
import { RatchetError } from '../../../core/errors.ts';
import { jsonOrNull } from '../../../core/json-or-null.ts';
import { sandboxes } from '../../../core/kinds/sandboxes.ts';
import { checkRequest } from '../check-request.ts';
import { restoredTar } from '../snapshot-tars.ts';
import { quoted } from '../shell/scripts.ts';
import { type RunScript, ShellSandbox } from '../shell/shell-sandbox.ts';
import type { ListedSandbox, Sandbox, SandboxProvider, SandboxRequest, SnapshotPlace } from '../types.ts';
import { type Forward, lost, SshConnection, type SshHost } from './ssh-connection.ts';

/** Variable by which every process of a sandbox is known. */
const variable = 'RATCHET_SANDBOX';
/** Exit codes of the scripts below, apart from those of programs. */
const [noSandbox, isThere] = [90, 93];

const labelBytesMax = 4_096;
const Label = z.object({
  name: z.string(),
  createdAtMs: z.number(),
  labels: z.object({ project: z.string(), owner: z.string() }),
});

/**
 * Folders of a host, with the programs, the network and the rights of its user there: nothing but that user keeps a
 * program from the rest of the host. Limits hold for each process. They outlive this process; a process there ends them.
 */
export class SshProvider implements SandboxProvider {
  readonly kind = 'ssh';
  readonly traits = sandboxes.ssh;
  readonly #connection: SshConnection;
  readonly #snapshots: SnapshotPlace;
  readonly #folder: string;
  readonly #env = new Map<string, Readonly<Record<string, string>>>();
  /** Ports of the host that lead to this machine, by sandbox. */
  readonly #routes = new Map<string, Forward>();
  #base: Promise<string> | undefined;

  constructor({ snapshots, ...host }: SshHost & { readonly snapshots: SnapshotPlace }) {
    this.#connection = new SshConnection(host);
    this.#snapshots = snapshots;
    this.#folder = host.folder;
  }

  async create(request: SandboxRequest, signal?: AbortSignal): Promise<Sandbox> {
    checkRequest(request, this);
    const { name, image, labels, limits, env = {}, files = [], snapshot, route } = request;
    if (image !== undefined)
      throw new RatchetError('SandboxRefused', `Sandbox ${name}: expected no image: a host has its own programs.`);
    signal?.throwIfAborted();
    const base = await this.#baseFolder();
    const own = `${base}/${name}`;
    const label = JSON.stringify({ name, createdAtMs: Date.now(), labels } satisfies ListedSandbox);
    const lines = [
      'umask 077',
      `mkdir ${quoted(own)} 2>/dev/null || exit ${isThere}`,
      `mkdir ${quoted(`${own}/work`)} ${quoted(`${own}/run`)} ${quoted(`${own}/tmp`)} || exit 1`,
      `printf %s ${quoted(endScript(base, name))} >${quoted(`${own}/end`)}`,
      `printf %s ${quoted(limitsScript(limits))} >${quoted(`${own}/limits`)}`,
      `setsid sh -c ${quoted(`sleep ${Math.ceil(limits.seconds)}; sh ${quoted(`${own}/end`)}`)} </dev/null >/dev/null 2>&1 & echo $! >${quoted(`${own}/watchdog`)}`,
      // Last: what has a label is whole.
      `printf '%s\\n' ${quoted(label)} >${quoted(`${own}/label`)}`,
    ];
    const code = await this.#asked(name, lines.join('\n'));
    if (code === isThere)
      throw new RatchetError('SandboxRefused', `Sandbox ${name}: there is one of this name already.`);
    if (code !== 0)
      throw new RatchetError('SandboxUnavailable', `Sandbox ${name}: its folder below ${base} cannot be made.`);
    try {
      this.#env.set(name, env);
      const sandbox = this.#sandbox(base, name, route ? await this.#lead(name, route.socket) : null);
      if (snapshot) await sandbox.fill(restoredTar({ ...request, snapshot }, this.#snapshots));
      await sandbox.put(files);
      signal?.throwIfAborted();
      return sandbox;
    } catch (error) {
      await this.destroy(name).catch((cause: unknown) => {
        throw new RatchetError('SandboxUnanswered', `Sandbox ${name}: it could not be made, and may be there.`, {
          cause,
        });
      });
      throw error;
    }
  }

  async find(name: string): Promise<Sandbox | null> {
    const base = await this.#baseFolder();
    return (await this.#has(base, name)) ? this.#sandbox(base, name, null) : null;
  }

  async list(project?: string): Promise<readonly ListedSandbox[]> {
    const base = await this.#baseFolder();
    const text = await this.#connection.ask(listScript(base));
    return text
      .split('\n')
      .flatMap(listedIn)
      .filter(({ labels }) => project === undefined || labels.project === project);
  }

  async destroy(name: string): Promise<void> {
    const base = await this.#baseFolder();
    this.#env.delete(name);
    const route = this.#routes.get(name);
    this.#routes.delete(name);
    await route?.end();
    await this.#connection.ask(`${endScript(base, name)}\n${endOfWatchdog(`${base}/${name}`)}`);
  }

  close(): Promise<void> {
    return this.#connection.close();
  }

  async #lead(name: string, socket: string): Promise<number> {
    const route = await this.#connection.forward(socket);
    this.#routes.set(name, route);
    return route.port;
  }

  /** The folder of all sandboxes as an absolute path, made if need be. */
  #baseFolder(): Promise<string> {
    const [home, rest] = this.#folder.startsWith('~/') ? ['"$HOME"/', this.#folder.slice(2)] : ['', this.#folder];
    const place = `${home}${quoted(rest)}`;
    this.#base ??= this.#connection
      .ask(`umask 077; mkdir -p ${place} && cd ${place} && pwd -P`)
      .then((text) => text.trim());
    this.#base.catch(() => (this.#base = undefined));
    return this.#base;
  }

  #sandbox(base: string, name: string, routePort: number | null): ShellSandbox {
    const own = `${base}/${name}`;
    const before = [`test -f ${quoted(`${own}/label`)} || exit ${noSandbox}`, `export ${variable}=${name} HOME=${quoted(`${own}/work`)} TMPDIR=${quoted(`${own}/tmp`)}`, `. ${quoted(`${own}/limits`)}`]; // prettier-ignore
    const run: RunScript = (script, input, take) => ({
      ended: this.#run(base, name, [...before, script].join('\n'), input, take),
    });
    const env = this.#env.get(name) ?? {};
    return new ShellSandbox({ kind: this.kind, name, folder: path.posix.join(own, 'work'), ownFolder: `${own}/run`, routePort, env, run, snapshots: this.#snapshots, destroy: () => this.destroy(name) }); // prettier-ignore
  }

  async #run(base: string, name: string, ...asked: Parameters<SshConnection['run']>): Promise<number> {
    const code = await this.#connection.run(...asked);
    // A program may end so, too: then its sandbox is still there.
    if ((code === lost || code === noSandbox) && !(await this.#has(base, name)))
      throw new RatchetError('SandboxUnavailable', `Sandbox ${name}: it has ended.`);
    return code;
  }

  async #has(base: string, name: string): Promise<boolean> {
    const found = await this.#connection.ask(`test -f ${quoted(`${base}/${name}/label`)} && echo yes || echo no`);
    return found.trim() === 'yes';
  }

  /** A request that is lost on its way may have been heard. */
  async #asked(name: string, script: string): Promise<number> {
    const code = await this.#connection.run(script);
    if (code !== lost) return code;
    throw new RatchetError(
      'SandboxUnanswered',
      `Sandbox ${name}: ssh ${this.#connection.name} ended before it said what it did.`,
    );
  }
}

/** Folders of this user with a file `label`, a line each: others may have such files beside ours. */
function listScript(base: string): string {
  return [
    `for one in ${quoted(base)}/*/label; do`,
    '  [ -O "$one" ] || continue',
    '  folder=${one%/label}',
    `  printf '%s ' "\${folder##*/}"; head -c ${labelBytesMax} "$one" | head -n 1; echo`,
    'done',
    'exit 0',
  ].join('\n');
}

/** Nothing where the label is another program's, or names another folder: what is listed may be destroyed by its name. */
function listedIn(line: string): readonly ListedSandbox[] {
  const [, folder, text] = /^(\S+) (.*)$/.exec(line) ?? [];
  const label = Label.safeParse(jsonOrNull(text ?? ''));
  return label.success && label.data.name === folder ? [label.data] : [];
}

/**
 * Ends every process that has the name in its environment, or that works in the folder (one that was given an empty
 * environment), and removes the folder. Found by name, nothing else is touched.
 */
function endScript(base: string, name: string): string {
  return [
    'for i in 1 2 3 4 5 6 7 8 9; do',
    `  found=$(grep -lzx ${quoted(`${variable}=${name}`)} /proc/[0-9]*/environ 2>/dev/null; ls -l /proc/[0-9]*/cwd 2>/dev/null | grep -F ${quoted(` -> ${base}/${name}/`)} | sed 's| -> .*||; s|.* ||')`,
    '  [ -n "$found" ] || break',
    '  for one in $found; do one=${one#/proc/}; kill -KILL ${one%/*} 2>/dev/null; done',
    'done',
    `watchdog=$(cat ${quoted(`${base}/${name}/watchdog`)} 2>/dev/null)`,
    `rm -rf ${quoted(`${base}/${name}`)}`,
  ].join('\n');
}

/** The process that would end it when its time is over; its number is read before the folder goes. */
function endOfWatchdog(own: string): string {
  return [
    `case $(tr '\\0' ' ' <"/proc/\${watchdog:-0}/cmdline" 2>/dev/null) in *${quoted(own)}*) for one in $(cat /proc/$watchdog/task/*/children) $watchdog; do kill -KILL $one 2>/dev/null; done;; esac`,
    'exit 0',
  ].join('\n');
}

function limitsScript({ memoryMb, diskMb }: SandboxRequest['limits']): string {
  return `ulimit -c 0; ulimit -d ${memoryMb * 1024}; ulimit -f ${diskMb * 2048}\n`;
}
