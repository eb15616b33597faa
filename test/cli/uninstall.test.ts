import assert from 'node:assert/strict';
import { existsSync } from 'node:fs';
import { mkdir, mkdtemp, rm, writeFile } from 'node:fs/promises';
import { createServer } from 'node:net';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { afterEach, beforeEach, test } from 'node:test';
import { leftHere, uninstall } from '../../cli/commands/services/uninstall.ts';

let root: string;
const at = (name: string): string => path.join(root, name);
const write = async (name: string, bytes = 1_000): Promise<void> => {
  await mkdir(path.dirname(at(name)), { recursive: true });
  await writeFile(at(name), Buffer.alloc(bytes));
};
const places = () => ({
  projectFolder: at('here'),
  home: at('home'),
  cache: at('cache'),
  hub: at('hub'),
  temporary: at('tmp'),
  built: at('built'),
});
const nobody = { isThere: false, ask: () => Promise.reject(new Error('nobody is asked')) };
const quietly = { json: true, asker: nobody };

beforeEach(async () => {
  root = await mkdtemp(path.join(tmpdir(), 'ratchet-uninstall-'));
  process.env['RATCHET_RUNTIME_DIR'] = await mkdtemp(path.join(tmpdir(), 'rtc-'));
  await write('here/outputs/words/run.json', 1_500);
  await write('here/outputs/sums/run.json');
  await write('here/outputs/evals/words/results.jsonl');
  await write('here/words.toml');
  await write('here/.ratchet/temporal.db', 2_000_000);
  await write('here/.ratchet/granted');
  await write('here/.ratchet/python/v1/bin/python');
  await write('here/node_modules/ratchet-rl/package.json');
  await write('cache/temporal-cli-1.5.1/temporal', 3_000_000);
  await write('hub/models--a--b/blobs/x');
  await write('built/main.mjs');
  await write('tmp/ratchet-rows-x/rows');
});
afterEach(async () => {
  await rm(root, { recursive: true, force: true });
  await rm(process.env['RATCHET_RUNTIME_DIR']!, { recursive: true, force: true });
});

test('what is left is listed with sizes, and why something stays', async () => {
  const left = await leftHere(['sums'], places());
  const told = left.map(({ path: file, what, stays }) => [path.relative(root, file), what.split(/[ ,:]/)[0], stays]);
  assert.deepEqual(told, [
    ['here/outputs/evals', 'evaluations', 'yours'],
    ['here/outputs/sums', 'a', null],
    ['here/outputs/words', 'a', 'yours; to remove it: npx ratchet-rl uninstall words'],
    ['here/.ratchet/granted', 'grants', null],
    ['here/.ratchet/python', 'Python', null],
    ['here/.ratchet/temporal.db', 'database', null],
    ['built', 'programs', null],
    ['here/node_modules', 'packages', 'npm’s: npm uninstall ratchet-rl'],
    ['cache/temporal-cli-1.5.1', 'Temporal', null],
    ['hub', 'models', 'other programs use it, too'],
    ['tmp/ratchet-rows-x', 'temporary', null],
  ]);
  assert.ok(left[5]!.bytes >= 2_000_000);
});

test('nothing is removed without a yes', async () => {
  const before = await leftHere([], places());
  assert.equal(await uninstall([], { ...quietly, yes: false, places: places() }), 0);
  const asker = { isThere: true, ask: () => Promise.resolve('') };
  assert.equal(await uninstall([], { ...quietly, asker, yes: false, places: places() }), 0);
  assert.deepEqual(await leftHere([], places()), before);
});

test('a yes removes all but runs that are not named, files of the user, and what others use', async () => {
  const asker = { isThere: true, ask: () => Promise.resolve('y') };
  assert.equal(await uninstall(['sums'], { ...quietly, asker, yes: false, places: places() }), 0);
  for (const stays of [
    'here/words.toml',
    'here/outputs/words/run.json',
    'here/outputs/evals',
    'here/node_modules',
    'hub',
  ])
    assert.ok(existsSync(at(stays)), stays);
  for (const gone of ['here/outputs/sums', 'here/.ratchet', 'built', 'cache/temporal-cli-1.5.1', 'tmp/ratchet-rows-x'])
    assert.ok(!existsSync(at(gone)), gone);
});

test('a name that is no run removes nothing', async () => {
  const typo = uninstall(['wrods'], { ...quietly, yes: true, places: places() });
  await assert.rejects(typo, /"wrods": expected a run below .*There are: sums, words\. Nothing was removed/);
  assert.ok(existsSync(at('built')));
});

test('nothing is removed while Ratchet runs', async (t) => {
  const server = createServer().listen(path.join(process.env['RATCHET_RUNTIME_DIR']!, `a.b.${process.pid}.sock`));
  t.after(() => server.close());
  const refused = uninstall([], { ...quietly, yes: true, places: places() });
  await assert.rejects(refused, new RegExp(`Nothing was removed: Ratchet runs .* kill ${process.pid}`));
  assert.ok(existsSync(at('built')));
});

test('a run that is named is removed by those whose role lets them', async () => {
  await writeFile(at('here/roles.toml'), '[users.eve]\nrole = "admin"\n');
  await assert.rejects(uninstall(['words'], { ...quietly, yes: true, places: places() }), {
    name: 'NotAllowed',
    message: /: who owns words is not known, so uninstall asks for the role admin \(eve\)\.$/,
  });
  assert.ok(existsSync(at('here/outputs/words/run.json')) && existsSync(at('here/.ratchet/temporal.db')));
});
