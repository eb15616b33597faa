import { Agent as HttpAgent, type IncomingHttpHeaders, type IncomingMessage } from 'node:http';
import { Agent as HttpsAgent } from 'node:https';
import { promisify } from 'node:util';
import * as zlib from 'node:zlib';
import { onAbort } from '../../core/on-abort.ts';
import { type Destination, requestOf } from '../../host/ask-server.ts';
import { ownSecret, secretFileName } from '../../host/project-secret.ts';
import { mayFollow, redirectsMax, redirectTo } from '../../host/redirects.ts';
import { asItIs } from '../../host/read-body.ts';
import { stringifyExact } from '../../core/exact-json.ts';
import { bearer } from '../../engine/server/gate.ts';
import { NotOurs, OwnServerAgent } from './own-server.ts';

export interface HttpCall {
  readonly method: 'GET' | 'POST';
  /** Path from the server's root: `/v1/completions`. */
  readonly route: string;
  /** Sent as JSON. */
  readonly body?: unknown;
  /** Built when the server may be asked: they may contain its keys. */
  readonly headers?: () => Readonly<Record<string, string>>;
  readonly signal?: AbortSignal | undefined;
  /** From the first byte sent to the last one received. */
  readonly timeoutMs: number;
}

export interface HttpAnswer {
  readonly status: number;
  readonly headers: IncomingHttpHeaders;
  readonly text: string;
}

/**
 * No whole answer came: nothing listens, the connection broke, or it took too long. The request may or may not have
 * arrived.
 */
export class NoAnswer extends Error {
  /** The server had closed the idle connection before it saw this request. */
  readonly isStale: boolean;

  constructor(message: string, options: { readonly cause?: unknown; readonly isStale?: boolean } = {}) {
    super(message, options.cause === undefined ? undefined : { cause: options.cause });
    this.isStale = options.isStale ?? false;
  }
}

/**
 * An unreadable answer: too long, or in an unknown compression. A retry may give a readable one if this one `isBroken`.
 */
export class UnreadAnswer extends NoAnswer {
  readonly isBroken: boolean;

  constructor(
    message: string,
    { isBroken = false, cause }: { readonly isBroken?: boolean; readonly cause?: unknown } = {},
  ) {
    super(message, { cause });
    this.isBroken = isBroken;
  }
}

interface HttpOptions {
  /**
   * The server must have the secret of this project: one that cannot prove it gets no request. Otherwise a server on
   * the loopback that proves it receives the secret, and any other is asked without.
   */
  readonly isOwn?: boolean | undefined;
  /** The secret; this process's by default. */
  readonly secret?: (() => string | null) | undefined;
}

/** An answer has at most this many bytes: some two million tokens with their logprobs. */
const answerBytesMax = 256 * 1024 * 1024;

/** Keeps as many connections as there were concurrent requests. The server closes idle ones. */
const keeping = { keepAlive: true, maxFreeSockets: Infinity };

/**
 * JSON over HTTP/1.1 to one server, on persistent connections. Node's own `request` and an agent take a fifth of the
 * CPU that `fetch` takes (0.08 against 0.38 ms a request here, 64 in flight), and about as much as undici's pool,
 * without another package.
 */
export class HttpClient {
  readonly #agent: HttpAgent;
  readonly #server: Destination;
  /** Prefix of all routes. */
  readonly #path: string;
  readonly #isLoopback: boolean;
  readonly #isOwn: boolean;
  readonly #secret: () => string | null;
  #own: { readonly secret: string; readonly agent: OwnServerAgent } | null = null;
  /** It has not proven to be ours, and has refused no request since. */
  #isForeign = false;

  constructor(server: Destination, { isOwn = false, secret = ownSecret }: HttpOptions = {}) {
    const { protocol, hostname, pathname } = new URL(server.url);
    const isSecure = protocol === 'https:';
    this.#agent = new (isSecure ? HttpsAgent : HttpAgent)(keeping);
    this.#server = server;
    this.#path = pathname.replace(/(?<!\/)\/+$/, '');
    this.#isLoopback = !isSecure && /^(?:localhost|127(?:\.\d+){3}|\[::1\])$/.test(hostname);
    this.#isOwn = isOwn;
    this.#secret = secret;
  }

  /**
   * Throws {@link NoAnswer}, the signal's reason as soon as it is raised, or `ConfigInvalid` if the server was not
   * named; any status is an answer.
   */
  async ask(call: HttpCall): Promise<HttpAnswer> {
    if (!this.#isLoopback || this.#server.keys.length > 0) return this.#ask(call, this.#agent);
    const secret = this.#secret();
    if (this.#isOwn) return this.#askOwn(call, secret ?? noSecretYet());
    if (secret === null) return this.#ask(call, this.#agent);
    if (!this.#isForeign) {
      const answer = await this.#askIfOwn(call, secret);
      if (answer !== null) return answer;
      this.#isForeign = true;
    }
    const answer = await this.#ask(call, this.#agent);
    if (answer.status !== 401) return answer;
    // Another server may have been started there since.
    this.#isForeign = false;
    return (await this.#askIfOwn(call, secret)) ?? answer;
  }

  /** Null if the server does not prove that it is ours. */
  async #askIfOwn(call: HttpCall, secret: string): Promise<HttpAnswer | null> {
    try {
      return await this.#askOwn(call, secret);
    } catch (error) {
      if (error instanceof NoAnswer && error.cause instanceof NotOurs) return null;
      throw error;
    }
  }

  #askOwn(call: HttpCall, secret: string): Promise<HttpAnswer> {
    if (this.#own?.secret !== secret) {
      this.#own?.agent.destroy();
      this.#own = { secret, agent: new OwnServerAgent(secret, this.#path, keeping) };
    }
    const headers = () => ({ ...call.headers?.(), authorization: bearer(secret) });
    return this.#ask({ ...call, headers }, this.#own.agent);
  }

  /** Follows redirects that stay within the server and keep the method; any other is returned. */
  async #ask(call: HttpCall, agent: HttpAgent): Promise<HttpAnswer> {
    const server = new URL(this.#server.url);
    const endsAt = performance.now() + call.timeoutMs;
    let path = this.#path + call.route;
    for (let followed = 0; ; followed += 1) {
      const timeoutMs = Math.max(1, endsAt - performance.now());
      const answer = await this.#askOnce({ ...call, timeoutMs }, path, agent, call.timeoutMs);
      const { status, headers } = answer;
      const to = redirectTo({ status, location: headers.location, from: new URL(path, server.origin) });
      const isFollowed = to !== null && mayFollow(status, { method: call.method, to, server });
      if (!isFollowed || followed === redirectsMax) return answer;
      path = to.pathname + to.search;
    }
  }

  #askOnce(call: HttpCall, path: string, agent: HttpAgent, wholeMs: number): Promise<HttpAnswer> {
    const { signal, timeoutMs } = call;
    return new Promise((resolve, reject) => {
      signal?.throwIfAborted();
      const body = call.body === undefined ? null : stringifyExact(call.body);
      const outgoing = requestOf(this.#server, {
        agent,
        method: call.method,
        path,
        headers: () => ({
          ...asItIs,
          ...(body === null ? {} : { 'content-type': 'application/json', 'content-length': Buffer.byteLength(body) }),
          ...call.headers?.(),
        }),
      });
      let isOver = false;
      /** The first outcome wins; an incomplete answer is cut off. */
      const end = (settle: () => void, isWhole = false): void => {
        if (isOver) return;
        isOver = true;
        clearTimeout(timer);
        forget();
        if (!isWhole) outgoing.destroy();
        settle();
      };
      const tooLate = (): void => end(() => reject(new NoAnswer(`no answer within ${wholeMs / 1000} s`)));
      const timer = setTimeout(tooLate, timeoutMs);
      const forget = onAbort(signal, () => end(() => reject(signal!.reason as Error)));
      let isAnswered = false;
      outgoing.on('error', (cause: NodeJS.ErrnoException) => {
        const isStale = outgoing.reusedSocket && cause.code === 'ECONNRESET' && !isAnswered;
        end(() => reject(new NoAnswer(wordsFor(cause), { cause, isStale })));
      });
      outgoing.on('response', (incoming) => {
        isAnswered = true;
        const { statusCode: status = 0, headers } = incoming;
        readText(incoming).then(
          (text) => end(() => resolve({ status, headers, text }), true),
          (cause: unknown) =>
            end(() => reject(cause instanceof UnreadAnswer ? cause : new NoAnswer(wordsFor(cause), { cause }))),
        );
      });
      outgoing.end(body);
    });
  }

  close(): void {
    this.#agent.destroy();
    this.#own?.agent.destroy();
  }
}

function noSecretYet(): never {
  throw new NoAnswer(
    `there is no secret of this project (${secretFileName}) yet, which a server that is started here makes`,
  );
}

async function readText(incoming: IncomingMessage): Promise<string> {
  const bytes = await readBytes(incoming);
  // Several compressions are listed in the order of application.
  const said = (incoming.headers['content-encoding'] ?? '').toLowerCase().split(',');
  const packings = said.map((one) => one.trim()).filter((one) => one !== '' && one !== 'identity');
  let text = bytes;
  for (const packing of packings.length === 0 ? packingSeen(bytes) : packings.reverse())
    if (text.length > 0) text = await unpacked(text, packing);
  return text.toString();
}

/** The compression shown by the first bytes, if the headers name none. */
function packingSeen(bytes: Buffer): readonly string[] {
  const first = bytes.subarray(0, 4).toString('hex');
  return first.startsWith('1f8b') ? ['gzip'] : first === '28b52ffd' ? ['zstd'] : [];
}

type Unpack = (bytes: Buffer, options: { maxOutputLength: number }) => Promise<Buffer>;

const inflate = promisify(zlib.inflate);
const inflateRaw = promisify(zlib.inflateRaw);
const { zstdDecompress } = zlib as { readonly zstdDecompress?: typeof zlib.gunzip };

const unpackers: Readonly<Record<string, Unpack>> = {
  gzip: promisify(zlib.gunzip),
  'x-gzip': promisify(zlib.gunzip),
  // Some servers omit zlib's header, against the standard.
  deflate: (bytes, options) => (hasZlibHeader(bytes) ? inflate(bytes, options) : inflateRaw(bytes, options)),
  br: promisify(zlib.brotliDecompress),
  ...(zstdDecompress && { zstd: promisify(zstdDecompress) }),
};
const packingsRead = zstdDecompress ? 'gzip, deflate, br or zstd' : 'gzip, deflate or br';

function hasZlibHeader(bytes: Buffer): boolean {
  return bytes.length > 1 && (bytes[0]! & 0x0f) === 8 && bytes.readUInt16BE(0) % 31 === 0;
}

/** Compressed answers are not requested, yet some gateways send them, or mark a plain one as compressed. */
async function unpacked(bytes: Buffer, packing: string): Promise<Buffer> {
  const isPlain = /^\s*[{[]/.test(bytes.subarray(0, 64).toString('latin1'));
  if (isPlain) return bytes;
  const unpack = unpackers[packing];
  if (unpack === undefined) {
    throw new UnreadAnswer(
      `expected a plain answer, or one packed by ${packingsRead}, got content-encoding ${JSON.stringify(packing.slice(0, 40))}${packing === 'zstd' ? ', which Node reads from 22.15 on. Start Ratchet with a newer Node, or have the server send plain answers.' : ''}`,
    );
  }
  try {
    return await unpack(bytes, { maxOutputLength: answerBytesMax });
  } catch (cause) {
    if ((cause as NodeJS.ErrnoException).code === 'ERR_BUFFER_TOO_LARGE') throw new UnreadAnswer(tooLong, { cause });
    const why = `the answer is not packed by ${packing}, as it says (${(cause as Error).message})`;
    throw new UnreadAnswer(why, { isBroken: true, cause });
  }
}

const tooLong = `expected an answer of at most ${answerBytesMax} bytes, got a longer one`;

function readBytes(incoming: IncomingMessage): Promise<Buffer> {
  return new Promise((resolve, reject) => {
    const chunks: Buffer[] = [];
    let length = 0;
    incoming.on('data', (chunk: Buffer) => {
      chunks.push(chunk);
      length += chunk.byteLength;
      if (length > answerBytesMax) incoming.destroy(new UnreadAnswer(tooLong));
    });
    incoming.on('end', () => resolve(chunks.length === 1 ? chunks[0]! : Buffer.concat(chunks)));
    incoming.on('error', reject);
    incoming.on('close', () => reject(new Error('the connection broke in the middle of the answer')));
  });
}

/** Describes a failed connection without any header. */
function wordsFor(cause: unknown): string {
  if (!(cause instanceof Error)) return String(cause);
  const known: Readonly<Record<string, string>> = {
    ECONNREFUSED: 'nobody listens there',
    ECONNRESET: 'the connection was reset',
    EPIPE: 'the connection was reset',
    ENOTFOUND: 'no such host',
    EAI_AGAIN: 'its name cannot be looked up at the moment',
    ETIMEDOUT: 'it cannot be reached',
    EHOSTUNREACH: 'it cannot be reached',
  };
  const { code } = cause as NodeJS.ErrnoException;
  return (code !== undefined && known[code]) || cause.message || (code ?? 'no connection');
}
