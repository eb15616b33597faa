import { RatchetError } from '../../core/errors.ts';

/** `--last 20` as a number, from 1. */
export function readCount(option: string, text: string): number {
  const count = /^\d+$/.test(text.trim()) ? Number(text) : Number.NaN;
  if (Number.isSafeInteger(count) && count > 0) return count;
  throw new RatchetError('ConfigInvalid', `${option}: expected a whole number from 1, got ${JSON.stringify(text)}.`);
}
