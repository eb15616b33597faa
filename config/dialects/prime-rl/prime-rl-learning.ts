import type { Table } from '../../toml/tables.ts';
import type { Own } from '../dialect.ts';
import type { Age } from './prime-rl-ages.ts';
import { setAlgorithm } from './prime-rl-algorithms.ts';
import { setLoss } from './prime-rl-losses.ts';
import { setLearning } from './prime-rl-teacher.ts';

/** Sets a run's teacher, loss and advantage. */
export function setLearned(written: Table, own: Own, age: Age): void {
  if (setLearning(written, own, age) === 'rl') setLoss(written, own, age);
  setAlgorithm(written, own);
}
