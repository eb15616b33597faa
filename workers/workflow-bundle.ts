import { createHash, randomUUID } from 'node:crypto';
import { existsSync } from 'node:fs';
import { mkdir, readdir, readFile, rename, writeFile } from 'node:fs/promises';
import path from 'node:path';
import { fileURLToPath } from 'node:url';
import { bundleWorkflowCode, DefaultLogger } from '@temporalio/worker';
import { cacheFolder } from '../backends/cache-folder.ts';
import { failureConverterPath } from './payload-codec.ts';

/** What workflow code may be made of; a change in any of it is another bundle, and another version. */
const sources = ['workflows', 'core', 'package-lock.json'];

const root = fileURLToPath(new URL('../', import.meta.url));

/**
 * The workflows as one file, made once per version of their sources and kept in the per-user cache: bundling takes a
 * second or two, and a killed orchestrator is wanted back sooner. `isEncrypted`: failures are made so that a codec can encrypt them.
 */
export async function workflowBundlePath({ isEncrypted = false } = {}): Promise<string> {
  const folder = path.join(cacheFolder(), 'workflow-bundles');
  const version = await workflowCodeVersion();
  const file = path.join(folder, `${version}-node${process.versions.node}${isEncrypted ? '-encrypted' : ''}.js`);
  if (existsSync(file)) return file;
  const workflowsPath = path.join(root, 'workflows', `index${path.extname(import.meta.url)}`);
  const { code } = await bundleWorkflowCode({
    workflowsPath,
    logger: new DefaultLogger('WARN'),
    ...(isEncrypted ? { failureConverterPath } : {}),
  });
  await mkdir(folder, { recursive: true, mode: 0o700 });
  const temporary = `${file}.${randomUUID()}`;
  await writeFile(temporary, code);
  await rename(temporary, file);
  return file;
}

/**
 * A digest over what the workflows are made of, the same wherever they lie. The bundle's own would not be: it holds the
 * paths of its packages. A history that was written under another version need not replay. `folder`: of another copy of Ratchet.
 */
export async function workflowCodeVersion(folder = root): Promise<string> {
  const hash = createHash('sha256');
  for (const source of sources) {
    const files = path.extname(source) ? [source] : await filesBelow(folder, source);
    for (const file of files) hash.update(`${file}\n`).update(await readFile(path.join(folder, file)));
  }
  return hash.digest('hex').slice(0, 32);
}

async function filesBelow(root: string, folder: string): Promise<string[]> {
  const entries = await readdir(path.join(root, folder), { recursive: true, withFileTypes: true });
  return entries
    .filter((entry) => entry.isFile())
    .map((entry) => path.relative(root, path.join(entry.parentPath, entry.name)))
    .sort();
}
