import { placesOf } from '../../dialects/places.ts';
import { valueAt } from '../../tables.ts';
import { type RatchetConfig, settingsByPath } from '../index.ts';
import { problem, type Relations } from './problem.ts';

/** Numbers that no machine could do anything with: what is meant is another one, and the run would only show it by its memory. */
export function* boundRelations(config: RatchetConfig): Relations {
  for (const [path, { most }] of settingsByPath) {
    if (most === undefined) continue;
    const [max, because, instead] = most;
    for (const at of placesOf(path, config)) {
      const value = valueAt(config, at);
      if (typeof value === 'number' && value > max) yield problem([at], `at most ${max}: ${because}`, value, instead);
    }
  }
}
