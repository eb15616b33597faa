import { InvalidArgumentError } from '@commander-js/extra-typings';

/** The port that an option names; 0: one that is free. */
export function readPort(text: string): number {
  const port = Number(text);
  if (/^\d+$/.test(text) && port <= 65_535) return port;
  throw new InvalidArgumentError('Expected a port from 1 to 65535, or 0 for one that is free.');
}
