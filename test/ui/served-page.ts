import { type ChildProcess, spawn } from 'node:child_process';
import path from 'node:path';
import { createInterface } from 'node:readline';
import { repositoryFolder, type SmallProject } from '../e2e/small-run.ts';

/** `ratchet ui outputs` in a project as a user types it, and its address. */
export async function servedPage(
  { folder, stack }: Pick<SmallProject, 'folder' | 'stack'>,
  ...options: readonly string[]
): Promise<{ readonly url: string; readonly child: ChildProcess }> {
  const child = spawn(process.execPath, [path.join(repositoryFolder, 'cli/ratchet.mjs'), 'ui', 'outputs', ...options], {
    cwd: folder,
    env: { ...process.env, TEMPORAL_ADDRESS: stack.temporalAddress },
    stdio: ['ignore', 'pipe', 'inherit'],
  });
  for await (const line of createInterface({ input: child.stdout })) {
    const url = /http:\S+/.exec(line)?.[0];
    if (url !== undefined) return { url, child };
  }
  throw new Error('the page has ended without an address');
}
