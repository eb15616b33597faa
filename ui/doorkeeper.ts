import { createHash, randomBytes, timingSafeEqual } from 'node:crypto';
import type { IncomingHttpHeaders } from 'node:http';
import { foreignHeader } from '../engine/index.ts';

/** Why a request is not answered. */
interface Refusal {
  readonly status: 401 | 403;
  readonly message: string;
}

/**
 * Admits requests that carry the token from the printed address. The page's own code sends it in a header. It is never a cookie, because a
 * browser sends those to every port of this host. Requests from other sites are refused by Host, Origin and Sec-Fetch-Site, even if their
 * host name resolves to this machine.
 */
export class Doorkeeper<Guest> {
  readonly token = randomBytes(24).toString('base64url');
  readonly #host: Guest;
  readonly #guestOf: (key: string) => Promise<Guest | null>;

  /** `host` has the printed token; `guestOf` finds whose key another one is. */
  constructor(host: Guest, guestOf: (key: string) => Promise<Guest | null>) {
    this.#host = host;
    this.#guestOf = guestOf;
  }

  /** Refuses a request of another place, or of nobody; else says who asks. `isForAll`: the content has no secret and needs no token. */
  async admit(
    headers: IncomingHttpHeaders,
    port: number,
    isForAll = false,
  ): Promise<Refusal | { readonly guest: Guest }> {
    const foreign = foreignHeader(headers);
    const ownOrigins = ['127.0.0.1', 'localhost', '[::1]'].map((host) => `http://${host}:${port}`);
    const { origin, 'sec-fetch-site': site = 'none' } = headers;
    if (foreign === 'host') return { status: 403, message: 'Expected the header "Host" to name this machine.' };
    if (
      foreign !== null ||
      (origin !== undefined && !ownOrigins.includes(origin)) ||
      !['same-origin', 'none'].includes(site)
    )
      return { status: 403, message: 'This page answers no other pages.' };
    const token = bearerOf(headers);
    if (isForAll || this.#isOurs(token)) return { guest: this.#host };
    const guest = token === null ? null : await this.#guestOf(token);
    if (guest !== null) return { guest };
    return { status: 401, message: 'Open the whole address that ratchet printed, with its token.' };
  }

  #isOurs(token: string | null): boolean {
    const digest = (text: string) => createHash('sha256').update(text).digest();
    return token !== null && timingSafeEqual(digest(token), digest(this.token));
  }
}

function bearerOf({ authorization = '' }: IncomingHttpHeaders): string | null {
  return /^Bearer (.+)$/.exec(authorization)?.[1] ?? null;
}
