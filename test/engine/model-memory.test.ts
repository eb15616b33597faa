import assert from 'node:assert/strict';
import { mkdir, writeFile } from 'node:fs/promises';
import { dirname, join } from 'node:path';
import { test, type TestContext } from 'node:test';
import { type MachineMemory, machineMemory } from '../../engine/model/machine-memory.ts';
import { requireMemory } from '../../engine/model/memory.ts';
import { elementCount, parameterCount, parameterLayout } from '../../engine/model/parameter-layout.ts';
import { temporaryFolder, tinyConfig } from './models.ts';

const gib = 2 ** 30;
const mebi = 2 ** 20;
const machine = (totalBytes: number, availableBytes = totalBytes): { memory: MachineMemory } => ({
  memory: { totalBytes, availableBytes, isLimited: false },
});

test('a model that cannot be held is refused with its size, the memory at hand and what would run it', () => {
  assert.throws(() => requireMemory(8e9, 5, 'training it', machine(24 * gib, 20 * gib)), {
    code: 'ModelUnsupported',
    message:
      'The model has 8.00 billion parameters, 29.8 GiB in 32-bit floats; training it needs 149.0 GiB (5 copies). This ' +
      'machine has 24.0 GiB, of which the engine takes at most 16.8 GiB; 20.0 GiB are available now. It holds at most ' +
      '4.29 billion parameters in one array. Use a smaller model or a larger machine; a model of this size is for a GPU ' +
      'engine, e.g. Tinker/SkyRL or prime-rl for training and vLLM for sampling.',
  });
});

test('training needs its copies of the whole model, with LoRA of the adapters alone', () => {
  const half = 0.6e9;
  const lora = { adapterCount: 10e6, ...machine(8 * gib) };
  requireMemory(half, 5, 'training it', lora);
  assert.throws(() => requireMemory(half, 5, 'training it', machine(8 * gib)), /11.2 GiB \(5 copies\).*, LoRA, which/);
  assert.throws(
    () => requireMemory(half, 5, 'training it', { ...lora, ...machine(3 * gib) }),
    /needs 2.4 GiB \(LoRA\)/,
  );
  assert.throws(
    () => requireMemory(half, 5, 'training it', machine(3 * gib)),
    (error: Error) => !/, LoRA/.test(error.message),
  );
});

test('memory that others use is not at hand, what the model holds already is', () => {
  const count = 256 * mebi; // 1 GiB
  requireMemory(count, 1, 'holding it', machine(8 * gib, 1.5 * gib));
  assert.throws(() => requireMemory(count, 2, 'training it', machine(8 * gib, 1.5 * gib)), /1.5 GiB are available now/);
  requireMemory(count, 2, 'training it', { copiesHeld: 1, ...machine(8 * gib, 1.5 * gib) });
});

test('parameters are counted without laying them out, however many layers there are', () => {
  for (const layerCount of [1, 2, 5]) {
    for (const tiedEmbeddings of [true, false]) {
      const config = { ...tinyConfig, layerCount, tiedEmbeddings, queryKeyValueBias: true };
      assert.equal(parameterCount(config), elementCount(parameterLayout(config)));
    }
  }
  assert.ok(parameterCount({ ...tinyConfig, layerCount: 1e9 }) > 1e12);
});

test('the memory of this machine is a plausible number', () => {
  const { totalBytes, availableBytes } = machineMemory();
  assert.ok(totalBytes > 64 * mebi && availableBytes > mebi && availableBytes <= totalBytes);
});

const meminfo = 'MemTotal:       16777216 kB\nMemFree:         1048576 kB\nMemAvailable:    8388608 kB\n';

test('without control groups the machine counts, with what Linux can free', async (t) => {
  const root = await fakeRoot(t, { 'proc/meminfo': meminfo });
  const expected = { totalBytes: 16 * gib, availableBytes: 8 * gib, isLimited: false };
  assert.deepEqual(machineMemory({ root, physicalBytes: 16 * gib }), expected);
});

test('the tightest limit on the way to the root holds, less what is in use and not a cached file', async (t) => {
  const root = await fakeRoot(t, {
    'proc/meminfo': meminfo,
    'proc/self/cgroup': '0::/user.slice/job\n',
    'sys/fs/cgroup/user.slice/job/memory.max': 'max\n',
    'sys/fs/cgroup/user.slice/memory.max': `${4 * gib}\n`,
    'sys/fs/cgroup/user.slice/memory.current': `${3 * gib}\n`,
    'sys/fs/cgroup/user.slice/memory.stat': `anon 5\ninactive_file ${2 * gib}\nactive_file 7\n`,
  });
  const expected = { totalBytes: 4 * gib, availableBytes: 3 * gib, isLimited: true };
  assert.deepEqual(machineMemory({ root, physicalBytes: 16 * gib }), expected);
});

test('in a container the limit is at the mount, whatever path the host has for it', async (t) => {
  const root = await fakeRoot(t, {
    'proc/meminfo': meminfo,
    'proc/self/cgroup': '0::/../../docker/0123\n',
    'sys/fs/cgroup/memory.max': `${2 * gib}\n`,
    'sys/fs/cgroup/memory.current': `${gib / 2}\n`,
  });
  assert.deepEqual(machineMemory({ root, physicalBytes: 16 * gib }).availableBytes, 1.5 * gib);
});

test('control groups of the first version are read as well', async (t) => {
  const root = await fakeRoot(t, {
    'proc/meminfo': meminfo,
    'proc/self/cgroup': '5:cpu,cpuacct:/x\n4:memory:/job/1\n0::/\n',
    'sys/fs/cgroup/memory/memory.limit_in_bytes': '9223372036854771712\n',
    'sys/fs/cgroup/memory/job/1/memory.limit_in_bytes': `${3 * gib}\n`,
    'sys/fs/cgroup/memory/job/1/memory.usage_in_bytes': `${2 * gib}\n`,
    'sys/fs/cgroup/memory/job/1/memory.stat': `inactive_file 1\ntotal_inactive_file ${gib}\n`,
  });
  const expected = { totalBytes: 3 * gib, availableBytes: 2 * gib, isLimited: true };
  assert.deepEqual(machineMemory({ root, physicalBytes: 16 * gib }), expected);
});

async function fakeRoot(t: TestContext, files: Readonly<Record<string, string>>): Promise<string> {
  const root = await temporaryFolder(t);
  for (const [name, text] of Object.entries(files)) {
    await mkdir(dirname(join(root, name)), { recursive: true });
    await writeFile(join(root, name), text);
  }
  return root;
}
