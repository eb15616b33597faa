import { execFile } from 'node:child_process';
import { existsSync, mkdirSync, writeFileSync } from 'node:fs';
import { statfs } from 'node:fs/promises';
import os from 'node:os';
import path from 'node:path';
import { promisify } from 'node:util';
import { cacheFolder } from '../../host/cache-folder.ts';

/** An engine of Python's, as the tests want it. */
export interface EngineWish {
  /** Name with version: the folder in the cache. */
  readonly name: string;
  /** The environment variable that names a Python which has it. */
  readonly variable: string;
  readonly packages: readonly string[];
  /** Requirements in place of those that packages name. */
  readonly overrides?: readonly string[];
  /** On disk, and in memory beside the tests; bytes. */
  readonly diskBytes: number;
  readonly memoryBytes: number;
  /** Further setup after the installation. */
  readonly mend?: (python: string) => Promise<void>;
}

export type Installed = { readonly python: string; readonly uv: string } | { readonly missing: string };

const installMsMax = 30 * 60_000;
export const run = promisify(execFile);

/** A Python with the engine: the one that its variable names, or one that is installed into the cache, once. Says why there is none. */
export async function ensureEngine(wish: EngineWish): Promise<Installed> {
  const { name, variable, packages, overrides = [], diskBytes, memoryBytes, mend } = wish;
  const folder = path.join(cacheFolder(), 'engines', name);
  const named = process.env[variable];
  if (process.platform !== 'linux' || process.arch !== 'x64') return { missing: `${name} is for Linux on x64 here` };
  const free = os.freemem();
  if (free < memoryBytes)
    return { missing: `${gigabytes(free)} of memory are free, ${name} takes ${gigabytes(memoryBytes)}` };
  mkdirSync(folder, { recursive: true });
  const python = path.join(folder, 'venv/bin/python');
  const ready = path.join(folder, 'ready');
  try {
    const uv = await findUv(folder);
    if (named) return { python: named, uv };
    if (existsSync(ready)) return { python, uv };
    const { bavail, bsize } = await statfs(folder);
    if (bavail * bsize < diskBytes) {
      return { missing: `${gigabytes(bavail * bsize)} are free in ${folder}, ${name} takes ${gigabytes(diskBytes)}` };
    }
    process.stderr.write(`installing ${name} into ${folder}: ${gigabytes(diskBytes)} at most, a few minutes\n`);
    await run(uv, ['venv', '--clear', '--python', '3.11', path.join(folder, 'venv')], { timeout: installMsMax });
    const file = path.join(folder, 'overrides.txt');
    writeFileSync(file, overrides.map((one) => `${one}\n`).join(''));
    const install = ['pip', 'install', '--quiet', '--python', python, '--override', file, ...packages];
    await run(uv, install, { timeout: installMsMax });
    await mend?.(python);
    writeFileSync(ready, '');
    return { python, uv };
  } catch (error) {
    return { missing: `${name} could not be installed: ${String(error).slice(0, 500)}` };
  }
}

async function findUv(folder: string): Promise<string> {
  const own = path.join(folder, 'tool/bin/uv');
  const found = await run('uv', ['--version']).then(
    () => 'uv',
    () => null,
  );
  if (found !== null || existsSync(own)) return found ?? own;
  await run('python3', ['-m', 'venv', path.join(folder, 'tool')], { timeout: installMsMax });
  await run(path.join(folder, 'tool/bin/pip'), ['install', '--quiet', 'uv'], { timeout: installMsMax });
  return own;
}

function gigabytes(bytes: number): string {
  return `${(bytes / 1e9).toFixed(1)} GB`;
}
