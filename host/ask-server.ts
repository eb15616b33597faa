import { type ClientRequest, type OutgoingHttpHeaders, request as requestPlain, type RequestOptions } from 'node:http';
import { request as requestTls } from 'node:https';
import { RatchetError } from '../core/errors.ts';
import { present } from '../core/present.ts';
import { type AskedServer, requireServer } from './grants.ts';
import { describeRedirect, isBelow, mayFollow, redirectsMax, redirectTo } from './redirects.ts';

/** A server to ask, and the keys that it may receive. */
export interface Destination extends AskedServer {
  /** Its name in a refusal, such as `MLflow ([mlflow] tracking_uri)`. */
  readonly what: string;
  /** Environment with the keys and the grants; this process's own when missing. */
  readonly environment?: Readonly<NodeJS.ProcessEnv> | undefined;
}

export interface Asking {
  readonly method?: 'GET' | 'HEAD' | 'POST';
  readonly headers?: Readonly<Record<string, string>>;
  /**
   * Headers with a key. They are built only once the server may receive the key, and are never sent to the target of a
   * redirect.
   */
  readonly secrets?: () => Readonly<Record<string, string>>;
  readonly body?: string | Buffer | undefined;
  /**
   * Handling of a redirect that leaves the server: an error, returned like any answer, or followed. Only a request
   * without a body is followed to another server. `refused` still follows redirects that stay within the server and
   * keep the method (`mayFollow`).
   */
  readonly redirects?: 'refused' | 'returned' | 'followed';
  readonly signal?: AbortSignal | undefined;
}

/**
 * Sends a request to a granted server, with granted keys only (`grants.ts`). All requests of this program go through
 * here; `test/house.test.ts` finds others. Throws `ConfigInvalid` for a server without a grant, else like `fetch`.
 */
export async function askServer(server: Destination, url: string | URL, asking: Asking = {}): Promise<Response> {
  const { method = 'GET', headers, secrets, body, redirects = 'refused', signal } = asking;
  requireServer(server, server.what, server.environment);
  const mayLeave = redirects === 'followed' && method !== 'POST' && body === undefined;
  let at = new URL(url);
  for (let followed = 0; ; followed += 1) {
    const isOwn = isBelow(at, new URL(server.url));
    if (!isOwn && !mayLeave) throw elsewhere(at, server);
    const answer = await fetch(at, {
      method,
      headers: { ...headers, ...(isOwn && server.keys.length > 0 ? secrets?.() : {}) },
      redirect: 'manual',
      ...present({ body, signal }),
    });
    const { status } = answer;
    const redirecting = { status, location: answer.headers.get('location'), from: at };
    const to = redirectTo(redirecting);
    const isFollowed =
      to !== null &&
      (mayLeave || (redirects === 'refused' && mayFollow(status, { method, to, server: new URL(server.url) })));
    if (!isFollowed) {
      const said = redirects === 'refused' ? describeRedirect(redirecting) : null;
      if (said === null) return answer;
      await answer.body?.cancel();
      throw new TypeError('fetch failed', { cause: new Error(`${at.origin}${at.pathname} answered ${status}${said}`) });
    }
    await answer.body?.cancel();
    if (followed === redirectsMax) throw new Error(`${server.url} sends on more than ${redirectsMax} times`);
    at = to;
    if (!/^https?:$/.test(at.protocol)) throw elsewhere(at, server);
  }
}

/** Uses Node's own client, which follows no redirect. The server decides host and port, whatever the options say. */
export function requestOf(
  server: Destination,
  { headers, ...options }: Omit<RequestOptions, 'headers'> & { readonly headers: () => OutgoingHttpHeaders },
): ClientRequest {
  requireServer(server, server.what, server.environment);
  const { protocol, hostname, port } = new URL(server.url);
  const send = protocol === 'https:' ? requestTls : requestPlain;
  return send({ ...options, headers: headers(), hostname: hostname.replace(/^\[|\]$/g, ''), port });
}

/** Whether a request was not sent, because its server or its key was never named. */
export function isRefusal(error: unknown): boolean {
  return error instanceof RatchetError && error.code === 'ConfigInvalid';
}

function elsewhere(at: URL, { what, url }: Destination): Error {
  return new Error(`${what} at ${new URL(url).origin} is not asked at ${at.protocol}//${at.host}`);
}
