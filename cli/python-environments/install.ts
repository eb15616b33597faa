import { existsSync } from 'node:fs';
import path from 'node:path';
import { pathToFileURL } from 'node:url';
import { listEnvironments } from '../../backends/environments/load.ts';
import {
  type InstalledPackage,
  installedVersion,
  isEditable,
  managedEnvironments,
  pyprojectDigest,
  requirementsOf,
} from '../../backends/environments/packages/installed.ts';
import { apisOf, folderDigest, moduleCode, readPackage } from '../../backends/environments/packages/package.ts';
import { type ImportFailure, type Probe, probeModule } from '../../backends/environments/packages/probe.ts';
import {
  applicableRequirements,
  isSameName,
  type VerifiersApi,
  verifiersVersions,
} from '../../backends/environments/packages/requirement.ts';
import {
  findPython,
  type FoundPython,
  InstallerFailed,
  pythonForVerifiers,
  pythonIn,
} from '../../backends/python/interpreter.ts';
import { RatchetError } from '../../core/errors.ts';
import {
  alone,
  conflictsIn,
  ensureEnvironmentPython,
  type EnvironmentPython,
  forgetPackage,
  installInto,
  recordPackage,
  uninstallFrom,
} from '../../workers/install/environment-python.ts';
import { sayEvery } from '../../workers/stack/long-wait.ts';
import { fetchFromHub, lookAtBuilt, withReason } from './fetch-package.ts';
import { extrasText, type InstallSource, readInstallSource } from './install-source.ts';

interface InstallOptions {
  readonly projectFolder: string;
  readonly log: (line: string) => void;
  /** API of a package that does not name one itself. */
  readonly api?: VerifiersApi | undefined;
  /** Name of a separate virtual environment, for packages that conflict with others. */
  readonly set?: string | undefined;
  /** Asks the user a question; missing = not interactive. */
  readonly ask?: ((question: string) => Promise<string>) | undefined;
}

export type Installed =
  | {
      readonly done: true;
      readonly package: InstalledPackage;
      readonly api: VerifiersApi;
      readonly verifiers: string;
      /** Folder of the virtual environment. */
      readonly folder: string;
    }
  /** Nothing was installed, and advice was printed. */
  | { readonly done: false; readonly code: number };

/**
 * Installs an environment's package into a virtual environment of the project. This runs code of the package (its
 * build, its import), so it happens only at a user's request: `ratchet env install` or `--yes`. Throws with what was
 * expected and what to do.
 */
export async function installEnvironment(written: string, options: InstallOptions): Promise<Installed> {
  const { projectFolder, log } = options;
  const source = readInstallSource(written, projectFolder);
  if (source.kind === 'name' && !existsSync(source.folder)) return noFolder(source, log);
  return alone(projectFolder, log, async () => {
    const found = await look(source, options);
    return found === null ? { done: false, code: 1 } : install(found, options);
  });
}

function noFolder({ name, module }: InstallSource & { readonly kind: 'name' }, log: InstallOptions['log']): Installed {
  if (listEnvironments().includes(name)) {
    log(`${name} comes with Ratchet: there is nothing to install. Name it as id = "${name}".`);
    return { done: false, code: 0 };
  }
  log(
    [
      `There is no folder environments/${module} here, and a bare name stands for nothing else: on the package index ${name} may be an unrelated package.`,
      `  npx ratchet-rl env install OWNER/${name}   from the Environments Hub`,
      `  npx ratchet-rl env install ./FOLDER   a Python package on this machine`,
      `  npx ratchet-rl env install pypi:${name}   from the package index, where you know that it is the environment you mean`,
    ].join('\n'),
  );
  return { done: false, code: 1 };
}

/** An examined package, and how to install it. */
interface Found {
  readonly name: string;
  readonly module: string;
  /** null when pyproject.toml leaves it to the build. */
  readonly version: string | null;
  /** Its requirement on verifiers; null without one. */
  readonly requires: string | null;
  readonly code: string | null;
  readonly from: InstalledPackage['from'];
  readonly extras: readonly string[];
  readonly arguments: readonly string[];
  /** File in which its requirements can be changed. */
  readonly pyproject: string;
}

async function look(source: InstallSource, options: InstallOptions): Promise<Found | null> {
  const { extras } = source;
  switch (source.kind) {
    case 'name': {
      const found = await local({ kind: 'folder', path: source.folder }, extras);
      return withName(found, { name: source.name, version: source.version, where: `environments/${source.module}` });
    }
    case 'path':
      return local({ kind: 'folder', path: source.folder }, extras);
    case 'pypi':
    case 'wheel': {
      const found = await lookAtBuilt(source, options);
      const { name, version } = found;
      const asked = `${name}${extrasText(extras)}`;
      const [from, wanted] =
        source.kind === 'pypi'
          ? [{ kind: 'pypi', requirement: source.requirement } as const, `${asked}==${version}`]
          : [{ kind: 'wheel', path: source.file } as const, `${asked} @ ${pathToFileURL(source.file).href}`];
      return { ...found, from, extras, arguments: [wanted], pyproject: `its pyproject.toml (${name} ${version})` };
    }
    case 'hub': {
      const folder = await fetchFromHub(source, options);
      if (folder === null) return null;
      const found = await local({ kind: 'hub', id: source.id, path: folder }, extras);
      return withName(found, { name: source.name, version: null, where: source.id });
    }
    default:
      return source satisfies never;
  }
}

async function local(
  from: InstalledPackage['from'] & { readonly path: string },
  extras: readonly string[],
): Promise<Found> {
  const { path: folder } = from;
  const python = (await findPython(pythonForVerifiers)).version;
  const { name, module, version, requires } = readPackage(folder, { extras, python });
  const code = moduleCode(folder, module);
  const pyproject = path.join(folder, 'pyproject.toml');
  return {
    name,
    module,
    version,
    requires,
    code,
    from,
    extras,
    arguments: ['-e', `${folder}${extrasText(extras)}`],
    pyproject,
  };
}

function withName(
  found: Found,
  { name, version, where }: { readonly name: string; readonly version: string | null; readonly where: string },
): Found {
  const { pyproject } = found;
  if (!isSameName(found.name, name)) {
    throw new RatchetError(
      'ConfigInvalid',
      `An environment's id must be the name of its package: asked for was "${name}" (${where}), and ${pyproject} has name = "${found.name}". Change one of them: name = "${name}" there; or id = "${found.name}", with its files in environments/${found.module}.`,
    );
  }
  if (version !== null && found.version !== null && version !== found.version)
    throw new RatchetError('ConfigInvalid', `Asked for was version ${version}, and ${pyproject} has version = "${found.version}".`); // prettier-ignore
  return found;
}

async function install(found: Found, options: InstallOptions): Promise<Installed> {
  const { projectFolder, log, set = null } = options;
  const { name, module, from, requires, extras } = found;
  const python = await findPython(pythonForVerifiers); // checked before the user is asked anything
  const api = await apiFor(found, options);
  const verifiers = verifiersVersions[api];
  const wants = requires === null ? 'does not say that it needs verifiers' : `needs verifiers${requires === '' ? ' of any version' : requires}`; // prettier-ignore
  log(`${name}${found.version === null ? '' : ` ${found.version}`} ${wants}: api ${api}, verifiers ${verifiers}`);
  const target = await ensureEnvironmentPython({ projectFolder, api, set, log });
  log(`installing ${name} and what it depends on into ${path.relative(projectFolder, target.folder)}`);
  try {
    // Includes the requirements of the other environments: pip alone would replace those packages and still succeed.
    const alsoWanted = wantedByOthers(target, name);
    await installInto(target, [`verifiers==${verifiers}`, ...alsoWanted, ...found.arguments], { what: name, log });
  } catch (cause) {
    throw withAdvice(cause, found, { ...python, version: target.manifest.python });
  }
  log(`importing ${module}`);
  const wait = sayEvery(log, () => `importing ${module}`);
  const probe = await probeModule(pythonIn(target.folder), module, api).finally(wait.end);
  const wrong = whatIsWrong(probe, found, api);
  if (wrong !== null) {
    await remove(target, name);
    throw new RatchetError('ConfigInvalid', wrong);
  }
  const digests = !isEditable(from) ? {} : { sha256: folderDigest(from.path), pyproject: pyprojectDigest(from.path) };
  const version = installedVersion(target.folder, module) ?? found.version ?? 'unknown';
  for (const line of await conflictsIn(target))
    log(`warning: ${line}. Where it matters, give ${name} a set of its own: --set NAME`);
  const asked = extras.length === 0 ? {} : { extras: [...extras] };
  const one: InstalledPackage = { name, module, version, from, ...asked, ...digests };
  recordPackage(target.folder, one);
  await removeElsewhere(projectFolder, target.folder, name);
  return { done: true, package: one, api, verifiers, folder: target.folder };
}

async function apiFor({ name, requires, code, pyproject }: Found, { api, ask }: InstallOptions): Promise<VerifiersApi> {
  if (api !== undefined) return api;
  const possible = apisOf(requires ?? '', code);
  if (possible.length === 1) return possible[0]!;
  const { v0, v1 } = verifiersVersions;
  if (possible.length === 0) {
    throw new RatchetError(
      'ConfigInvalid',
      `${name} asks for verifiers${requires}, and Ratchet speaks with ${v0} (api v0: load_environment) and ${v1} (api v1: a Taskset). If it runs with one of them, say so in ${pyproject}: "verifiers>=0.3.1,<0.4" or "verifiers>=0.4".`,
    );
  }
  const unclear = `${name} lets verifiers ${v0} (api v0: load_environment) and ${v1} (api v1: a Taskset) through, and its code does not show which it is written for`;
  const answer = ask === undefined ? '' : (await ask(`${unclear}. Which? [v0/v1] `)).trim();
  if (answer === 'v0' || answer === 'v1') return answer;
  throw new RatchetError(
    'ConfigInvalid',
    `${unclear}. Say it with --api v0 or --api v1, or in ${pyproject}: "verifiers>=0.3.1,<0.4" or "verifiers>=0.4".`,
  );
}

/**
 * Requirements of the other environments in this virtual environment, except those by address, which would be
 * downloaded again.
 */
function wantedByOthers({ folder, manifest }: EnvironmentPython, name: string): string[] {
  const others = manifest.packages.filter((one) => !isSameName(one.name, name));
  const wanted = others.flatMap((one) => {
    const asked = { name: one.name, extras: one.extras ?? [], python: manifest.python };
    return applicableRequirements(requirementsOf(folder, one.module), asked);
  });
  const written = wanted
    .filter(({ address }) => address === null)
    .map((one) => `${one.name}${extrasText(one.extras)}${one.specifier}`);
  return [...new Set(written)];
}

/** Messages of pip and uv about packages that conflict. */
const conflicts = /ResolutionImpossible|conflicting dependencies|No solution found/;

function withAdvice(cause: unknown, { name, pyproject }: Found, found: FoundPython): unknown {
  if (!(cause instanceof InstallerFailed)) return cause;
  const advice = conflicts.test(cause.output)
    ? `What it depends on does not go together. Loosen a requirement in ${pyproject}; or, where it is at odds with another environment here, give it a set of its own: --set NAME`
    : `Nothing was recorded: correct ${pyproject}, or see that the package index can be reached, and install again.`;
  return withReason(cause, name, { found, advice, again: ' --set NAME, since the virtual environment that is here has the Python that it was made with' }); // prettier-ignore
}

function whatIsWrong(probe: Probe, found: Found, api: VerifiersApi): string | null {
  if (!probe.ok) return cannotBeImported(probe.error, found);
  const { module, name } = found;
  const where = probe.file ?? module;
  if (api === 'v0' && !probe.load_environment) {
    return `${name} is not an environment of api v0: ${where} has no load_environment. Write def load_environment(**args) -> vf.Environment there; a v1 package is installed with --api v1.`;
  }
  if (api === 'v1' && probe.taskset === null) {
    return `${name} is not an environment of api v1: ${where} exports no vf.Taskset (its class belongs in __all__). A v0 package is installed with --api v0.`;
  }
  return null;
}

/** Error with the traceback and advice. */
function cannotBeImported(
  { traceback, missing, own, place }: ImportFailure,
  { name, module, pyproject }: Pick<Found, 'name' | 'module' | 'pyproject'>,
): string {
  const at = place === null ? '' : ` (${place})`;
  const text = `${traceback.trimEnd()}\n`;
  if (own) {
    return `${text}${name} has no module ${module}: an environment is imported by its name. Call its file ${module}.py, or its folder ${module}/, and see that the build takes it in (${pyproject}: [tool.hatch.build] include = ["${module}.py"]).`;
  }
  if (missing !== null) {
    const top = missing.split('.')[0]!;
    return `${text}${name} imports ${missing}, which it does not depend on${at}. Add the package that has it to dependencies in ${pyproject}, and install again:\n  dependencies = [ …, "${top.replaceAll('_', '-')}" ]`;
  }
  return `${text}${name} cannot be imported${at}: correct its code, and install again.`;
}

async function remove(target: EnvironmentPython, name: string): Promise<void> {
  await uninstallFrom(target, name);
  forgetPackage(target.folder, name);
}

/** An id stands for one package: removes packages of that name from the project's other environments. */
async function removeElsewhere(projectFolder: string, folder: string, name: string): Promise<void> {
  const { uv } = await findPython(pythonForVerifiers);
  for (const other of managedEnvironments(projectFolder)) {
    const has = other.manifest.packages.some((one) => isSameName(one.name, name));
    if (has && other.folder !== folder) await remove({ ...other, uv }, name);
  }
}

/** Removes an environment's package from the project's virtual environments; false if none has it. */
export async function uninstallEnvironment(name: string, { projectFolder, log }: InstallOptions): Promise<boolean> {
  return alone(projectFolder, log, async () => {
    const having = managedEnvironments(projectFolder).filter(({ manifest }) => manifest.packages.some((one) => isSameName(one.name, name))); // prettier-ignore
    if (having.length === 0) return false;
    await removeElsewhere(projectFolder, '', name);
    return true;
  });
}
