import { createHash } from 'node:crypto';
import { existsSync, readdirSync, readFileSync } from 'node:fs';
import path from 'node:path';
import { fileURLToPath } from 'node:url';
import { z } from 'zod';
import { RatchetError } from '../../../core/errors.ts';
import type { PythonEnvironmentSpec } from '../../../config/run-spec.ts';
import { apisOf, folderDigest, moduleCode } from './package.ts';
import { apisOfVersion, isSameName, verifiersRequirement } from './requirement.ts';

/**
 * Source of a package: a folder (editable), the Environments Hub (its files are in `path`, editable), the package
 * index, a wheel.
 */
const From = z.discriminatedUnion('kind', [
  z.strictObject({ kind: z.literal('folder'), path: z.string() }),
  z.strictObject({ kind: z.literal('hub'), id: z.string(), path: z.string() }),
  z.strictObject({ kind: z.literal('pypi'), requirement: z.string() }),
  z.strictObject({ kind: z.literal('wheel'), path: z.string() }),
]);

const Package = z.strictObject({
  name: z.string(),
  module: z.string(),
  version: z.string(),
  from: From,
  /** Extras of the requested requirement: `name[env]`. */
  extras: z.array(z.string()).optional(),
  /** Set for a local folder: `folderDigest` at its installation, and the digest of pyproject.toml alone. */
  sha256: z.string().optional(),
  pyproject: z.string().optional(),
});

/** Contents of a project's virtual environment; written by `ratchet env install`. */
const Manifest = z.strictObject({
  schemaVersion: z.literal(1),
  api: z.enum(['v0', 'v1']),
  verifiers: z.string(),
  python: z.string(),
  /** The cached environment with verifiers that this one is layered over; null = it has its own. */
  base: z.string().nullable(),
  packages: z.array(Package),
});

export type InstalledPackage = z.infer<typeof Package>;
export type EnvironmentManifest = z.infer<typeof Manifest>;

const manifestFile = 'ratchet.json';

/**
 * Virtual environments are kept in the project, not in the cache: local packages are installed editable, so an
 * environment's behaviour depends on this project's files, and is removed with its folder.
 */
export function pythonFolder(projectFolder: string): string {
  return path.join(projectFolder, '.ratchet', 'python');
}

export interface ManagedEnvironment {
  /** Absolute. */
  readonly folder: string;
  readonly manifest: EnvironmentManifest;
}

/** The virtual environments that `ratchet env install` made for a project. */
export function managedEnvironments(projectFolder: string): ManagedEnvironment[] {
  const root = pythonFolder(projectFolder);
  return namesIn(root)
    .toSorted()
    .flatMap((name) => {
      const folder = path.join(root, name);
      const manifest = readEnvironmentManifest(folder);
      return manifest === null ? [] : [{ folder, manifest }];
    });
}

/** null without a manifest, which is the state after an interrupted installation. */
export function readEnvironmentManifest(folder: string): EnvironmentManifest | null {
  const file = path.join(folder, manifestFile);
  if (!existsSync(file)) return null;
  try {
    return Manifest.parse(JSON.parse(readFileSync(file, 'utf8')));
  } catch (cause) {
    throw new RatchetError(
      'ConfigInvalid',
      `${file} is not what ratchet env install wrote (${cause instanceof Error ? cause.message.split('\n')[0] : String(cause)}). Remove ${folder} and install its environments again.`,
      { cause },
    );
  }
}

export function manifestPath(folder: string): string {
  return path.join(folder, manifestFile);
}

/** Changes of a local package's files since its installation. */
export type Staleness = 'none' | 'files' | 'pyproject' | 'gone';

/** Files of an editable package are imported in place; requirements of pyproject.toml are installed once. */
export function packageStaleness({ from, sha256, pyproject }: InstalledPackage): Staleness {
  if (!isEditable(from) || sha256 === undefined) return 'none';
  if (!existsSync(path.join(from.path, 'pyproject.toml'))) return 'gone';
  if (pyproject !== undefined && pyprojectDigest(from.path) !== pyproject) return 'pyproject';
  return folderDigest(from.path) === sha256 ? 'none' : 'files';
}

/** Whether its files are used in place. */
export function isEditable(
  from: InstalledPackage['from'],
): from is Extract<InstalledPackage['from'], { kind: 'folder' | 'hub' }> {
  return from.kind === 'folder' || from.kind === 'hub';
}

/** Digest of its text, hex: a package with other requirements must be installed again. */
export function pyprojectDigest(folder: string): string {
  return createHash('sha256')
    .update(readFileSync(path.join(folder, 'pyproject.toml')))
    .digest('hex');
}

/** The environment of an id that is a package of a managed environment. */
export function resolvedPackage(
  { folder, manifest }: ManagedEnvironment,
  one: InstalledPackage,
): PythonEnvironmentSpec {
  const { module, from } = one;
  const version = installedVersion(folder, module) ?? one.version;
  const source = !isEditable(from) ? {} : { source: from.path, sha256: folderDigest(from.path) };
  return { module, api: manifest.api, folder, verifiers: manifest.verifiers, version, ...source };
}

/**
 * Throws unless the package is the one that the config was read with: another environment under that name would be
 * another run.
 */
export function requireSamePackage({ source, sha256, module, folder, version }: PythonEnvironmentSpec): void {
  const there = installedVersion(folder, module);
  if (there !== undefined && version !== null && there !== version) {
    throw new RatchetError(
      'ConfigInvalid',
      `${module} was exchanged in the middle of its run: expected version ${version}, and ${folder} has ${there} now. Install ${version} again, or train the run's file again (ratchet train), which continues with what is installed then.`,
    );
  }
  if (source === undefined || sha256 === undefined) return;
  const found = folderDigest(source);
  if (found === sha256) return;
  throw new RatchetError(
    'ConfigInvalid',
    `The files of ${module} in ${source} were changed in the middle of its run: expected sha256 ${sha256.slice(0, 12)}…, found ${found.slice(0, 12)}…. Put them back, or train the run's file again (ratchet train), which continues with the environment as it is then.`,
  );
}

export function fromWhere({ from }: InstalledPackage, projectFolder: string): string {
  if (from.kind === 'hub') return from.id;
  if (from.kind === 'pypi') return `pypi:${from.requirement}`;
  return shortPath(from.path, projectFolder);
}

/** Argument of `ratchet env install` that installs a package once more. */
export function installArgument(one: InstalledPackage, projectFolder: string): string {
  const { name, module, from, extras = [] } = one;
  const isOwn = from.kind === 'folder' && from.path === path.join(projectFolder, 'environments', module);
  const asked = isOwn ? name : fromWhere(one, projectFolder);
  return from.kind === 'pypi' || extras.length === 0 ? asked : `${asked}[${extras.join(',')}]`;
}

function shortPath(folder: string, projectFolder: string): string {
  const below = path.relative(projectFolder, folder);
  return below.startsWith('..') || path.isAbsolute(below) ? folder : `./${below}`;
}

/** A package in a virtual environment that is not ours to change: `.venv` of the project, or the active one. */
export interface ForeignPackage {
  readonly name: string;
  readonly version: string;
  readonly folder: string;
  /** The version of verifiers beside it; null = there is none. */
  readonly verifiers: string | null;
  /** The id's environment; null if that version of verifiers, or two possible APIs, leave it undecided. */
  readonly python: PythonEnvironmentSpec | null;
}

/** undefined without a package of that name that requires verifiers: unrelated packages have such names too. */
export function foreignPackage(environment: string, module: string): ForeignPackage | undefined {
  for (const folder of sitePackages(environment)) {
    const about = distInfo(folder, module);
    if (about === undefined) continue;
    const metadata = metadataOf(path.join(folder, about));
    const installed = distInfo(folder, 'verifiers');
    const verifiers = installed === undefined ? null : versionIn(installed);
    // Installed extras are not recorded; verifiers beside the package is enough evidence.
    const extras = verifiers === null ? [] : 'any';
    const requires = verifiersRequirement(metadata.requires, { name: metadata.name ?? module, extras });
    if (requires === null) continue;
    const version = versionIn(about);
    const source = editableSource(path.join(folder, about));
    const possible = verifiers === null ? [] : apisOfVersion(verifiers);
    const wanted = apisOf(requires, moduleCode(source ?? folder, module));
    const [api, ...others] = wanted.length === 1 && possible.length > 1 ? wanted : possible;
    const local = source === undefined ? {} : { source, sha256: folderDigest(source) };
    const python =
      api === undefined || verifiers === null || others.length > 0
        ? null
        : { module, api, folder: environment, verifiers, version, ...local };
    return { name: metadata.name ?? module.replaceAll('_', '-'), version, folder: environment, verifiers, python };
  }
  return undefined;
}

/** The version of a package in a virtual environment, from its folder's name. */
export function installedVersion(environment: string, module: string): string | undefined {
  const about = sitePackages(environment).flatMap((folder) => distInfo(folder, module) ?? []);
  return about[0] === undefined ? undefined : versionIn(about[0]);
}

/** Requirements of a package in a virtual environment, from its wheel. */
export function requirementsOf(environment: string, module: string): string[] {
  return sitePackages(environment).flatMap((folder) => {
    const about = distInfo(folder, module);
    return about === undefined ? [] : metadataOf(path.join(folder, about)).requires;
  });
}

/** Folders that `import` searches in a virtual environment. */
export function sitePackages(environment: string): string[] {
  const lib = path.join(environment, 'lib');
  return namesIn(lib)
    .filter((name) => name.startsWith('python'))
    .map((name) => path.join(lib, name, 'site-packages'));
}

/** Build tools write the name with or without its capitals: `Wiki_Search-0.1.dist-info`, `wiki_search-0.1.dist-info`. */
function distInfo(folder: string, module: string): string | undefined {
  return namesIn(folder).find((name) => name.endsWith('.dist-info') && isSameName(name.split('-', 1)[0]!, module));
}

/** Example: `wiki_search-0.1.dist-info` → `0.1`. */
function versionIn(about: string): string {
  return about.slice(about.indexOf('-') + 1, -'.dist-info'.length);
}

/** Name and requirements of an installed package, from its wheel. */
export function metadataOf(about: string): {
  readonly name: string | null;
  readonly version: string | null;
  readonly requires: string[];
  readonly extras: string[];
} {
  const file = path.join(about, 'METADATA');
  const [head = ''] = existsSync(file) ? readFileSync(file, 'utf8').split('\n\n', 1) : [];
  const field = (name: string) => new RegExp(`^${name}: *(.*)$`, 'm').exec(head)?.[1]?.trim() ?? null;
  const requires = [...head.matchAll(/^Requires-Dist: *(.*)$/gm)].map(([, requirement]) => requirement!.trim());
  const extras = [...head.matchAll(/^Provides-Extra: *(.*)$/gm)].map(([, extra]) => extra!.trim());
  return { name: field('Name'), version: field('Version'), requires, extras };
}

/** The folder of an editable package. */
export function editableSource(about: string): string | undefined {
  const file = path.join(about, 'direct_url.json');
  if (!existsSync(file)) return undefined;
  const Url = z.object({ url: z.string(), dir_info: z.object({ editable: z.boolean().optional() }).optional() });
  const { url, dir_info } = Url.parse(JSON.parse(readFileSync(file, 'utf8')));
  return dir_info?.editable === true && url.startsWith('file:') ? fileURLToPath(url) : undefined;
}

export function namesIn(folder: string): string[] {
  try {
    return readdirSync(folder);
  } catch {
    return []; // Missing, or unreadable for us: nothing is installed.
  }
}
