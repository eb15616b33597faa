/** The adapter of ssh, against a real sshd of this user on the loopback, where there is one. */
import { type ChildProcess, execFileSync, spawn } from 'node:child_process';
import { existsSync } from 'node:fs';
import { mkdir, mkdtemp, readFile, rm, writeFile } from 'node:fs/promises';
import { connect, createServer } from 'node:net';
import type { AddressInfo } from 'node:net';
import os from 'node:os';
import path from 'node:path';
import assert from 'node:assert/strict';
import { after, before, describe, test } from 'node:test';
import { setTimeout as delay } from 'node:timers/promises';
import { SshProvider } from '../../../backends/sandboxes/ssh/ssh-provider.ts';
import { until } from '../../eventually.ts';
import { sandboxContract } from './sandbox.contract.ts';
import { snapshotsInMemory } from './snapshots-in-memory.ts';

const sshd = [...(process.env['PATH'] ?? '').split(':'), '/usr/sbin'].map((folder) => path.join(folder, 'sshd')).find((file) => existsSync(file)); // prettier-ignore
const skip = sshd === undefined ? 'there is no sshd here' : false;

let folder: string;
let port: number;
let server: ChildProcess | undefined;
before(async () => {
  if (sshd === undefined) return;
  folder = await mkdtemp(path.join(os.tmpdir(), 'ratchet-sshd-'));
  for (const key of ['host', 'user'])
    execFileSync('ssh-keygen', ['-q', '-t', 'ed25519', '-N', '', '-f', path.join(folder, key)]);
  port = await freePort();
  await mkdir(path.join(folder, 'there'));
  await writeFile(
    path.join(folder, 'known'),
    `[127.0.0.1]:${port} ${await readFile(path.join(folder, 'host.pub'), 'utf8')}`,
  );
  await writeFile(path.join(folder, 'sshd.conf'), [`HostKey ${folder}/host`, `AuthorizedKeysFile ${folder}/user.pub`, 'StrictModes no', `PidFile ${folder}/pid`, 'UsePAM no', 'PermitRootLogin yes', 'AllowStreamLocalForwarding yes'].join('\n')); // prettier-ignore
  if (process.getuid?.() === 0) await mkdir('/run/sshd', { recursive: true }); // where its privileges are separated
  server = spawn(sshd, ['-D', '-e', '-p', String(port), '-o', 'ListenAddress=127.0.0.1', '-f', path.join(folder, 'sshd.conf')], { stdio: ['ignore', 'ignore', 'ignore'] }); // prettier-ignore
  await delay(300);
});
after(async () => {
  server?.kill('SIGKILL');
  if (folder) await rm(folder, { recursive: true, force: true });
});

const open = (more: { readonly knownHostsFile?: string } = {}) =>
  new SshProvider({
    host: '127.0.0.1',
    port,
    identityFile: path.join(folder, 'user'),
    knownHostsFile: path.join(folder, 'known'),
    folder: path.join(folder, 'there'),
    snapshots: snapshotsInMemory(),
    ...more,
  });

sandboxContract('ssh', { skip, request: { network: 'open' }, open: async (snapshots) => new SshProvider({ host: '127.0.0.1', port, identityFile: path.join(folder, 'user'), knownHostsFile: path.join(folder, 'known'), folder: path.join(folder, 'there'), snapshots }) }); // prettier-ignore

describe('a host that is reached by ssh', { skip }, () => {
  const request = {
    limits: { memoryMb: 200, diskMb: 10, seconds: 300 },
    network: 'open',
    labels: { project: 'p', owner: 'o' },
  } as const;

  test('is refused where its key is not known, and where a sandbox is to reach nothing but its route', async () => {
    await writeFile(path.join(folder, 'nobody'), '');
    const provider = open({ knownHostsFile: path.join(folder, 'nobody') });
    await assert.rejects(provider.create({ ...request, name: 'one' }), /Host key verification failed/);
    await provider.close();
    await assert.rejects(open().create({ ...request, name: 'one', network: 'route' }), { code: 'SandboxRefused' });
  });

  test('ends a sandbox when its time is over, with what ran in it', async () => {
    const provider = open();
    const sandbox = await provider.create({ ...request, name: 'short', limits: { ...request.limits, seconds: 2 } });
    await sandbox.exec({
      argv: ['sh', '-c', `setsid sleep 7${process.pid} >/dev/null 2>&1 & exit 0`],
      timeoutS: 10,
      outputBytesMax: 10,
    });
    await until('its end', async () => (await provider.find('short')) === null);
    const left = (): string => execFileSync('sh', ['-c', `cat /proc/[0-9]*/cmdline 2>/dev/null | tr '\\0' ' ' | grep -c "[s]leep 7${process.pid}" || true`]).toString(); // prettier-ignore
    await until('the end of its processes', () => left().trim() === '0');
    await provider.close();
  });

  test('ends what was given an empty environment, and removes its temporary files', async () => {
    const provider = open();
    const sandbox = await provider.create({ ...request, name: 'bare' });
    const { stdout } = await sandbox.exec({
      argv: ['sh', '-c', `env -i setsid sleep 8${process.pid} >/dev/null 2>&1 & mktemp`],
      timeoutS: 10,
      outputBytesMax: 1_000,
    });
    const file = stdout.trim();
    assert.ok(existsSync(file));
    await sandbox.destroy();
    const left = execFileSync('sh', ['-c', `cat /proc/[0-9]*/cmdline 2>/dev/null | tr '\\0' ' ' | grep -c "[s]leep 8${process.pid}" || true`]).toString(); // prettier-ignore
    assert.deepEqual([left.trim(), existsSync(file)], ['0', false]);
    await provider.close();
  });

  test('gives the port of a route back with its sandbox', async () => {
    const provider = open();
    const socket = path.join(folder, 'route.sock');
    const answering = createServer((wire) => wire.end('there')).listen(socket);
    const sandbox = await provider.create({ ...request, name: 'routed', route: { socket, port: 1 } });
    assert.equal(await said(sandbox.routePort!), 'there');
    await sandbox.destroy();
    await assert.rejects(said(sandbox.routePort!), { code: 'ECONNREFUSED' });
    answering.close();
    await provider.close();
  });

  test('lists its own sandboxes alone, whatever else lies beside them', async () => {
    const provider = open();
    await provider.create({ ...request, name: 'own' });
    const label = { name: '../own', createdAtMs: 1, labels: request.labels };
    for (const [name, text] of Object.entries({
      a: 'a label of something else',
      b: JSON.stringify(label),
      c: 'x'.repeat(100_000),
      d: '',
    })) {
      // prettier-ignore
      await mkdir(path.join(folder, 'there', name));
      await writeFile(path.join(folder, 'there', name, 'label'), text);
    }
    assert.deepEqual((await provider.list()).map(({ name }) => name), ['own']); // prettier-ignore
    await provider.destroy('own');
    await provider.close();
  });

  test('has more sandboxes at once than a connection of sshd has sessions', async () => {
    const provider = open();
    const names = Array.from({ length: 24 }, (_, i) => `many-${i}`);
    const made = await Promise.all(names.map((name) => provider.create({ ...request, name })));
    const results = await Promise.all(made.map((one) => one.exec({ argv: ['sh', '-c', 'sleep 1; echo done'], timeoutS: 60, outputBytesMax: 1_000 }))); // prettier-ignore
    assert.deepEqual(new Set(results.map(({ code, stdout }) => `${code} ${stdout}`)), new Set(['0 done\n'])); // prettier-ignore
    assert.deepEqual(results.filter(({ stderr }) => /session|mux/.test(stderr)), []); // prettier-ignore
    await Promise.all(names.map((name) => provider.destroy(name)));
    assert.deepEqual(await provider.list(), []);
    await provider.close();
  });

  test('keeps a sandbox whose worker is gone, for another one to end', async () => {
    const first = open();
    await first.create({ ...request, name: 'left', env: { A: 'b' } });
    await first.close();
    const second = open();
    assert.deepEqual((await second.list('p')).map(({ name }) => name), ['left']); // prettier-ignore
    await second.destroy('left');
    assert.deepEqual(await second.list(), []);
    await second.close();
  });
});

/** What is said at a port of the loopback. */
async function said(at: number): Promise<string> {
  const wire = connect(at, '127.0.0.1');
  let text = '';
  for await (const part of wire) text += String(part);
  return text;
}

async function freePort(): Promise<number> {
  const probe = createServer().listen(0, '127.0.0.1');
  await new Promise((resolve) => probe.once('listening', resolve));
  const { port: free } = probe.address() as AddressInfo;
  await new Promise((resolve) => probe.close(resolve));
  return free;
}
