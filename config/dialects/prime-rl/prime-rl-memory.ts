import { isTable, setAt, copied, type Table, valueAt } from '../../toml/tables.ts';
import type { Own } from '../dialect.ts';
import { ofTrainer, type Version } from './prime-rl-meaning.ts';
import { found, hasTable } from './prime-rl-words.ts';

/** prime-rl's recomputation of activations, which saves memory: on by default since 0.8. */

/** The table is on unless it is "None". */
export function withSwitches(table: Table, version: Pick<Version, 'trainer'>): Table {
  const at = ofTrainer(version, 'model');
  const model = valueAt(table, at);
  if (!isTable(model) || model['ac'] !== 'None') return table;
  const switched = copied(table);
  setAt(switched, [...at, 'ac'], { freq: 0 });
  return switched;
}

export function setRecomputation(written: Table, own: Own, version: Pick<Version, 'trainer'>): void {
  const ac = ofTrainer(version, 'model', 'ac');
  const freq = found(written, [...ac, 'freq'].join('.'));
  if (freq) own.set(['trainer', 'ac_freq'], freq.value === 0 ? undefined : freq.value, freq.at);
  else if (hasTable(written, ac.join('.'))) own.set(['trainer', 'ac_freq'], 1, ac);
}
