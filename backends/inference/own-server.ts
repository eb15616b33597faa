import { randomBytes } from 'node:crypto';
import { Agent, type AgentOptions, type ClientRequestArgs } from 'node:http';
import type { Socket } from 'node:net';
import type { Duplex } from 'node:stream';
import { secretFileName } from '../../host/project-secret.ts';
import { addressOf, challengeHeader, isSame, proofHeader, proofOf } from '../../engine/server/gate.ts';

/** A server did not prove that it has this project's secret. No request was sent. */
export class NotOurs extends Error {}

/** Time limit for a server's proof. A load of weights may delay it. */
const proofMsMax = 60_000;
const headBytesMax = 16 * 1024;

/**
 * Connections to servers that have the project's secret. Any user may listen on a port of the loopback once its server
 * has died. So each connection is used only after its other end has proven that it knows the secret.
 */
export class OwnServerAgent extends Agent {
  readonly #secret: string;
  /** Path before `/health`. */
  readonly #path: string;
  readonly #unproven = new Set<Socket>();

  constructor(secret: string, path: string, options: AgentOptions) {
    super(options);
    this.#secret = secret;
    this.#path = path;
  }

  override createConnection(
    options: ClientRequestArgs,
    callback?: (error: Error | null, stream: Duplex) => void,
  ): Duplex | undefined {
    const socket = super.createConnection(options) as Socket;
    this.#unproven.add(socket);
    demandProof(socket, { secret: this.#secret, path: this.#path }, (error) => {
      this.#unproven.delete(socket);
      if (error !== null) socket.destroy();
      callback?.(error, socket);
    });
    return undefined;
  }

  /** Includes connections that wait for a silent server: they would keep the process alive. */
  override destroy(): void {
    for (const socket of this.#unproven) socket.destroy();
    super.destroy();
  }
}

/** Requests a proof by `GET /health`. The socket is then like new, since the answer is read to its end. */
function demandProof(
  socket: Socket,
  { secret, path }: { readonly secret: string; readonly path: string },
  settle: (error: Error | null) => void,
): void {
  const challenge = randomBytes(24).toString('base64url');
  let heard = Buffer.alloc(0);
  const end = (error: Error | null): void => {
    socket.setTimeout(0);
    for (const [event, listener] of Object.entries(listeners)) socket.off(event, listener);
    settle(error);
  };
  const listeners = {
    connect: (): void => {
      const host = socket.remoteFamily === 'IPv6' ? `[${socket.remoteAddress}]` : socket.remoteAddress;
      socket.write(
        `GET ${path}/health HTTP/1.1\r\nhost: ${host}:${socket.remotePort}\r\n${challengeHeader}: ${challenge}\r\n\r\n`,
      );
    },
    data: (chunk: Buffer): void => {
      heard = Buffer.concat([heard, chunk]);
      const answer = readAnswer(heard);
      if (answer === 'unfinished') return;
      const address = addressOf(socket.remoteAddress, socket.remotePort);
      const isOurs = answer !== null && isSame(answer.proof, proofOf(secret, challenge, address));
      end(isOurs ? null : notOurs());
    },
    error: (error: Error): void => end(error),
    close: (): void => end(notOurs()),
    timeout: (): void => end(new Error(`no proof within ${proofMsMax / 1000} s`)),
  };
  socket.setTimeout(proofMsMax);
  for (const [event, listener] of Object.entries(listeners)) socket.on(event, listener);
}

/** The whole of one short HTTP/1.1 answer; null for one that no server of ours gives. */
function readAnswer(heard: Buffer): { readonly proof: string } | 'unfinished' | null {
  const headEnd = heard.indexOf('\r\n\r\n');
  if (headEnd < 0) return heard.length > headBytesMax ? null : 'unfinished';
  const [status = '', ...lines] = heard.subarray(0, headEnd).toString('latin1').split('\r\n');
  const headers = new Map(
    lines.map((line) => {
      const colon = line.indexOf(':');
      return [line.slice(0, colon).toLowerCase(), line.slice(colon + 1).trim()] as const;
    }),
  );
  const proof = headers.get(proofHeader);
  const length = headers.get('content-length') ?? '';
  if (!status.startsWith('HTTP/1.1 ') || proof === undefined || !/^\d{1,4}$/.test(length)) return null;
  const missing = headEnd + 4 + Number(length) - heard.length;
  if (missing < 0) return null;
  return missing > 0 ? 'unfinished' : { proof };
}

function notOurs(): NotOurs {
  return new NotOurs(
    `what listens there does not prove that it has the secret of this project (${secretFileName}), and was told nothing. It is another program, or was started before that file changed: then start it again`,
  );
}
