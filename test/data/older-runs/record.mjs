/**
 * Records a small run of an older commit, stopped where it stands: see README.md. Run it in a checkout of that commit, with its packages:
 *
 *     node --import tsx …/test/data/older-runs/record.mjs NAME FAILPOINT AT LEVEL
 */
import { execFileSync } from 'node:child_process';
import { existsSync } from 'node:fs';
import { cp, mkdir, readFile, rm, writeFile } from 'node:fs/promises';
import os from 'node:os';
import path from 'node:path';
import { setTimeout as delay } from 'node:timers/promises';
import { fileURLToPath, pathToFileURL } from 'node:url';
import { pack, unpack } from './archive.mjs';

const here = path.dirname(fileURLToPath(import.meta.url));
const [name = '', failpoint = '', at, level = '0'] = process.argv.slice(2);
if (name === '') throw new Error('NAME FAILPOINT AT LEVEL');
const checkout = process.cwd();
const { openSmallProject } = await import(pathToFileURL(path.join(checkout, 'test/e2e/small-run.ts')).href);

const failpoints = path.join(os.tmpdir(), `ratchet-older-${process.pid}`);
await mkdir(failpoints);
await writeFile(path.join(failpoints, `${failpoint}.json`), JSON.stringify({ at: Number(at), action: 'hold' }));

const config = (await readFile(path.join(here, 'words.toml'), 'utf8')).replace(
  'max_async_level = 0',
  `max_async_level = ${level}`,
);
const project = await openSmallProject({ 'words.toml': config }, {}, false, { RATCHET_FAILPOINTS: failpoints });
try {
  await cp(path.join(here, 'models--older--words'), path.join(project.folder, 'models--older--words'), { recursive: true });
  await project.client.workflow.start('trainRun', { workflowId: 'words', taskQueue: 'ratchet', args: ['words.toml'] });
  for (let waited = 0; !existsSync(path.join(failpoints, `${failpoint}.fired.1`)); waited += 1) {
    if (waited > 3000) throw new Error(`It never came to ${failpoint}:\n${project.log.slice(-40).join('\n')}`);
    await delay(100);
  }
  await delay(2_000); // lets concurrent work finish: the other chunk, a checkpoint, an evaluation
  const packed = path.join(failpoints, 'packed');
  // Leaves everything as if all processes had been killed at once.
  const processes = descendants(process.pid);
  for (const pid of processes) process.kill(pid, 'SIGSTOP');
  await cp(path.join(project.folder, 'outputs/words'), path.join(packed, 'words'), { recursive: true });
  for (const pid of processes) process.kill(pid, 'SIGCONT');
  for (const folder of ['logs', 'tensorboard'])
    await rm(path.join(packed, 'words', folder), { recursive: true, force: true });
  const all = path.join(failpoints, 'all');
  await mkdir(all);
  if (existsSync(path.join(here, 'older-runs.tar.br'))) unpack(all);
  await rm(path.join(all, name), { recursive: true, force: true });
  await cp(packed, path.join(all, name), { recursive: true });
  pack(all);
} finally {
  await writeFile(path.join(failpoints, `${failpoint}.released`), '');
  await project.close();
  await rm(failpoints, { recursive: true, force: true });
}

/** @param {number} root */
function descendants(root) {
  const lines = execFileSync('ps', ['-e', '-o', 'pid=,ppid='], { encoding: 'utf8' }).trim().split('\n');
  const parents = new Map(lines.map((line) => /** @type {[number, number]} */ (line.trim().split(/\s+/).map(Number))));
  const isBelow = (/** @type {number} */ pid) => {
    for (let at = parents.get(pid); at !== undefined; at = parents.get(at)) if (at === root) return true;
    return false;
  };
  // `ps` lists itself, and has already exited.
  return [...parents.keys()].filter((pid) => isBelow(pid) && existsSync(`/proc/${pid}`));
}
