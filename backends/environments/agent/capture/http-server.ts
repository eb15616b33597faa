import { randomBytes } from 'node:crypto';
import { once } from 'node:events';
import { createServer, type IncomingMessage, type Server, type ServerResponse } from 'node:http';
import { rm } from 'node:fs/promises';
import type { AddressInfo } from 'node:net';
import os from 'node:os';
import path from 'node:path';
import { isSame } from '../../../../engine/server/gate.ts';
import { Admission } from '../../../../engine/server/generation/admission.ts';
import { readBody } from '../../../../engine/server/http.ts';
import { HttpError } from '../../../../engine/server/http-error.ts';
import { shortened } from '../../../../engine/server/json.ts';
import { openTemporaryFolder } from '../../../../host/temporary-folder.ts';

export type Handle = (request: IncomingMessage, response: ServerResponse) => void;

/** One handler behind a Unix socket that only this user can reach, and if wanted behind a port of the loopback. */
export class RolloutAddress {
  readonly socket: string;
  readonly #folder: string;
  readonly #handle: Handle;
  readonly #servers: Server[] = [];

  private constructor(folder: string, handle: Handle) {
    this.#folder = folder;
    this.socket = path.join(folder, 'model.sock');
    this.#handle = handle;
  }

  static async open(handle: Handle): Promise<RolloutAddress> {
    const folder = await openTemporaryFolder('call', shortFolder());
    const address = new RolloutAddress(folder, handle);
    await address.#listen({ path: address.socket });
    return address;
  }

  async listenOnLoopback(): Promise<number> {
    const server = await this.#listen({ host: '127.0.0.1', port: 0 });
    return (server.address() as AddressInfo).port;
  }

  async close(): Promise<void> {
    const closed = this.#servers.splice(0).map(async (server) => {
      const ended = once(server, 'close');
      server.close();
      server.closeAllConnections();
      await ended;
    });
    await Promise.all(closed);
    await rm(this.#folder, { recursive: true, force: true });
  }

  async #listen(where: { readonly path: string } | { readonly host: string; readonly port: number }): Promise<Server> {
    // A turn may take as long as the model wants: only what the client sends has a limit.
    const server = createServer({ keepAliveTimeout: keepAliveMs }, this.#handle);
    server.listen({ ...where, backlog: backlogMax });
    await once(server, 'listening');
    this.#servers.push(server);
    return server;
  }
}

/** Paths of sockets have 103 bytes at most on some systems. */
function shortFolder(): string {
  return Buffer.byteLength(os.tmpdir()) > 50 ? '/tmp' : os.tmpdir();
}

const keepAliveMs = 75_000;
const backlogMax = 512;

/** A key of one rollout: some programs look at its beginning. */
export function newKey(): string {
  return `sk-ratchet-${randomBytes(24).toString('base64url')}`;
}

/** Throws unless the request has the key, as OpenAI's or as Anthropic's clients send it. */
export function requireKey({ headers }: IncomingMessage, key: string): void {
  const { authorization = '', 'x-api-key': own } = headers;
  const [, bearer = ''] = /^Bearer (.*)$/i.exec(authorization) ?? [];
  const given = typeof own === 'string' ? [bearer, own] : [bearer];
  if (given.some((one) => isSame(one, key))) return;
  throw new HttpError(401, 'Expected the key of this rollout, as "Authorization: Bearer KEY" or "x-api-key: KEY".');
}

/** Bounds the bodies that all rollouts of this process send at once. */
const admission = new Admission();

/** The body of a request, bounded. */
export async function readBodyOf(request: IncomingMessage): Promise<Buffer> {
  const { 'content-encoding': encoding = 'identity' } = request.headers;
  if (!/^identity$/i.test(encoding)) {
    const message = `"content-encoding": expected a body as it is, got ${JSON.stringify(shortened(encoding, 50))}.`;
    throw new HttpError(415, message, { param: 'content-encoding' });
  }
  return admission.hold((budget) => readBody(request, budget));
}
