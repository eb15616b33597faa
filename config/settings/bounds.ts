import type { RelationProblem } from '../dialects/ratchet-relations.ts';
import type { RatchetConfig } from './index.ts';
import { placesOf } from '../dialects/places.ts';
import { valueAt } from '../tables.ts';
import { settingsByPath } from './index.ts';

/** Numbers that no machine could do anything with: what is meant is another one, and the run would only show it by its memory. */
export function boundRelations(config: RatchetConfig): RelationProblem[] {
  return [...settingsByPath].flatMap(([path, { most }]) => {
    if (most === undefined) return [];
    const [max, because, instead] = most;
    return placesOf(path, config)
      .map((at) => ({ at, value: valueAt(config, at) }))
      .filter(({ value }) => typeof value === 'number' && value > max)
      .map(({ at, value }) => ({
        paths: [at],
        expected: `at most ${max}: ${because}`,
        received: String(value),
        suggestion: instead,
      }));
  });
}
