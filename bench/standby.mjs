/**
 * A worker on standby: imported before the command (`node --import`), it loads what `ratchet worker` loads, says so, and has the command begin
 * once a line comes on stdin. On machines of their own, workers that start take no CPU from those at work; here all of them share a few cores.
 */
import { once } from 'node:events';
import { readdir } from 'node:fs/promises';
import { builtProgram, keepCompiled } from '../workers/built.mjs';

keepCompiled();
const built = await builtProgram();
if (built !== undefined) {
  const folder = new URL('.', built);
  const names = (await readdir(folder)).filter((name) =>
    /^(?:worker|run-worker|credentials)-[A-Z0-9]{8}\.mjs$/.test(name),
  );
  for (const name of names) await import(new URL(name, folder).href);
}
process.stdout.write('standing by\n');
await once(process.stdin, 'data');
process.stdin.destroy();
