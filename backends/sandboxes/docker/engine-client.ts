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

const Version = z.object({ MinAPIVersion: z.string().optional() });

export interface EngineAnswer {
  readonly status: number;
  readonly json: unknown;
}

type Method = 'GET' | 'POST' | 'DELETE';

export class EngineClient {
  readonly #socketPath: string;
  #version: Promise<string> | undefined;

  constructor(socketPath: string) {
    this.#socketPath = socketPath;
  }

  /**
   * Sends a request once. Rejects with `SandboxUnavailable` where it was never sent, and with `SandboxUnanswered` where
   * nothing came back.
   */
  async ask(method: Method, path: string, body?: object, signal?: AbortSignal): Promise<EngineAnswer> {
    return this.#ask(method, `/v${await this.version()}${path}`, body, signal);
  }

  /** The version of the API that is spoken. Docker 29 refuses those below 1.44; each engine says its oldest without one. */
  version(): Promise<string> {
    this.#version ??= this.#askVersion();
    this.#version.catch(() => (this.#version = undefined));
    return this.#version;
  }

  async #askVersion(): Promise<string> {
    const { status, json } = await this.#ask('GET', '/version').catch((cause: Error) => {
      // Whatever it is asked for was not sent.
      throw new RatchetError('SandboxUnavailable', cause.message, { cause });
    });
    if (status !== 200) throw refusal(status, 'GET /version', json);
    const { MinAPIVersion = oldest } = Version.parse(json);
    return isNewer(MinAPIVersion, oldest) ? MinAPIVersion : oldest;
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
    const path = `/v${await this.version()}/exec/${exec}/start`;
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

/** Of two versions such as 1.9 and 1.41. */
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

/** What a status says that was not hoped for. */
export function refusal(status: number, what: string, json: unknown): RatchetError {
  const { message } = (json ?? {}) as { readonly message?: unknown };
  const said = `Docker or Podman: ${what}: ${status} ${typeof message === 'string' ? message : ''}`.trim();
  return new RatchetError(status >= 500 || status === 429 ? 'SandboxUnavailable' : 'SandboxRefused', said);
}
