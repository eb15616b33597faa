/** The fuzzed server, in a process of its own: reports its port, and its memory on request. */
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { setTimeout } from 'node:timers/promises';
import { createPreset, saveModelFolder, startPolicyServer } from '../../engine/index.ts';

const folder = await mkdtemp(join(tmpdir(), 'ratchet-fuzz-'));
await saveModelFolder(createPreset('preset:reverse-text-0.2m', { seed: 0 }), join(folder, 'model'));
const server = await startPolicyServer({ key: null, threads: 1, allowRoots: [folder] });
const body = JSON.stringify({ name: 'policy', weight_dir: join(folder, 'model') });
const loaded = await fetch(`${server.url}/update_weights`, { method: 'POST', body });
if (!loaded.ok) throw new Error(await loaded.text());
await rm(folder, { recursive: true });

process.on('message', () => void tellMemory());
process.on('disconnect', () => process.exit(0));
process.send?.({ port: server.port });

async function tellMemory(): Promise<void> {
  // Objects freed by a first collection may hold buffers that only a second one frees.
  for (let i = 0; i < 3; i++) {
    globalThis.gc?.();
    await setTimeout(50);
  }
  const { heapUsed, external, rss } = process.memoryUsage();
  process.send?.({ live: heapUsed + external, rss });
}
