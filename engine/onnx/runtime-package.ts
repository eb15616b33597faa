import { existsSync, readFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import { dirname, join, relative } from 'node:path';
import { cacheFolder } from '../cache-folder.ts';

/** The npm package that brings ONNX Runtime's library. A clone installs it; an installed Ratchet fetches it (workers/engine-library.ts). */
const packageName = 'onnxruntime-node';

interface RuntimePackage {
  /** Of the package onnxruntime-node. */
  readonly folder: string;
  readonly version: string;
  /** Where the package keeps its libraries for this platform: a path of its own, said here and nowhere else. */
  readonly libraries: string;
}

/** Finds the package that brings ONNX Runtime. Loads nothing of it, so that a machine may be looked at where it cannot be loaded. */
export function runtimePackage(): RuntimePackage {
  const { version } = lockedRuntime();
  const folder = installedFolder(version) ?? cachedRuntime().folder;
  return { folder, version, libraries: join(folder, librariesOfPlatform) };
}

/** Within the package. */
export const librariesOfPlatform = join('bin', 'napi-v6', process.platform, process.arch);

/** The library's file, by platform; the package of `version` has it. */
export function libraryName(version: string): string {
  return process.platform === 'darwin' ? `libonnxruntime.${version}.dylib` : 'libonnxruntime.so.1';
}

/** True where the engine can be loaded without fetching anything. */
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

/** A package of another version may lie beside an installed Ratchet, since others use it too. */
function installedFolder(wanted: string): string | null {
  const require = createRequire(import.meta.url);
  try {
    const manifest = require.resolve(`${packageName}/package.json`);
    const { version } = require(manifest) as { version: string }; // npm demands one
    return version === wanted ? dirname(manifest) : null;
  } catch {
    return null;
  }
}
