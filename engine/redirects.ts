/** Which redirects are followed, and what is said of the others. */

interface Redirecting {
  readonly status: number;
  readonly location: string | null | undefined;
  /** The address that was asked. */
  readonly from: URL;
}

export const redirectsMax = 5;

/** The address that an answer names instead; null if it is no redirect, or names none. */
export function redirectTo({ status, location, from }: Redirecting): URL | null {
  if (status < 300 || status >= 400 || !location || !URL.canParse(location, from.href)) return null;
  return new URL(location, from.href);
}

/**
 * Whether a request may be sent again, with its body and its keys: the new address is of the same server and below its path, and the status
 * keeps the method. 301 to 303 turn a POST into a GET, which asks for something else.
 */
export function mayFollow(
  status: number,
  { method, to, server }: { readonly method: string; readonly to: URL; readonly server: URL },
): boolean {
  const keepsMethod = status === 307 || status === 308 || method === 'GET' || method === 'HEAD';
  return keepsMethod && isBelow(to, server);
}

/** Whether it is of the same server, and below its path: not one whose name begins with the same letters. */
export function isBelow(asked: URL, server: URL): boolean {
  const folder = server.pathname.endsWith('/') ? server.pathname : `${server.pathname}/`;
  return asked.origin === server.origin && (asked.pathname === server.pathname || asked.pathname.startsWith(folder));
}

/** Says where a redirect leads and what to type, to follow `<address> answered <status>`; null if the status is none of a redirect. */
export function describeRedirect(redirecting: Redirecting): string | null {
  const { status, location, from } = redirecting;
  if (status < 300 || status >= 400 || status === 304) return null;
  const to = redirectTo(redirecting);
  if (to === null) {
    return location
      ? `, a redirect to what is no address: ${JSON.stringify(location.slice(0, 100))}.`
      : ', a redirect that does not say where to. Is this the address of its API?';
  }
  const place = `${to.protocol}//${to.host}${to.pathname}`;
  const why =
    to.origin === from.origin
      ? 'It is not followed with what was asked'
      : 'Nothing that was asked, and no key, is sent to another server';
  return `, a redirect to ${place}. ${why}. If that is the server you mean, write its address in place of this one: ${baseOf(to)}`;
}

/** What a setting names of an address: without the route of the API. */
function baseOf({ protocol, host, pathname }: URL): string {
  const path = pathname
    .replace(/\/+$/, '')
    .replace(/\/(?:chat\/completions|completions|models|embeddings|health)$/, '');
  return `${protocol}//${host}${path}`;
}
