import { isTable, setAt, copied, type Table, valueAt } from '../../toml/tables.ts';
import type { Own } from '../dialect.ts';
import { ofTrainer, type Version } from './prime-rl-meaning.ts';
import { found, hasTable } from './prime-rl-words.ts';

/** prime-rl's recomputation and offloading, which save memory: on by default since 0.8. */

/** Tables that are on unless they are "None". */
export function withSwitches(table: Table, version: Pick<Version, 'trainer'>): Table {
  const at = ofTrainer(version, 'model');
  const model = valueAt(table, at);
  if (!isTable(model)) return table;
  const off: Table = {
    ...(model['ac'] === 'None' ? { ac: { freq: 0 } } : {}),
    ...(model['ac_offloading'] === 'None' ? { ac_offloading: { max_inflight_activations: 0 } } : {}),
  };
  const switched = copied(table);
  setAt(switched, at, { ...model, ...off });
  return switched;
}

export function setRecomputation(written: Table, own: Own, version: Pick<Version, 'trainer'>): void {
  const ac = ofTrainer(version, 'model', 'ac');
  const freq = found(written, [...ac, 'freq'].join('.'));
  if (freq) own.set(['trainer', 'ac_freq'], freq.value === 0 ? undefined : freq.value, freq.at);
  else if (hasTable(written, ac.join('.'))) own.set(['trainer', 'ac_freq'], 1, ac);
  const waiting = found(written, ofTrainer(version, 'model', 'ac_offloading', 'max_inflight_activations').join('.'));
  if (waiting?.value === 0) own.set(['trainer', 'ac_offloading'], undefined, waiting.at);
}
