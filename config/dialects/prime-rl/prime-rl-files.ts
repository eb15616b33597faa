import type { Table } from '../../toml/tables.ts';
import { detectDialect } from '../detect.ts';
import type { Dialect } from '../dialect.ts';
import { flat } from '../flat.ts';

/**
 * Files of prime-rl whose keys may belong to other dialects as well. A file in a folder called prime-rl, or behind the
 * command `prime-rl`, is not Hosted Training's, and not ours unless it trains a preset.
 */

/** The dialects that a file may have by its folder; all of them if the folder shows nothing. */
export function dialectsIn(file: string, table: Table, dialects: readonly Dialect[]): readonly Dialect[] {
  return file.split(/[\\/]/).at(-2) === 'prime-rl' ? ofPrimeRl(table, dialects) : dialects;
}

/** `flat` if the command is `prime-rl` and the file fits; undefined if the command implies nothing. */
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
