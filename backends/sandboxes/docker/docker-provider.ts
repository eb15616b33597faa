import path from 'node:path';
import { setTimeout as delay } from 'node:timers/promises';
import { z } from 'zod';
import { RatchetError } from '../../../core/errors.ts';
import { sandboxes } from '../../../core/kinds/sandboxes.ts';
import { checkRequest, processesUsual } from '../check-request.ts';
import { restoredTar } from '../snapshot-tars.ts';
import { readingScript } from '../shell/scripts.ts';
import { type RunScript, ShellSandbox } from '../shell/shell-sandbox.ts';
import type { ListedSandbox, Sandbox, SandboxProvider, SandboxRequest, SnapshotPlace } from '../types.ts';
import { type Engine, EngineClient, isGone, refusal } from './engine-client.ts';
import { OutputFrames } from './output-frames.ts';
import { forwarding } from './route-forwarder.ts';

const label = { project: 'ratchet.project', owner: 'ratchet.owner', name: 'ratchet.sandbox', port: 'ratchet.port', created: 'ratchet.created' } as const; // prettier-ignore
const folder = '/work';
const ownFolder = '/tmp';
const imagePattern = /^[A-Za-z0-9][\w.:/@-]*$/;
const removedWithinMs = 30_000;
/** An engine may close the output of a command before it has written down how that ended. */
const writtenDownWithinMs = 10_000;

const Created = z.object({ Id: z.string() });
const ListedContainer = z.object({ Labels: z.record(z.string(), z.string()) });
const Inspected = z.object({
  Config: z.object({ Labels: z.record(z.string(), z.string()) }),
  State: z.object({ Running: z.boolean() }),
});
const ExecEnd = z.object({ ExitCode: z.number().nullable(), Running: z.boolean() });
const Image = z.object({
  Config: z.object({ User: z.string().nullish(), Volumes: z.record(z.string(), z.unknown()).nullish() }),
});

export interface DockerOptions {
  readonly socket: string;
  readonly snapshots: SnapshotPlace;
}

/** Containers of Docker or Podman. They outlive this process; `limits.seconds` ends them from inside. */
export class DockerProvider implements SandboxProvider {
  readonly kind = 'docker';
  readonly traits = sandboxes.docker;
  readonly #engine: EngineClient;
  readonly #snapshots: SnapshotPlace;

  constructor({ socket, snapshots }: DockerOptions) {
    this.#engine = new EngineClient(socket);
    this.#snapshots = snapshots;
  }

  /** Throws `SandboxUnavailable` where nobody answers at the socket. */
  async requireHere(): Promise<void> {
    await this.#engine.engine();
  }

  async create(request: SandboxRequest, signal?: AbortSignal): Promise<Sandbox> {
    checkRequest(request, this);
    const { name, image, files = [], snapshot, route } = request;
    if (image === undefined) throw new RatchetError('SandboxRefused', `Sandbox ${name}: expected an image, got none.`);
    const engine = await this.#engine.engine();
    if (!engine.keepsLimits) throw new RatchetError('SandboxRefused', `Sandbox ${name}: expected an engine that limits memory and processes of a container, and this one does not. One that runs without root needs cgroups v2, with those controllers delegated to its user.`); // prettier-ignore
    const has = await this.#imageOf(name, image);
    signal?.throwIfAborted();
    const body = containerOf(request, image, has, engine);
    const created = await this.#engine.ask('POST', `/containers/create?name=${name}`, body, signal);
    if (created.status === 404) throw noImage(name, image);
    if (created.status !== 201) throw refusal(created.status, `create ${name}`, created.json);
    let isStarted = false;
    try {
      const { Id: id } = Created.parse(created.json);
      await this.#asked('POST', `/containers/${id}/start`, undefined, [204, 304]);
      isStarted = true;
      if (!isRoot(body.User || has.user)) await this.#openFolders(name);
      const sandbox = this.#sandbox(name, route?.port ?? null);
      if (snapshot) await sandbox.fill(restoredTar({ ...request, snapshot }, this.#snapshots));
      await sandbox.put(files);
      if (route) await this.#forward(name, route);
      signal?.throwIfAborted();
      return sandbox;
    } catch (error) {
      const isEnded = isStarted && error instanceof RatchetError && error.code === 'SandboxUnavailable' && !(await this.#isRunning(name).catch(() => true)); // prettier-ignore
      await this.#removed(name);
      if (!isEnded) throw error;
      throw new RatchetError(
        'SandboxUnavailable',
        `Sandbox ${name}: its container ended as soon as it began. Image ${image} has to have sh, sleep, dd, cat and tar.`,
        { cause: error },
      );
    }
  }

  async find(name: string): Promise<Sandbox | null> {
    const answer = await this.#engine.ask('GET', `/containers/${name}/json`);
    if (isGone(answer)) return null;
    const { status, json } = answer;
    if (status !== 200) throw refusal(status, `look for ${name}`, json);
    const { Config } = Inspected.parse(json);
    const port = Config.Labels[label.port];
    return this.#sandbox(name, port === undefined ? null : Number(port));
  }

  async list(project?: string): Promise<readonly ListedSandbox[]> {
    const filters = { label: [project === undefined ? label.project : `${label.project}=${project}`] };
    const json = await this.#asked('GET', `/containers/json?all=1&filters=${encodeURIComponent(JSON.stringify(filters))}`, undefined, [200]); // prettier-ignore
    return z
      .array(ListedContainer)
      .parse(json)
      .map(({ Labels }) => ({
        name: Labels[label.name] ?? '',
        createdAtMs: Number(Labels[label.created]),
        labels: { project: Labels[label.project] ?? '', owner: Labels[label.owner] ?? '' },
      }));
  }

  /** 409: its removal is under way. */
  async destroy(name: string): Promise<void> {
    const answer = await this.#engine.ask('DELETE', `/containers/${name}?force=1&v=1`);
    const { status, json } = answer;
    if (![204, 409].includes(status) && !isGone(answer)) throw refusal(status, `remove ${name}`, json);
  }

  close(): Promise<void> {
    return Promise.resolve();
  }

  /** A container whose making failed: gone when this resolves, else nobody knows. */
  async #removed(name: string): Promise<void> {
    try {
      for (const end = Date.now() + removedWithinMs; ;) {
        await this.destroy(name);
        if ((await this.find(name)) === null) return;
        if (Date.now() > end) break;
        await new Promise((resolve) => setTimeout(resolve, 200));
      }
    } catch (cause) {
      throw new RatchetError('SandboxUnanswered', `Sandbox ${name}: it could not be made, and may be there.`, {
        cause,
      });
    }
    throw new RatchetError('SandboxUnanswered', `Sandbox ${name}: it could not be made, and is still there.`);
  }

  async #imageOf(name: string, image: string): Promise<ImageFacts> {
    if (!imagePattern.test(image)) throw new RatchetError('SandboxRefused', `Sandbox ${name}: expected the name of an image, such as python:3.12, got ${JSON.stringify(image)}.`); // prettier-ignore
    const { status, json } = await this.#engine.ask('GET', `/images/${image}/json`);
    if (status === 404) throw noImage(name, image);
    if (status !== 200) throw refusal(status, `look for image ${image}`, json);
    const { User, Volumes } = Image.parse(json).Config;
    return { user: User ?? '', volumes: Object.keys(Volumes ?? {}).map((place) => path.posix.resolve('/', place)) };
  }

  /** Lets the user of its programs write: runc before 1.1.9 gives a folder in memory the rights of the image's folder. */
  async #openFolders(name: string): Promise<void> {
    await this.#run(name, `chmod 1777 ${folder} ${ownFolder}`, null, () => undefined, { User: '0:0' });
  }

  #sandbox(name: string, routePort: number | null): ShellSandbox {
    const run: RunScript = (script, input, take) => ({ ended: this.#run(name, script, input, take) });
    return new ShellSandbox({ kind: this.kind, name, folder, ownFolder, routePort, env: {}, run, snapshots: this.#snapshots, destroy: () => this.destroy(name) }); // prettier-ignore
  }

  async #run(
    name: string,
    text: string,
    input: AsyncIterable<Uint8Array> | Uint8Array | null,
    take: Parameters<RunScript>[2],
    more: { readonly User?: string } = {},
  ): Promise<number> {
    const { command, script } = readingScript(text);
    const exec = await this.#exec(name, ['sh', '-c', command], more);
    const { wire, head } = await this.#attach(name, exec);
    const frames = new OutputFrames();
    const feeding = feed(wire, script, input);
    feeding.catch(() => wire.destroy());
    try {
      for await (const bytes of withHead(head, wire))
        for (const frame of frames.add(bytes)) await take(frame.name, frame.bytes);
    } catch (error) {
      wire.destroy();
      if (error instanceof RatchetError) throw error;
      // The connection ended early: what became of the command is asked below.
    }
    await feeding.catch((error: unknown) => {
      if (error instanceof RatchetError) throw error;
    });
    for (const end = Date.now() + writtenDownWithinMs; ; await delay(100)) {
      const code = await this.#codeOf(exec);
      if (!(await this.#isRunning(name)) || code === null)
        throw new RatchetError('SandboxUnavailable', `Sandbox ${name}: it ended before its command did.`);
      if (code !== 'running') return code;
      if (Date.now() > end)
        throw new RatchetError('SandboxUnavailable', `Sandbox ${name}: the connection ended before its command did.`);
    }
  }

  /** null: it is not known, with its container. */
  async #codeOf(exec: string): Promise<number | 'running' | null> {
    const { status, json } = await this.#engine.ask('GET', `/exec/${exec}/json`);
    if (status !== 200) return null;
    const { ExitCode, Running } = ExecEnd.parse(json);
    return Running || ExitCode === null ? 'running' : ExitCode;
  }

  async #isRunning(name: string): Promise<boolean> {
    const { status, json } = await this.#engine.ask('GET', `/containers/${name}/json`);
    return status === 200 && Inspected.parse(json).State.Running;
  }

  async #exec(name: string, argv: readonly string[], more: { readonly User?: string } = {}): Promise<string> {
    const body = { AttachStdin: true, AttachStdout: true, AttachStderr: true, Cmd: argv, WorkingDir: folder, ...more }; // prettier-ignore
    const { status, json } = await this.#engine.ask('POST', `/containers/${name}/exec`, body);
    if (status === 201) return Created.parse(json).Id;
    // Docker says 404 or 409 then, and Podman 4 also 500.
    if (status === 404 || status === 409 || !(await this.#isRunning(name)))
      throw new RatchetError('SandboxUnavailable', `Sandbox ${name}: it has ended.`);
    throw refusal(status, `run in ${name}`, json);
  }

  async #attach(name: string, exec: string): ReturnType<EngineClient['attach']> {
    return this.#engine.attach(exec).catch(async (error: unknown) => {
      if (await this.#isRunning(name)) throw error;
      throw new RatchetError('SandboxUnavailable', `Sandbox ${name}: it has ended.`, { cause: error });
    });
  }

  /** Begins the program that leads a port inside to the socket; it goes on until the container ends. */
  async #forward(name: string, { socket, port }: NonNullable<SandboxRequest['route']>): Promise<void> {
    const exec = await this.#exec(name, forwarding(socket, port), { User: await this.#ourUser() });
    const { wire, head } = await this.#attach(name, exec);
    const frames = new OutputFrames();
    let said = '';
    for await (const bytes of withHead(head, wire)) {
      said += frames
        .add(bytes)
        .map((frame) => frame.bytes.toString())
        .join('');
      if (!said.includes('ready')) continue;
      wire.on('error', () => undefined).resume();
      return;
    }
    throw new RatchetError('SandboxRefused', `Sandbox ${name}: a route needs python3, node or perl in its image: ${said.trim()}`); // prettier-ignore
  }

  /** Whom a container knows this process's user as: only that one may open the socket. An image may name another one for its programs. */
  async #ourUser(): Promise<string> {
    const { isRootless } = await this.#engine.engine();
    return isRootless ? '0:0' : `${process.getuid?.() ?? 0}:${process.getgid?.() ?? 0}`;
  }

  async #asked(
    method: 'GET' | 'POST',
    what: string,
    body: object | undefined,
    hoped: readonly number[],
  ): Promise<unknown> {
    const { status, json } = await this.#engine.ask(method, what, body);
    if (!hoped.includes(status)) throw refusal(status, `${method} ${what}`, json);
    return json;
  }
}

interface ImageFacts {
  /** Whom its programs run as; empty = root. */
  readonly user: string;
  /** Folders that the engine would keep on the disk of this machine, without a limit. */
  readonly volumes: readonly string[];
}

function noImage(name: string, image: string): RatchetError {
  return new RatchetError('SandboxRefused', `Sandbox ${name}: there is no image ${image} here: docker pull ${image}`);
}

function isRoot(user: string): boolean {
  return ['', '0', 'root'].includes(user.split(':')[0]!);
}

/** A body of `containers/create`. The container ends itself when its time is over. */
function containerOf(
  { name, limits, network, route, folders = [], env = {}, labels }: SandboxRequest,
  image: string,
  { volumes }: ImageFacts,
  { isPodman }: Engine,
) {
  const mib = 2 ** 20;
  const shown = new Set([...folders, ...(route ? [path.dirname(route.socket)] : [])]);
  const user = process.getuid?.() ?? 0;
  // Podman would copy what the image has there.
  const inMemory = `rw,nosuid,nodev,mode=1777,exec,size=${limits.diskMb}m${isPodman ? ',notmpcopyup' : ''}`;
  return {
    Image: image,
    Entrypoint: ['sh', '-c'],
    Cmd: [`exec sleep ${Math.ceil(limits.seconds)}`],
    WorkingDir: folder,
    User: user === 0 ? '' : `${user}:${process.getgid?.() ?? user}`,
    Env: Object.entries({ HOME: folder, TMPDIR: '/tmp', ...env }).map(([key, value]) => `${key}=${value}`),
    Labels: {
      [label.project]: labels.project,
      [label.owner]: labels.owner,
      [label.name]: name,
      [label.created]: String(Date.now()),
      ...(route ? { [label.port]: String(route.port) } : {}),
    },
    HostConfig: {
      NetworkMode: network === 'route' ? 'none' : 'bridge',
      // What is written lies in memory, and counts there.
      Memory: (limits.memoryMb + limits.diskMb) * mib,
      MemorySwap: (limits.memoryMb + limits.diskMb) * mib,
      PidsLimit: limits.processes ?? processesUsual,
      ...(limits.cpus === undefined ? {} : { NanoCpus: Math.round(limits.cpus * 1e9) }),
      ReadonlyRootfs: true,
      Tmpfs: Object.fromEntries(
        [...volumes.filter((place) => !shown.has(place)), folder, ownFolder].map((place) => [place, inMemory]),
      ),
      // `Binds` would end a path at its first colon.
      Mounts: [...shown].map((place) => ({ Type: 'bind', Source: place, Target: place, ReadOnly: true })),
      CapDrop: ['ALL'],
      SecurityOpt: ['no-new-privileges'],
      Init: true,
      AutoRemove: true,
    },
  };
}

async function feed(
  wire: NodeJS.WritableStream,
  script: Buffer,
  input: AsyncIterable<Uint8Array> | Uint8Array | null,
): Promise<void> {
  const parts = input === null ? [] : input instanceof Uint8Array ? [input] : input;
  wire.write(script);
  for await (const part of parts) if (!wire.write(part)) await drained(wire);
  wire.end();
}

function drained(wire: NodeJS.WritableStream): Promise<void> {
  return new Promise((resolve) => {
    const on = (): void => {
      for (const event of ['drain', 'close', 'error']) wire.removeListener(event, on);
      resolve();
    };
    for (const event of ['drain', 'close', 'error']) wire.once(event, on);
  });
}

async function* withHead(head: Buffer, wire: AsyncIterable<Buffer>): AsyncGenerator<Buffer> {
  if (head.length > 0) yield head;
  yield* wire;
}
