/**
 * The adapter of Docker and Podman, against a real engine where `RATCHET_TEST_ENGINE_SOCKET` names its socket. Its image
 * `RATCHET_TEST_ENGINE_IMAGE` has sh, the GNU tools and python3. The engine has to have an init for containers.
 */
import assert from 'node:assert/strict';
import { request as ask } from 'node:http';
import { after, before, describe, test } from 'node:test';
import { DockerProvider } from '../../../backends/sandboxes/docker/docker-provider.ts';
import type { Sandbox, SandboxRequest } from '../../../backends/sandboxes/types.ts';
import { until } from '../../eventually.ts';
import { sandboxContract } from './sandbox.contract.ts';
import { snapshotsInMemory } from './snapshots-in-memory.ts';

const { RATCHET_TEST_ENGINE_SOCKET: socket, RATCHET_TEST_ENGINE_IMAGE: image = 'python:3' } = process.env;
const skip = socket === undefined ? 'RATCHET_TEST_ENGINE_SOCKET names no socket of Docker or Podman' : false;

sandboxContract('a real engine', {
  skip,
  request: { image },
  open: (snapshots) => Promise.resolve(new DockerProvider({ socket: socket!, snapshots })),
});

describe('a container of a real engine', { skip }, () => {
  let provider: DockerProvider;
  let sandbox: Sandbox;
  let count = 0;
  const named = (more: Partial<SandboxRequest> = {}): SandboxRequest => ({
    name: `engine-${process.pid}-${++count}`,
    image,
    limits: { memoryMb: 128, diskMb: 32, processes: 40, seconds: 300 },
    network: 'route',
    labels: { project: `engine-${process.pid}`, owner: 'a test' },
    ...more,
  });
  const shell = (text: string, stdin?: Uint8Array, inside = sandbox) =>
    inside.exec({ argv: ['sh', '-c', text], timeoutS: 60, outputBytesMax: 4_000_000, ...(stdin ? { stdin } : {}) });
  before(async () => {
    provider = new DockerProvider({ socket: socket!, snapshots: snapshotsInMemory() });
    sandbox = await provider.create(named());
  });
  after(async () => {
    await sandbox?.destroy();
    assert.deepEqual(await provider.list(`engine-${process.pid}`), []);
  });

  test('goes on when one of its programs meets a limit', async () => {
    const { code } = await shell('python3 -c "bytearray(500 * 2**20)"');
    assert.equal(code, 137);
    const full = await shell('dd if=/dev/zero of=full bs=1M count=40; code=$?; rm full; exit $code');
    assert.deepEqual([full.code, /No space left/.test(full.stderr)], [1, true]);
    assert.match((await shell('for i in $(seq 60); do sleep 3 & done')).stderr, /fork/);
    await until('processes again', async () => (await shell('echo on')).stdout === 'on\n');
  });

  test('reaches no network, and writes nowhere but in memory', async () => {
    const names = await shell('tail -n +3 /proc/net/dev | cut -d: -f1 | tr -d " "');
    assert.equal(names.stdout, 'lo\n');
    const { stdout } = await shell('for to in / /etc /usr; do touch $to/x 2>/dev/null && echo $to; done; exit 0');
    assert.equal(stdout, '');
  });

  test('gives the whole output of a program that leaves its input unread', async () => {
    const text = 'exec 0<&-; seq 100000; sleep 1; seq 100000; echo late >&2; exit 6';
    const { code, stdout, stderr } = await shell(text, Buffer.alloc(2 ** 23, 'unread'));
    assert.deepEqual([code, stdout.length, stderr], [6, 1_177_790, 'late\n']);
  });

  test('ends by itself when its time is over', async () => {
    const short = await provider.create(named({ limits: { memoryMb: 128, diskMb: 32, seconds: 3 } }));
    await assert.rejects(shell('sleep 45', undefined, short), { code: 'SandboxUnavailable' });
    await until('its end', async () => (await provider.find(short.name)) === null);
  });

  test('that is killed under a program says so, and that it has ended from then on', async () => {
    const killed = await provider.create(named());
    const running = await killed.start({ argv: ['sh', '-c', 'echo here; sleep 45'], timeoutS: 60, outputBytesMax: 100 }); // prettier-ignore
    await until('its program', () => running.output().stdout === 'here\n');
    await new Promise<void>((resolve, reject) => {
      const sent = ask({ socketPath: socket, method: 'POST', path: `/containers/${killed.name}/kill` }, (answer) => answer.resume().on('end', resolve)); // prettier-ignore
      sent.on('error', reject).end();
    });
    await assert.rejects(running.wait(), { code: 'SandboxUnavailable' });
    await assert.rejects(shell('true', undefined, killed), { code: 'SandboxUnavailable', message: /has ended/ });
    await killed.destroy();
  });

  test('of an image that is not there is refused', async () => {
    await assert.rejects(provider.create(named({ image: 'localhost/ratchet-nobody:1' })), /there is no image/);
  });
});
