import { request, type IncomingMessage } from 'node:http';
import type { Duplex } from 'node:stream';
import { z } from 'zod';
import { RatchetError } from '../../../core/errors.ts';

/** The Engine API of Docker, which Podman speaks as well, over its Unix socket. */

/** Answers are small, but for the list of containers. */
const answerBytesMax = 32 * 1024 * 1024;
/** The oldest version that has all that is asked for; Podman's is 1.41. */
const oldest = '1.41';
/** Time for an answer; a container may begin slowly. */
const answerMs = 120_000;

const Version = z.object({
  MinAPIVersion: z.string().optional(),
  Components: z.array(z.object({ Name: z.string() })).nullish(),
});

const Info = z.object({
  SecurityOptions: z.array(z.string()).nullish(),
  Rootless: z.boolean().optional(),
  MemoryLimit: z.boolean().optional(),
  PidsLimit: z.boolean().optional(),
  CgroupVersion: z.string().optional(),
});

export interface Engine {
  /** The version of the API that is spoken. */
  readonly version: string;
  readonly isPodman: boolean;
  /** Whether it runs without root: root of a container is then the user of the engine. */
  readonly isRootless: boolean;
  /** Whether a container is held to its memory and its number of processes. */
  readonly keepsLimits: boolean;
}

export interface EngineAnswer {
  readonly status: number;
  readonly json: unknown;
}

type Method = 'GET' | 'POST' | 'DELETE';

export class EngineClient {
  readonly #socketPath: string;
  #engine: Promise<Engine> | undefined;

  constructor(socketPath: string) {
    this.#socketPath = socketPath;
  }

  /**
   * Sends a request once. Rejects with `SandboxUnavailable` where it was never sent, and with `SandboxUnanswered` where
   * nothing came back.
   */
  async ask(method: Method, path: string, body?: object, signal?: AbortSignal): Promise<EngineAnswer> {
    return this.#ask(method, `/v${(await this.engine()).version}${path}`, body, signal);
  }

  /** Docker 29 refuses versions of the API below 1.44; each engine says its oldest without one. */
  engine(): Promise<Engine> {
    this.#engine ??= this.#askEngine();
    this.#engine.catch(() => (this.#engine = undefined));
    return this.#engine;
  }

  async #askEngine(): Promise<Engine> {
    const unasked = (cause: Error): never => {
      // Whatever it is asked for was not sent.
      throw new RatchetError('SandboxUnavailable', cause.message, { cause });
    };
    const { status, json } = await this.#ask('GET', '/version').catch(unasked);
    if (status !== 200) throw refusal(status, 'GET /version', json);
    const { MinAPIVersion = oldest, Components } = Version.parse(json);
    const version = isNewer(MinAPIVersion, oldest) ? MinAPIVersion : oldest;
    const info = await this.#ask('GET', `/v${version}/info`).catch(unasked);
    if (info.status !== 200) throw refusal(info.status, 'GET /info', info.json);
    const { SecurityOptions, Rootless = false, MemoryLimit = true, PidsLimit = true, CgroupVersion } = Info.parse(info.json); // prettier-ignore
    // Docker says it among the options, and Podman in a field of its own.
    const isRootless = Rootless || (SecurityOptions?.some((one) => one.split(',').includes('name=rootless')) ?? false);
    // Podman says that it limits memory there too, and does not.
    const keepsLimits = MemoryLimit && PidsLimit && !(isRootless && CgroupVersion === '1');
    const isPodman = Components?.some(({ Name }) => Name === 'Podman Engine') ?? false;
    return { version, isPodman, isRootless, keepsLimits };
  }

  #ask(method: Method, path: string, body?: object, signal?: AbortSignal): Promise<EngineAnswer> {
    return new Promise((resolve, reject) => {
      let isSent = false;
      const sent = request(this.#options(method, path, body), (answer) => {
        read(answer).then(resolve, reject);
      });
      sent.setTimeout(answerMs, () => sent.destroy(new Error(`no answer in ${answerMs / 1000} s`)));
      sent.once('socket', (socket) => socket.once('connect', () => (isSent = true)));
      sent.once('error', (cause) => reject(this.#trouble(isSent, `${method} ${path}`, cause)));
      signal?.addEventListener('abort', () => sent.destroy(new Error('it is wanted no more')), { once: true });
      sent.end(body && JSON.stringify(body));
    });
  }

  /** Begins what an exec is, and gives the connection that it then is: its input, and frames of its output. */
  async attach(exec: string): Promise<{ readonly wire: Duplex; readonly head: Buffer }> {
    const path = `/v${(await this.engine()).version}/exec/${exec}/start`;
    return new Promise((resolve, reject) => {
      const body = { Detach: false, Tty: false };
      const options = this.#options('POST', path, body);
      const sent = request({ ...options, headers: { ...options.headers, connection: 'Upgrade', upgrade: 'tcp' } });
      sent.once('upgrade', (_, wire, head) => resolve({ wire, head }));
      sent.once('response', (answer) => {
        read(answer).then(({ status, json }) => reject(refusal(status, path, json)), reject);
      });
      sent.once('error', (cause) => reject(this.#trouble(true, `POST ${path}`, cause)));
      sent.end(JSON.stringify(body));
    });
  }

  #options(method: string, path: string, body?: object) {
    const length = body === undefined ? 0 : Buffer.byteLength(JSON.stringify(body));
    return {
      socketPath: this.#socketPath,
      method,
      path,
      headers: { host: 'docker', 'content-type': 'application/json', 'content-length': length },
      agent: false as const,
    };
  }

  #trouble(isSent: boolean, what: string, cause: Error): RatchetError {
    const where = `Docker or Podman at ${this.#socketPath}: ${what}: ${cause.message}`;
    return new RatchetError(isSent ? 'SandboxUnanswered' : 'SandboxUnavailable', where, { cause });
  }
}

/** Compares versions by their numbers: 1.41 is newer than 1.9. */
function isNewer(one: string, other: string): boolean {
  return one.localeCompare(other, 'en', { numeric: true }) > 0;
}

async function read(answer: IncomingMessage): Promise<EngineAnswer> {
  const parts: Buffer[] = [];
  let bytes = 0;
  for await (const part of answer as AsyncIterable<Buffer>) {
    bytes += part.length;
    if (bytes > answerBytesMax)
      throw new RatchetError('SandboxUnavailable', 'Docker or Podman: the answer is too long');
    parts.push(part);
  }
  return { status: answer.statusCode ?? 0, json: jsonIn(Buffer.concat(parts).toString()) };
}

function jsonIn(text: string): unknown {
  try {
    return JSON.parse(text);
  } catch {
    return { message: text.slice(0, 500) };
  }
}

/** Whether a container is not there. Podman 4 says 500 of one that it is removing. */
export function isGone({ status, json }: EngineAnswer): boolean {
  return status === 404 || (status === 500 && messageOf(json).includes('no such container'));
}

/** Podman answers these refusals with 500, where Docker answers 400 or 409: asking again does not help. */
const lasting = /already in use|invalid reference format|container-init binary not found|invalid mount option/;

/** What a status says that was not hoped for. */
export function refusal(status: number, what: string, json: unknown): RatchetError {
  const text = messageOf(json);
  const said = `Docker or Podman: ${what}: ${status} ${text}`.trim();
  const mayPass = (status >= 500 && !lasting.test(text)) || status === 429;
  return new RatchetError(mayPass ? 'SandboxUnavailable' : 'SandboxRefused', said);
}

function messageOf(json: unknown): string {
  const { message } = (json ?? {}) as { readonly message?: unknown };
  return typeof message === 'string' ? message : '';
}
