import { createHash, randomBytes, timingSafeEqual } from 'node:crypto';
import type { IncomingHttpHeaders } from 'node:http';
import { foreignHeader } from '../engine/index.ts';

/** Why a request is not answered. */
export interface Refusal {
  readonly status: 401 | 403;
  readonly message: string;
}

/**
 * Who may look: whoever opened the printed address. Its token becomes a cookie of this port, so that it stands in no address any more. Pages of
 * other places are refused by Host, Origin and Sec-Fetch-Site, also where they have made a name of their own lead here.
 */
export class Doorkeeper {
  readonly token = randomBytes(24).toString('base64url');

  /** Null: come in. */
  refuse(headers: IncomingHttpHeaders, port: number): Refusal | null {
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
    if (this.#isKnown(cookieOf(headers, cookieName(port))) || this.#isKnown(bearerOf(headers))) return null;
    return { status: 401, message: 'Open the whole address that ratchet printed, with its token.' };
  }

  /** What makes a browser that opened the printed address known; null where the token is another. */
  cookie(token: string | null, port: number): string | null {
    if (token === null || !this.#isKnown(token)) return null;
    return `${cookieName(port)}=${this.token}; HttpOnly; SameSite=Strict; Path=/`;
  }

  #isKnown(token: string | null): boolean {
    const digest = (text: string) => createHash('sha256').update(text).digest();
    return token !== null && timingSafeEqual(digest(token), digest(this.token));
  }
}

/** Cookies know no ports: two pages on one machine each have their own. */
function cookieName(port: number): string {
  return `ratchet_${port}`;
}

function cookieOf({ cookie = '' }: IncomingHttpHeaders, name: string): string | null {
  for (const part of cookie.split(';')) {
    const [key, value] = part.trim().split('=', 2);
    if (key === name) return value ?? null;
  }
  return null;
}

function bearerOf({ authorization = '' }: IncomingHttpHeaders): string | null {
  return /^Bearer (.+)$/.exec(authorization)?.[1] ?? null;
}
