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
/** The list of sandboxes has some 300 bytes for each. */
const answerBytesMax = 16 * 1024 * 1024;
const connectS = 20;
const settings = ['BatchMode=yes', 'StrictHostKeyChecking=yes', `ConnectTimeout=${connectS}`, 'ForwardAgent=no', 'ForwardX11=no', 'ServerAliveInterval=15', 'ServerAliveCountMax=4']; // prettier-ignore
const options = ['-T', ...settings.flatMap((one) => ['-o', one])];
/** Scripts at once over one connection: sshd allows ten (`MaxSessions`) where it is not told otherwise. */
const sessionsMax = 8;
/** Exit code of ssh itself. */
export const lost = 255;

export type Take = (name: 'out' | 'err', bytes: Buffer) => void | Promise<void>;
type Input = AsyncIterable<Uint8Array> | Uint8Array | null;

/** A process of ssh that holds a connection to a host, for as many of the others as the host allows. */
interface Master {
  readonly folder: string;
  readonly child: ChildProcess;
  /** Scripts that run over it. */
  sessions: number;
}

/** A port of the host that leads to a socket here, as long as its connection lasts. */
export interface Forward {
  readonly port: number;
  end(): Promise<void>;
}

/** The connections to a host over which all scripts run, as many as these need. They end with this process. */
export class SshConnection {
  readonly #host: SshHost;
  readonly #masters: Master[] = [];
  #opening: Promise<Master> | undefined;

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
    const master = await this.#masterWithRoom();
    try {
      return await ended(this.#over(master, ['--', this.#host.host, remote]), script, input, take);
    } finally {
      master.sessions--;
    }
  }

  /** What a script prints; throws `SandboxUnavailable` where it fails. */
  async ask(text: string): Promise<string> {
    const [out, trouble] = [new KeptOutput(answerBytesMax), new KeptOutput(troubleBytesMax)];
    const code = await this.run(text, null, (name, bytes) => (name === 'out' ? out : trouble).add(bytes));
    if (code !== 0) throw this.#unavailable(trouble.text().trim() || `a script ended with ${code}`);
    if (out.isCut) throw this.#unavailable(`it answered with more than ${answerBytesMax} bytes`);
    return out.text();
  }

  /** Leads a port of the host's loopback, which the host chooses, to a Unix socket of this machine. */
  async forward(socket: string): Promise<Forward> {
    const master = await this.#masterWithRoom();
    master.sessions--; // a forwarded port is no session
    const out = new KeptOutput(1_000);
    const spec = ['-R', `127.0.0.1:0:${socket}`, '--', this.#host.host];
    const child = this.#over(master, ['-O', 'forward', ...spec]);
    const code = await ended(child, Buffer.of(), null, (_, bytes) => out.add(bytes));
    const port = Number(out.text().trim());
    if (code !== 0 || !(port > 0)) throw this.#unavailable(`no port can be led to ${socket}: ${out.text().trim()}`);
    const end = async (): Promise<void> => {
      if (isOver(master.child)) return; // it ended with its connection
      await ended(this.#over(master, ['-O', 'cancel', ...spec]), Buffer.of(), null, () => undefined);
    };
    return { port, end };
  }

  async close(): Promise<void> {
    await this.#opening?.catch(() => undefined);
    await Promise.all(this.#masters.splice(0).map(endMaster));
  }

  /** One of its sessions is taken. Connections are opened one by one: a host refuses many at once. */
  async #masterWithRoom(): Promise<Master> {
    for (;;) {
      const broken = this.#masters.findIndex(({ child }) => isOver(child));
      if (broken !== -1) {
        await endMaster(...(this.#masters.splice(broken, 1) as [Master]));
        continue;
      }
      const found = this.#masters.find((one) => one.sessions < sessionsMax);
      if (found) {
        found.sessions++;
        return found;
      }
      this.#opening ??= this.#open().finally(() => (this.#opening = undefined));
      await this.#opening;
    }
  }

  async #open(): Promise<Master> {
    const folder = await openTemporaryFolder('ssh');
    const socket = path.join(folder, 'ssh');
    const child = this.#spawn(['-M', '-N', '-S', socket, '--', this.#host.host]);
    const master = { folder, child, sessions: 0 };
    const trouble = new KeptOutput(troubleBytesMax);
    child.stderr!.on('data', (bytes: Buffer) => trouble.add(bytes));
    child.once('error', (error) => trouble.add(Buffer.from(error.message)));
    for (const end = Date.now() + 2 * connectS * 1000; Date.now() < end && !isOver(child);) {
      const check = this.#over(master, ['-O', 'check', '--', this.#host.host]);
      if ((await ended(check, Buffer.of(), null, () => undefined)) === 0) {
        this.#masters.push(master);
        return master;
      }
      await delay(100);
    }
    await endMaster(master);
    throw this.#unavailable(trouble.text().trim() || `no connection in ${2 * connectS} s`);
  }

  /** Never beside the connection of the master: ssh would open one of its own where that has no room, and say so in the output. */
  #over({ folder }: Master, words: readonly string[]): ChildProcess {
    return this.#spawn(['-o', 'ControlMaster=no', '-o', 'ProxyCommand=false', '-S', path.join(folder, 'ssh'), ...words]); // prettier-ignore
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

function isOver({ exitCode, signalCode, pid }: ChildProcess): boolean {
  return exitCode !== null || signalCode !== null || pid === undefined;
}

async function endMaster({ child, folder }: Master): Promise<void> {
  child.kill('SIGKILL');
  await rm(folder, { recursive: true, force: true });
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
