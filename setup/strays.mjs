/** Finds files that tests leave in the home or in the project's folder. */
import { readdirSync, statSync } from 'node:fs';
import { join, relative } from 'node:path';

/** Files that may appear in the project, each with the reason. None may appear in the home. */
export const allowedInProject = [
  // Python writes compiled code beside the source; git ignores it.
  /(?:^|[/])__pycache__[/]/,
  // The output of this run may be stored there.
  /^[^/]+\.log$/,
];

/**
 * Lists the files below a folder, each with a stamp that changes when it is written.
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
 * Returns the names of files that were added, changed or removed between two scans and are not allowed to.
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
