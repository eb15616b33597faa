import { createHash } from 'node:crypto';
import { existsSync, readdirSync, readFileSync, statSync } from 'node:fs';
import path from 'node:path';
import { z } from 'zod';
import { RatchetError } from '../../../core/errors.ts';
import { parseToml } from '../../../config/toml/parse-toml.ts';
import { apisThatFit, type InstalledWith, isSameName, type VerifiersApi, verifiersRequirement } from './requirement.ts';

/** A Python package, read from its files without running any of them. */
interface PackageSource {
  readonly folder: string;
  /** Value of `name` in pyproject.toml. */
  readonly name: string;
  /** The module to import: the name with underscores. */
  readonly module: string;
  /** null if pyproject.toml leaves it to the build. */
  readonly version: string | null;
  /** Its requirement on verifiers, see `verifiersRequirement`; null = none. */
  readonly requires: string | null;
}

const PyProject = z.object({
  project: z.object({
    name: z.string().min(1),
    version: z.string().optional(),
    dependencies: z.array(z.string()).default([]),
    'optional-dependencies': z.record(z.string(), z.array(z.string())).default({}),
  }),
});

/** Reads `pyproject.toml` of a folder; throws ConfigInvalid naming a missing part or extra. */
export function readPackage(
  folder: string,
  asked: Omit<InstalledWith, 'name'> & { readonly extras?: readonly string[] } = {},
): PackageSource {
  const file = path.join(folder, 'pyproject.toml');
  const refuse = (received: string, cause?: unknown): RatchetError =>
    new RatchetError('ConfigInvalid', `${file}: expected a Python package with [project] name, ${received}`, { cause });
  let text: string;
  try {
    text = readFileSync(file, 'utf8');
  } catch (cause) {
    const code = (cause as NodeJS.ErrnoException).code;
    throw refuse(
      code === 'ENOENT' || code === 'ENOTDIR' ? 'there is no such file' : `it cannot be read (${code})`,
      cause,
    );
  }
  const { table, problem } = parseToml(text, file);
  if (problem) throw refuse(`received ${problem.received} in line ${problem.line}`);
  const parsed = PyProject.safeParse(table);
  if (!parsed.success) {
    const { path: at = [], message = '' } = parsed.error.issues[0] ?? {};
    throw refuse(`received none that will do: ${z.core.toDotPath(at)}: ${message}`);
  }
  const { name, version = null, dependencies, 'optional-dependencies': optional } = parsed.data.project;
  const { extras = [] } = asked;
  const unknown = extras.find((extra) => !Object.keys(optional).some((known) => isSameName(known, extra)));
  if (unknown !== undefined) {
    const known = Object.keys(optional).join(', ') || 'none';
    throw new RatchetError(
      'ConfigInvalid',
      `${file}: expected the extra "${unknown}" in [project.optional-dependencies]; it has ${known}.`,
    );
  }
  const withExtras = Object.entries(optional).flatMap(([extra, of]) => of.map((one) => withMarker(one, extra)));
  const requires = verifiersRequirement([...dependencies, ...withExtras], { ...asked, name });
  return { folder, name, module: moduleIn(folder, name), version, requires };
}

/** A requirement of an extra, in a wheel's form. */
function withMarker(requirement: string, extra: string): string {
  const at = requirement.indexOf(';');
  if (at < 0) return `${requirement} ; extra == "${extra}"`;
  return `${requirement.slice(0, at)} ; (${requirement.slice(at + 1)}) and extra == "${extra}"`;
}

/** The module of a package in a folder: `Wiki-Search` may be built from `wiki_search.py`. */
export function moduleIn(folder: string, name: string): string {
  const expected = moduleOf(name);
  const there = ['', 'src'].flatMap((below) => {
    const place = path.join(folder, below);
    return existsSync(place) ? readdirSync(place) : [];
  });
  const modules = there.filter((entry) => !entry.endsWith('.dist-info')).map((entry) => entry.replace(/\.py$/, ''));
  return modules.includes(expected)
    ? expected
    : (modules.find((one) => /^\w+$/.test(one) && isSameName(one, expected)) ?? expected);
}

/** `wiki-search` → `wiki_search`: verifiers imports an environment by its id, with underscores. */
export function moduleOf(name: string): string {
  return name.replaceAll(/[-.]/g, '_');
}

/**
 * The APIs that a package may use: those whose version of verifiers its requirement allows, and if both do, those that
 * its code resembles. One = decided.
 */
export function apisOf(requires: string, code: string | null): VerifiersApi[] {
  const fit = apisThatFit(requires);
  if (fit.length < 2 || code === null) return fit;
  const api = looksLike(code);
  return api === null ? fit : [api];
}

/** null if it resembles neither, or both. */
function looksLike(code: string): VerifiersApi | null {
  const isV0 = /^(?:async\s+)?def\s+load_environment\b/m.test(code) || importsLoader(code);
  const isV1 = /\bverifiers\.v1\b|\bTaskset\b/.test(code);
  if (isV0 === isV1) return null;
  return isV0 ? 'v0' : 'v1';
}

/** `from .x import load_environment`, with other names around it. */
function importsLoader(code: string): boolean {
  return code.split('\n').some((line) => {
    const names = /^from\s/.test(line) ? line.search(/\bimport\b/) : -1;
    return names >= 0 && /\bload_environment\b/.test(line.slice(names));
  });
}

/**
 * The code that shows a package's API: the file that runs first on import. If that only re-exports from other files of
 * the package (`from my_env.taskset import MyTaskset`, as verifiers' `vf-init` writes it), those files too. null if it
 * is not in this folder.
 */
export function moduleCode(folder: string, module: string): string | null {
  for (const below of ['', 'src']) {
    const root = path.join(folder, below);
    const code = codeAt(path.join(root, module));
    if (code === null) continue;
    return [code, ...importedFrom(code, module).flatMap((own) => codeAt(path.join(root, own)) ?? [])].join('\n');
  }
  return null;
}

/** Files of the module that its first one imports from, without their own imports: `my_env/taskset`. */
function importedFrom(code: string, module: string): string[] {
  if (looksLike(code) !== null) return [];
  const names = [...code.matchAll(/^from[ \t]+([\w.]+)[ \t]+import\b/gm)].map(([, name = '']) => name);
  const own = names.flatMap((name) => {
    if (name.startsWith(`${module}.`)) return [name];
    return /^\.\w/.test(name) ? [`${module}${name}`] : [];
  });
  return [...new Set(own)].map((name) => name.replaceAll('.', '/'));
}

/** Code of a module, given its path without an ending: a file, or a package's first file. */
function codeAt(place: string): string | null {
  const file = [`${place}.py`, path.join(place, '__init__.py')].find((one) => existsSync(one));
  return file === undefined ? null : readFileSync(file, 'utf8');
}

/** Folders made by tools, which do not affect the package. */
const madeFolders: ReadonlySet<string> = new Set(['__pycache__', 'build', 'dist', 'node_modules', 'outputs', 'venv']);
/** Larger packages count their first files only, and larger files their size only, so that a check stays short. */
const filesMax = 5_000;
const hashedBytesMax = 16 * 2 ** 20;

/** sha256, hex, over the names and contents of a package's files; without dot files and tools' products. */
export function folderDigest(folder: string): string {
  const digest = createHash('sha256');
  for (const file of filesIn(folder, '').slice(0, filesMax)) {
    const place = path.join(folder, file);
    const { size } = statSync(place);
    const content = size > hashedBytesMax ? '' : createHash('sha256').update(readFileSync(place)).digest('hex');
    digest.update(`${JSON.stringify([file, size, content])}\n`);
  }
  return digest.digest('hex');
}

/** Relative paths, sorted, without tools' products. Links are not followed. */
export function filesIn(root: string, below: string): string[] {
  const entries = readdirSync(path.join(root, below), { withFileTypes: true });
  return entries
    .filter(({ name }) => !name.startsWith('.') && !madeFolders.has(name) && !name.endsWith('.egg-info'))
    .toSorted((a, b) => (a.name < b.name ? -1 : 1))
    .flatMap((entry) => {
      const file = path.posix.join(below, entry.name);
      if (entry.isDirectory()) return filesIn(root, file);
      return entry.isFile() ? [file] : [];
    });
}
