import { existsSync, mkdirSync, renameSync, rmSync, writeFileSync } from 'node:fs';
import path from 'node:path';
import { fileURLToPath } from 'node:url';
import {
  type EnvironmentManifest,
  type InstalledPackage,
  type ManagedEnvironment,
  manifestPath,
  pythonFolder,
  readEnvironmentManifest,
  sitePackages,
} from '../../backends/environments/packages/installed.ts';
import { isSameName, type VerifiersApi, verifiersVersions } from '../../backends/environments/packages/requirement.ts';
import {
  type FoundPython,
  findPython,
  InstallerFailed,
  pythonForVerifiers,
  pythonIn,
  pythonVariables,
  runInstaller,
} from '../../backends/python/interpreter.ts';
import { RatchetError } from '../../core/errors.ts';
import { buildAlone } from './go-build.ts';
import { sayEvery } from '../stack/long-wait.ts';
import { ensurePython, installCommand, lockedArguments, lockOf } from './python-environment.ts';

interface Told {
  readonly log: (line: string) => void;
  readonly environment?: Readonly<NodeJS.ProcessEnv>;
}

/**
 * Python of an environment below the cache with only verifiers: projects' environments are layered over it, and bundled
 * code is tested with it. Throws `ServerUnavailable` without Python or a package index.
 */
export function ensureVerifiers(api: VerifiersApi, told: Told): Promise<string> {
  const name = `package verifiers ${verifiersVersions[api]}`;
  return ensurePython({ name, requirements: requirementsOf(api), needs: pythonForVerifiers, ...told });
}

function requirementsOf(api: VerifiersApi): string {
  return fileURLToPath(new URL(`../../python/verifiers-${api}-requirements.txt`, import.meta.url));
}

interface EnvironmentPythonRequest extends Told {
  readonly projectFolder: string;
  readonly api: VerifiersApi;
  /** Name of a separate set for environments whose packages conflict; null = the project's default set. */
  readonly set: string | null;
}

/** A virtual environment of a project, and its installer. */
export interface EnvironmentPython extends ManagedEnvironment {
  readonly uv: boolean;
}

/**
 * The virtual environment for a project's environments of one API, below `.ratchet/python`; made if it is missing. Made by
 * uv, it has verifiers of its own (hard links into uv's cache). Without uv, verifiers is installed once below Ratchet's
 * cache (0.7 GB, a minute) and this environment is layered over it: pip leaves that copy unchanged, and installs other
 * versions in front of it.
 */
export async function ensureEnvironmentPython(request: EnvironmentPythonRequest): Promise<EnvironmentPython> {
  const { projectFolder, api, set, log, environment = process.env } = request;
  const verifiers = verifiersVersions[api];
  const folder = path.join(pythonFolder(projectFolder), `${set === null ? '' : `${set}-`}${api}-${verifiers}`);
  const found = await findPython(pythonForVerifiers, environment);
  const there = usable(folder);
  if (there && there.base === null && !found.uv) {
    throw new RatchetError(
      'ServerUnavailable',
      `${folder} was made with uv, which is not on PATH now. Install uv (https://docs.astral.sh/uv), or remove that folder and install its environments again.`,
    );
  }
  if (there) return { folder, manifest: there, uv: found.uv };
  rmSync(folder, { recursive: true, force: true }); // interrupted while it was made, or its base is gone
  mkdirSync(path.dirname(folder), { recursive: true });
  const env = pythonVariables(environment);
  const base = found.uv ? null : await ensureVerifiers(api, { log, environment });
  if (base === null) {
    log(`making a virtual environment for ${api} environments, with verifiers ${verifiers}`);
    await runInstaller('uv', ['venv', '--quiet', '--python', found.command, folder], { env });
    await installInto({ folder, uv: true }, lockedArguments(lockOf(requirementsOf(api))), {
      what: `verifiers ${verifiers}`,
      log,
      environment,
    });
  } else {
    await runInstaller(found.command, ['-m', 'venv', '--without-pip', folder], { env });
    const [own] = sitePackages(folder);
    const [below] = sitePackages(path.dirname(path.dirname(base)));
    writeFileSync(path.join(own!, 'ratchet-base.pth'), `${below!}\n`);
  }
  const manifest: EnvironmentManifest = {
    schemaVersion: 1,
    api,
    verifiers,
    python: await versionOf(folder, found),
    base,
    packages: [],
  };
  writeManifest(folder, manifest);
  return { folder, manifest, uv: found.uv };
}

/** Manifest of a complete environment. */
function usable(folder: string): EnvironmentManifest | null {
  const manifest = readEnvironmentManifest(folder);
  if (manifest === null || !existsSync(pythonIn(folder))) return null;
  return manifest.base !== null && !existsSync(manifest.base) ? null : manifest;
}

async function versionOf(folder: string, { version }: FoundPython): Promise<string> {
  if (/^\d/.test(version)) return version;
  const names = sitePackages(folder).map((place) => path.basename(path.dirname(place)).replace('python', ''));
  return names[0] ?? version;
}

/** Runs pip or uv, and reports every ten seconds. */
export async function installInto(
  { folder, uv }: { readonly folder: string; readonly uv: boolean },
  args: readonly string[],
  { what, log, environment = process.env }: Told & { readonly what: string },
): Promise<void> {
  let last = '';
  const wait = sayEvery(log, () => `installing ${what}${last === '' ? '' : ` (${last})`}`);
  const onLine = (line: string) => {
    if (/^\s*(Collecting|Downloading|Installing|Building|Prepar|Resolved)/.test(line)) last = line.trim().slice(0, 80);
  };
  try {
    await runInstaller(...installCommand({ uv }, folder, args), { env: pythonVariables(environment), onLine });
  } finally {
    wait.end();
  }
}

/** Conflicts between an environment's packages, a line each; also empty when they cannot be determined. */
export async function conflictsIn(
  { folder, uv }: { readonly folder: string; readonly uv: boolean },
  environment: Readonly<NodeJS.ProcessEnv> = process.env,
): Promise<string[]> {
  const python = pythonIn(folder);
  const [command, ...args] = uv
    ? ['uv', 'pip', 'check', '--python', python]
    : [python, '-m', 'pip', 'check', '--disable-pip-version-check'];
  try {
    await runInstaller(command, args, { env: pythonVariables(environment) });
    return [];
  } catch (error) {
    if (!(error instanceof InstallerFailed)) throw error;
    return error.output
      .split('\n')
      .map((line) => line.trim().replace(/\.$/, ''))
      .filter((line) => / (has requirement|requires) /.test(line));
  }
}

/** Removes a package from an environment; its dependencies stay. */
export async function uninstallFrom(
  { folder, uv }: { readonly folder: string; readonly uv: boolean },
  name: string,
  environment: Readonly<NodeJS.ProcessEnv> = process.env,
): Promise<void> {
  const python = pythonIn(folder);
  const [command, ...args] = uv
    ? ['uv', 'pip', 'uninstall', '--quiet', '--python', python, name]
    : [python, '-m', 'pip', 'uninstall', '--quiet', '--yes', '--disable-pip-version-check', name];
  await runInstaller(command, args, { env: pythonVariables(environment) });
}

/** Adds a package to the manifest, in place of one with the same name. */
export function recordPackage(folder: string, one: InstalledPackage): void {
  const manifest = readEnvironmentManifest(folder)!;
  const others = manifest.packages.filter(({ name }) => !isSameName(name, one.name));
  const packages = [...others, one].toSorted((a, b) => (a.name < b.name ? -1 : 1));
  writeManifest(folder, { ...manifest, packages });
}

export function forgetPackage(folder: string, name: string): void {
  const manifest = readEnvironmentManifest(folder)!;
  writeManifest(folder, { ...manifest, packages: manifest.packages.filter((one) => !isSameName(one.name, name)) });
}

/** Two installations into one project wait for each other. */
export function alone<T>(projectFolder: string, log: (line: string) => void, work: () => Promise<T>): Promise<T> {
  return buildAlone({ name: 'Python environments of this project', folder: pythonFolder(projectFolder), log }, work);
}

/** Replaced by a rename, so that a concurrent reader gets the old one. */
function writeManifest(folder: string, manifest: EnvironmentManifest): void {
  const file = manifestPath(folder);
  const next = `${file}.${process.pid}`;
  writeFileSync(next, `${JSON.stringify(manifest, null, 2)}\n`);
  renameSync(next, file);
}
