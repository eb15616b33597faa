import type { IncomingHttpHeaders } from 'node:http';
import { HttpError } from './http-error.ts';

const loopbackNames = new Set(['127.0.0.1', '::1', 'localhost']);

export function isLoopback(host: string): boolean {
  return loopbackNames.has(host);
}

/**
 * Without a key, listening on the loopback is all that keeps others out; but a web page that is open on this machine sends its
 * requests from here. It shows itself by a foreign Origin, or by a name of its own that it made to lead here (DNS rebinding).
 */
export function refuseForeignSites({ host, origin }: IncomingHttpHeaders): void {
  if (host !== undefined && !isLoopback(hostnameOf(`http://${host}`))) {
    throw new HttpError(403, 'Expected the header "Host" to name this machine: 127.0.0.1 or localhost.');
  }
  if (origin !== undefined && !isLoopback(hostnameOf(origin))) {
    throw new HttpError(
      403,
      'This server answers no web pages of other places. Start it with an API key to use it from one.',
    );
  }
}

/** Without the brackets of an IPv6 address; '' for what is no URL. */
function hostnameOf(url: string): string {
  return URL.canParse(url) ? new URL(url).hostname.replace(/^\[(.*)\]$/, '$1') : '';
}
