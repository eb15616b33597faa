import { randomBytes } from 'node:crypto';
import { rm } from 'node:fs/promises';
import { createServer, type IncomingMessage, type ServerResponse } from 'node:http';
import type { Duplex } from 'node:stream';
import type { NamespaceProvider } from '../../../backends/sandboxes/namespace/namespace-provider.ts';
import { NamespaceSandbox } from '../../../backends/sandboxes/namespace/namespace-sandbox.ts';
import { RatchetError } from '../../../core/errors.ts';

/** What of the Engine API of Docker the adapter uses, as its reference documents it, over sandboxes of namespaces. */

interface Body {
  readonly Image?: string;
  readonly Cmd?: readonly string[];
  readonly Env?: readonly string[];
  readonly Labels?: Readonly<Record<string, string>>;
  readonly WorkingDir?: string;
  readonly User?: string;
  readonly HostConfig?: {
    readonly NetworkMode: string;
    readonly Memory: number;
    readonly PidsLimit: number;
    readonly NanoCpus?: number;
    readonly Binds: readonly string[];
  };
}

interface Container {
  readonly id: string;
  readonly name: string;
  readonly body: Body;
  sandbox: NamespaceSandbox | null;
}

interface Exec {
  readonly container: Container;
  readonly body: Body;
  code: number | null;
  isRunning: boolean;
}

export interface EngineServer {
  /** Bodies of `containers/create`. */
  readonly asked: readonly Body[];
  /** Bodies of `containers/NAME/exec`. */
  readonly execs: readonly Body[];
  /** Names of containers that exist. */
  names(): readonly string[];
  close(): Promise<void>;
}

export interface EngineTraits {
  /** Whether the answer to a request is lost, after it was done. */
  readonly loses?: (method: string, path: string) => boolean;
  /** The oldest version of the API that it speaks: 1.24 of Docker 28 and Podman, 1.44 of Docker 29. */
  readonly oldest?: string;
  /** Milliseconds from the end of a command's output until its exit code is written down, as with Podman. */
  readonly lateMs?: number;
  readonly isRootless?: boolean;
}

export async function openEngineServer(
  socketPath: string,
  inner: NamespaceProvider,
  { loses = () => false, oldest = '1.24', lateMs = 0, isRootless = false }: EngineTraits = {},
): Promise<EngineServer> {
  const containers = new Map<string, Container>();
  const execs = new Map<string, Exec>();
  const asked: Body[] = [];
  const execBodies: Body[] = [];
  const find = (key: string): Container | undefined =>
    containers.get(key) ?? [...containers.values()].find(({ id }) => id === key);

  async function answer(request: IncomingMessage, body: Body): Promise<{ status: number; json?: object }> {
    const url = new URL(request.url!, 'http://docker');
    if (url.pathname === '/version')
      return { status: 200, json: { Version: '29.0', ApiVersion: '1.52', MinAPIVersion: oldest } };
    const [, version = '', ...parts] = url.pathname.split('/');
    const refused = refusedVersion(version);
    if (refused) return { status: 400, json: { message: refused } };
    const [kind, key = '', verb] = parts;
    if (kind === 'info')
      return { status: 200, json: { SecurityOptions: ['name=seccomp,profile=builtin', ...(isRootless ? ['name=rootless'] : [])] } }; // prettier-ignore
    if (kind === 'exec') {
      const exec = execs.get(key);
      return exec ? { status: 200, json: { ExitCode: exec.code, Running: exec.isRunning } } : { status: 404 };
    }
    if (key === 'create') return create(body, url.searchParams.get('name')!);
    if (key === 'json')
      return { status: 200, json: listed(JSON.parse(url.searchParams.get('filters') ?? '{}') as never) };
    const container = find(key);
    if (!container) return { status: 404, json: { message: `No such container: ${key}` } };
    if (request.method === 'DELETE') {
      containers.delete(container.name);
      await inner.destroy(container.name);
      return { status: 204 };
    }
    if (verb === 'json') return { status: 200, json: { Id: container.id, Config: { Labels: container.body.Labels }, State: { Running: container.sandbox !== null } } }; // prettier-ignore
    if (verb === 'start') return start(container);
    if (container.sandbox === null) return { status: 409, json: { message: 'it is not running' } };
    const id = randomBytes(8).toString('hex');
    execs.set(id, { container, body, code: null, isRunning: true });
    execBodies.push(body);
    return { status: 201, json: { Id: id } };
  }

  function refusedVersion(version: string): string | null {
    const [, minor] = /^v1\.(\d+)$/.exec(version) ?? [];
    if (minor === undefined) return `invalid version: ${version}`;
    if (Number(minor) >= Number(oldest.slice(2))) return null;
    return `client version 1.${minor} is too old. Minimum supported API version is ${oldest}, please upgrade your client to a newer version`;
  }

  function create(body: Body, name: string): { status: number; json: object } {
    if (body.Image !== 'python:3') return { status: 404, json: { message: `No such image: ${body.Image}` } };
    if (containers.has(name))
      return { status: 409, json: { message: `The container name "/${name}" is already in use` } };
    if (!Number.isInteger(body.HostConfig?.NanoCpus ?? 0))
      return { status: 400, json: { message: 'json: cannot unmarshal number into Go struct field .HostConfig.NanoCpus of type int64' } }; // prettier-ignore
    asked.push(body);
    const id = randomBytes(32).toString('hex');
    containers.set(name, { id, name, body, sandbox: null });
    return { status: 201, json: { Id: id, Warnings: [] } };
  }

  async function start(container: Container): Promise<{ status: number; json?: object }> {
    const { Env = [], HostConfig, Cmd = [] } = container.body;
    const seconds = Number(/sleep (\d+)/.exec(Cmd.join(' '))?.[1]);
    const sandbox = await inner.create({
      name: container.name,
      limits: { memoryMb: HostConfig!.Memory / 2 ** 20, diskMb: 64, processes: HostConfig!.PidsLimit, seconds },
      network: HostConfig!.NetworkMode === 'none' ? 'route' : 'open',
      folders: HostConfig!.Binds.map((bind) => bind.split(':')[0]!),
      env: Object.fromEntries(Env.map((line) => [line.slice(0, line.indexOf('=')), line.slice(line.indexOf('=') + 1)])),
      labels: { project: 'engine', owner: 'engine' },
    });
    if (!(sandbox instanceof NamespaceSandbox)) throw new Error('no sandbox of namespaces');
    container.sandbox = sandbox;
    return { status: 204 };
  }

  function listed({ label = [] }: { readonly label?: readonly string[] }): object {
    const matches = ({ body }: Container): boolean =>
      label.every((one) => {
        const [key = '', value] = one.split('=');
        return value === undefined ? key in (body.Labels ?? {}) : body.Labels?.[key] === value;
      });
    return [...containers.values()].filter(matches).map(({ id, name, body }) => ({ Id: id, Names: [`/${name}`], Labels: body.Labels, Created: 0 })); // prettier-ignore
  }

  async function attach(exec: Exec, wire: Duplex, input: AsyncIterable<Uint8Array>): Promise<void> {
    const { Cmd = [], WorkingDir = '' } = exec.body;
    const start = { argv: Cmd, cwd: WorkingDir, env: {}, timeoutS: 3_600 };
    const { ended } = exec.container.sandbox!.begin(start, input, (name, bytes) => {
      const head = Buffer.from([name === 'out' ? 1 : 2, 0, 0, 0, 0, 0, 0, 0]);
      head.writeUInt32BE(bytes.length, 4);
      wire.write(Buffer.concat([head, bytes]));
    });
    const end = await ended.catch(() => ({ code: 137, signal: null }));
    const write = (): void => {
      exec.code = end.code ?? 137;
      exec.isRunning = false;
    };
    if (lateMs > 0) setTimeout(write, lateMs);
    else write();
    wire.end();
  }

  const server = createServer((request, response) => void respond(request, response));
  async function respond(request: IncomingMessage, response: ServerResponse): Promise<void> {
    try {
      const { status, json } = await answer(request, (await bodyOf(request)) as Body);
      if (loses(request.method!, request.url!)) return void request.socket.destroy();
      response.writeHead(status, { 'content-type': 'application/json' }).end(json && JSON.stringify(json));
    } catch (error) {
      if (!(error instanceof RatchetError)) throw error;
      response.writeHead(500, { 'content-type': 'application/json' }).end(JSON.stringify({ message: error.message }));
    }
  }
  server.on('upgrade', (request: IncomingMessage, wire: Duplex, head: Buffer) => {
    const exec = execs.get(/\/exec\/([0-9a-f]+)\/start/.exec(request.url!)![1]!)!;
    wire.on('error', () => undefined);
    const refused = refusedVersion(request.url!.split('/')[1]!);
    if (refused) {
      const body = JSON.stringify({ message: refused });
      wire.end(`HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n${body}`);
      return;
    }
    wire.write(
      'HTTP/1.1 101 UPGRADED\r\nContent-Type: application/vnd.docker.raw-stream\r\nConnection: Upgrade\r\nUpgrade: tcp\r\n\r\n',
    );
    void attach(exec, wire, behindBody(wire, head, Number(request.headers['content-length'])));
  });
  await new Promise<void>((resolve) => server.listen(socketPath, resolve));
  return {
    asked,
    execs: execBodies,
    names: () => [...containers.keys()],
    close: async () => {
      await inner.close();
      server.closeAllConnections();
      await new Promise((resolve) => server.close(resolve));
      await rm(socketPath, { force: true });
    },
  };
}

async function bodyOf(request: IncomingMessage): Promise<unknown> {
  const parts: Buffer[] = [];
  for await (const part of request as AsyncIterable<Buffer>) parts.push(part);
  return parts.length === 0 ? {} : JSON.parse(Buffer.concat(parts).toString() || '{}');
}

/** What comes after the body of a request that became a connection. */
async function* behindBody(wire: Duplex, head: Buffer, bodyBytes: number): AsyncGenerator<Uint8Array> {
  let left = bodyBytes;
  const after = (part: Buffer): Buffer => {
    const rest = part.subarray(left);
    left = Math.max(0, left - part.length);
    return rest;
  };
  const first = after(head);
  if (first.length > 0) yield first;
  // What it says goes on when its input has ended.
  for await (const part of wire.iterator({ destroyOnReturn: false }) as AsyncIterable<Buffer>) {
    const rest = after(part);
    if (rest.length > 0) yield rest;
  }
}
