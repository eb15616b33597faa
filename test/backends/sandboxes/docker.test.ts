/** The adapter of Docker and Podman, against a server that speaks the part of the Engine API that it uses: no engine is needed. */
import assert from 'node:assert/strict';
import { mkdtemp, rm } from 'node:fs/promises';
import os from 'node:os';
import path from 'node:path';
import { after, before, describe, test } from 'node:test';
import { DockerProvider } from '../../../backends/sandboxes/docker/docker-provider.ts';
import { refusal } from '../../../backends/sandboxes/docker/engine-client.ts';
import { NamespaceProvider } from '../../../backends/sandboxes/namespace/namespace-provider.ts';
import type { SandboxRequest } from '../../../backends/sandboxes/types.ts';
import { canSandbox, missingSandbox } from '../../environments/sandbox-here.ts';
import { type EngineServer, type EngineTraits, openEngineServer } from '../../stand-ins/sandboxes/engine-server.ts';
import { sandboxContract } from './sandbox.contract.ts';
import { snapshotsInMemory } from './snapshots-in-memory.ts';

const skip = (await canSandbox()) ? false : missingSandbox;
let folder: string;
let sockets = 0;
const servers: EngineServer[] = [];
before(async () => void (folder = await mkdtemp(path.join(os.tmpdir(), 'ratchet-engine-'))));
after(async () => {
  await Promise.all(servers.map((server) => server.close()));
  await rm(folder, { recursive: true, force: true });
});

async function open(snapshots = snapshotsInMemory(), traits: EngineTraits = {}) {
  const socket = path.join(folder, `${++sockets}.sock`);
  const inner = new NamespaceProvider({ python: 'python3', isOtherUser: false, snapshots });
  const server = await openEngineServer(socket, inner, traits);
  servers.push(server);
  return { server, provider: new DockerProvider({ socket, snapshots }) };
}

sandboxContract('containers', {
  skip,
  request: { image: 'python:3' },
  open: async (snapshots) => (await open(snapshots)).provider,
});

sandboxContract('containers of podman', {
  skip,
  request: { image: 'python:3' },
  open: async (snapshots) => (await open(snapshots, { isPodman: true, lateMs: 50 })).provider,
});

describe('containers', { skip }, () => {
  const request = (name: string, more: Partial<SandboxRequest> = {}): SandboxRequest => ({
    name,
    image: 'python:3',
    limits: { memoryMb: 100, diskMb: 50, cpus: 2, processes: 77, seconds: 600 },
    network: 'route',
    labels: { project: 'p', owner: 'o' },
    ...more,
  });

  test('are asked for without network, privileges and a writable system, and within limits', async () => {
    const { provider, server } = await open();
    await provider.create(
      request('one', { env: { A: 'b=c' }, route: { socket: path.join(folder, 'r.sock'), port: 80_80 } }),
    );
    const [{ HostConfig, Env, Labels, Cmd }] = server.asked as unknown as [Record<string, Record<string, unknown>>];
    const {
      Memory,
      MemorySwap,
      PidsLimit,
      NanoCpus,
      CapDrop,
      SecurityOpt,
      NetworkMode,
      ReadonlyRootfs,
      Mounts,
      AutoRemove,
    } = HostConfig!;
    assert.deepEqual([Memory, MemorySwap, PidsLimit, NanoCpus], [150 * 2 ** 20, 150 * 2 ** 20, 77, 2e9]);
    assert.deepEqual([CapDrop, SecurityOpt, NetworkMode, ReadonlyRootfs, AutoRemove], [['ALL'], ['no-new-privileges'], 'none', true, true]); // prettier-ignore
    assert.deepEqual(
      [Mounts, Cmd],
      [[{ Type: 'bind', Source: folder, Target: folder, ReadOnly: true }], ['exec sleep 600']],
    );
    assert.ok((Env as unknown as string[]).includes('A=b=c'));
    assert.equal(Labels!['ratchet.project'], 'p');
    await provider.create(request('two', { network: 'open' }));
    assert.equal((server.asked[1] as { HostConfig: { NetworkMode: string } }).HostConfig.NetworkMode, 'bridge');
  });

  test('are had from an engine that speaks only newer versions of its API', async () => {
    const { provider } = await open(undefined, { oldest: '1.44' });
    const sandbox = await provider.create(request('newer', { route: { socket: path.join(folder, 'r.sock'), port: 8_081 } })); // prettier-ignore
    const { code, stdout } = await sandbox.exec({ argv: ['echo', 'here'], timeoutS: 10, outputBytesMax: 100 });
    assert.deepEqual([code, stdout], [0, 'here\n']);
  });

  test('say how a command ended where the engine writes that down late', async () => {
    const { provider } = await open(undefined, { lateMs: 300 });
    const sandbox = await provider.create(request('late'));
    const { code } = await sandbox.exec({ argv: ['sh', '-c', 'exit 7'], timeoutS: 10, outputBytesMax: 100 });
    assert.equal(code, 7);
  });

  test('are led to the route by the user that may open its socket', async () => {
    const [uid, gid] = [process.getuid!(), process.getgid!()];
    const route = { socket: path.join(folder, 'r.sock'), port: 8_082 };
    for (const isPodman of [false, true])
      for (const [isRootless, user] of [
        [false, `${uid}:${gid}`],
        [true, '0:0'],
      ] as const) {
        const { provider, server } = await open(undefined, { isRootless, isPodman });
        await provider.create(request(`led-${isPodman}-${isRootless}`, { route }));
        assert.equal(server.execs.at(-1)!.User, user, `${isPodman} ${isRootless}`);
      }
  });

  test('of an engine that holds them to no limit are refused', async () => {
    for (const isPodman of [false, true]) {
      const { provider, server } = await open(undefined, { isPodman, isRootless: true, cgroups: 1 });
      await assert.rejects(provider.create(request('unbound')), { code: 'SandboxRefused', message: /cgroups v2/ });
      assert.deepEqual(server.names(), []);
    }
    const { provider } = await open(undefined, { cgroups: 1 });
    await provider.create(request('bound'));
  });

  test('are given parts of a processor as whole numbers, which the engine asks for', async () => {
    const { provider, server } = await open();
    await provider.create(request('parts', { limits: { memoryMb: 100, diskMb: 50, cpus: 0.07, seconds: 600 } }));
    assert.equal(server.asked[0]!.HostConfig!.NanoCpus, 70_000_000);
  });

  for (const isPodman of [false, true])
    test(`of ${isPodman ? 'Podman' : 'Docker'} have nothing of the image in their folders, and no volume on a disk`, async () => {
      const { provider, server } = await open(undefined, {
        isPodman,
        image: { Volumes: { '/data': {}, '/tmp/': {}, [folder]: {} } },
      });
      await provider.create(request(`clean-${isPodman}`, { folders: [folder] }));
      const options = `rw,nosuid,nodev,mode=1777,exec,size=50m${isPodman ? ',notmpcopyup' : ''}`;
      assert.deepEqual(server.asked[0]!.HostConfig!.Tmpfs, { '/data': options, '/work': options, '/tmp': options });
    });

  test('of an image with a user of its own are opened to that user first', async () => {
    for (const [User, opened] of [
      ['', 0],
      ['root', 0],
      ['0:0', 0],
      ['app:app', 1],
    ] as const) {
      const { provider, server } = await open(undefined, { image: { User } });
      await provider.create(request(`opened-${User.replaceAll(/\W/g, '-')}x`));
      const byRoot = server.execs.filter((body) => body.User === '0:0').length;
      assert.equal(byRoot, process.getuid!() === 0 ? opened : 1, User);
    }
  });

  test('print what they print where a program of Podman leaves its input unread', async () => {
    const { provider } = await open(undefined, { isPodman: true });
    const sandbox = await provider.create(request('unread'));
    const more = { stdin: Buffer.alloc(2 ** 21, 'unread'), timeoutS: 10, outputBytesMax: 100 };
    const { code, stdout, stderr } = await sandbox.exec({ argv: ['sh', '-c', 'echo out; exit 4'], ...more });
    assert.deepEqual([code, stdout, stderr], [4, 'out\n', '']);
    const counted = await sandbox.exec({ argv: ['wc', '-c'], ...more });
    assert.equal(counted.stdout.trim(), String(2 ** 21));
  });

  test('that Podman refuses for good are refused, and are not asked for again', async () => {
    const { provider, server } = await open(undefined, { isPodman: true });
    await provider.create(request('taken'));
    await assert.rejects(provider.create(request('taken')), { code: 'SandboxRefused' });
    assert.deepEqual(server.names(), ['taken']);
    for (const [message, code] of [
      ['container create: container-init binary not found on the host: stat /usr/libexec/podman/catatonit: no such file', 'SandboxRefused'],
      ['normalizing image: normalizing name for compat API: invalid reference format', 'SandboxRefused'],
      ['fill out specgen: b: invalid mount option', 'SandboxRefused'],
      ['allocating lock for new container: allocation failed; exceeded num_locks', 'SandboxUnavailable'],
    ] as const) assert.equal(refusal(500, 'create one', { message }).code, code); // prettier-ignore
  });

  test('that end between the making of a command and its beginning are unavailable', async () => {
    for (const isPodman of [false, true]) {
      const name = `between-${isPodman}`;
      const opened = await open(undefined, {
        isPodman,
        loses: (_, url) => {
          if (url.endsWith('/exec')) void opened.server.end(name);
          return false;
        },
      });
      const sandbox = await opened.provider.create(request(name));
      const running = sandbox.exec({ argv: ['true'], timeoutS: 10, outputBytesMax: 10 });
      await assert.rejects(running, { code: 'SandboxUnavailable', message: /has ended/ });
    }
  });

  test('of an image that is not there are refused, with what to do', async () => {
    const { provider, server } = await open();
    await assert.rejects(provider.create(request('one', { image: 'nobody/knows:1' })), /docker pull nobody\/knows:1/);
    await assert.rejects(provider.create({ ...request('one'), image: undefined as never }), { code: 'SandboxRefused' });
    assert.deepEqual(server.names(), []);
  });

  test('of what is no name of an image are refused before the engine is asked', async () => {
    const { provider } = await open();
    for (const image of ['', 'UPPER case', '../x', 'python:3?a=b', 'a#b'])
      await assert.rejects(provider.create(request('one', { image })), { code: 'SandboxRefused', message: /expected the name of an image/ }); // prettier-ignore
  });

  test('whose making is not answered are said to be unanswered, and are found and ended by name', async () => {
    let isLost = true;
    const { provider, server } = await open(undefined, {
      loses: (method, url) => isLost && method === 'POST' && url.includes('/create'),
    });
    await assert.rejects(provider.create(request('one')), { code: 'SandboxUnanswered' });
    isLost = false;
    assert.deepEqual(server.names(), ['one']);
    assert.equal((await provider.find('one'))?.name, 'one');
    await provider.destroy('one');
    assert.equal(await provider.find('one'), null);
  });

  test('that cannot be begun leave nothing', async () => {
    const { provider, server } = await open();
    const place = { open: async function* () { yield Buffer.from('no tar'.repeat(200)); }, put: async () => Promise.reject(new Error('no')) }; // prettier-ignore
    const other = new DockerProvider({ socket: path.join(folder, `${sockets}.sock`), snapshots: place });
    const snapshot = { key: 'bad', sizeBytes: 1_200, sha256: '' };
    await assert.rejects(other.create(request('one', { snapshot })), { code: 'SandboxRefused' });
    assert.deepEqual([server.names(), await provider.list('p')], [[], []]);
  });

  test('where nobody listens are unavailable', async () => {
    const provider = new DockerProvider({ socket: path.join(folder, 'nobody.sock'), snapshots: snapshotsInMemory() });
    await assert.rejects(provider.create(request('one')), { code: 'SandboxUnavailable' });
    await assert.rejects(provider.requireHere(), { code: 'SandboxUnavailable' });
  });
});
