/**
 * Python packages for tests, installed as a run would have them. As a program it installs what the named requirements files of `python/` pin: `npm
 * test` does so first, since an installation takes minutes and a test's time is bounded.
 */
import { realpathSync } from 'node:fs';
import { fileURLToPath } from 'node:url';
import { ensurePython } from '../workers/install/python-environment.ts';

export interface Installed {
  readonly python: string;
  /** Why the packages are missing: no Python, or no package index. */
  readonly why: string | false;
}

/** Installs the packages that a requirements file in `python/` pins. */
export async function installPython(file: string): Promise<Installed> {
  const requirements = fileURLToPath(new URL(`../python/${file}`, import.meta.url));
  const name = file.replace(/(?:-v\d)?-requirements\.txt$/, '');
  const log = (line: string): void => void process.stderr.write(`${line}\n`);
  return ensurePython({ name, requirements, log }).then(
    (python) => ({ python, why: false as const }),
    (error: Error) => ({ python: '', why: `${name} cannot be installed here: ${error.message}` }),
  );
}

if (process.argv[1] !== undefined && realpathSync(process.argv[1]) === fileURLToPath(import.meta.url)) {
  for (const file of process.argv.slice(2)) {
    const { python, why } = await installPython(file);
    if (why === false) process.stdout.write(`${python}\n`);
    else process.stderr.write(`tests of it are skipped: ${why}\n`);
  }
}
