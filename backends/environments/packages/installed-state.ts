import { createHash } from 'node:crypto';
import { existsSync, readFileSync, statSync } from 'node:fs';
import path from 'node:path';
import type { PythonEnvironmentSpec } from '../../../config/run-spec.ts';
import { editableSource, namesIn, sitePackages } from './installed.ts';
import { filesIn } from './package.ts';

/**
 * Digest of all that a Python process of a virtual environment remembers from its start: packages with their versions, where `.pth` files lead,
 * and the files of the module and of packages that are installed editable. Files count by size and time; nothing of them is read.
 */
export function installedState({ folder, module }: Pick<PythonEnvironmentSpec, 'folder' | 'module'>): string {
  const digest = createHash('sha256');
  const add = (...said: readonly (string | number)[]) => digest.update(`${JSON.stringify(said)}\n`);
  for (const site of sitePackages(folder)) {
    for (const name of namesIn(site).toSorted()) {
      const place = path.join(site, name);
      if (name.endsWith('.dist-info')) {
        add(name, stampOf(path.join(place, 'RECORD')), stampOf(path.join(place, 'METADATA')));
        const source = editableSource(place);
        if (source !== undefined && existsSync(source)) addFiles(source, add);
      } else if (/\.(?:pth|egg-link)$/.test(name)) add(name, readFileSync(place, 'utf8'));
      else if (name === `${module}.py`) add(name, stampOf(place));
      else if (name === module && statSync(place).isDirectory()) addFiles(place, add);
    }
  }
  return digest.digest('hex').slice(0, 16);
}

/** A package with more files counts the first of them. */
const filesMax = 5_000;

function addFiles(folder: string, add: (...said: readonly (string | number)[]) => void): void {
  for (const file of filesIn(folder, '').slice(0, filesMax)) add(file, stampOf(path.join(folder, file)));
}

/** '' where it is not there. */
function stampOf(file: string): string {
  const stat = statSync(file, { throwIfNoEntry: false });
  return stat === undefined ? '' : `${stat.size} ${stat.mtimeMs}`;
}
