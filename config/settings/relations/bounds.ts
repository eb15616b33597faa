import { placesOf } from '../../dialects/places.ts';
import { valueAt } from '../../toml/tables.ts';
import { type RatchetConfig, settingsByPath } from '../index.ts';
import { problem, type Relations } from './problem.ts';

/** Checks that the table of settings implies: bounds, and several places for one setting. */

/** Refuses numbers beyond any machine: another one was meant, and the run would only show it by its memory. */
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

const others = [...settingsByPath].flatMap(([path, { otherPlaceOf: setting }]) => (setting ? [{ setting, path }] : []));
/** Settings with several places, the default one first. */
export const settingsWithPlaces = [...new Set(others.map(({ setting }) => setting))].map((setting) => [
  setting,
  ...others.filter((other) => other.setting === setting).map(({ path }) => path),
]);

/** Several places of a setting must agree, or only one may be used. */
export function* placeRelations(config: RatchetConfig): Relations {
  for (const paths of settingsWithPlaces) {
    const said = paths.flatMap((path) => {
      const value = valueAt(config, path.split('.'));
      return value === undefined ? [] : [{ path, value: JSON.stringify(value) }];
    });
    const [first, other] = [said[0], said.find(({ value }) => value !== said[0]!.value)];
    if (first === undefined || other === undefined) continue;
    const [, table = '', key = first.path] = /^(.*)\.(\w+)$/.exec(first.path) ?? [];
    const instead = other.path.startsWith(`${table}.`) ? undefined : `keep the one in [${table}]`;
    yield problem([other.path, first.path], `one of them: [${table}] ${key} is ${first.value}`, other.value, instead);
  }
}
