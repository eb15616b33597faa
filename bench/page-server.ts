import { type ChildProcess, spawn } from 'node:child_process';
import { setTimeout as delay } from 'node:timers/promises';
import { command } from './run-project.ts';

/** `ratchet ui` as one types it, and the address that it prints. */
export async function startPage(
  what: string,
  cwd = process.cwd(),
  env: NodeJS.ProcessEnv = process.env,
): Promise<{ readonly child: ChildProcess; readonly url: string }> {
  const child = spawn(process.execPath, [command, 'ui', what], { cwd, env, stdio: ['ignore', 'pipe', 'inherit'] });
  let said = '';
  child.stdout.on('data', (bytes: Buffer) => (said += bytes.toString()));
  for (;;) {
    const url = /http:\S+/.exec(said)?.[0];
    if (url !== undefined) return { child, url };
    if (child.exitCode !== null) throw new Error(`ratchet ui ended: ${said}`);
    await delay(50);
  }
}
