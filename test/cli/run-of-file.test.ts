/** `train FILE`, typed again after `--fresh`: the run that has the file's settings. */
import assert from 'node:assert/strict';
import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import os from 'node:os';
import path from 'node:path';
import { test, type TestContext } from 'node:test';
import { loadRunConfig } from '../../load/load-run-config.ts';
import { openRunStore } from '../../store/index.ts';
import { encodeJson } from '../../store/objects.ts';
import { runOfFile } from '../../cli/start/run-of-file.ts';
import type { RunSpec } from '../../config/run-spec.ts';
import { layout } from '../../runs/layout.ts';

const config = `model = "preset:reverse-text-0.2m"
max_steps = 2
[[env]]
id = "reverse-text"
`;

async function project(t: TestContext) {
  const projectFolder = await mkdtemp(path.join(os.tmpdir(), 'ratchet-run-of-file-'));
  t.after(() => rm(projectFolder, { recursive: true, force: true }));
  await writeFile(path.join(projectFolder, 'shop.toml'), config);
  const specOf = async (overrides: Readonly<Record<string, string>>): Promise<RunSpec> =>
    (await loadRunConfig('shop.toml', { projectFolder, overrides })).spec;
  const begin = async (name: string, overrides: Readonly<Record<string, string>>): Promise<void> => {
    const spec = { ...(await specOf(overrides)), name };
    const store = openRunStore(spec.store.uri, name);
    await store.putIfAbsent(layout.run(), encodeJson({ schemaVersion: 1, name, spec }));
  };
  const meant = async (overrides: Readonly<Record<string, string>>) =>
    runOfFile(await specOf(overrides), { file: 'shop.toml', overrides: {} });
  return { begin, meant };
}

test('the run of the file’s name is meant as long as no other has its settings', async (t) => {
  const { begin, meant } = await project(t);
  const usual = { run: 'shop', says: null };
  assert.deepEqual(await meant({}), usual);
  await begin('shop', {});
  assert.deepEqual([await meant({}), await meant({ 'batch-size': '16' })], [usual, usual]);
  await begin('shop-8258', { 'batch-size': '16' });
  await begin('shop-again', { 'batch-size': '24' });
  assert.deepEqual([await meant({}), await meant({ 'batch-size': '24' })], [usual, usual]);
});

test('after a changed file with --fresh, the new run is meant, which is said', async (t) => {
  const { begin, meant } = await project(t);
  await begin('shop', {});
  await begin('shop-8258', { 'batch-size': '16' });
  const { run, says } = await meant({ 'batch-size': '16' });
  assert.equal(run, 'shop-8258');
  assert.match(
    says!,
    /the run is shop-8258, .* shop has others \(to continue that: npx ratchet-rl train shop\.toml --name shop\)/,
  );
  // More steps of the new run are the new run too.
  assert.equal((await meant({ 'batch-size': '16', 'max-steps': '9' })).run, 'shop-8258');
});

test('a change that the old run could take is the new run’s where that has exactly these settings', async (t) => {
  const { begin, meant } = await project(t);
  await begin('shop', {});
  await begin('shop-8258', { 'learning-rate': '0.5' });
  assert.equal((await meant({ 'learning-rate': '0.5' })).run, 'shop-8258');
  assert.equal((await meant({ 'learning-rate': '0.25' })).run, 'shop');
});

test('of several new runs with these settings each is named with its command', async (t) => {
  const { begin, meant } = await project(t);
  await begin('shop', {});
  for (const name of ['shop-8258', 'shop-91af']) await begin(name, { 'batch-size': '16' });
  await assert.rejects(
    meant({ 'batch-size': '16' }),
    /other settings than the file has now[^]*train shop\.toml --name shop-8258\n {2}\S+ ratchet-rl train shop\.toml --name shop-91af\n {2}\S+ ratchet-rl train shop\.toml --name shop$/,
  );
});
