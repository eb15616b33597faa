/** Which test files share a process, and what keeps a file alone. */
import assert from 'node:assert/strict';
import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { test, type TestContext } from 'node:test';
import { shareProcesses, whyAlone } from '../processes.mjs';

/** Files of tests in a folder of their own; returns a function that gives the path of one. */
function write(t: TestContext, files: Readonly<Record<string, string>>): (name: string) => string {
  const folder = mkdtempSync(path.join(tmpdir(), 'ratchet-processes-'));
  t.after(() => rmSync(folder, { recursive: true, force: true }));
  const place = (name: string): string => path.join(folder, 'test', name);
  for (const [name, text] of Object.entries(files)) {
    mkdirSync(path.dirname(place(name)), { recursive: true });
    writeFileSync(place(name), text);
  }
  return place;
}

test('a file that changes or measures its process has one of its own', (t) => {
  const alone = {
    'sets a variable': "process.env['KEY'] = 'x';",
    'sets one by a name that it computes': 'process.env[name] ??= value;',
    'sets one by its plain name': "process.env.KEY = 'x';",
    'removes one': "delete process.env['KEY'];",
    'sets several': 'Object.assign(process.env, wrong);',
    'changes the folder': 'process.chdir(folder);',
    'changes the mask': 'process.umask(0);',
    'sets a global': 'globalThis.fetch = fake;',
    'replaces the clock': "t.mock.timers.enable({ apis: ['Date'] });",
    'replaces a method': "t.mock.method(fs.promises, 'rename');",
    'sets its exit code': 'process.exitCode = 7;',
    'hears a signal': "process.on('SIGTERM', end);",
    'measures memory': 'const before = process.memoryUsage.rss();',
    'measures time of the processor': 'const before = process.cpuUsage();',
    'has hooks around all tests': 'beforeEach(() => undefined);',
  };
  const place = write(t, alone);
  for (const name of Object.keys(alone)) assert.notEqual(whyAlone(place(name)), null, name);
});

test('a file that reads its process, or has hooks in a describe, shares one', (t) => {
  const shared = {
    'reads a variable': "const env = { ...process.env, KEY: 'x' }; if (process.env['CI'] === 'x') skip();",
    'starts a process with variables': "execFile(node, [], { env: { ...process.env, HOME: '/' } });",
    'cleans up at its end': "process.once('exit', () => rmSync(folder));",
    'has hooks of a describe': "describe('x', () => {\n  before(() => undefined);\n});",
    'imports a type of one that changes it': "import type { Open } from './opens.ts';",
    'opens.ts': "process.env['KEY'] = 'x';",
  };
  const place = write(t, shared);
  for (const name of Object.keys(shared).slice(0, -1)) assert.equal(whyAlone(place(name)), null, name);
});

test('what a helper does counts as the file’s own', (t) => {
  const place = write(t, {
    'a.test.ts': "import { one } from './helpers/one.ts';",
    'b.test.ts': "test('x', async () => (await import('./helpers/two.ts')).go());",
    'helpers/one.ts': "export { go as one } from './two.ts';",
    'helpers/two.ts': "process.env['KEY'] = 'x';",
  });
  for (const name of ['a.test.ts', 'b.test.ts'])
    assert.match(whyAlone(place(name)) ?? '', /helpers\/two\.ts changes environment variables$/);
});

test('processes hold the files of one folder up to a bound, and those that take longest start first', (t) => {
  const names = ['core/a', 'core/b', 'core/c', 'core/d', 'ui/e', 'ui/f.slow'].map((name) => `${name}.test.ts`);
  const place = write(t, { ...Object.fromEntries(names.map((name) => [name, ''])), 'ui/own.test.ts': 'gc();' });
  const files = [...names, 'ui/own.test.ts'].map(place);
  const processes = shareProcesses(files, { [place('core/b.test.ts')]: 30, [place('core/c.test.ts')]: 11.3 });
  const held = processes.map((one) => one.files.map((file) => path.basename(file, '.test.ts')).join(' '));
  assert.deepEqual(held.toSorted(), ['a c', 'b', 'd', 'e', 'f.slow', 'own'].toSorted());
  const seconds = processes.map((one) => one.seconds);
  assert.deepEqual(
    seconds,
    seconds.toSorted((one, other) => other - one),
  );
  assert.deepEqual(processes.flatMap((one) => one.files).toSorted(), files.toSorted(), 'each file once');
  assert.equal(new Set(processes.map(({ name }) => name)).size, processes.length);
});

test('a file against a real server takes turns with one that needs none', (t) => {
  const place = write(t, {});
  const files = ['e2e/a.e2e', 'e2e/b.e2e', 'ui/c.slow', 'ui/d.slow', 'ui/f.slow'].map((name) =>
    place(`${name}.test.ts`),
  );
  const seconds = Object.fromEntries(files.map((file, i) => [file, 100 - i]));
  const order = shareProcesses(files.toReversed(), seconds).map(({ name }) => path.basename(name, '.test'));
  assert.deepEqual(order, ['a.e2e', 'c.slow', 'b.e2e', 'd.slow', 'f.slow']);
});
