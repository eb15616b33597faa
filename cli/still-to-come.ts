import { RatchetError } from '../core/errors.ts';

/** What a command answers whose feature is not there yet: plainly, and with what there is. Its options are known already. */
export function stillToCome(command: string, today: readonly string[]): RatchetError {
  const lines = today.map((line) => `  ${line}`);
  return new RatchetError(
    'ConfigInvalid',
    [`ratchet ${command} is still to come. What there is today:`, ...lines].join('\n'),
  );
}
