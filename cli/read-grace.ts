import { InvalidArgumentError } from 'commander';

/** A step of a large model takes minutes, hardly ever more than an hour. */
const graceSecondsMax = 24 * 3_600;

/** `--grace 120`: seconds. */
export function readGrace(text: string): number {
  const seconds = text.trim() === '' ? Number.NaN : Number(text);
  if (seconds >= 0 && seconds <= graceSecondsMax) return seconds;
  throw new InvalidArgumentError(`Expected seconds from 0 to ${graceSecondsMax}.`);
}
