import { existsSync, readdirSync, readFileSync, realpathSync } from 'node:fs';
import path from 'node:path';
import { isEnvironmentFile } from '../../core/names.ts';
import {
  type EnvironmentId,
  type FindEnvironment,
  type FoundEnvironment,
  readEnvironmentId,
} from '../../core/spec/find-environment.ts';
import { nearestName } from '../../core/suggest.ts';
import { builtInEnvironmentsFolder, environmentEntry, listEnvironments } from './load.ts';

/** Where environments are looked for. */
export interface EnvironmentPlaces {
  readonly projectFolder: string;
  /** Python environments whose packages count; missing = `.venv` of the project, and the one that is active. */
  readonly pythonEnvironments?: readonly string[];
  readonly builtIns?: readonly string[];
}

const pythonToCome = 'Python environments (verifiers) are still to come';

/**
 * Finds environments by what people write, in this order: a folder `environments/NAME` of the project (NAME with underscores), a Python
 * package that is installed, a built-in by its own name. `owner/name` is a built-in only where `builtin` says so. Only looks: no code is
 * run, nothing is fetched.
 */
export function environmentFinder(places: EnvironmentPlaces): FindEnvironment {
  const { projectFolder, builtIns = listEnvironments() } = places;
  return (written, { builtin }) => {
    if (isEnvironmentFile(written)) return { ok: true, id: written };
    const id = readEnvironmentId(written);
    if (id === undefined) return { ok: false, expected: 'an id such as "reverse-text"', received: shown(written) };
    const isBuiltIn = builtIns.includes(id.name);
    const folder = ownFolder(projectFolder, id.module);
    const entry = folder && environmentEntry(folder);
    if (entry) return ofProject(written, id, path.relative(projectFolder, entry), entry);
    const elsewhere = folder
      ? `a Python package of this project, ${path.relative(projectFolder, folder)}`
      : installed(places, id.module);
    if (isBuiltIn && (builtin || (id.owner === null && elsewhere === undefined))) return taken(written, id, builtin);
    const offer = isBuiltIn ? `take the built-in "${id.name}" with --builtin (in the file: builtin = true)` : undefined;
    if (elsewhere !== undefined) {
      const suggestion = offer ? `${pythonToCome}; until then ${offer}` : pythonToCome;
      return { ok: false, expected: runnable(builtIns), received: `${shown(written)}: ${elsewhere}`, suggestion };
    }
    return missing(written, id, builtIns, offer);
  };
}

function ofProject(written: string, { version }: EnvironmentId, where: string, entry: string): FoundEnvironment {
  return { ok: true, id: entry, said: `environment ${written} is ${where} of this project${unlooked(version)}` };
}

function taken(written: string, { owner, name, version }: EnvironmentId, builtin: boolean): FoundEnvironment {
  if (owner === null && version === null) return { ok: true, id: name };
  const why = builtin && owner !== null ? ', as builtin asks' : '';
  const said = `environment ${written} is the built-in ${name}${why}, which is not the same code${unlooked(version)}`;
  return { ok: true, id: name, said };
}

function unlooked(version: string | null): string {
  return version === null ? '' : `; its version ${version} has no effect`;
}

function missing(
  written: string,
  { owner, name, version }: EnvironmentId,
  builtIns: readonly string[],
  offer: string | undefined,
): FoundEnvironment {
  const expected = runnable(builtIns);
  if (owner !== null) {
    const install = `npx ratchet env install ${written}`;
    const suggestion = `${install} installs it (${pythonToCome})${offer === undefined ? '' : `; or ${offer}`}`;
    const received = `${shown(written)}, of the Environments Hub, which is not installed here`;
    return { ok: false, expected, received, suggestion, hub: written };
  }
  const near = nearestName(name, builtIns);
  const suggestion =
    near === undefined
      ? `name a file, "./${name}.ts"; or, where it is of the Environments Hub, its owner as well: npx ratchet env install OWNER/${name}${version === null ? '' : `@${version}`}`
      : `did you mean "${near}"?`;
  return { ok: false, expected, received: `${shown(written)}, which is not here`, suggestion };
}

function runnable(builtIns: readonly string[]): string {
  return `an environment that is here: ${builtIns.join(', ')}, a folder of ./environments, or a file such as "./my-env.ts"`;
}

function shown(id: string): string {
  return JSON.stringify(id.length > 80 ? `${id.slice(0, 77)}...` : id);
}

/** `environments/NAME` of the project; not where these are the ones that come with Ratchet. */
function ownFolder(projectFolder: string, module: string): string | undefined {
  const folder = path.join(projectFolder, 'environments', module);
  if (!existsSync(folder) || realpathSync(path.dirname(folder)) === realpathSync(builtInEnvironmentsFolder))
    return undefined;
  return folder;
}

/** What a Python environment has under this name: an environment is a package that needs verifiers. */
function installed(places: EnvironmentPlaces, module: string): string | undefined {
  const active = process.env['VIRTUAL_ENV'];
  const environments = places.pythonEnvironments ?? [
    path.join(places.projectFolder, '.venv'),
    ...(active === undefined ? [] : [active]),
  ];
  for (const folder of environments.flatMap(sitePackages)) {
    const about = namesIn(folder).find((name) => name.startsWith(`${module}-`) && name.endsWith('.dist-info'));
    if (about === undefined) continue;
    const metadata = path.join(folder, about, 'METADATA');
    const needsVerifiers = existsSync(metadata) && /^Requires-Dist: verifiers\b/im.test(readFileSync(metadata, 'utf8'));
    const version = about.slice(module.length + 1, -'.dist-info'.length);
    if (needsVerifiers) return `a Python package that is installed, ${module} ${version}`;
  }
  return undefined;
}

function sitePackages(environment: string): string[] {
  const lib = path.join(environment, 'lib');
  return namesIn(lib)
    .filter((name) => name.startsWith('python'))
    .map((name) => path.join(lib, name, 'site-packages'));
}

function namesIn(folder: string): string[] {
  try {
    return readdirSync(folder);
  } catch {
    return []; // Not there, or not ours to read: nothing is installed.
  }
}
