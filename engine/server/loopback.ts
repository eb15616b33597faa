import type { IncomingHttpHeaders } from 'node:http';

const loopbackNames = new Set(['127.0.0.1', '::1', 'localhost']);

export function isLoopback(host: string): boolean {
  return loopbackNames.has(host);
}

/**
 * What a request without a key shows of a web page that is open on this machine, whose requests come from here as ours do: a foreign
 * Origin, or a name of its own that it made to lead here (DNS rebinding); null = neither. Listening on the loopback keeps the others out.
 */
export function foreignHeader({ host, origin }: IncomingHttpHeaders): 'host' | 'origin' | null {
  if (host !== undefined && !isLoopback(hostnameOf(`http://${host}`))) return 'host';
  return origin !== undefined && !isLoopback(hostnameOf(origin)) ? 'origin' : null;
}

/** Without the brackets of an IPv6 address; '' for what is no URL. */
function hostnameOf(url: string): string {
  return URL.canParse(url) ? new URL(url).hostname.replace(/^\[(.*)\]$/, '$1') : '';
}
