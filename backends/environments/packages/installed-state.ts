import { createHash } from 'node:crypto';
import { existsSync, readFileSync, statSync } from 'node:fs';
import path from 'node:path';
import type { PythonEnvironmentSpec } from '../../../config/run-spec.ts';
import { editableSource, namesIn, sitePackages } from './installed.ts';
import { filesIn } from './package.ts';

/** Digests of the state that a Python process remembers from its start. */
export interface InstalledState {
  /**
   * The virtual environment: packages with their versions, targets of `.pth` files, and the files of editable packages.
   */
  readonly shared: string;
  /** The module's own files there. */
  readonly own: string;
}

/** Files count by size and time; their content is not read. */
export function installedState({ folder, module }: Pick<PythonEnvironmentSpec, 'folder' | 'module'>): InstalledState {
  const [shared, own] = [new Stamps(), new Stamps()];
  for (const site of sitePackages(folder)) {
    for (const name of namesIn(site).toSorted()) {
      const place = path.join(site, name);
      if (name.endsWith('.dist-info')) {
        shared.add(name, stampOf(path.join(place, 'RECORD')), stampOf(path.join(place, 'METADATA')));
        const source = editableSource(place);
        if (source !== undefined && existsSync(source)) shared.addFiles(source);
      } else if (/\.(?:pth|egg-link)$/.test(name)) shared.add(name, readFileSync(place, 'utf8'));
      else if (name === `${module}.py`) own.add(name, stampOf(place));
      else if (name === module && statSync(place).isDirectory()) own.addFiles(place);
    }
  }
  return { shared: shared.digest(), own: own.digest() };
}

/** Larger packages count their first files only. */
const filesMax = 5_000;

class Stamps {
  readonly #hash = createHash('sha256');

  add(...said: readonly string[]): void {
    this.#hash.update(`${JSON.stringify(said)}\n`);
  }

  addFiles(folder: string): void {
    for (const file of filesIn(folder, '').slice(0, filesMax)) this.add(file, stampOf(path.join(folder, file)));
  }

  digest(): string {
    return this.#hash.digest('hex').slice(0, 16);
  }
}

/** '' if the file is missing. */
function stampOf(file: string): string {
  const stat = statSync(file, { throwIfNoEntry: false });
  return stat === undefined ? '' : `${stat.size} ${stat.mtimeMs}`;
}
