import { existsSync, realpathSync } from 'node:fs';
import path from 'node:path';
import { isEnvironmentFile } from '../../core/names.ts';
import { present } from '../../core/present.ts';
import {
  type EnvironmentId,
  type FindEnvironment,
  type FindOptions,
  type FoundEnvironment,
  readEnvironmentId,
} from '../../config/find-environment.ts';
import type { PythonEnvironmentSpec } from '../../config/run-spec.ts';
import { nearestName } from '../../core/suggest.ts';
import {
  type ForeignPackage,
  foreignPackage,
  fromWhere,
  installArgument,
  installedVersion,
  type InstalledPackage,
  managedEnvironments,
  type ManagedEnvironment,
  resolvedPackage,
  packageStaleness,
  sitePackages,
} from './packages/installed.ts';
import { builtInEnvironmentsFolder, environmentEntry, listEnvironments } from './load.ts';

interface EnvironmentPlaces {
  readonly projectFolder: string;
  /** Folder of the run file: a Python package beside it can be installed. */
  readonly fileFolder?: string;
  /** Python environments to search for packages; missing = `.venv` of the project, and the active one. */
  readonly pythonEnvironments?: readonly string[];
  readonly builtIns?: readonly string[];
}

/**
 * Finds environments by their written ids, in this order: a folder `environments/NAME` of the project (NAME with
 * underscores), an installed Python package, a built-in by its own name. `owner/name` is a built-in only if `builtin`
 * says so. A package in a folder beside the run file is suggested for installation. Only looks: no code is run, nothing
 * is fetched.
 */
export function environmentFinder(places: EnvironmentPlaces): FindEnvironment {
  const { projectFolder, builtIns = listEnvironments() } = places;
  return (written, { builtin, system }) => {
    if (isEnvironmentFile(written)) return { ok: true, id: written };
    const id = readEnvironmentId(written);
    if (id === undefined) return { ok: false, expected: 'an id such as "reverse-text"', received: shown(written) };
    const isBuiltIn = builtIns.includes(id.name);
    const folder = ownFolder(projectFolder, id.module);
    const entry = folder && environmentEntry(folder);
    if (entry) return ofProject(written, id, path.relative(projectFolder, entry), entry);
    const asked: Asked = { written, id, expected: runnable(builtIns), places };
    const python = folder === undefined ? packageByName(asked) : packageOfProject(asked, folder);
    const beside = python === undefined && !isBuiltIn ? packageBeside(asked) : undefined;
    if (beside !== undefined) return beside;
    if (isBuiltIn && (builtin || (id.owner === null && python === undefined)))
      return taken(written, id, { builtin, ...present({ system }) });
    const offer = isBuiltIn ? `take the built-in "${id.name}" with --builtin (in the file: builtin = true)` : undefined;
    if (python === undefined)
      return missing(asked, builtIns, offer ?? (builtin ? noneBuiltIn(id, builtIns) : undefined));
    if (!offer) return python;
    if (python.ok) return { ...python, said: `${python.said}; to ${offer}` };
    return { ...python, suggestion: `${python.suggestion}; or ${offer}` };
  };
}

interface Asked {
  readonly written: string;
  readonly id: EnvironmentId;
  readonly expected: string;
  readonly places: EnvironmentPlaces;
}

/** A Python package of ./environments, which must be installed before it can be loaded. */
function packageOfProject(asked: Asked, folder: string): FoundEnvironment {
  const { written, id, expected, places } = asked;
  for (const environment of managedEnvironments(places.projectFolder)) {
    const one = environment.manifest.packages.find(({ module, from }) => module === id.module && isFrom(from, folder));
    if (one) return ofPackage(asked, environment, one);
  }
  const foreign = foreignPackages(places, id.module).find(({ python }) => python?.source === folder);
  if (foreign) return ofForeignPackage(asked, foreign);
  const received = `${shown(written)}: a Python package of this project, ${path.relative(places.projectFolder, folder)}, which is not installed`;
  return { ok: false, expected, received, suggestion: installs(id.name), install: id.name };
}

function isFrom(from: InstalledPackage['from'], folder: string): boolean {
  return from.kind === 'folder' && path.resolve(from.path) === path.resolve(folder);
}

/** An installed Python package, if the project has no folder of this name. */
function packageByName(asked: Asked): FoundEnvironment | undefined {
  const { id, places } = asked;
  for (const environment of managedEnvironments(places.projectFolder)) {
    const one = environment.manifest.packages.find(({ module }) => module === id.module);
    if (one) return ofPackage(asked, environment, one);
  }
  const [foreign] = foreignPackages(places, id.module);
  return foreign && ofForeignPackage(asked, foreign);
}

/** A Python package in a folder beside the run file, not installed. */
function packageBeside({ written, id, expected, places }: Asked): FoundEnvironment | undefined {
  const { projectFolder, fileFolder } = places;
  if (fileFolder === undefined || id.owner !== null) return undefined;
  const folder = path.join(fileFolder, id.module);
  if (!existsSync(path.join(folder, 'pyproject.toml'))) return undefined;
  const where = path.relative(projectFolder, folder);
  const install = where.startsWith('..') ? where : `./${where}`;
  const received = `${shown(written)}: a Python package beside the run file, ${install}, which is not installed`;
  const suggestion = `${installs(install)}, and so does --yes`;
  return { ok: false, expected, received, suggestion, install };
}

function ofPackage(asked: Asked, environment: ManagedEnvironment, one: InstalledPackage): FoundEnvironment {
  const { written, id, expected, places } = asked;
  const { base, verifiers } = environment.manifest;
  const again = (received: string, what: string): FoundEnvironment => {
    return {
      ok: false,
      expected,
      received: `${shown(written)}: ${received}`,
      suggestion: installs(what),
      install: what,
    };
  };
  const from = fromWhere(one, places.projectFolder);
  const what = installArgument(one, places.projectFolder);
  if (base !== null && !existsSync(base)) return again(`its verifiers ${verifiers}, in ${base}, is gone`, what);
  const owner = one.from.kind === 'hub' ? one.from.id.split('/', 1)[0] : null;
  if (id.owner !== null && owner !== null && owner !== id.owner) {
    return again(`installed is ${one.name} of ${owner}`, written);
  }
  const version = installedVersion(environment.folder, one.module) ?? one.version;
  if (id.version !== null && id.version !== 'latest' && id.version !== version) {
    return again(`installed is version ${version}`, written);
  }
  if (sitePackages(environment.folder).length > 0 && installedVersion(environment.folder, one.module) === undefined)
    return again(`${one.name} was taken out of its virtual environment, ${environment.folder}`, what);
  const stale = packageStaleness(one);
  if (stale === 'gone') return again(`the folder it was installed from, ${from}, is gone`, what);
  const python = resolvedPackage(environment, one);
  const changed = stale === 'pyproject' ? `; its pyproject.toml has changed since: ${installs(what)}` : '';
  const there = { name: one.name, version: python.version ?? one.version };
  return { ok: true, id: one.name, python, said: `${isPackage(written, there, python)}, from ${from}${changed}` };
}

function ofForeignPackage({ written, expected }: Asked, found: ForeignPackage): FoundEnvironment {
  const { name, version, folder, verifiers, python } = found;
  if (python)
    return { ok: true, id: name, python, said: `${isPackage(written, found, python)}, installed in ${folder}` };
  const known = verifiers === null ? 'without verifiers' : `with verifiers ${verifiers}`;
  return {
    ok: false,
    expected,
    received: `${shown(written)}: a Python package that is installed in ${folder}, ${name} ${version}, ${known}; Ratchet speaks with 0.3.1 and newer`,
    suggestion: `install it for Ratchet, from its folder, its owner or the package index: npx ratchet-rl env install PATH | OWNER/${name} | pypi:${name}==${version}`,
  };
}

function isPackage(
  written: string,
  { name, version }: { name: string; version: string },
  python: PythonEnvironmentSpec,
): string {
  return `environment ${written} is the Python package ${name} ${version} (verifiers ${python.verifiers}, api ${python.api})`;
}

function installs(what: string): string {
  return `npx ratchet-rl env install ${inShell(what)} installs it`;
}

/** Quotes brackets and comparisons for a shell. */
function inShell(what: string): string {
  return /[[\]<>!*~ ]/.test(what) && !what.startsWith('~/') ? `'${what}'` : what;
}

function ofProject(written: string, { version }: EnvironmentId, where: string, entry: string): FoundEnvironment {
  return { ok: true, id: entry, said: `environment ${written} is ${where} of this project${unlooked(version)}` };
}

/** In another system's file, a bare name means a package of that system, not one of ours: the choice is reported. */
function taken(
  written: string,
  { owner, name, module, version }: EnvironmentId,
  { builtin, system }: FindOptions,
): FoundEnvironment {
  if (owner === null && version === null && system === undefined) return { ok: true, id: name };
  const why = builtin && owner !== null ? ', as builtin asks' : '';
  const other =
    owner === null && system !== undefined
      ? `not the package ${module} that ${system} imports; once that is installed (npx ratchet-rl env install OWNER/${name}) it plays`
      : 'which is not the same code';
  const said = `environment ${written} is the built-in ${name}${why}, ${other}${unlooked(version)}`;
  return { ok: true, id: name, said };
}

function unlooked(version: string | null): string {
  return version === null ? '' : `; its version ${version} has no effect`;
}

function missing(
  { written, id: { owner, name, version }, expected }: Asked,
  builtIns: readonly string[],
  offer: string | undefined,
): FoundEnvironment {
  if (owner !== null) {
    const suggestion = `${installs(written)}${offer === undefined ? '' : `; or ${offer}`}`;
    const received = `${shown(written)}, of the Environments Hub, which is not installed here`;
    return { ok: false, expected, received, suggestion, install: written };
  }
  const near = nearestName(name, builtIns);
  const suggestion =
    near === undefined
      ? `name a file, "./${name}.ts"; or install its Python package: npx ratchet-rl env install ./FOLDER, or of the Environments Hub OWNER/${name}${version === null ? '' : `@${version}`}`
      : `did you mean "${near}"?`;
  return { ok: false, expected, received: `${shown(written)}, which is not here`, suggestion };
}

/** Built-in environments with problems of the same shape as one of the Hub. */
const alike: Readonly<Record<string, string>> = { gsm8k: 'word-problems' };

function noneBuiltIn({ name }: EnvironmentId, builtIns: readonly string[]): string {
  const kin = alike[name];
  const named = kin === undefined ? '' : `; problems of the same shape are ${kin}'s: --env.id ${kin}`;
  return `without it: no built-in is called ${name}, there are ${builtIns.join(', ')}${named}`;
}

function runnable(builtIns: readonly string[]): string {
  return `an environment that is here: ${builtIns.join(', ')}, a folder of ./environments, or a file such as "./my-env.ts"`;
}

function shown(id: string): string {
  return JSON.stringify(id.length > 80 ? `${id.slice(0, 77)}...` : id);
}

/** `environments/NAME` of the project, unless these are Ratchet's own. */
function ownFolder(projectFolder: string, module: string): string | undefined {
  const folder = path.join(projectFolder, 'environments', module);
  if (!existsSync(folder) || realpathSync(path.dirname(folder)) === realpathSync(builtInEnvironmentsFolder))
    return undefined;
  return folder;
}

/** Packages in virtual environments not made by Ratchet, nearest first. */
function foreignPackages(places: EnvironmentPlaces, module: string): ForeignPackage[] {
  const active = process.env['VIRTUAL_ENV'];
  const environments = places.pythonEnvironments ?? [
    path.join(places.projectFolder, '.venv'),
    ...(active === undefined || active === '' ? [] : [active]),
  ];
  return environments.flatMap((environment) => foreignPackage(environment, module) ?? []);
}
