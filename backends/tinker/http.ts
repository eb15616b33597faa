import { setTimeout as delay } from 'node:timers/promises';
import { causeOf } from '../../host/fetch-cause.ts';
import { asItIs, Pace, readBody, UnwantedBody } from '../../host/read-body.ts';
import { RatchetError } from '../../core/errors.ts';
import { askServer } from '../../host/ask-server.ts';
import { parsedAsPython } from '../inference/openai/answer-json.ts';
import { troubleKindOf, saidBy, TinkerTrouble, wordsOf } from './trouble.ts';
import type { TinkerAddress } from './types.ts';
import { Waits } from './waits.ts';

export const protobufType = 'application/x-protobuf';

export interface Call {
  readonly body: unknown;
  /** Requests this type in place of JSON. */
  readonly accept?: string;
  /**
   * Whether executing it twice is harmless. A harmful request is only sent again if it surely never reached the server;
   * otherwise the call is `lost`.
   */
  readonly mayRepeat: boolean;
  readonly timeoutMs?: number;
  readonly signal?: AbortSignal | undefined;
  /** Limit of the reply; a longer one is refused while it arrives. */
  readonly bytesMax?: number;
}

export interface HttpReply {
  readonly status: number;
  readonly type: string;
  readonly bytes: Uint8Array;
}

/** A place on the server's machine, given in place of bytes. */
export class FileUrl extends URL {}

interface Patience {
  /** Time for retries of an unresponsive server. */
  readonly patienceMs: number;
  /** Called once when waiting begins, and once when it ends. */
  readonly say: (line: string) => void;
}

const requestTimeoutMs = 60_000;
/** Limit of an ordinary reply: the log probabilities of a batch, 4 bytes a token, take tens of MB. */
const replyBytesMax = 512 * 2 ** 20;
/** A download may take hours, but not without a byte for so long. */
const stallMs = 2 * 60_000;
const firstWaitMs = 500;
const waitMsMax = 10_000;

/** Requests to one server, with its key, and retries while it is away or busy. */
export class TinkerHttp {
  readonly address: TinkerAddress;
  readonly waits = new Waits();
  /** How often the server was found away: it may have been started again meanwhile. */
  interruptions = 0;
  readonly #patience: Patience;

  constructor(address: TinkerAddress, patience: Patience) {
    this.address = { ...address, url: address.url.replace(/(?<!\/)\/+$/, '').replace(/\/api\/v1$/, '') };
    this.#patience = patience;
  }

  async json(route: string, call: Call): Promise<unknown> {
    return parsed(await this.post(route, call), this.address.url + route);
  }

  async post(route: string, call: Call): Promise<HttpReply> {
    return this.#patiently(route, call, () => this.once('POST', route, call));
  }

  async get(route: string, options: Partial<Call> = {}): Promise<HttpReply> {
    const call = { body: undefined, mayRepeat: true, ...options };
    return this.#patiently(route, call, () => this.once('GET', route, call));
  }

  /**
   * Gives the body of a GET to `take`, piece by piece, from its beginning again after a broken connection. A redirect to
   * a file of the server's machine (`file:`) is returned instead.
   */
  async download<T>(route: string, take: (body: AsyncIterable<Uint8Array>) => Promise<T>): Promise<T | FileUrl> {
    const call = { body: undefined, mayRepeat: true };
    const reply = await this.#patiently(route, call, () => this.#downloadOnce(route, take));
    return reply.taken;
  }

  async #downloadOnce<T>(
    route: string,
    take: (body: AsyncIterable<Uint8Array>) => Promise<T>,
  ): Promise<HttpReply & { readonly taken: T | FileUrl }> {
    const stalled = new AbortController();
    const pace = new Pace({ ms: stallMs, bytesMin: 1 }, () => stalled.abort(new Error('no byte came for minutes')));
    const none = { type: '', bytes: new Uint8Array() };
    try {
      let answer = await this.#fetch('GET', route, { body: undefined, mayRepeat: true }, stalled.signal, 'returned');
      const location = answer.headers.get('location');
      if (answer.status >= 300 && answer.status < 400 && location !== null) {
        await answer.body?.cancel();
        if (location.startsWith('file:')) return { ...none, status: 200, taken: new FileUrl(location) };
        const target = new URL(location, isAbsolute(route) ? route : this.address.url + route).href;
        answer = await this.#fetch('GET', target, { body: undefined, mayRepeat: true }, stalled.signal);
      }
      const { status } = answer;
      if (status >= 300) throw this.refusal(route, { ...none, status, bytes: await readBody(answer, route) });
      return { ...none, status, taken: await take(paced(answer.body, pace)) };
    } catch (error) {
      if (error instanceof RatchetError || error instanceof TinkerTrouble || isOfFiles(error)) throw error;
      throw new TinkerTrouble('away', `The Tinker server at ${this.address.url} broke off (${causeOf(error)}, ${route}).`, { cause: error }); // prettier-ignore
    } finally {
      pace.end();
    }
  }

  /** One attempt. Any answer is a reply, even a refusal; throws `away` or `lost` without one. */
  async once(method: 'GET' | 'POST', route: string, call: Call): Promise<HttpReply> {
    const { timeoutMs = requestTimeoutMs, signal, bytesMax = replyBytesMax } = call;
    const signals = [AbortSignal.timeout(timeoutMs), ...(signal ? [signal] : [])];
    try {
      const answer = await this.#fetch(method, route, call, AbortSignal.any(signals));
      const bytes = await readBody(answer, route, bytesMax);
      return { status: answer.status, type: answer.headers.get('content-type') ?? '', bytes };
    } catch (error) {
      if (error instanceof UnwantedBody) throw new TinkerTrouble('refused', error.message, { cause: error });
      if (signal?.aborted || error instanceof RatchetError || error instanceof TinkerTrouble) throw error;
      const never = neverArrived(error);
      if (!isTimeout(error)) this.interruptions += 1;
      const what = never ? 'does not answer' : 'broke off';
      throw new TinkerTrouble(
        never || call.mayRepeat ? 'away' : 'lost',
        `The Tinker server at ${this.address.url} ${what} (${causeOf(error)}, ${route}). Is it running? The run continues by itself when it is.`,
        { cause: error },
      );
    }
  }

  /** The target of a download's redirect gets the key only if it is the server's own. */
  #fetch(
    method: 'GET' | 'POST',
    route: string,
    call: Call,
    signal: AbortSignal,
    redirects: 'followed' | 'returned' = 'followed',
  ): Promise<Response> {
    const { body, accept = 'application/json' } = call;
    const { url, apiKeyVar } = this.address;
    const isBytes = body instanceof Uint8Array;
    const server = {
      what: 'The Tinker server ([trainer] url)',
      url,
      keys: apiKeyVar === null ? [] : [apiKeyVar],
    };
    return askServer(server, isAbsolute(route) ? route : `${url}${route}`, {
      method,
      headers: {
        accept,
        ...asItIs,
        ...(body === undefined ? {} : { 'content-type': isBytes ? protobufType : 'application/json' }),
      },
      secrets: () => this.#key(),
      body: body === undefined ? undefined : isBytes ? Buffer.from(body) : JSON.stringify(body),
      redirects,
      signal,
    });
  }

  refusal(route: string, { status, bytes }: HttpReply): TinkerTrouble {
    const words = wordsOf(Buffer.from(bytes).toString('utf8'));
    const said = this.#said(route, `answered ${status}: ${words}`);
    return new TinkerTrouble(troubleKindOf(status, words), said, { status });
  }

  #said(route: string, what: string): string {
    const { apiKeyVar, url } = this.address;
    const key = apiKeyVar === null ? undefined : process.env[apiKeyVar];
    return saidBy(url, route, what, key ? [key] : []);
  }

  async #patiently<R extends HttpReply>(route: string, call: Call, ask: () => Promise<R>): Promise<R> {
    try {
      return await this.#untilAnswered(route, call, ask);
    } finally {
      this.waits.end(call);
    }
  }

  async #untilAnswered<R extends HttpReply>(route: string, call: Call, ask: () => Promise<R>): Promise<R> {
    const giveUpAt = performance.now() + this.#patience.patienceMs;
    for (let waitMs = firstWaitMs, hasSaid = false; ; waitMs = Math.min(waitMs * 2, waitMsMax)) {
      let trouble: TinkerTrouble;
      try {
        const reply = await ask();
        if (reply.status < 300) {
          if (hasSaid) this.#patience.say(`the Tinker server at ${this.address.url} answers again`);
          return reply;
        }
        trouble = this.refusal(route, reply);
        // These statuses mean that nothing was done: busy, not ready yet, no upstream found.
        const isTurnedAway = [425, 429, 503].includes(reply.status);
        if (!isTurnedAway && !(call.mayRepeat && [408, 500, 502, 504].includes(reply.status))) throw trouble;
      } catch (error) {
        if (!(error instanceof TinkerTrouble) || (error.kind !== 'away' && error.kind !== 'failed')) throw error;
        trouble = error;
      }
      if (performance.now() + waitMs > giveUpAt) throw trouble;
      if (!hasSaid) this.#patience.say(`waiting for the Tinker server: ${trouble.message}`);
      hasSaid = true;
      this.waits.begin(call, trouble.message);
      await delay(waitMs, undefined, call.signal ? { signal: call.signal } : {});
    }
  }

  /** Looked up for each request, so that nothing holds a key of its own. */
  #key(): Record<string, string> {
    const { apiKeyVar, url } = this.address;
    if (apiKeyVar === null) return {};
    const value = process.env[apiKeyVar];
    if (value !== undefined && value !== '') return { 'x-api-key': value };
    throw new RatchetError(
      'ConfigInvalid',
      `The Tinker server at ${url} asks for a key in the environment variable ${apiKeyVar}, which is not set here. Set it where the workers are started.`,
    );
  }
}

export function isProtobuf({ type }: HttpReply): boolean {
  return type.includes('protobuf');
}

function isAbsolute(route: string): boolean {
  return /^https?:\/\//i.test(route);
}

export function parsed({ bytes }: HttpReply, where: string): unknown {
  const text = Buffer.from(bytes).toString('utf8');
  const value = parsedAsPython(text);
  if (value !== undefined) return value;
  throw new TinkerTrouble('failed', `${where}: expected JSON, got ${JSON.stringify(text.slice(0, 200))}.`);
}

async function* paced(body: AsyncIterable<Uint8Array> | null, pace: Pace): AsyncGenerator<Uint8Array> {
  for await (const chunk of body ?? []) {
    pace.came(chunk.length);
    yield chunk;
  }
}

/** Trouble of this machine's disk, which another download does not mend. */
function isOfFiles(error: unknown): boolean {
  return ['ENOSPC', 'EDQUOT', 'EACCES', 'EROFS', 'ENAMETOOLONG'].includes((error as NodeJS.ErrnoException).code ?? '');
}

function isTimeout(error: unknown): boolean {
  return error instanceof Error && error.name === 'TimeoutError';
}

/** Whether the request surely never reached the server. */
function neverArrived(error: unknown): boolean {
  return ['ECONNREFUSED', 'ENOTFOUND', 'EAI_AGAIN', 'EHOSTUNREACH', 'ENETUNREACH', 'UND_ERR_CONNECT_TIMEOUT'].includes(
    causeOf(error),
  );
}
