import type { IncomingHttpHeaders } from 'node:http';

const loopbackNames = new Set(['127.0.0.1', '::1', 'localhost']);

export function isLoopback(host: string): boolean {
  return loopbackNames.has(host);
}

/**
 * Recognizes a request without a key that comes from a web page open on this machine, since such requests arrive on the
 * loopback like ours: a foreign Origin, or a host name that the page made resolve to here (DNS rebinding); null =
 * neither. Other machines cannot reach the loopback.
 */
export function foreignHeader({ host, origin }: IncomingHttpHeaders): 'host' | 'origin' | null {
  if (host !== undefined && !isLoopback(hostnameOf(`http://${host}`))) return 'host';
  return origin !== undefined && !isLoopback(hostnameOf(origin)) ? 'origin' : null;
}

/** Without the brackets of an IPv6 address; '' for an invalid URL. */
function hostnameOf(url: string): string {
  return URL.canParse(url) ? new URL(url).hostname.replace(/^\[(.*)\]$/, '$1') : '';
}
