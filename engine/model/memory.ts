import { totalmem } from 'node:os';
import { RatchetError } from '../../core/errors.ts';
import { memoryShareMax } from '../limits.ts';

/** Refuses a model whose weights, in `copies` of 4-byte floats, would not leave the machine room to work. */
export function requireMemory(parameterCount: number, copies: number, purpose: string): void {
  const needed = parameterCount * 4 * copies;
  const available = totalmem() * memoryShareMax;
  if (needed <= available) return;
  const gib = (bytes: number): string => `${(bytes / 2 ** 30).toFixed(1)} GiB`;
  throw new RatchetError(
    'ModelUnsupported',
    `The model has ${parameterCount} parameters; ${purpose} needs ${gib(needed)} (${copies} copies in 32-bit floats), and ` +
      `the engine takes at most ${gib(available)} of this machine's memory. Use a smaller model or a larger machine.`,
  );
}
