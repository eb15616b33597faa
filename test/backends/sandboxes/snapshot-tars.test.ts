/** What a sandbox could not begin with is refused when it is saved, whatever kind of sandbox saves it. */
import assert from 'node:assert/strict';
import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import os from 'node:os';
import path from 'node:path';
import { describe, test } from 'node:test';
import { openSandboxProvider } from '../../../backends/sandboxes/index.ts';
import { restorable } from '../../../backends/sandboxes/snapshot-tars.ts';
import type { SandboxProvider, SnapshotPlace } from '../../../backends/sandboxes/types.ts';
import { tarOfFiles } from '../../../host/archives/write-tar.ts';
import { canSandbox, missingSandbox } from '../../environments/sandbox-here.ts';
import { attackTars } from './attack-tars.ts';
import { snapshotsInMemory } from './snapshots-in-memory.ts';

/** A place that says what was put to its end. */
function place(): { readonly snapshots: SnapshotPlace; readonly kept: string[] } {
  const inMemory = snapshotsInMemory();
  const kept: string[] = [];
  const snapshots: SnapshotPlace = {
    async put(key, tar) {
      const ref = await inMemory.put(key, tar);
      kept.push(key);
      return ref;
    },
    open: (ref) => inMemory.open(ref),
  };
  return { snapshots, kept };
}

async function* once(bytes: Uint8Array): AsyncGenerator<Uint8Array> {
  yield bytes;
}

const deep = `${'a/'.repeat(64)}file`;
const fileNamed = (name: string) => tarOfFiles([{ path: name, bytes: Buffer.from('x') }]);

describe('a snapshot', () => {
  for (const [what, tar] of [
    ['a name with a backslash', () => fileNamed(String.raw`back\slash`)],
    ['folders deeper than 64', () => fileNamed(deep)],
    ...attackTars().flatMap(([what, bytes]) =>
      what === 'more bytes than the disk has' ? [] : [[what, () => once(bytes)] as const],
    ),
  ] as const)
    test(`with ${what} is refused when it is taken, and nothing is kept`, async () => {
      const { snapshots, kept } = place();
      await assert.rejects(restorable(snapshots).put('key', tar()), { code: 'SandboxRefused', message: /^Snapshot key: / }); // prettier-ignore
      assert.deepEqual(kept, []);
    });

  test('is kept where each name can come back, also 64 folders deep', async () => {
    const { snapshots, kept } = place();
    const ref = await restorable(snapshots).put('key', fileNamed(deep.replace('a/', '')));
    for await (const part of restorable(snapshots).open(ref)) assert.ok(part.length > 0);
    assert.deepEqual(kept, ['key']);
  });

  test('whose writer fails behind its last block is not kept', async () => {
    const { snapshots, kept } = place();
    async function* failing(): AsyncGenerator<Uint8Array> {
      yield* fileNamed('fine');
      throw new Error('the disk is gone');
    }
    await assert.rejects(restorable(snapshots).put('key', failing()), /the disk is gone/);
    assert.deepEqual(kept, []);
  });
});

describe(
  'a sandbox whose work folder cannot come back',
  { skip: (await canSandbox()) ? false : missingSandbox },
  () => {
    /** A provider of the user's, with sandboxes of ours. */
    const ownModule = (file: string) => `
    import { openNamespaceProvider } from ${JSON.stringify(file)};
    export default (_, snapshots) => openNamespaceProvider({ python: 'python3', snapshots });
  `;
    const opened = new URL('../../../backends/sandboxes/namespace/open-namespaces.ts', import.meta.url).href;

    for (const kind of ['namespace', 'module'] as const)
      test(`goes on, and the snapshot is refused (kind ${kind})`, async (t) => {
        const folder = await mkdtemp(path.join(os.tmpdir(), 'ratchet-snapshot-'));
        t.after(() => rm(folder, { recursive: true, force: true }));
        const file = path.join(folder, 'provider.ts');
        await writeFile(file, ownModule(opened));
        const { snapshots, kept } = place();
        const spec = kind === 'namespace' ? { kind, python: 'python3' } as const : { kind, import: { path: file, name: 'default', sha256: null }, options: {} } as const; // prettier-ignore
        const provider: SandboxProvider = await openSandboxProvider(spec, snapshots);
        t.after(() => provider.close());
        const sandbox = await provider.create({
          name: `snapshot-${process.pid}-${kind}`,
          limits: { memoryMb: 200, diskMb: 16, seconds: 120 },
          network: 'route',
          labels: { project: `snapshots-${process.pid}`, owner: 'a test' },
        });
        const shell = (text: string) => sandbox.exec({ argv: ['sh', '-c', text], timeoutS: 30, outputBytesMax: 1_000 });
        await shell(String.raw`echo x >'back\slash'`);
        await assert.rejects(sandbox.snapshot!({ key: 'one', bytesMax: 1e6 }), { code: 'SandboxRefused' });
        await shell(`rm back*; mkdir -p ${'a/'.repeat(65)}`);
        await assert.rejects(sandbox.snapshot!({ key: 'two', bytesMax: 1e6 }), { code: 'SandboxRefused' });
        await shell('rm -r a; echo fine >file');
        await sandbox.snapshot!({ key: 'three', bytesMax: 1e6 });
        assert.deepEqual(kept, ['three']);
      });
  },
);
