import { RatchetError } from '../../core/errors.ts';

/** `--target-cpu 0.9` as a number, above 0 and at most 1. */
export function readShare(option: string, text: string): number {
  const share = /^\d*\.?\d+$/.test(text.trim()) ? Number(text) : Number.NaN;
  if (share > 0 && share <= 1) return share;
  throw new RatchetError(
    'ConfigInvalid',
    `${option}: expected a share above 0 and up to 1, got ${JSON.stringify(text)}.`,
  );
}
