import { mkdirSync } from 'node:fs';
import path from 'node:path';
import {
  type EnginePackage,
  engineFolder,
  enginePackages,
  engineRequirements,
  isEngineHere,
} from '../../backends/python/engine-python.ts';
import { pythonForVerifiers } from '../../backends/python/interpreter.ts';
import { requireFreeSpace } from '../stack/long-wait.ts';
import { ensurePython } from './python-environment.ts';

/**
 * A Python of its own with an engine's locked packages, below the cache; made once. What was downloaded before an
 * interruption stays in the cache of uv or pip. Throws `ServerUnavailable` with what is missing.
 */
export async function installEngine(name: EnginePackage, log: (line: string) => void): Promise<string> {
  const { title, diskBytes } = enginePackages[name];
  const folder = engineFolder(name);
  if (!isEngineHere(name)) {
    mkdirSync(path.dirname(folder), { recursive: true, mode: 0o700 });
    await requireFreeSpace(path.dirname(folder), diskBytes);
    log(`${title}: ${sizeOfEngine(name)}, into ${folder}`);
  }
  const requirements = engineRequirements(name);
  return ensurePython({ name: title, requirements, folder, needs: pythonForVerifiers, isLockAll: true, log });
}

/** Size of an engine, for people. */
export function sizeOfEngine(name: EnginePackage): string {
  const { downloadBytes, diskBytes } = enginePackages[name];
  return `about ${gigabytes(downloadBytes)} to download, ${gigabytes(diskBytes)} on disk`;
}

function gigabytes(bytes: number): string {
  return `${(bytes / 1e9).toFixed(1)} GB`;
}
