import assert from 'node:assert/strict';
import { execFileSync, spawn } from 'node:child_process';
import { chmod, mkdir, mkdtemp, rm, writeFile } from 'node:fs/promises';
import { createServer } from 'node:net';
import type { AddressInfo } from 'node:net';
import os from 'node:os';
import path from 'node:path';
import { after, before, describe, test } from 'node:test';
import { fileURLToPath } from 'node:url';
import { NamespaceProvider } from '../../../backends/sandboxes/namespace/namespace-provider.ts';
import { openNamespaceProvider } from '../../../backends/sandboxes/namespace/open-namespaces.ts';
import type { Sandbox, SandboxRequest } from '../../../backends/sandboxes/types.ts';
import { canSandbox, missingSandbox } from '../../environments/sandbox-here.ts';
import { until } from '../../eventually.ts';
import { sandboxContract } from './sandbox.contract.ts';
import { snapshotsInMemory } from './snapshots-in-memory.ts';

const skip = (await canSandbox()) ? false : missingSandbox;
const isRoot = process.getuid?.() === 0;
const labels = { project: `namespaces-${process.pid}`, owner: 'a test' };
const request = (name: string, more: Partial<SandboxRequest> = {}): SandboxRequest => ({
  name: `n-${process.pid}-${name}`,
  limits: { memoryMb: 200, diskMb: 16, processes: 40, seconds: 300 },
  network: 'route',
  labels,
  ...more,
});

sandboxContract('namespaces', { skip, open: (snapshots) => openNamespaceProvider({ python: 'python3', snapshots }) });
// What an ordinary user gets: a namespace of users, where all that runs has one number.
if (isRoot) sandboxContract('namespaces of users', { skip, open: async (snapshots) => new NamespaceProvider({ python: 'python3', isOtherUser: false, snapshots }) }); // prettier-ignore

describe('from inside a sandbox of namespaces', { skip }, () => {
  let provider: NamespaceProvider;
  let sandbox: Sandbox;
  let folder: string;
  const shell = async (text: string, timeoutS = 60) =>
    sandbox.exec({ argv: ['sh', '-c', text], timeoutS, outputBytesMax: 10_000 });
  const python = async (code: string) =>
    (await sandbox.exec({ argv: ['python3', '-c', code], timeoutS: 60, outputBytesMax: 10_000 })).stdout;
  before(async () => {
    folder = await mkdtemp(path.join(os.tmpdir(), 'ratchet-namespace-'));
    provider = await openNamespaceProvider({ python: 'python3', snapshots: snapshotsInMemory() });
    const route = { socket: path.join(folder, 'route.sock'), port: 9_100 };
    sandbox = await provider.create(request('inside', { route }));
  });
  after(async () => {
    await provider?.close();
    await rm(folder, { recursive: true, force: true });
  });

  test('a snapshot has all that stays, while a program makes and removes files beside it', async () => {
    const churn = `
import os
os.makedirs("busy", exist_ok=True)
for i in range(100): open(f"busy/z{i:03d}", "w").close()
while True:
    for i in range(300): open(f"busy/a{i:03d}", "w").close()
    for i in range(300): os.unlink(f"busy/a{i:03d}")`;
    const command = { argv: ['python3', '-c', churn], timeoutS: 60, outputBytesMax: 1_000 } as const;
    const program = await sandbox.start(command);
    try {
      await until('all that stays', async () => (await shell('ls busy | grep -c z')).stdout.trim() === '100');
      for (const i of [1, 2, 3]) {
        const snapshot = await sandbox.snapshot!({ key: `busy-${i}`, bytesMax: 10_000_000 });
        const other = await provider.create(request(`busy-${i}`, { snapshot }));
        const { stdout } = await other.exec({ ...command, argv: ['sh', '-c', 'ls busy | grep -c z'] });
        await other.destroy();
        assert.equal(stdout.trim(), '100');
      }
    } finally {
      await program.kill();
      await shell('rm -r busy');
    }
  });

  test('nothing of this machine is reached but the route: no loopback, no address, no name, no abstract socket', async () => {
    const tcp = createServer((socket) => socket.end('hello')).listen(0, '0.0.0.0');
    const abstract = createServer((socket) => socket.end('hello')).listen(`\0ratchet-test-${process.pid}`);
    await Promise.all([tcp, abstract].map((server) => new Promise((resolve) => server.once('listening', resolve))));
    const { port } = tcp.address() as AddressInfo;
    const addresses = Object.values(os.networkInterfaces()).flatMap((all) => (all ?? []).filter(({ family }) => family === 'IPv4').map(({ address }) => address)); // prettier-ignore
    try {
      const answer = await python(`
import socket
def look(what):
  try: what(); print("reached")
  except OSError as error: print(type(error).__name__)
for address in ${JSON.stringify([...new Set(['127.0.0.1', ...addresses, '169.254.169.254', '1.1.1.1'])])}:
  look(lambda: socket.create_connection((address, ${port}), 1))
look(lambda: socket.getaddrinfo("localhost.example.com", 80))
look(lambda: socket.getaddrinfo("example.com", 80))
unix = socket.socket(socket.AF_UNIX)
look(lambda: unix.connect("\\0ratchet-test-${process.pid}"))
look(lambda: unix.connect("${folder}/route.sock"))
look(lambda: socket.socket(40, 1))
look(lambda: socket.socket(17, 3, 0))
look(lambda: socket.socket(2, 3, 1))
look(lambda: socket.socket(16, 3, 9))
`);
      assert.doesNotMatch(answer, /reached/);
      assert.equal(answer.trim().split('\n').length, new Set(['127.0.0.1', ...addresses]).size + 10);
    } finally {
      for (const server of [tcp, abstract]) server.close();
    }
  });

  test('no file of anybody is there, and nothing outside of its own folders can be written', async () => {
    await writeFile(path.join(folder, 'secret'), 'secret', { mode: 0o644 });
    const { stdout } = await shell(
      `cat ${folder}/secret ${fileURLToPath(import.meta.url)} /etc/shadow ${os.homedir()}/.ssh/* /home/*/.ssh/* 2>/dev/null; ls /home /var /opt /srv /mnt 2>/dev/null; ` +
        'for place in / /usr /etc /dev /proc/sys/kernel /run /bin; do (echo x > $place/harm) 2>/dev/null && echo wrote $place; done; ' +
        'for kept in /proc/sysrq-trigger /proc/sys/kernel/core_pattern /proc/sys/vm/drop_caches; do (echo x > $kept) 2>/dev/null && echo wrote $kept; done; echo looked',
    );
    assert.equal(stdout, 'looked\n');
  });

  test('only its own processes are seen, and its first one can neither be looked into nor ended', async () => {
    const { stdout } = await shell(
      'cat /proc/*/cmdline | tr "\\0" " " | grep -c -E "[n]ode|[t]sx"; cat /proc/1/environ /proc/1/maps /proc/1/mem 2>/dev/null | wc -c; ls /proc/1/fd /proc/1/root 2>/dev/null | wc -l; ' +
        `kill -9 1; kill -9 -1; kill -9 ${process.pid} 2>/dev/null; echo on`,
    );
    assert.match(stdout, /^0\n0\n0\n/);
    assert.equal((await shell('echo on')).stdout, 'on\n');
  });

  test('it gets no privilege, no namespace and no mount', async () => {
    const { stdout } = await shell(
      'grep -E "CapEff|CapBnd|NoNewPrivs|Seccomp:" /proc/self/status; unshare -U true && echo unshared; unshare -n true && echo unshared; mount -t tmpfs x /tmp && echo mounted; ' +
        'umount /proc && echo unmounted; chroot / true && echo chrooted; mknod d b 8 0 && echo made; nsenter -t 1 -m true && echo entered',
    );
    assert.deepEqual(stdout.trim().split(/\s+/), ['CapEff:', '0'.repeat(16), 'CapBnd:', '0'.repeat(16), 'NoNewPrivs:', '1', 'Seccomp:', '2']); // prettier-ignore
    const setuid = await shell('cp /bin/sh mine; chmod 4755 mine; ./mine -p -c "id -u"; id -u');
    assert.equal(new Set(setuid.stdout.trim().split('\n')).size, 1);
  });

  test('memory of all processes together has an end, and who held most is ended', async () => {
    const hold = (mib: number) => `python3 -c 'x = b"x" * (${mib} << 20); import time; time.sleep(4)'`;
    const { stdout, stderr } = await shell(
      `for i in 1 2 3 4; do ${hold(90)} & done; wait %1 %2 %3 %4; echo done; exit 1`,
    );
    assert.equal(stdout, 'done\n');
    assert.match(stderr, /held more than 200 MiB together/);
    assert.match((await shell(hold(400))).stderr, /MemoryError/);
    assert.equal((await shell('echo on')).stdout, 'on\n');
  });

  test('disk and processes have an end', async () => {
    const { stderr } = await shell('head -c 40000000 /dev/zero > big; wc -c < big; rm big');
    assert.match(stderr, /No space left/);
    const { stdout } = await shell('python3 -c "\nimport os\nn = 0\ntry:\n  while os.fork(): n += 1\n  __import__(\'time\').sleep(60)\nexcept OSError:\n  print(n < 40, n > 20, flush=True)\n  os.killpg(os.getpgrp(), 9)"'); // prettier-ignore
    assert.equal(stdout.trim(), 'True True');
    assert.equal((await shell('echo on')).stdout, 'on\n');
  });

  test('what goes on in the background lasts from command to command', async () => {
    await shell('(while true; do sleep 0.05; echo tick >> ticks; done) >/dev/null 2>&1 &');
    await until('ticks', async () => /tick\ntick/.test((await shell('cat ticks')).stdout));
    assert.equal((await shell('echo kept > /tmp/kept; cd /tmp; cat kept')).stdout, 'kept\n');
    assert.equal((await shell('cat /tmp/kept')).stdout, 'kept\n');
  });

  test('folders of this machine are seen read-only where the request names them', async () => {
    const shown = path.join(folder, 'shown');
    await mkdir(shown);
    await writeFile(path.join(shown, 'file'), 'seen');
    for (const place of [folder, shown]) await chmod(place, 0o755);
    const other = await provider.create(request('shown', { folders: [shown] }));
    const { stdout } = await other.exec({ argv: ['sh', '-c', `cat ${shown}/file; echo x > ${shown}/new || echo refused; ls ${folder}`], timeoutS: 10, outputBytesMax: 1_000 }); // prettier-ignore
    assert.equal(stdout, 'seenrefused\nshown\n');
    await other.destroy();
    await assert.rejects(provider.create(request('missing', { folders: ['/no/such/folder'] })), {
      code: 'SandboxRefused',
    });
  });

  test('it ends by itself when its time is over', async () => {
    const limits = { memoryMb: 100, diskMb: 1, seconds: 1 };
    const other = await provider.create(request('short', { limits }));
    await assert.rejects(other.exec({ argv: ['sleep', '30'], timeoutS: 30, outputBytesMax: 1 }), { code: 'SandboxUnavailable' }); // prettier-ignore
    assert.equal(await provider.find(other.name), null);
  });

  test('with an open network it has that of its machine, and the route all the same', async () => {
    const server = createServer((socket) => socket.end('hello')).listen(0, '127.0.0.1');
    await new Promise((resolve) => server.once('listening', resolve));
    const { port } = server.address() as AddressInfo;
    const other = await provider.create(
      request('open', { network: 'open', route: { socket: path.join(folder, 'r.sock'), port: 9_100 } }),
    );
    try {
      const code = `import socket; print(socket.create_connection(("127.0.0.1", ${port})).recv(9))`;
      const { stdout } = await other.exec({ argv: ['python3', '-c', code], timeoutS: 30, outputBytesMax: 1_000 });
      assert.equal(stdout, "b'hello'\n");
      assert.ok(
        other.routePort !== null && other.routePort !== 9_100,
        'a port of its own choice: this machine has others',
      );
    } finally {
      server.close();
      await other.destroy();
    }
  });
});

test('a worker that is killed leaves no process', { skip }, async () => {
  const code = `
import { openNamespaceProvider } from ${JSON.stringify(new URL('../../../backends/sandboxes/namespace/open-namespaces.ts', import.meta.url).href)};
const provider = await openNamespaceProvider({ python: 'python3', snapshots: null });
const sandbox = await provider.create({ name: 'orphan-${process.pid}', limits: { memoryMb: 100, diskMb: 1, seconds: 300 }, network: 'route', labels: ${JSON.stringify(labels)} });
const running = await sandbox.start({ argv: ['sh', '-c', 'setsid sleep 171${process.pid} & sleep 171${process.pid}'], timeoutS: 300, outputBytesMax: 1 });
console.log('begun');
setInterval(() => undefined, 1000);`;
  const worker = spawn(process.execPath, ['--import', 'tsx', '--input-type=module', '-e', code], { stdio: ['ignore', 'pipe', 'inherit'] }); // prettier-ignore
  await new Promise((resolve) => worker.stdout.once('data', resolve));
  const provider = await openNamespaceProvider({ python: 'python3', snapshots: snapshotsInMemory() });
  const theirs = async () =>
    (await provider.list(labels.project)).filter(({ name }) => name === `orphan-${process.pid}`);
  assert.equal((await theirs()).length, 1, 'another process sees it');
  const found = await provider.find(`orphan-${process.pid}`);
  await assert.rejects(found!.exec({ argv: ['true'], timeoutS: 1, outputBytesMax: 1 }), { code: 'SandboxRefused' });
  worker.kill('SIGKILL');
  const left = () => execFileSync('sh', ['-c', `cat /proc/[0-9]*/cmdline 2>/dev/null | tr '\\0' ' ' | grep -c "[s]leep 171${process.pid}" || true`]).toString().trim(); // prettier-ignore
  await until('its end', async () => (await theirs()).length === 0);
  await until('the end of its processes', () => left() === '0');
});

test('another process of this user can end a sandbox by its name', { skip }, async () => {
  const [one, other] = await Promise.all([0, 1].map(() => openNamespaceProvider({ python: 'python3', snapshots: snapshotsInMemory() }))); // prettier-ignore
  const sandbox = await one!.create(request('shared'));
  await other!.destroy(sandbox.name);
  const again = await other!.create(request('shared')); // its name is free at once
  await until('its end', async () => (await one!.find(sandbox.name)) !== sandbox);
  await again.destroy();
  await one!.close();
});
