/** Nodes of a trainer on one machine: network namespaces, each with an address of its own. Only root may make them. */
import { type ChildProcess, execFileSync, spawn } from 'node:child_process';
import { randomBytes } from 'node:crypto';
import { mkdir, writeFile } from 'node:fs/promises';
import path from 'node:path';
import type { TestContext } from 'node:test';
import { fileURLToPath } from 'node:url';

const command = fileURLToPath(new URL('../../cli/ratchet.mjs', import.meta.url));

export const port = '29500';

export function addressOf(node: number): string {
  return `10.77.0.${node + 1}`;
}

export function ip(...args: readonly string[]): string {
  return execFileSync('ip', args, { encoding: 'utf8', stdio: ['ignore', 'pipe', 'pipe'] });
}

/** Why namespaces cannot be made here. */
export function mayNotNamespace(): string | false {
  try {
    ip('netns', 'add', `ratchet-try-${process.pid}`);
    ip('netns', 'del', `ratchet-try-${process.pid}`);
    return false;
  } catch {
    return 'no network namespaces may be made here';
  }
}

/** Namespaces on one network; the hub between them is no node. */
export function namespaces(t: TestContext, nodes: number): readonly string[] {
  const names = Array.from({ length: nodes }, (_, node) => `ratchet-${process.pid}-${node}`);
  const hub = `ratchet-${process.pid}-hub`;
  t.after(() => {
    for (const name of [...names, hub]) ip('netns', 'del', name);
  });
  ip('netns', 'add', hub);
  ip('-n', hub, 'link', 'add', 'bridge0', 'type', 'bridge');
  ip('-n', hub, 'link', 'set', 'bridge0', 'up');
  for (const [node, name] of names.entries()) {
    ip('netns', 'add', name);
    ip('-n', name, 'link', 'set', 'lo', 'up');
    ip('-n', name, 'link', 'add', 'eth0', 'type', 'veth', 'peer', 'name', `port${node}`, 'netns', hub);
    ip('-n', hub, 'link', 'set', `port${node}`, 'master', 'bridge0');
    ip('-n', hub, 'link', 'set', `port${node}`, 'up');
    ip('-n', name, 'addr', 'add', `${addressOf(node)}/24`, 'dev', 'eth0');
    ip('-n', name, 'link', 'set', 'eth0', 'up');
  }
  return names;
}

/** Words before a command that runs it in a namespace, where it sees no processes of others, as on a machine of its own. */
export function alone(name: string): string[] {
  return ['ip', 'netns', 'exec', name, 'unshare', '--pid', '--fork', '--kill-child', '--mount-proc'];
}

export interface StartedNode {
  readonly process: ChildProcess;
  readonly said: () => string;
}

/** `ratchet worker --role trainer-node` in a namespace. It does not see what is in `hides`, as on another machine. */
export function nodeAt(
  t: TestContext,
  {
    name,
    rank,
    project,
    program,
    kind = 'torch',
    hides,
    before = ['ip', 'netns', 'exec', name],
    env = {},
  }: {
    readonly name: string;
    readonly rank: number;
    readonly project: string;
    readonly program: string;
    readonly kind?: 'torch' | 'prime-rl';
    readonly hides?: string;
    readonly before?: readonly string[];
    readonly env?: Readonly<Record<string, string>>;
  },
): StartedNode {
  const hide = hides === undefined ? '' : `mount -t tmpfs none "${hides}" && `;
  const line = `${hide}exec "${process.execPath}" "${command}" worker --role trainer-node --trainer ${kind} --program "${program}"`;
  const [first, ...rest] = [...before, 'sh', '-c', line];
  const child = spawn(first!, rest, {
    cwd: project,
    env: { ...process.env, MASTER_ADDR: addressOf(0), MASTER_PORT: port, RANK: String(rank), ...env },
    stdio: ['ignore', 'pipe', 'pipe'],
  });
  t.after(() => child.kill('SIGKILL'));
  let said = '';
  for (const stream of [child.stdout, child.stderr]) stream.on('data', (chunk: Buffer) => (said += chunk.toString()));
  return { process: child, said: () => said };
}

export async function projectWithSecret(root: string, name: string): Promise<string> {
  const project = path.join(root, name);
  await mkdir(path.join(project, '.ratchet'), { recursive: true, mode: 0o700 });
  const secret = `${randomBytes(32).toString('base64url')}\n`;
  await writeFile(path.join(project, '.ratchet/secret'), secret, { mode: 0o600 });
  return project;
}
