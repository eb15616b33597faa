import { createHmac } from 'node:crypto';
import { once } from 'node:events';
import { createServer, type IncomingMessage, type ServerResponse } from 'node:http';
import type { AddressInfo } from 'node:net';
import { defaultPayloadConverter, type Payload } from '@temporalio/common';
import proto from '@temporalio/proto';
import { z } from 'zod';
import { RatchetError } from '../../core/errors.ts';
import { codecKeyVar } from '../../core/names.ts';
import { problemsIn } from '../../core/problems-in.ts';
import { Gate, isSame, type ServerKey } from '../../engine/server/gate.ts';
import { foreignHeader, isLoopback } from '../../engine/server/loopback.ts';
import { AesPayloadCodec, type PayloadKey } from './payload-codec.ts';

interface CodecServerOptions {
  readonly host: string;
  /** 0 = any free port. */
  readonly port: number;
  /** Keys of payloads, as workers have them; at least one. */
  readonly keys: readonly PayloadKey[];
  /** Who may ask. A secret is not sent: the address has a word that is made of it. Beyond loopback it must be a chosen key. */
  readonly key: ServerKey;
  /** Web pages that may ask, such as `http://127.0.0.1:8233`. */
  readonly origins: readonly string[];
  readonly log: (line: string) => void;
}

interface CodecServer {
  /** The codec endpoint for Temporal's UI and CLI. */
  readonly url: string;
  close(): Promise<void>;
}

/** Largest body: a payload is 2 MB at most, and a page of a history has several. */
const bodyBytesMax = 16 * 1024 * 1024;
/** A browser asks again after this time whether it may ask. */
const preflightAgeS = 600;

/** Payloads in the JSON of protobuf: bytes are base64. */
const Body = z.strictObject({
  payloads: z.array(
    z.strictObject({
      metadata: z.record(z.string(), z.base64()).nullish(),
      data: z.base64().nullish(),
      externalPayloads: z
        .array(z.strictObject({ sizeBytes: z.union([z.int(), z.string().regex(/^\d+$/)]).optional() }))
        .optional(),
    }),
  ),
});

const { Payload: PayloadMessage } = proto.temporal.api.common.v1;

/**
 * Serves the protocol of Temporal's codec servers: `POST /decode` and `POST /encode` with `{payloads}`, for the
 * Temporal UI and `temporal --codec-endpoint`. Requests change nothing, so one that is sent twice harms nothing.
 */
export async function startCodecServer(options: CodecServerOptions): Promise<CodecServer> {
  const { host, port, key } = options;
  if (!isLoopback(host) && key.kind !== 'chosen') {
    throw new RatchetError(
      'ConfigInvalid',
      `Listening on ${host} would let others read what is encrypted. Expected a key in ${codecKeyVar}, which those send who may read it, or the host 127.0.0.1.`,
    );
  }
  const site = new CodecSite(options);
  const server = createServer((request, response) => void site.answer(request, response));
  server.listen(port, host);
  await once(server, 'listening').catch((cause: unknown) => {
    throw new RatchetError(
      'ServerUnavailable',
      `The codec server cannot listen on ${host}:${port}: ${String(cause)}.`,
      {
        cause,
      },
    );
  });
  const { port: chosen } = server.address() as AddressInfo;
  return {
    url: `http://${host.includes(':') ? `[${host}]` : host}:${chosen}${site.base}`,
    async close() {
      const closed = once(server, 'close');
      server.close();
      server.closeAllConnections();
      await closed;
    },
  };
}

class CodecSite {
  /** What stands before `/decode`: a word that others on this machine do not know, or nothing where a key is sent. */
  readonly base: string;
  readonly #options: CodecServerOptions;
  readonly #codec: AesPayloadCodec;
  readonly #gate: Gate | null;

  constructor(options: CodecServerOptions) {
    const { key, keys } = options;
    this.#options = options;
    this.#codec = new AesPayloadCodec(keys);
    this.#gate = key.kind === 'chosen' ? new Gate(key) : null;
    this.base =
      key.kind === 'chosen' ? '' : `/${createHmac('sha256', key.value).update('codec\n').digest('base64url')}`;
  }

  async answer(request: IncomingMessage, response: ServerResponse): Promise<void> {
    const { origin } = request.headers;
    const isAllowed = origin !== undefined && this.#options.origins.includes(origin);
    const cors = isAllowed ? { 'access-control-allow-origin': origin, vary: 'Origin' } : {};
    const say = (status: number, text: string, headers: Record<string, string> = {}): void => {
      response.writeHead(status, { 'content-type': 'text/plain; charset=utf-8', ...cors, ...headers }).end(text);
    };
    try {
      this.#admitPage(request, isAllowed);
      if (request.method === 'OPTIONS') return say(204, '', preflight);
      const work = this.#workOf(request);
      const refusal = this.#gate?.refuse(request.headers) ?? null;
      if (refusal !== null) throw new Refused(refusal.status, refusal.message);
      const payloads = await readPayloads(request);
      const done = work === 'encode' ? await this.#codec.encode(payloads) : await this.#shown(payloads);
      const text = JSON.stringify({
        payloads: done.map((one) => PayloadMessage.toObject(PayloadMessage.fromObject(one), asJson)),
      });
      this.#log(request, `${work}: ${payloads.length} payloads`);
      say(200, text, { 'content-type': 'application/json' });
    } catch (error) {
      const message = error instanceof Error ? error.message : String(error);
      this.#log(request, `refused: ${message}`);
      say(statusOf(error), `${message}\n`, request.complete ? {} : { connection: 'close' });
    }
  }

  /** Throws for a page of another place, and on loopback for a name that a page made lead here. */
  #admitPage({ headers }: IncomingMessage, isAllowed: boolean): void {
    const { origin } = headers;
    if (origin !== undefined && !isAllowed)
      throw new Refused(
        403,
        `This codec server answers no page of ${origin}. Start it with --origin ${origin} for that.`,
      );
    if (this.#gate === null && foreignHeader({ host: headers.host }) !== null)
      throw new Refused(403, 'Expected the header "Host" to name this machine: 127.0.0.1 or localhost.');
  }

  #workOf({ method, url = '' }: IncomingMessage): 'encode' | 'decode' {
    const at = url.lastIndexOf('/');
    const work = url.slice(at + 1);
    if (!isSame(url.slice(0, at), this.base))
      throw new Refused(
        401,
        'Expected the whole address that ratchet codec printed, with /decode or /encode after it.',
      );
    if (work !== 'encode' && work !== 'decode') throw new Refused(404, 'Expected POST …/decode or …/encode.');
    if (method !== 'POST') throw new Refused(405, `Expected POST /${work}.`);
    return work;
  }

  /**
   * Decrypts each payload. One that cannot be decrypted becomes a text that says why: Temporal's CLI asks again until its
   * time is over where a codec server refuses, and shows no reason.
   */
  async #shown(payloads: readonly Payload[]): Promise<Payload[]> {
    const shown: Payload[] = [];
    for (const payload of payloads) {
      try {
        shown.push(...(await this.#codec.decode([payload])));
      } catch (error) {
        if (!(error instanceof RatchetError)) throw error;
        shown.push(defaultPayloadConverter.toPayload(error.message));
      }
    }
    return shown;
  }

  /** A key belongs to an installation and not to a namespace, so a namespace only says whose history it is. */
  #log({ headers, socket }: IncomingMessage, what: string): void {
    const namespace = headers['x-namespace'];
    const of = typeof namespace === 'string' && /^[\w.-]{2,128}$/.test(namespace) ? ` of namespace ${namespace}` : '';
    this.#options.log(`${socket.remoteAddress ?? 'somebody'}${of}: ${what}`);
  }
}

const preflight = {
  'access-control-allow-methods': 'POST',
  'access-control-allow-headers': 'Authorization, Content-Type, X-Namespace',
  'access-control-max-age': String(preflightAgeS),
};

const asJson = { bytes: String, longs: String, json: true } as const;

class Refused extends Error {
  readonly status: number;

  constructor(status: number, message: string) {
    super(message);
    this.status = status;
  }
}

function statusOf(error: unknown): number {
  return error instanceof Refused ? error.status : 500;
}

async function readPayloads(request: IncomingMessage): Promise<Payload[]> {
  const text = (await readBytes(request)).toString('utf8');
  let given: unknown;
  try {
    given = JSON.parse(text);
  } catch {
    throw new Refused(400, 'Expected {"payloads": […]} in JSON.');
  }
  const body = Body.safeParse(given);
  if (!body.success)
    throw new Refused(400, `Expected {"payloads": […]} with bytes in base64: ${problemsIn(body.error)}`);
  return body.data.payloads.map((one) => PayloadMessage.fromObject(one));
}

async function readBytes(request: IncomingMessage): Promise<Buffer> {
  const chunks: Buffer[] = [];
  let size = Number(request.headers['content-length'] ?? 0);
  const isLong = (): boolean => size > bodyBytesMax;
  if (!isLong()) {
    size = 0;
    // The connection stays open for the answer.
    for await (const chunk of request.iterator({ destroyOnReturn: false })) {
      size += (chunk as Buffer).length;
      if (isLong()) break;
      chunks.push(chunk as Buffer);
    }
  }
  if (isLong()) throw new Refused(413, `Expected at most ${bodyBytesMax} bytes.`);
  return Buffer.concat(chunks, size);
}
