import { createHash, createHmac, timingSafeEqual } from 'node:crypto';
import type { IncomingHttpHeaders, IncomingMessage } from 'node:http';
import { secretFileName } from '../../host/project-secret.ts';
import { foreignHeader } from './loopback.ts';

/** The key that a server expects as `Authorization: Bearer …`. */
export type ServerKey =
  /** The project's (`project-secret.ts`): for this machine alone. Web pages of other places are refused as well. */
  | { readonly kind: 'secret'; readonly value: string }
  /** Chosen by a person, and stored in `variable`. The server may be behind a proxy with another name. */
  | { readonly kind: 'chosen'; readonly value: string; readonly variable: string };

/** Why a request is not answered. */
interface Refusal {
  readonly status: 401 | 403;
  readonly message: string;
}

/**
 * Decides which requests a server of ours answers. A null key admits everybody on this machine, for servers of tests.
 *
 * A process that takes the port of a dead server would receive its secret. So a client may first request a proof that
 * the server has the secret itself. The proof holds for one address, and a server at another address cannot get one.
 */
export class Gate {
  readonly #key: ServerKey | null;

  constructor(key: ServerKey | null) {
    this.#key = key;
  }

  /** Returns null to admit the request. */
  refuse(headers: IncomingHttpHeaders): Refusal | null {
    if (this.#key?.kind !== 'chosen') {
      const foreign = refusalOfForeign(headers);
      if (foreign !== null) return foreign;
    }
    if (this.#key === null || isSame(headers.authorization ?? '', bearer(this.#key.value))) return null;
    return { status: 401, message: expected(this.#key) };
  }

  /**
   * Headers of the answer to a request for a proof; empty for other requests. A key that a person chose could be
   * guessed from a proof, so it gives none.
   */
  proof({ headers, socket }: IncomingMessage): Record<string, string> {
    const challenge = headers[challengeHeader];
    if (this.#key?.kind !== 'secret' || typeof challenge !== 'string') return {};
    return { [proofHeader]: proofOf(this.#key.value, challenge, addressOf(socket.localAddress, socket.localPort)) };
  }
}

export function bearer(key: string): string {
  return `Bearer ${key}`;
}

export const challengeHeader = 'ratchet-challenge';
export const proofHeader = 'ratchet-proof';

/** The answer to a challenge that only a server at `address` with the secret can give. `python/ratchet_vllm.py` computes the same. */
export function proofOf(secret: string, challenge: string, address: string): string {
  return createHmac('sha256', secret).update(`ratchet server\n${address}\n${challenge}`).digest('base64url');
}

/** One end of a connection, in the same form at both ends. */
export function addressOf(host: string | undefined, port: number | undefined): string {
  return `${(host ?? '').replace(/^::ffff:(?=[\d.]+$)/, '')} ${port ?? 0}`;
}

/** Takes the same time wherever the two differ. */
export function isSame(given: string, expected: string): boolean {
  const [one, other] = [given, expected].map((text) => createHash('sha256').update(text).digest());
  return timingSafeEqual(one!, other!);
}

function expected(key: ServerKey): string {
  const sent = 'Expected the header "Authorization: Bearer KEY" with';
  if (key.kind === 'secret')
    return `${sent} the secret of this server's project: the text of its file ${secretFileName}.`;
  return `${sent} this server's key: what ${key.variable} was set to where it was started.`;
}

/** Web pages that are open on this machine ask from here as well: those of other places, and those that made a name lead here (DNS rebinding). */
export function refusalOfForeign(headers: IncomingHttpHeaders): Refusal | null {
  const found = foreignHeader(headers);
  return found === null ? null : { status: 403, message: foreignWords[found] };
}

const foreignWords = {
  host: 'Expected the header "Host" to name this machine: 127.0.0.1 or localhost.',
  origin: 'This server answers no web pages of other places. Start it with a key of yours to use it from one.',
};
