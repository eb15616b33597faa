/** What tests leave where they should not: in the home, and in the project's folder. */
import { readdirSync, statSync } from 'node:fs';
import { join, relative } from 'node:path';

/** What may appear in the project, each with the reason. In the home nothing may. */
export const allowedInProject = [
  // Python keeps what it compiled beside the source; git ignores it.
  /(?:^|[/])__pycache__[/]/,
  // The output of this very run may be kept there.
  /^[^/]+\.log$/,
];

/**
 * The files below a folder, with what changes when one is written.
 * @param {string} folder
 * @returns {Map<string, string>}
 */
export function filesBelow(folder, /** @type {readonly string[]} */ except = []) {
  /** @type {Map<string, string>} */
  const files = new Map();
  const look = (/** @type {string} */ place) => {
    for (const entry of readdirSync(place, { withFileTypes: true })) {
      const path = join(place, entry.name);
      if (place === folder && except.includes(entry.name)) continue;
      if (entry.isDirectory()) look(path);
      const facts = entry.isDirectory() ? undefined : statSync(path, { throwIfNoEntry: false });
      if (facts) files.set(relative(folder, path), `${facts.mtimeMs} ${facts.size}`);
    }
  };
  look(folder);
  return files;
}

/**
 * What appeared, changed or vanished between two looks and may not, by name.
 * @param {Map<string, string>} before
 * @param {Map<string, string>} after
 * @param {readonly RegExp[]} [allowed]
 * @returns {string[]}
 */
export function strays(before, after, allowed = []) {
  return [...new Set([...before.keys(), ...after.keys()])]
    .filter((file) => before.get(file) !== after.get(file) && !allowed.some((pattern) => pattern.test(file)))
    .sort();
}
