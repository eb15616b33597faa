import assert from 'node:assert/strict';
import { execFile } from 'node:child_process';
import { chmodSync, existsSync, mkdirSync, mkdtempSync, readdirSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { test, type TestContext } from 'node:test';
import { fileURLToPath } from 'node:url';
import { userConfigOfPip } from '../../setup/clean-room.mjs';
import { inOwnHome } from '../../setup/test.mjs';

const room = fileURLToPath(new URL('../../setup/clean-room.mjs', import.meta.url));

interface Seen {
  readonly env: Record<string, string | undefined>;
  readonly home: readonly string[];
}

/** Prints what a command in the room sees, and leaves a file in its home. */
const look = `const fs = require('node:fs'), { HOME } = process.env;
process.stdout.write(JSON.stringify({ env: process.env, home: fs.readdirSync(HOME) }));
fs.writeFileSync(HOME + '/left', '');
process.exitCode = 7;`;

/** Runs a command on a machine whose PATH has these stand-ins for package managers. */
function lookFrom(
  t: TestContext,
  programs: Readonly<Record<string, string>>,
  given: Readonly<Record<string, string>>,
): Promise<Seen & { readonly code: number; readonly folder: string }> {
  const folder = temporaryFolder(t);
  const bin = path.join(folder, 'bin');
  mkdirSync(bin);
  mkdirSync(path.join(folder, 'home'));
  for (const [name, text] of Object.entries(programs)) {
    writeFileSync(path.join(bin, name), `#!/bin/sh\n${text}`);
    chmodSync(path.join(bin, name), 0o755);
  }
  const env = { PATH: bin, HOME: path.join(folder, 'home'), TMPDIR: folder, ...given };
  return new Promise((resolve) =>
    execFile(process.execPath, [room, process.execPath, '-e', look], { env }, (error, stdout) =>
      resolve({ ...(JSON.parse(stdout) as Seen), code: Number(error?.code ?? 0), folder }),
    ),
  );
}

test('a command in the room has a home and caches that are new and empty, and no setting of Ratchet’s', async (t) => {
  const given = {
    RATCHET_CACHE: '/mine/cache',
    RATCHET_PYTHON: '/mine/python',
    XDG_CACHE_HOME: '/mine/.cache',
    WANDB_API_KEY: 'key',
    TEMPORAL_ADDRESS: 'elsewhere:7233',
    LANG: 'C.UTF-8',
  };
  const { env, home, code, folder } = await lookFrom(t, {}, given);
  assert.equal(code, 7, 'the exit code is the command’s');
  assert.deepEqual(home, []);
  assert.equal(env['LANG'], 'C.UTF-8');
  const itsOwn = env['HOME']!;
  assert.notEqual(itsOwn, path.join(folder, 'home'));
  for (const name of ['XDG_CACHE_HOME', 'XDG_CONFIG_HOME', 'XDG_DATA_HOME', 'XDG_STATE_HOME'])
    assert.ok(env[name]!.startsWith(`${itsOwn}/`), name);
  for (const name of ['RATCHET_CACHE', 'RATCHET_PYTHON', 'WANDB_API_KEY', 'TEMPORAL_ADDRESS'])
    assert.equal(env[name], undefined, name);
  assert.equal(existsSync(itsOwn), false, 'the room is removed');
  assert.deepEqual(readdirSync(path.join(folder, 'home')), []);
});

test('the existing download caches of package managers are passed in, as each manager reports them', async (t) => {
  const programs = {
    npm: 'echo "/caches/npm $3" | { read -r cache what; [ "$what" = cache ] && echo "$cache"; }',
    python3: 'if [ "$3" = cache ]; then echo /caches/pip; fi',
    uv: 'echo /caches/uv',
    go: `echo '{"GOCACHE": "/caches/go", "GOENV": "/mine/go-env", "GOMODCACHE": "/caches/modules"}'`,
  };
  const all = await lookFrom(t, programs, { UV_CACHE_DIR: '/named/uv' });
  const names = [
    'npm_config_cache',
    'PIP_CACHE_DIR',
    'UV_CACHE_DIR',
    'GOMODCACHE',
    'GOCACHE',
    'GOENV',
    'PIP_CONFIG_FILE',
  ];
  assert.deepEqual(
    names.map((name) => all.env[name]),
    ['/caches/npm', '/caches/pip', '/named/uv', '/caches/modules', '/caches/go', '/mine/go-env', undefined],
  );
  const none = await lookFrom(t, {}, {});
  assert.deepEqual(
    names.map((name) => none.env[name]),
    names.map(() => undefined),
  );
});

test('pip’s user configuration is passed in, the later file before the earlier, and the machine’s is not', () => {
  const [earlier, later] = ['/home/a/.pip/pip.conf', '/home/a/.config/pip/pip.conf'];
  const debug = (has: readonly string[]) =>
    [
      'env_var:\n  PIP_CERT=x\nglobal:\n  /etc/pip.conf, exists: True\n    global.cert: x\nuser:',
      ...[earlier, later].map(
        (file) => `  ${file}, exists: ${has.includes(file) ? 'True\n    global.timeout: 60' : 'False'}`,
      ),
      'site:\n  /usr/pip.conf, exists: True',
    ].join('\n');
  assert.equal(userConfigOfPip(debug([earlier, later])), later);
  assert.equal(userConfigOfPip(debug([earlier])), earlier);
  assert.equal(userConfigOfPip(debug([])), undefined);
  assert.equal(userConfigOfPip(undefined), undefined);
});

test('tests that write in the home or in the project fail the run, with the names of the files', async (t) => {
  const project = temporaryFolder(t);
  for (const name of ['kept.ts', 'changed.ts', 'removed.ts']) writeFileSync(path.join(project, name), name);
  mkdirSync(path.join(project, 'node_modules'));
  const passed = { passed: 3, failed: 0, skipped: 0 };
  let said = '';
  let home = '';
  const counts = await inOwnHome(
    async (env) => {
      home = env['HOME']!;
      assert.deepEqual(readdirSync(home), []);
      mkdirSync(path.join(home, '.cache', 'wandb'), { recursive: true });
      writeFileSync(path.join(home, '.cache', 'wandb', 'a'), '');
      writeFileSync(path.join(project, 'changed.ts'), 'something else');
      rmSync(path.join(project, 'removed.ts'));
      mkdirSync(path.join(project, 'outputs'));
      writeFileSync(path.join(project, 'outputs', 'b'), '');
      writeFileSync(path.join(project, 'node_modules', 'c'), '');
      mkdirSync(path.join(project, '__pycache__'));
      writeFileSync(path.join(project, '__pycache__', 'd.pyc'), '');
      writeFileSync(path.join(project, 'ci.log'), '');
      return [passed];
    },
    { project, isAlone: true, say: (text) => (said += text) },
  );
  assert.deepEqual(counts, [passed, { passed: 0, failed: 1, skipped: 0 }]);
  assert.match(said, /project:\n {2}~\/\.cache\/wandb\/a\n {2}changed\.ts\n {2}outputs\/b\n {2}removed\.ts\n$/);
  assert.equal(existsSync(home), false, 'the home is removed');
});

test('project changes are reported but fail nothing if somebody may be editing the project', async (t) => {
  const project = temporaryFolder(t);
  let said = '';
  const tests = async () => {
    writeFileSync(path.join(project, 'mine.ts'), '');
    return [];
  };
  assert.deepEqual(await inOwnHome(tests, { project, isAlone: false, say: (text) => (said += text) }), []);
  assert.match(said, /may be your own changes:\n {2}mine\.ts\n$/);
});

test('tests that write nowhere else pass; they share this user’s cache', async (t) => {
  const passed = { passed: 3, failed: 0, skipped: 0 };
  const counts = await inOwnHome(
    async (env) => {
      assert.ok(path.isAbsolute(env['RATCHET_CACHE']!) && !env['RATCHET_CACHE']!.startsWith(env['HOME']!));
      return [passed];
    },
    { project: temporaryFolder(t), say: (text) => assert.fail(text) },
  );
  assert.deepEqual(counts, [passed]);
});

function temporaryFolder(t: TestContext): string {
  const folder = mkdtempSync(path.join(tmpdir(), 'ratchet-room-test-'));
  t.after(() => rmSync(folder, { recursive: true, force: true }));
  return folder;
}
