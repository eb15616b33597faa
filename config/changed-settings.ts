import { nameInFile } from './setting-names.ts';

/**
 * The settings in which two specs differ, by their names in a run file, with both values: `learning_rate 0.001 →
 * 0.002`.
 */
export function changedSettings(before: object, after: object): string[] {
  const [was, is] = [flat(before), flat(after)];
  return [...new Set([...was.keys(), ...is.keys()])]
    .sort()
    .filter((name) => was.get(name) !== is.get(name))
    .map((name) => `${nameInFile(name)} ${was.get(name) ?? '–'} → ${is.get(name) ?? '–'}`);
}

export function flat(value: unknown, path = '', found = new Map<string, string>()): Map<string, string> {
  if (typeof value === 'object' && value !== null) {
    for (const [name, part] of Object.entries(value)) flat(part, path === '' ? name : `${path}.${name}`, found);
  } else found.set(path, JSON.stringify(value) ?? '–');
  return found;
}
