import { createHash, randomBytes, timingSafeEqual } from 'node:crypto';
import type { IncomingHttpHeaders } from 'node:http';
import { foreignHeader } from '../engine/index.ts';

/** Why a request is not answered. */
export interface Refusal {
  readonly status: 401 | 403;
  readonly message: string;
}

/**
 * Who may look: whoever opened the printed address. Its token comes as a header that the page's own code sets, and never as a cookie, which a
 * browser would send to every port of this host, so to whoever listens there. Pages of other places are refused by Host, Origin and
 * Sec-Fetch-Site, also where they have made a name of their own lead here.
 */
export class Doorkeeper {
  readonly token = randomBytes(24).toString('base64url');

  /** Null: come in. `isForAll`: what is asked for has no secret, and needs no token. */
  refuse(headers: IncomingHttpHeaders, port: number, isForAll = false): Refusal | null {
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
    if (isForAll || this.#isKnown(bearerOf(headers))) return null;
    return { status: 401, message: 'Open the whole address that ratchet printed, with its token.' };
  }

  #isKnown(token: string | null): boolean {
    const digest = (text: string) => createHash('sha256').update(text).digest();
    return token !== null && timingSafeEqual(digest(token), digest(this.token));
  }
}

function bearerOf({ authorization = '' }: IncomingHttpHeaders): string | null {
  return /^Bearer (.+)$/.exec(authorization)?.[1] ?? null;
}
