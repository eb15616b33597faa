import { existsSync } from 'node:fs';
import { mkdir, readFile, writeFile } from 'node:fs/promises';
import path from 'node:path';
import { moduleOf } from '../../backends/environments/packages/package.ts';
import { RatchetError } from '../../core/errors.ts';

/** Template of a new Python environment: a package and a run that work as they are. */
const template = new URL('../../configs/own-environment/python/', import.meta.url);
const templateName = 'my-env';

/**
 * Writes ./environments/NAME_ with a package of verifiers, and NAME.toml, a run that trains on it; fails if either
 * exists. Returns the files, relative to the folder.
 */
export async function writePythonEnvironment(name: string, folder: string): Promise<string[]> {
  if (!/^[a-z][a-z0-9]*(?:-[a-z0-9]+)*$/.test(name) || name.length > 63) {
    throw new RatchetError(
      'ConfigInvalid',
      `${JSON.stringify(name)} cannot be a package's name: expected up to 63 small letters and digits in words with single dashes between, beginning with a letter, such as "my-env".`,
    );
  }
  const module = moduleOf(name);
  const below = path.join('environments', module);
  const files = {
    [path.join(below, 'pyproject.toml')]: 'pyproject.toml',
    [path.join(below, `${module}.py`)]: 'my_env.py',
    [path.join(below, 'README.md')]: 'README.md',
    [path.join(below, 'demonstrations.jsonl')]: 'demonstrations.jsonl',
    [`${name}.toml`]: 'my-env.toml',
  };
  for (const place of [below, `${name}.toml`]) {
    if (!existsSync(path.join(folder, place))) continue;
    throw new RatchetError(
      'ConfigInvalid',
      `${place} is here already, and nothing is overwritten. Choose another name, or another folder.`,
    );
  }
  await mkdir(path.join(folder, below), { recursive: true });
  for (const [file, from] of Object.entries(files)) {
    const text = await readFile(new URL(from, template), 'utf8');
    const named = text.replaceAll(templateName, name).replaceAll(moduleOf(templateName), module);
    await writeFile(path.join(folder, file), named, { flag: 'wx' });
  }
  return Object.keys(files);
}
