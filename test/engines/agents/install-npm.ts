import { copyFileSync, existsSync, mkdirSync, writeFileSync } from 'node:fs';
import { statfs } from 'node:fs/promises';
import path from 'node:path';
import { fileURLToPath } from 'node:url';
import { cacheFolder } from '../../../host/cache-folder.ts';
import { run } from '../install.ts';

/** On disk; bytes. */
const diskBytes = 1.5e9;

/** The programs of `npm/package-lock.json`, installed into the cache once; the folder of their binaries, or why there is none. */
export async function installNpmPrograms(): Promise<{ readonly modules: string } | { readonly missing: string }> {
  if (process.platform !== 'linux' || process.arch !== 'x64') return { missing: 'they are for Linux on x64 here' };
  const folder = path.join(cacheFolder(), 'engines', 'command-line-agents-2.1.332-0.171.0');
  const ready = path.join(folder, 'ready');
  const modules = path.join(folder, 'node_modules');
  if (existsSync(ready)) return { modules };
  mkdirSync(folder, { recursive: true });
  try {
    const { bavail, bsize } = await statfs(folder);
    if (bavail * bsize < diskBytes) return { missing: 'too little room on the disk' };
    for (const file of ['package.json', 'package-lock.json'])
      copyFileSync(fileURLToPath(new URL(`npm/${file}`, import.meta.url)), path.join(folder, file));
    await run('npm', ['ci', '--no-audit', '--no-fund', '--ignore-scripts'], { cwd: folder, timeout: 600_000 });
    writeFileSync(ready, '');
    return { modules };
  } catch (error) {
    return { missing: `they could not be installed: ${String(error).slice(0, 500)}` };
  }
}
