import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { fileURLToPath } from 'node:url';
import { hostileTemplates } from './hostile-templates.ts';

interface Ended {
  readonly ended: string;
  /** CPU seconds. */
  readonly seconds: number;
}

/** Renders all templates in a separate process with this much memory. Fails if the process does not survive. */
export function renderAll(bounds: readonly [number, number], heapMegabytes: number): Map<string, Ended> {
  const child = fileURLToPath(new URL('./hostile-templates-child.ts', import.meta.url));
  const args = [`--max-old-space-size=${heapMegabytes}`, '--import', import.meta.resolve('tsx'), child];
  const { stdout, status, signal } = spawnSync(process.execPath, [...args, ...bounds.map(String)], {
    encoding: 'utf8',
    timeout: 1_200_000,
    killSignal: 'SIGKILL',
  });
  const lines = stdout.split('\n').filter((line) => line.startsWith('{'));
  const told = lines.map((line) => JSON.parse(line) as { name: string; ended: string; seconds: number });
  const next = Object.keys(hostileTemplates)[told.length];
  assert.equal(status, 0, `it ended with ${signal ?? status} at: ${next}`);
  return new Map(told.map(({ name, ...rest }) => [name, rest]));
}
