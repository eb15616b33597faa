/** Agents of Python's package index, installed into the cache once. */
import { realpathSync } from 'node:fs';
import path from 'node:path';
import { fileURLToPath } from 'node:url';
import { ensureEngine, type Installed } from '../install.ts';

export const installMiniSweAgent = (): Promise<Installed> =>
  install('mini-swe-agent', '2.4.6', 'RATCHET_MINI_SWE_AGENT_PYTHON');
export const installOpenAiAgents = (): Promise<Installed> =>
  install('openai-agents', '0.24.0', 'RATCHET_OPENAI_AGENTS_PYTHON');

function install(name: string, version: string, variable: string): Promise<Installed> {
  const lock = fileURLToPath(new URL(`${name}-requirements.lock`, import.meta.url));
  const packages = ['--require-hashes', '--requirement', lock];
  return ensureEngine({ name: `${name}-${version}`, variable, packages, diskBytes: 1e9, memoryBytes: 1e9 });
}

/** What a sandbox has to show of this machine, so that it can run this interpreter: its packages, and where it comes from. */
export function foldersOf(python: string): string[] {
  return [python, realpathSync(python)].map((file) => path.dirname(path.dirname(file)));
}
