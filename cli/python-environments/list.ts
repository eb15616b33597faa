import { readdirSync } from 'node:fs';
import path from 'node:path';
import { environmentEntry } from '../../backends/environments/load.ts';
import {
  fromWhere,
  type InstalledPackage,
  managedEnvironments,
  namesIn,
  type Staleness,
  packageStaleness,
} from '../../backends/environments/packages/installed.ts';
import { readPackage } from '../../backends/environments/packages/package.ts';
import { isSameName, type VerifiersApi } from '../../backends/environments/packages/requirement.ts';
import { RatchetError } from '../../core/errors.ts';
import { readRegularSync } from '../../host/regular-file.ts';

/** A Python package of a project, installed or not yet. */
interface ListedPackage {
  readonly name: string;
  readonly version: string | null;
  /** Origin for people: a folder of the project, `owner/name`, `pypi:…`. */
  readonly from: string;
  /** null when it is not installed. */
  readonly installed: {
    readonly api: VerifiersApi;
    readonly verifiers: string;
    readonly set: string | null;
    readonly stale: Staleness;
  } | null;
  /** Why it cannot be installed: a problem with its pyproject.toml. */
  readonly problem?: string;
}

/** Environments of a project that are written in TypeScript, as a config names them. No code is run. */
export function listOwnFiles(projectFolder: string): string[] {
  const folders = path.join(projectFolder, 'environments');
  const below = namesIn(folders).flatMap((name) => environmentEntry(path.join(folders, name)) ?? []);
  const beside = readdirSync(projectFolder)
    .filter((name) => /\.m?[jt]s$/.test(name) && exportsLoad(path.join(projectFolder, name)))
    .map((name) => path.join(projectFolder, name));
  return [...beside, ...below].map((file) => `./${path.relative(projectFolder, file)}`).toSorted();
}

/** An environment's file exports a function of this name. */
function exportsLoad(file: string): boolean {
  try {
    return /^export\s+(?:async\s+)?(?:function|const|let)\s+loadEnvironment\b/m.test(
      readRegularSync(file).toString('utf8'),
    );
  } catch {
    return false; // a folder or a FIFO of such a name, or not ours to read
  }
}

/** Python environments that are installed, and those of ./environments that are not. */
export function listPackages(projectFolder: string): ListedPackage[] {
  const environments = managedEnvironments(projectFolder);
  const installed = environments.flatMap(({ folder, manifest: { api, verifiers, packages } }) =>
    packages.map((one): ListedPackage => ({
      name: one.name,
      version: one.version,
      from: fromWhere(one, projectFolder),
      installed: { api, verifiers, set: setOf(folder, `${api}-${verifiers}`), stale: packageStaleness(one) },
    })),
  );
  const folders = path.join(projectFolder, 'environments');
  const others = namesIn(folders)
    .filter((name) => namesIn(path.join(folders, name)).includes('pyproject.toml'))
    .filter(
      (name) =>
        !environments.some(({ manifest }) => manifest.packages.some((one) => isOf(one, path.join(folders, name)))),
    )
    .map((name) => notInstalled(path.join(folders, name), `./environments/${name}`));
  return [...installed, ...others].toSorted((a, b) => (a.name < b.name ? -1 : 1));
}

function isOf({ from }: InstalledPackage, folder: string): boolean {
  return from.kind === 'folder' && from.path === folder;
}

function notInstalled(folder: string, from: string): ListedPackage {
  const name = path.basename(folder).replaceAll('_', '-');
  try {
    const { name: named, version } = readPackage(folder);
    if (isSameName(named, name)) return { name: named, version, from, installed: null };
    return { name, version, from, installed: null, problem: `name = "${named}" in its pyproject.toml` };
  } catch (error) {
    if (!(error instanceof RatchetError)) throw error;
    return { name, version: null, from, installed: null, problem: error.message };
  }
}

/** Name of a separate set, from the beginning of its folder's name. */
function setOf(folder: string, base: string): string | null {
  const name = path.basename(folder);
  return name.endsWith(`-${base}`) ? name.slice(0, -base.length - 1) : null;
}

/** One line each, their columns aligned. */
export function packageLines(packages: readonly ListedPackage[]): string[] {
  const rows = packages.map(({ name, version, from, installed, problem }) => [
    name,
    version ?? '',
    installed === null
      ? '–'
      : `${installed.api}, verifiers ${installed.verifiers}${installed.set === null ? '' : `, set ${installed.set}`}`,
    from,
    problem ?? (installed === null ? `not installed: npx ratchet-rl env install ${name}` : staleNote[installed.stale]),
  ]);
  const widths = [0, 1, 2, 3].map((column) => Math.max(...rows.map((row) => row[column]!.length)));
  return rows.map((row) =>
    row
      .map((cell, column) => cell.padEnd(widths[column] ?? 0))
      .join('  ')
      .trimEnd(),
  );
}

const staleNote: Readonly<Record<Staleness, string>> = {
  none: '',
  files: 'its files have changed since it was installed, and are read as they are',
  pyproject: 'its pyproject.toml has changed since it was installed: install it again',
  gone: 'its folder is gone',
};
