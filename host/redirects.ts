/** Decides which redirects are followed, and describes the others. */

interface Redirecting {
  readonly status: number;
  readonly location: string | null | undefined;
  readonly from: URL;
}

export const redirectsMax = 5;

/** The target of a redirect; null if the answer is none, or names none. */
export function redirectTo({ status, location, from }: Redirecting): URL | null {
  if (status < 300 || status >= 400 || !location || !URL.canParse(location, from.href)) return null;
  return new URL(location, from.href);
}

/**
 * Whether a request may be sent again, with its body and its keys: the new address is on the same server and below its
 * path, and the status keeps the method. 301 to 303 turn a POST into a GET, which is another request.
 */
export function mayFollow(
  status: number,
  { method, to, server }: { readonly method: string; readonly to: URL; readonly server: URL },
): boolean {
  const keepsMethod = status === 307 || status === 308 || method === 'GET' || method === 'HEAD';
  return keepsMethod && isBelow(to, server);
}

/** Whether it is on the same server, and below its path: a name with the same beginning does not count. */
export function isBelow(asked: URL, server: URL): boolean {
  const folder = server.pathname.endsWith('/') ? server.pathname : `${server.pathname}/`;
  return asked.origin === server.origin && (asked.pathname === server.pathname || asked.pathname.startsWith(folder));
}

/**
 * Describes a redirect's target and the setting to use, to follow `<address> answered <status>`; null if the status is
 * no redirect.
 */
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

/** The part of an address that a setting names: without the API's route. */
function baseOf({ protocol, host, pathname }: URL): string {
  const path = pathname
    .replace(/\/+$/, '')
    .replace(/\/(?:chat\/completions|completions|models|embeddings|health)$/, '');
  return `${protocol}//${host}${path}`;
}
