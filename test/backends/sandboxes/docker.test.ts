/** The adapter of Docker and Podman, against a server that speaks the part of the Engine API that it uses: no engine is needed. */
import assert from 'node:assert/strict';
import { mkdtemp, rm } from 'node:fs/promises';
import os from 'node:os';
import path from 'node:path';
import { after, before, describe, test } from 'node:test';
import { DockerProvider } from '../../../backends/sandboxes/docker/docker-provider.ts';
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
      Binds,
      AutoRemove,
    } = HostConfig!;
    assert.deepEqual([Memory, MemorySwap, PidsLimit, NanoCpus], [150 * 2 ** 20, 150 * 2 ** 20, 77, 2e9]);
    assert.deepEqual([CapDrop, SecurityOpt, NetworkMode, ReadonlyRootfs, AutoRemove], [['ALL'], ['no-new-privileges'], 'none', true, true]); // prettier-ignore
    assert.deepEqual([Binds, Cmd], [[`${folder}:${folder}:ro`], ['exec sleep 600']]);
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
    for (const [isRootless, user] of [
      [false, `${uid}:${gid}`],
      [true, '0:0'],
    ] as const) {
      const { provider, server } = await open(undefined, { isRootless });
      await provider.create(request(`led-${isRootless}`, { route }));
      assert.deepEqual(server.execs.map(({ User }) => User), [user]); // prettier-ignore
    }
  });

  test('are given parts of a processor as whole numbers, which the engine asks for', async () => {
    const { provider, server } = await open();
    await provider.create(request('parts', { limits: { memoryMb: 100, diskMb: 50, cpus: 0.07, seconds: 600 } }));
    assert.equal(server.asked[0]!.HostConfig!.NanoCpus, 70_000_000);
  });

  test('of an image that is not there are refused, with what to do', async () => {
    const { provider, server } = await open();
    await assert.rejects(provider.create(request('one', { image: 'nobody/knows:1' })), /docker pull nobody\/knows:1/);
    await assert.rejects(provider.create({ ...request('one'), image: undefined as never }), { code: 'SandboxRefused' });
    assert.deepEqual(server.names(), []);
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
