import assert from 'node:assert/strict';
import { createHash } from 'node:crypto';
import { execFileSync } from 'node:child_process';
import {
  chmodSync,
  existsSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  rmSync,
  symlinkSync,
  writeFileSync,
} from 'node:fs';
import { createServer } from 'node:http';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { test, type TestContext } from 'node:test';
import { cacheFolder } from '../../host/cache-folder.ts';
import { RatchetError } from '../../core/errors.ts';
import { prepareDatabase } from '../../workers/temporal/dev-server.ts';
import { isGoNewEnough, parseGoVersion } from '../../workers/install/go-toolchain.ts';
import { downloadTemporalCli, unpack } from '../../workers/temporal/temporal-cli-download.ts';
import {
  ensureTemporalCli,
  findOnPath,
  isOldServer,
  parseVersions,
  placesOnThisMachine,
  type CliPlaces,
} from '../../workers/temporal/temporal-cli.ts';

const answer = { version: '1.5.1', serverVersion: '1.29.1' };
const newer = { version: '1.9.1', serverVersion: '1.32.0' };
const [built, downloaded] = ['/cache/temporal-cli-1.5.1/temporal', '/cache/temporal-cli-1.9.1/temporal'];

/** A machine on which the named binaries exist and answer. */
function machine(has: {
  named?: string;
  onPath?: string;
  binaries: string[];
  offline?: boolean;
  internet?: boolean;
  go?: boolean;
}) {
  const asked: string[] = [];
  const binaries = new Set(has.binaries);
  const make = (how: string, path: string, possible: boolean | undefined) => () => {
    asked.push(how);
    if (possible === true) binaries.add(path);
    return possible === true ? Promise.resolve(path) : Promise.reject(new Error(`no ${how} here`));
  };
  const places: CliPlaces = {
    named: has.named,
    offline: has.offline ?? false,
    onPath: () => Promise.resolve(has.onPath ?? null),
    cached: () => [downloaded, built].filter((path) => binaries.has(path)),
    ask(path) {
      asked.push(path);
      return binaries.has(path)
        ? Promise.resolve(path === downloaded ? newer : answer)
        : Promise.reject(new Error('does not run'));
    },
    download: make('download', downloaded, has.internet),
    build: make('build', built, has.go),
    alone: (work) => work(),
  };
  return { places, asked };
}

const log = () => {};

test('the CLI that is named wins, and one that does not run is refused rather than passed over', async () => {
  const named = machine({ named: '/mine', onPath: '/usr/bin/temporal', binaries: ['/mine', '/usr/bin/temporal'] });
  assert.equal((await ensureTemporalCli({ log, places: named.places })).source, 'RATCHET_TEMPORAL_CLI');
  assert.deepEqual(named.asked, ['/mine']);

  const broken = machine({ named: '/mine', onPath: '/usr/bin/temporal', binaries: ['/usr/bin/temporal'] });
  await assert.rejects(ensureTemporalCli({ log, places: broken.places }), /RATCHET_TEMPORAL_CLI is \/mine/);
});

test('then PATH, the cache, the download, the build, each only when the one before failed', async () => {
  const cases: readonly [Parameters<typeof machine>[0], string, string[]][] = [
    [{ onPath: '/bin/temporal', binaries: ['/bin/temporal'] }, 'PATH', ['/bin/temporal']],
    [{ onPath: '/bin/temporal', binaries: [built] }, 'cache', ['/bin/temporal', built]],
    [{ binaries: [], internet: true, go: true }, 'download', ['download', downloaded]],
    [{ binaries: [], go: true }, 'built with Go', ['download', 'build', built]],
    [{ binaries: [], go: true, internet: true, offline: true }, 'built with Go', ['build', built]],
  ];
  for (const [has, source, asked] of cases) {
    const here = machine(has);
    assert.equal((await ensureTemporalCli({ log, places: here.places })).source, source);
    assert.deepEqual(here.asked, asked);
  }
});

test('a cached CLI is used before a newer one is downloaded', async () => {
  const here = machine({ binaries: [built], internet: true });
  const { path, source } = await ensureTemporalCli({ log, places: here.places });
  assert.deepEqual([path, source, here.asked], [built, 'cache', [built]]);
});

test('a project keeps the server version that wrote its database, if it is cached; else it gets the newest', async (t) => {
  const { places } = machine({ binaries: [built, downloaded] });
  const projectFolder = temporaryFolder(t);
  const chosen = async () => (await ensureTemporalCli({ log, places, projectFolder })).path;
  assert.equal(await chosen(), downloaded, 'a new project');
  mkdirSync(join(projectFolder, '.ratchet'));
  for (const [serverVersion, path] of [
    ['1.29.1', built],
    ['1.32.0', downloaded],
    ['1.31.0', downloaded],
  ] as const) {
    prepareDatabase(join(projectFolder, '.ratchet'), serverVersion, log);
    assert.equal(await chosen(), path, serverVersion);
  }
});

test('a cached binary that does not run, or is too old, is skipped', async () => {
  const here = machine({ binaries: [built, downloaded] });
  const answers = [{ version: '1.0.0', serverVersion: '1.25.0' }, new Error('does not run')];
  for (const said of answers) {
    const ask = (path: string) =>
      path === built ? Promise.resolve(answer) : said instanceof Error ? Promise.reject(said) : Promise.resolve(said);
    assert.equal((await ensureTemporalCli({ log, places: { ...here.places, ask } })).path, built);
  }
});

test('the cache is searched for every release, newest first', (t) => {
  const cache = temporaryFolder(t);
  const put = (version: string) => {
    mkdirSync(join(cache, `temporal-cli-${version}`));
    writeFileSync(join(cache, `temporal-cli-${version}`, 'temporal'), '');
    return join(cache, `temporal-cli-${version}`, 'temporal');
  };
  const [first, second, third] = [put('1.5.1'), put('1.10.0'), put('1.9.1')];
  mkdirSync(join(cache, 'temporal-cli-1.11.0')); // an interrupted download
  assert.deepEqual(placesOnThisMachine(log, { RATCHET_CACHE: cache }).cached(), [second, third, first]);
});

test('when nothing helps, the message names every reason and every way out', async () => {
  const error = await ensureTemporalCli({ log, places: machine({ binaries: [] }).places }).catch((one: unknown) => one);
  assert.ok(error instanceof RatchetError);
  assert.equal(error.code, 'ServerUnavailable');
  for (const part of [
    'no download here',
    'no build here',
    'go install',
    'brew install',
    'RATCHET_TEMPORAL_CLI',
    'TEMPORAL_ADDRESS',
  ]) {
    assert.ok(error.message.includes(part), part);
  }
});

test('a CLI that another process finished meanwhile is not made twice', async () => {
  const here = machine({ binaries: [], go: true });
  const alone: CliPlaces['alone'] = async (work) => {
    await here.places.build();
    return work();
  };
  assert.equal((await ensureTemporalCli({ log, places: { ...here.places, alone } })).source, 'cache');
});

test('versions are read from the first line, an old server is told apart', () => {
  assert.deepEqual(parseVersions('temporal version 1.5.1 (Server 1.29.1, UI 2.42.1)\n'), answer);
  assert.deepEqual(parseVersions('temporal version 0.0.0-DEV (Server 1.29.1, UI 2.42.1)')?.version, '0.0.0-DEV');
  assert.equal(parseVersions('Usage: temporal'), null);
  assert.equal(isOldServer('1.25.2'), true);
  assert.equal(isOldServer('1.26.0'), false);
  assert.equal(isOldServer('2.0.0'), false);
});

test('Go is new enough from 1.25 on', () => {
  assert.equal(parseGoVersion('go version go1.19.8 linux/amd64'), '1.19.8');
  assert.equal(parseGoVersion('go: command not found'), null);
  assert.equal(isGoNewEnough('1.24.9'), false);
  assert.equal(isGoNewEnough('1.25'), true);
  assert.equal(isGoNewEnough('2.0'), true);
});

test('the cache is where each system keeps such things', () => {
  assert.equal(cacheFolder({}, 'linux', '/home/a'), '/home/a/.cache/ratchet');
  assert.equal(cacheFolder({ XDG_CACHE_HOME: '/x' }, 'linux', '/home/a'), '/x/ratchet');
  assert.equal(cacheFolder({ XDG_CACHE_HOME: 'relative' }, 'linux', '/home/a'), '/home/a/.cache/ratchet');
  assert.equal(cacheFolder({}, 'darwin', '/Users/a'), '/Users/a/Library/Caches/ratchet');
  assert.equal(cacheFolder({ RATCHET_CACHE: '/r' }, 'darwin', '/Users/a'), '/r');
});

test('only what may be run and is in an absolute folder of PATH is found', async (t) => {
  const folder = temporaryFolder(t);
  writeFileSync(join(folder, 'temporal'), '#!/bin/sh\n');
  chmodSync(join(folder, 'temporal'), 0o644);
  assert.equal(await findOnPath('temporal', `${folder}:.:relative`), null);
  chmodSync(join(folder, 'temporal'), 0o755);
  assert.equal(await findOnPath('temporal', `/nowhere:${folder}`), join(folder, 'temporal'));
});

test('a cache that cannot be written is a reason among the others, not a crash', async (t) => {
  const folder = temporaryFolder(t);
  writeFileSync(join(folder, 'file'), '');
  const env = { RATCHET_CACHE: join(folder, 'file', 'cache'), RATCHET_OFFLINE: '1', PATH: '' };
  const places = { ...placesOnThisMachine(log, env), alone: <T>(work: () => Promise<T>) => work() };
  await assert.rejects(ensureTemporalCli({ log, places }), /build: .*ENOTDIR/);
});

test('of an archive only the bytes of the one file are taken, within bounds: no links, no paths, no devices', async (t) => {
  const folder = temporaryFolder(t);
  const room = (name: string) => {
    mkdirSync(join(folder, name));
    return join(folder, name);
  };
  const archive = (name: string, ...args: string[]) => {
    execFileSync('tar', ['-czPf', join(folder, `${name}.tar.gz`), ...args]);
    return join(folder, `${name}.tar.gz`);
  };
  const cache = room('cache');
  const target = join(cache, 'temporal');

  const link = room('link');
  symlinkSync('/etc/passwd', join(link, 'temporal'));
  await assert.rejects(
    unpack(archive('link', '-C', link, 'temporal'), cache, target),
    /holds no file called temporal|tar ended/,
  );

  const pipe = room('pipe');
  execFileSync('mkfifo', [join(pipe, 'temporal')]);
  await assert.rejects(
    unpack(archive('pipe', '-C', pipe, 'temporal'), cache, target),
    /holds no file called temporal|tar ended/,
  );

  const big = room('big');
  writeFileSync(join(big, 'temporal'), Buffer.alloc(200_000));
  await assert.rejects(
    unpack(archive('big', '-C', big, 'temporal'), cache, target, { bytesMax: 100_000 }),
    /more than 100000 bytes/,
  );

  await assert.rejects(unpack(archive('other', '-C', big, '.'), cache, target), /Not found|tar ended/);
  assert.deepEqual(readdirSync(cache), [], 'nothing is left');

  const strays = room('strays');
  writeFileSync(join(strays, 'temporal'), 'the real one');
  writeFileSync(join(strays, 'evil'), 'evil');
  const inner = room('strays/inner');
  const file = archive('strays', '-C', inner, '../evil', join(strays, 'evil'), '-C', strays, 'temporal');
  rmSync(join(strays, 'evil'));
  await unpack(file, cache, target);
  assert.equal(readFileSync(target, 'utf8'), 'the real one');
  assert.equal(existsSync(join(strays, 'evil')), false);
  assert.deepEqual(readdirSync(cache), ['temporal']);
});

test('a download is verified, an interrupted one continues, and a forged one is deleted', async (t) => {
  const folder = temporaryFolder(t);
  writeFileSync(join(folder, 'temporal'), '#!/bin/sh\necho the real one\n');
  execFileSync('tar', ['-czf', join(folder, 'a.tar.gz'), '-C', folder, 'temporal']);
  const bytes = readFileSync(join(folder, 'a.tar.gz'));
  const sha256 = createHash('sha256').update(bytes).digest('hex');
  const ranges: (string | undefined)[] = [];
  const server = createServer((request, response) => {
    ranges.push(request.headers.range);
    const start = Number(/bytes=(\d+)-/.exec(request.headers.range ?? '')?.[1] ?? 0);
    response.writeHead(start > 0 ? 206 : 200).end(bytes.subarray(start));
  });
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
  t.after(() => server.close());
  const address = server.address();
  assert.ok(address !== null && typeof address === 'object');
  const options = { folder: join(folder, 'cache'), target: join(folder, 'cache', 'temporal'), log };
  const from = `http://127.0.0.1:${address.port}`;

  mkdirSync(options.folder);
  writeFileSync(join(options.folder, 'a.tar.gz.part'), bytes.subarray(0, 20));
  await downloadTemporalCli({ ...options, from, archive: { name: 'a.tar.gz', sha256 } });
  assert.deepEqual(ranges, ['bytes=20-']);
  assert.equal(execFileSync(options.target, { encoding: 'utf8' }), 'the real one\n');

  const forged = { name: 'a.tar.gz', sha256: '0'.repeat(64) };
  await assert.rejects(downloadTemporalCli({ ...options, from, archive: forged }), /expected 000.*deleted/);
  assert.equal(existsSync(join(options.folder, 'a.tar.gz.part')), false);
});

function temporaryFolder(t: TestContext): string {
  const folder = mkdtempSync(join(tmpdir(), 'ratchet-cli-'));
  t.after(() => rmSync(folder, { recursive: true, force: true }));
  return folder;
}
