import type { Table } from '../tables.ts';
import { detectDialect } from './detect.ts';
import type { Dialect } from './dialect.ts';
import { flat } from './flat.ts';

/**
 * Files of prime-rl whose keys may be of others as well. What lies in a folder called prime-rl, or is typed behind `prime-rl`, is no file of
 * Hosted Training, and none of ours unless it trains a preset.
 */

/** The dialects that a file may be of by its folder, all of them where that says nothing. */
export function dialectsIn(file: string, table: Table, dialects: readonly Dialect[]): readonly Dialect[] {
  return file.split(/[\\/]/).at(-2) === 'prime-rl' ? ofPrimeRl(table, dialects) : dialects;
}

/** `flat` where the command is `prime-rl` and the file is of it; undefined where the command says nothing of a file. */
export function dialectOfCommand(
  command: string | undefined,
  table: Table | undefined,
  dialects: readonly Dialect[],
): string | undefined {
  if (command !== 'prime-rl' || table === undefined) return undefined;
  const [first] = detectDialect(table, ofPrimeRl(table, dialects));
  return first === flat ? flat.name : undefined;
}

function ofPrimeRl(table: Table, dialects: readonly Dialect[]): readonly Dialect[] {
  const { model } = table;
  const isOurs = typeof model === 'string' && model.startsWith('preset:');
  return dialects.filter(({ name }) => !name.startsWith('hosted') && (name !== 'ratchet' || isOurs));
}
