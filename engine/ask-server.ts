import { type ClientRequest, type OutgoingHttpHeaders, request as requestPlain, type RequestOptions } from 'node:http';
import { request as requestTls } from 'node:https';
import { RatchetError } from '../core/errors.ts';
import { type AskedServer, requireServer } from './grants.ts';
import { describeRedirect, isBelow, mayFollow, redirectsMax, redirectTo } from './redirects.ts';

/** A server that is asked, and the keys that it is told. */
export interface Destination extends AskedServer {
  /** Its name in a refusal, such as `MLflow ([mlflow] tracking_uri)`. */
  readonly what: string;
  /** Holds the keys, and what grants; this process's own when missing. */
  readonly environment?: Readonly<NodeJS.ProcessEnv> | undefined;
}

export interface Asking {
  readonly method?: 'GET' | 'HEAD' | 'POST';
  readonly headers?: Readonly<Record<string, string>>;
  /** Headers that tell a key. They are made when the server may be told it, and are sent to no other place that a redirect names. */
  readonly secrets?: () => Readonly<Record<string, string>>;
  readonly body?: string | Buffer | undefined;
  /**
   * What becomes of a redirect that leaves the server: it is an error, it is returned as any answer, or it is followed. Only a request without
   * a body is followed to another server. `refused` follows what stays within the server and keeps the method (`mayFollow`).
   */
  readonly redirects?: 'refused' | 'returned' | 'followed';
  readonly signal?: AbortSignal | undefined;
}

/**
 * The door through which the requests of this program leave: nothing goes to a server that was not granted, and no key to one that it was not
 * granted with (`grants.ts`). `test/house.test.ts` finds requests that go past it. Throws `ConfigInvalid` where the server was not granted,
 * else as `fetch` does.
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
      ...(body === undefined ? {} : { body }),
      ...(signal === undefined ? {} : { signal }),
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

/** The same by Node's own client, which follows no redirect. The server decides host and port, whatever the options say. */
export function requestOf(
  server: Destination,
  { headers, ...options }: Omit<RequestOptions, 'headers'> & { readonly headers: () => OutgoingHttpHeaders },
): ClientRequest {
  requireServer(server, server.what, server.environment);
  const { protocol, hostname, port } = new URL(server.url);
  const send = protocol === 'https:' ? requestTls : requestPlain;
  return send({ ...options, headers: headers(), hostname: hostname.replace(/^\[|\]$/g, ''), port });
}

/** Whether a request was not sent, because nobody had named its server or its key. */
export function isRefusal(error: unknown): boolean {
  return error instanceof RatchetError && error.code === 'ConfigInvalid';
}

function elsewhere(at: URL, { what, url }: Destination): Error {
  return new Error(`${what} at ${new URL(url).origin} is not asked at ${at.protocol}//${at.host}`);
}
