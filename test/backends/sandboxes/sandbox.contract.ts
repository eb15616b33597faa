import assert from 'node:assert/strict';
import { mkdtemp, rm } from 'node:fs/promises';
import { createServer, type Server } from 'node:http';
import os from 'node:os';
import path from 'node:path';
import { after, before, describe, test } from 'node:test';
import type {
  Sandbox,
  SandboxCommand,
  SandboxProvider,
  SandboxRequest,
  SnapshotPlace,
} from '../../../backends/sandboxes/types.ts';
import { until } from '../../eventually.ts';
import { attackTars } from './attack-tars.ts';
import { snapshotsInMemory } from './snapshots-in-memory.ts';

/** What every kind of sandbox promises; `backends/sandboxes/types.ts` says it in words. */
export function sandboxContract(
  kind: string,
  {
    open,
    skip = false,
    request = {},
    routes = true,
    snapshots = snapshotsInMemory(),
  }: {
    readonly open: (snapshots: SnapshotPlace) => Promise<SandboxProvider>;
    readonly skip?: boolean | string;
    readonly request?: Partial<SandboxRequest>;
    /** Whether a route can be tried here. */
    readonly routes?: boolean;
    readonly snapshots?: SnapshotPlace;
  },
): void {
  describe(`sandboxes of ${kind}`, { skip }, () => {
    let provider: SandboxProvider;
    let sandbox: Sandbox;
    let folder: string;
    let count = 0;
    const label = kind.replaceAll(' ', '-');
    const named = (more: Partial<SandboxRequest> = {}): SandboxRequest => ({
      name: `contract-${process.pid}-${label}-${++count}`,
      limits: { memoryMb: 256, diskMb: 64, seconds: 300 },
      network: 'route',
      labels: { project: `contract-${process.pid}-${kind}`, owner: 'a test' },
      ...request,
      ...more,
    });
    const command = (argv: SandboxCommand['argv'], more: Partial<SandboxCommand> = {}): SandboxCommand => ({
      argv,
      timeoutS: 60,
      outputBytesMax: 100_000,
      ...more,
    });
    const shell = async (text: string, more: Partial<SandboxCommand> = {}) =>
      sandbox.exec(command(['sh', '-c', text], more));
    before(async () => {
      folder = await mkdtemp(path.join(os.tmpdir(), 'ratchet-sandbox-'));
      provider = await open(snapshots);
      sandbox = await provider.create(
        named({
          env: { COLOUR: 'red' },
          files: [{ path: 'given/a.sh', bytes: Buffer.from('echo given'), mode: 0o755 }],
        }),
      );
    });
    after(async () => {
      await sandbox?.destroy();
      await provider?.close();
      await rm(folder, { recursive: true, force: true });
    });

    test('a program runs in the work folder, with its input and variables, and with none of ours', async () => {
      process.env['RATCHET_NOT_FOR_SANDBOXES'] = 'secret';
      const { code, stdout, stderr } = await shell(
        'pwd; cat; echo "$COLOUR $SIZE"; env | grep -c NOT_FOR; echo bad >&2; exit 3',
        {
          stdin: 'said\n',
          env: { SIZE: 'large' },
        },
      );
      delete process.env['RATCHET_NOT_FOR_SANDBOXES'];
      assert.deepEqual([code, stdout, stderr], [3, `${sandbox.folder}\nsaid\nred large\n0\n`, 'bad\n']);
      assert.equal((await shell('given/a.sh; cd given; pwd', { cwd: '.' })).stdout, `given\n${sandbox.folder}/given\n`);
    });

    test('words reach the program as they are', async () => {
      const words = ['a b', '$HOME', "it's", '', '*', '\n', '"', '\\'];
      const { stdout } = await sandbox.exec(command(['printf', '<%s>', ...words]));
      assert.equal(stdout, words.map((word) => `<${word}>`).join(''));
    });

    test('a program that is not there, or is ended by a signal, is a result', async () => {
      assert.equal((await sandbox.exec(command(['no-such-program']))).code, 127);
      const { code, signal } = await shell('kill -9 $$');
      assert.ok(signal === 'SIGKILL' || code === 137, `${code} ${signal}`);
    });

    test('a command that takes too long is stopped with its children', async () => {
      const { isTimedOut, stdout } = await shell('echo begun; sleep 45 & sleep 45', { timeoutS: 1 });
      assert.deepEqual([isTimedOut, stdout], [true, 'begun\n']);
      await until(
        'the end of its children',
        async () => (await shell('cat /proc/*/cmdline 2>/dev/null | grep -c "[s]leep.45"')).stdout === '0\n',
      );
    });

    test('of a long output the beginning and the end are kept', async () => {
      const { stdout, isCut, code } = await shell('echo first; seq 1 100000; echo last', { outputBytesMax: 1_000 });
      assert.deepEqual([isCut, code], [true, 0]);
      assert.match(stdout, /^first\n1\n2\n[^]*… \(\d+ bytes left out\) …[^]*\n100000\nlast\n$/);
      assert.ok(stdout.length < 1_100);
    });

    test('commands run beside each other, say what they printed so far, and are stopped one by one', async () => {
      const slow = await sandbox.start(command(['sh', '-c', 'echo here; sleep 45']));
      const other = await sandbox.start(command(['sh', '-c', 'echo there; sleep 45']));
      await until('output', () => slow.output().stdout === 'here\n' && other.output().stdout === 'there\n');
      await slow.kill();
      assert.notEqual((await slow.wait()).code, 0);
      assert.equal((await shell('echo still')).stdout, 'still\n');
      await other.kill();
      assert.equal((await other.wait()).isTimedOut, false);
    });

    test('a command whose signal is raised is stopped', async () => {
      const stop = new AbortController();
      const running = sandbox.exec(command(['sleep', '45']), stop.signal);
      stop.abort();
      assert.notEqual((await running).code, 0);
    });

    test('files are written with their folders, replaced, and read within a bound', async () => {
      const bytes = Buffer.from(Array.from({ length: 300_000 }, (_, i) => i % 251));
      await sandbox.write('new/folder/file', bytes);
      assert.ok((await sandbox.read('new/folder/file', 300_000)).equals(bytes));
      await sandbox.write('new/folder/file', Buffer.from('#!/bin/sh\necho ran'), 0o755);
      assert.equal((await shell('new/folder/file; ls new/folder')).stdout, 'ran\nfile\n');
      assert.ok((await sandbox.read(`${sandbox.folder}/given/a.sh`, 10)).equals(Buffer.from('echo given')));
      await sandbox.write('empty', Buffer.alloc(0));
      assert.equal((await sandbox.read('empty', 0)).length, 0);
      await assert.rejects(sandbox.read('new/folder/file', 5), { code: 'SandboxRefused' });
      await assert.rejects(sandbox.read('nowhere', 5), { code: 'SandboxRefused' });
      await assert.rejects(sandbox.read('new', 5), { code: 'SandboxRefused' });
    });

    test('a sandbox is found by its name, listed with its labels, and not made twice', async () => {
      const found = await provider.find(sandbox.name);
      assert.ok(found !== null && found.name === sandbox.name);
      assert.equal((await found.exec(command(['cat', 'given/a.sh']))).stdout, 'echo given');
      const listed = await provider.list(`contract-${process.pid}-${kind}`);
      assert.deepEqual(listed.map(({ name, labels }) => [name, labels.owner]), [[sandbox.name, 'a test']]); // prettier-ignore
      assert.ok(Math.abs(listed[0]!.createdAtMs - Date.now()) < 3_600_000);
      assert.deepEqual(await provider.list('another project'), []);
      await assert.rejects(provider.create(named({ name: sandbox.name })), { code: 'SandboxRefused' });
      assert.equal((await shell('echo on')).stdout, 'on\n');
      assert.equal(await provider.find(`contract-${process.pid}-never`), null);
    });

    test('a sandbox that is destroyed is gone with what ran in it; destroying it again does nothing', async () => {
      const other = await provider.create(named());
      const running = await other.start(command(['sleep', '45']));
      await other.destroy();
      await running.wait().catch((error: { code?: string }) => assert.equal(error.code, 'SandboxUnavailable'));
      await until('its end', async () => (await provider.find(other.name)) === null);
      await until('the list without it', async () => !(await provider.list()).some(({ name }) => name === other.name));
      await other.destroy();
      await provider.destroy(other.name);
      await assert.rejects(other.exec(command(['true'])), { code: 'SandboxUnavailable' });
    });

    test('one that is wanted no more while it is made leaves nothing', async () => {
      const stop = new AbortController();
      const wanted = named();
      const made = provider.create(wanted, stop.signal);
      stop.abort();
      await made.then(
        (one) => one.destroy(),
        () => undefined,
      );
      await until('its end', async () => (await provider.find(wanted.name)) === null);
    });

    test('bad requests and commands are refused before anything is made', async () => {
      for (const wrong of [
        { name: 'Capital' },
        { name: '../x' },
        { limits: { memoryMb: 0, diskMb: 1, seconds: 1 } },
        { limits: { memoryMb: 1, diskMb: 1, seconds: Number.NaN } },
        { files: [{ path: '../x', bytes: Buffer.alloc(1) }] },
        { files: [{ path: '/x', bytes: Buffer.alloc(1) }] },
        { env: { 'A=B': 'x' } },
        { folders: ['relative'] },
        { folders: ['/'] },
        { route: { socket: '/x', port: 70_000 } },
      ])
        await assert.rejects(
          provider.create({ ...named(), ...wrong }),
          { code: 'SandboxRefused' },
          JSON.stringify(wrong),
        );
      assert.equal((await provider.list(`contract-${process.pid}-${kind}`)).length, 1);
      for (const wrong of [
        { argv: [''] as [string] },
        { argv: ['a\0b'] as [string] },
        { timeoutS: 0 },
        { outputBytesMax: -1 },
      ])
        await assert.rejects(sandbox.exec(command(['true'], wrong)), { code: 'SandboxRefused' }, JSON.stringify(wrong));
    });

    test('a saved work folder is there again in a new sandbox, links included', async () => {
      if (!sandbox.snapshot) return;
      await shell(
        'mkdir -p kept/deep; echo data > kept/deep/file; chmod 750 kept/deep/file; ln -s deep/file kept/link; ln -s /etc/passwd kept/out; mkfifo kept/pipe; ln kept/deep/file kept/twin',
      );
      const ref = await sandbox.snapshot({ key: 'snapshots/one', bytesMax: 10_000_000 });
      const other = await provider.create(named({ snapshot: ref }));
      const look =
        'cat kept/link; readlink kept/link kept/out; stat -c %a kept/deep/file; cat kept/twin; test -e kept/pipe; echo $?';
      const { stdout } = await other.exec(command(['sh', '-c', look]));
      assert.equal(stdout, 'data\ndeep/file\n/etc/passwd\n750\ndata\n1\n');
      await other.destroy();
      await assert.rejects(sandbox.snapshot({ key: 'snapshots/two', bytesMax: 100 }), { code: 'SandboxRefused' });
    });

    test('what a snapshot was made to do harm with is refused, and no sandbox is left', async () => {
      if (!sandbox.snapshot) return;
      // The reader is the same for all kinds; `read-tar.test.ts` tries every one.
      for (const [what, tar] of attackTars().filter((_, i) => i % 6 === 2)) {
        async function* parts(): AsyncGenerator<Uint8Array> {
          yield tar;
        }
        const wanted = named({ snapshot: await snapshots.put(`attack/${what}`, parts()) });
        await assert.rejects(provider.create(wanted), { code: 'SandboxRefused' }, what);
        await until('its end', async () => (await provider.find(wanted.name)) === null);
      }
    });

    test('the one route leads to its socket, whenever that comes', { skip: !routes }, async () => {
      const socket = path.join(folder, 'route.sock');
      const other = await provider.create(named({ route: { socket, port: 8_123 } }));
      const ask = `python3 -c 'import urllib.request as u; print(u.urlopen("http://127.0.0.1:${other.routePort}/x", b"q" * 100000).read()[:9].decode())'`;
      assert.notEqual((await other.exec(command(['sh', '-c', ask]))).code, 0);
      const server: Server = createServer((asked, answer) => {
        let bytes = 0;
        asked.on('data', (part: Buffer) => (bytes += part.length));
        asked.on('end', () => answer.end(`${bytes}${' '.repeat(300_000)}`));
      });
      await new Promise<void>((resolve) => server.listen(socket, resolve));
      try {
        const answers = await Promise.all(Array.from({ length: 4 }, () => other.exec(command(['sh', '-c', ask]))));
        assert.deepEqual(answers.map(({ stdout }) => stdout.trim()), ['100000', '100000', '100000', '100000']); // prettier-ignore
      } finally {
        server.close();
        await other.destroy();
      }
    });
  });
}
