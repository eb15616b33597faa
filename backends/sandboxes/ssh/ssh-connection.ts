import { type ChildProcess, spawn } from 'node:child_process';
import { rm } from 'node:fs/promises';
import os from 'node:os';
import path from 'node:path';
import { setTimeout as delay } from 'node:timers/promises';
import { RatchetError } from '../../../core/errors.ts';
import type { SandboxProviderSpec } from '../../../core/settings/sandboxes.ts';
import { dyingTogether, systemPath } from '../isolated-child.ts';
import { KeptOutput } from '../kept-output.ts';
import { quoted, readingScript } from '../shell/scripts.ts';
import { openTemporaryFolder } from '../../../host/temporary-folder.ts';

export type SshHost = Omit<Extract<SandboxProviderSpec, { readonly kind: 'ssh' }>, 'kind'>;

const troubleBytesMax = 4_096;
const connectS = 20;
const settings = ['BatchMode=yes', 'StrictHostKeyChecking=yes', `ConnectTimeout=${connectS}`, 'ForwardAgent=no', 'ForwardX11=no', 'ServerAliveInterval=15', 'ServerAliveCountMax=4']; // prettier-ignore
const options = ['-T', ...settings.flatMap((one) => ['-o', one])];
/** Exit code of ssh itself. */
export const lost = 255;

export type Take = (name: 'out' | 'err', bytes: Buffer) => void | Promise<void>;
type Input = AsyncIterable<Uint8Array> | Uint8Array | null;

/** One connection to a host, over which all scripts run. It ends with this process. */
export class SshConnection {
  readonly #host: SshHost;
  #opened: Promise<{ readonly folder: string; readonly master: ChildProcess }> | undefined;

  constructor(host: SshHost) {
    this.#host = host;
  }

  get name(): string {
    return this.#host.host;
  }

  /** Runs a script of `sh` there; resolves with its exit code. The script comes by its input: nobody sees it in a list of processes. */
  async run(text: string, input: Input = null, take: Take = () => undefined): Promise<number> {
    const { command, script } = readingScript(text);
    // The shell of the user stays, to say how this one ended.
    const remote = `sh -c ${quoted(command)}; exit $?`;
    const child = await this.#ssh(['--', this.#host.host, remote]);
    return ended(child, script, input, take);
  }

  /** What a script prints; throws `SandboxUnavailable` where it fails. */
  async ask(text: string): Promise<string> {
    const [out, trouble] = [new KeptOutput(1024 * 1024), new KeptOutput(troubleBytesMax)];
    const code = await this.run(text, null, (name, bytes) => (name === 'out' ? out : trouble).add(bytes));
    if (code !== 0) throw this.#unavailable(trouble.text().trim() || `a script ended with ${code}`);
    return out.text();
  }

  /** Leads a port of the host's loopback to a Unix socket of this machine; the port, which the host chooses. */
  async forward(socket: string): Promise<number> {
    const out = new KeptOutput(1_000);
    const child = await this.#ssh(['-O', 'forward', '-R', `127.0.0.1:0:${socket}`, '--', this.#host.host]);
    const code = await ended(child, Buffer.of(), null, (_, bytes) => out.add(bytes));
    const port = Number(out.text().trim());
    if (code === 0 && port > 0) return port;
    throw this.#unavailable(`no port can be led to ${socket}: ${out.text().trim()}`);
  }

  async close(): Promise<void> {
    const opened = await this.#opened?.catch(() => null);
    opened?.master.kill('SIGKILL');
    if (opened) await rm(opened.folder, { recursive: true, force: true });
  }

  async #ssh(words: readonly string[]): Promise<ChildProcess> {
    const { folder, master } = await (this.#opened ??= this.#open());
    if (master.exitCode !== null || master.signalCode !== null) {
      this.#opened = undefined; // the connection broke: the next use opens another
      await rm(folder, { recursive: true, force: true });
      return this.#ssh(words);
    }
    return this.#spawn(['-o', 'ControlMaster=no', '-S', path.join(folder, 'ssh'), ...words]);
  }

  async #open(): Promise<{ folder: string; master: ChildProcess }> {
    const folder = await openTemporaryFolder('ssh');
    const socket = path.join(folder, 'ssh');
    const master = this.#spawn(['-M', '-N', '-S', socket, '--', this.#host.host]);
    const trouble = new KeptOutput(troubleBytesMax);
    master.stderr!.on('data', (bytes: Buffer) => trouble.add(bytes));
    master.once('error', (error) => trouble.add(Buffer.from(error.message)));
    const isOver = (): boolean => master.exitCode !== null || master.signalCode !== null || master.pid === undefined;
    for (const end = Date.now() + 2 * connectS * 1000; Date.now() < end && !isOver();) {
      const check = this.#spawn(['-S', socket, '-O', 'check', '--', this.#host.host]);
      if ((await ended(check, Buffer.of(), null, () => undefined)) === 0) return { folder, master };
      await delay(100);
    }
    master.kill('SIGKILL');
    this.#opened = undefined;
    await rm(folder, { recursive: true, force: true });
    throw this.#unavailable(trouble.text().trim() || `no connection in ${2 * connectS} s`);
  }

  #spawn(words: readonly string[]): ChildProcess {
    const { port, identityFile, knownHostsFile } = this.#host;
    const [command, ...rest] = [
      ...dyingTogether(),
      'ssh',
      ...options,
      ...(port === null ? [] : ['-p', String(port)]),
      ...(identityFile === null ? [] : ['-i', identityFile, '-o', 'IdentitiesOnly=yes']),
      ...(knownHostsFile === null ? [] : ['-o', `UserKnownHostsFile=${knownHostsFile}`]),
      ...words,
    ];
    const { HOME = os.homedir(), SSH_AUTH_SOCK, USER } = process.env;
    const env = { PATH: systemPath, HOME, ...(USER ? { USER } : {}), ...(SSH_AUTH_SOCK ? { SSH_AUTH_SOCK } : {}) };
    return spawn(command!, rest, { env, stdio: ['pipe', 'pipe', 'pipe'] });
  }

  #unavailable(why: string): RatchetError {
    return new RatchetError('SandboxUnavailable', `ssh ${this.#host.host}: ${why}`);
  }
}

async function ended(child: ChildProcess, script: Buffer, input: Input, take: Take): Promise<number> {
  const { stdin, stdout, stderr } = child;
  const exit = new Promise<number>((resolve, reject) => {
    child.once('error', (cause) => reject(new RatchetError('SandboxUnavailable', `ssh: ${cause.message}`, { cause })));
    child.once('exit', (code) => resolve(code ?? lost));
  });
  exit.catch(() => undefined);
  stdin!.on('error', () => undefined); // it reads no more
  const pour = async (name: 'out' | 'err', from: AsyncIterable<Buffer>): Promise<void> => {
    for await (const bytes of from) await take(name, bytes);
  };
  const feed = async (): Promise<void> => {
    stdin!.write(script);
    for await (const part of input === null ? [] : input instanceof Uint8Array ? [input] : input) {
      if (stdin!.destroyed || child.exitCode !== null) return;
      if (!stdin!.write(part)) await Promise.race([new Promise((resolve) => stdin!.once('drain', resolve)), exit]);
    }
    stdin!.end();
  };
  try {
    const [code] = await Promise.all([exit, pour('out', stdout!), pour('err', stderr!), feed()]);
    return code;
  } catch (error) {
    child.kill('SIGKILL');
    throw error;
  }
}
