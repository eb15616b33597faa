import { existsSync, readFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import { dirname, join, relative } from 'node:path';
import { cacheFolder } from '../../host/cache-folder.ts';

/** The npm package that brings ONNX Runtime's library. A clone installs it; an installed Ratchet fetches it (workers/install/engine-library.ts). */
const packageName = 'onnxruntime-node';

interface RuntimePackage {
  readonly folder: string;
  readonly version: string;
  /** The package's folder of libraries for this platform; only this file knows the path. */
  readonly libraries: string;
}

/**
 * Finds the package of ONNX Runtime without loading it, so that a machine may be examined where it cannot be loaded.
 */
export function runtimePackage(): RuntimePackage {
  const { version } = lockedRuntime();
  const folder = installedFolder(version) ?? cachedRuntime().folder;
  return { folder, version, libraries: join(folder, librariesOfPlatform) };
}

/** Path within the package. */
export const librariesOfPlatform = join('bin', 'napi-v6', process.platform, process.arch);

/** Name of the library's file by platform; `version` is the package's. */
export function libraryName(version: string): string {
  return process.platform === 'darwin' ? `libonnxruntime.${version}.dylib` : 'libonnxruntime.so.1';
}

/** True if the engine can be loaded without a download. */
export function isRuntimeHere(): boolean {
  const { libraries, version } = runtimePackage();
  return existsSync(join(libraries, libraryName(version)));
}

/** The folder below the cache that an installed Ratchet keeps the package in: its manifest, and the library of this platform alone. */
export function cachedRuntime(): { readonly folder: string; readonly wanted: LockedRuntime } {
  const wanted = lockedRuntime();
  return { folder: join(cacheFolder(), `${packageName}-${wanted.version}`), wanted };
}

interface LockedRuntime {
  readonly name: string;
  readonly version: string;
  /** Digest of the package's archive, as npm writes it: `sha512-…`. */
  readonly integrity: string;
}

let locked: LockedRuntime | undefined;

/** Which package it is, as the lock file says. npm packs that file. */
function lockedRuntime(): LockedRuntime {
  if (locked !== undefined) return locked;
  const lock = JSON.parse(readFileSync(new URL('../../npm-shrinkwrap.json', import.meta.url), 'utf8')) as {
    readonly packages: Readonly<Record<string, Omit<LockedRuntime, 'name'>>>;
  };
  const { version, integrity } = lock.packages[`node_modules/${packageName}`]!;
  return (locked = { name: packageName, version, integrity });
}

/** The command that fetches the CUDA libraries by the package's install script. An installed Ratchet has no such script: a package beside it does. */
export function cudaLibrariesFrom(): string {
  const { folder, version } = runtimePackage();
  const script = join(folder, 'script', 'install.js');
  if (existsSync(script)) return `ONNXRUNTIME_NODE_INSTALL=cuda12 node ${relative('', script)}`;
  return `npm install ${packageName}@${version} --onnxruntime-node-install=cuda12`;
}

/** Skips packages of another version: an installed Ratchet may share its folder with them. */
function installedFolder(wanted: string): string | null {
  const require = createRequire(import.meta.url);
  try {
    const manifest = require.resolve(`${packageName}/package.json`);
    const { version } = require(manifest) as { version: string }; // npm requires a version
    return version === wanted ? dirname(manifest) : null;
  } catch {
    return null;
  }
}
