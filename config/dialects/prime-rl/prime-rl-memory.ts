import { isTable, setAt, copied, type Table, valueAt } from '../../toml/tables.ts';
import { type Own, ownTable, trainerIn } from '../dialect.ts';
import { ofTrainer, type Version } from './prime-rl-meaning.ts';
import { found, hasTable } from './prime-rl-words.ts';

/** prime-rl's recomputation of activations, which saves memory: on by default since 0.8. */

/** Tables of the model that prime-rl turns on unless they are "None". */
const switches = ['ac', 'ac_offloading', 'compile'];

/**
 * Keeps what `"None"` turns off, as otherwise it would count as not written: recomputation has a setting of ours, and prime-rl’s own trainer gets
 * all of them.
 */
export function withSwitches(table: Table, version: Pick<Version, 'trainer'>): Table {
  const at = ofTrainer(version, 'model');
  const model = valueAt(table, at);
  if (!isTable(model)) return table;
  const off = switches.filter((name) => model[name] === 'None');
  if (off.length === 0) return table;
  const switched = copied(table);
  if (off.includes('ac')) setAt(switched, [...at, 'ac'], { freq: 0 });
  if (trainerIn(table) !== 'prime-rl') return switched;
  for (const name of off) {
    const own = [ownTable, 'trainer', 'prime_rl', 'model', name];
    if (valueAt(table, own) === undefined) setAt(switched, own, 'None');
  }
  return switched;
}

export function setRecomputation(written: Table, own: Own, version: Pick<Version, 'trainer'>): void {
  const ac = ofTrainer(version, 'model', 'ac');
  const freq = found(written, [...ac, 'freq'].join('.'));
  if (freq) own.set(['trainer', 'ac_freq'], freq.value === 0 ? undefined : freq.value, freq.at);
  else if (hasTable(written, ac.join('.'))) own.set(['trainer', 'ac_freq'], 1, ac);
}
