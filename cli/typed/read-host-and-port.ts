import { InvalidArgumentError } from '@commander-js/extra-typings';

export interface HostAndPort {
  readonly host: string;
  readonly port: number;
}

/** `0.0.0.0:8425`, `[::]:8425`, or the port alone for loopback. */
export function readHostAndPort(text: string): HostAndPort {
  const [, brackets, name, digits] = /^(?:(?:\[([^\]]+)\]|([^:\s]+)):)?(\d+)$/.exec(text) ?? [];
  const port = Number(digits);
  if (digits !== undefined && port <= 65_535) return { host: brackets ?? name ?? '127.0.0.1', port };
  throw new InvalidArgumentError('Expected HOST:PORT, such as 0.0.0.0:8425, or a port of 127.0.0.1.');
}
