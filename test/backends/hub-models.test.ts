import assert from 'node:assert/strict';
import { mkdirSync, mkdtempSync, readdirSync, readFileSync, readlinkSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { after, before, beforeEach, describe, test, type TestContext } from 'node:test';
import { checkConfigText } from '../../load/checks/check-model.ts';
import { loadRunConfig } from '../../load/load-run-config.ts';
import { notHere } from '../../load/checks/model-of-hub.ts';
import { getModel } from '../../backends/hub/get-model.ts';
import { findCached } from '../../backends/hub/hub-cache.ts';
import { type HubSettings, hubSettings } from '../../backends/hub/hub-settings.ts';
import { writePreset } from '../../backends/testing/index.ts';
import { modelName } from '../../core/names.ts';
import { openModel } from '../../engine/index.ts';
import { repositoryOf, sha256, startHub, type StandInHub } from '../stand-ins/hub.ts';

const id = 'ratchet/reverse-text';

let hub: StandInHub;
let folder: string;

before(async () => {
  hub = await startHub();
  folder = await writePreset(path.join(mkdtempSync(path.join(tmpdir(), 'hub-model-')), 'model'));
});
after(async () => {
  await hub.close();
  rmSync(path.dirname(folder), { recursive: true, force: true });
});
beforeEach(() => {
  (hub.requests as string[]).length = 0;
  hub.breaks.length = 0;
  hub.troubles.length = 0;
  hub.models.clear();
  hub.models.set(
    id,
    repositoryOf(folder, {
      add: { 'README.md': '# model', 'modeling.py': 'raise SystemExit', 'pytorch_model.bin': 'pickle' },
    }),
  );
});

function settingsIn(t: TestContext, more: Partial<HubSettings> = {}): HubSettings {
  const cache = mkdtempSync(path.join(tmpdir(), 'hub-cache-'));
  t.after(() => rmSync(cache, { recursive: true, force: true }));
  return { endpoint: hub.url, cache, isOffline: false, token: null, ...more };
}

const whole = { id, parts: 'weights' } as const;
const downloads = (): string[] => hub.requests.filter((line) => line.startsWith('storage'));

test('a model is fetched into the layout of the Hugging Face cache: contents by digest, a snapshot of links, a branch', async (t) => {
  const settings = settingsIn(t);
  const seen: number[] = [];
  const got = await getModel(settings, { ...whole, onProgress: ({ bytes }) => seen.push(bytes) });
  const repository = path.join(settings.cache, 'models--ratchet--reverse-text');
  assert.equal(got.folder, path.join(repository, 'snapshots', 'a'.repeat(40)));
  assert.equal(readFileSync(path.join(repository, 'refs/main'), 'utf8'), 'a'.repeat(40));
  const weights = readFileSync(path.join(folder, 'model.safetensors'));
  assert.equal(readlinkSync(path.join(got.folder, 'model.safetensors')), `../../blobs/${sha256(weights)}`);
  assert.deepEqual(readFileSync(path.join(got.folder, 'model.safetensors')), weights);
  assert.deepEqual(
    readdirSync(got.folder).filter((name) => /README|\.py|\.bin/.test(name)),
    [],
  );
  assert.equal(seen.at(-1), got.bytes);
  assert.deepEqual(
    readdirSync(path.join(repository, 'blobs')).filter((name) => !/^[0-9a-f]+$/.test(name)),
    [],
  );
  const opened = await openModel(got.folder, { seed: 0 });
  assert.ok(opened);
});

test('what is here is not fetched again, and a new commit fetches what is new alone', async (t) => {
  const settings = settingsIn(t);
  await getModel(settings, whole);
  const before = downloads().length;
  const again = await getModel(settings, whole);
  assert.equal(again.wasHere, true);
  assert.equal(downloads().length, before);
  hub.models.set(
    id,
    repositoryOf(folder, { commit: 'b'.repeat(40), add: { 'generation_config.json': '{"top_k": 3}' } }),
  );
  const next = await getModel(settings, whole);
  assert.equal(next.commit, 'b'.repeat(40));
  assert.equal(downloads().length, before);
});

test('connections that are cut are continued from the byte they had reached, also by a later command', async (t) => {
  const settings = settingsIn(t);
  hub.breaks.push(1000, 2000);
  const got = await getModel(settings, whole);
  assert.deepEqual(
    readFileSync(path.join(got.folder, 'model.safetensors')),
    readFileSync(path.join(folder, 'model.safetensors')),
  );
  assert.ok(
    downloads().some((line) => /bytes=[1-9]\d*-/.test(line)),
    downloads().join('\n'),
  );

  const later = settingsIn(t);
  const digest = sha256(readFileSync(path.join(folder, 'model.safetensors')));
  const blobs = path.join(later.cache, 'models--ratchet--reverse-text/blobs');
  mkdirSync(blobs, { recursive: true });
  hub.breaks.push(...Array.from({ length: 40 }, () => 0));
  await assert.rejects(getModel(later, whole), {
    code: 'ServerUnavailable',
    message: /What is here is kept: type the same again/,
  });
  hub.breaks.length = 0;
  await getModel(later, whole);
  assert.ok(readdirSync(blobs).includes(digest));
});

test('what has another digest is refused and deleted', async (t) => {
  const settings = settingsIn(t);
  const digest = sha256(readFileSync(path.join(folder, 'model.safetensors')));
  const blobs = path.join(settings.cache, 'models--ratchet--reverse-text/blobs');
  mkdirSync(blobs, { recursive: true });
  const { hostname } = await import('node:os');
  writeFileSync(path.join(blobs, `${digest}.${hostname()}.ratchet-incomplete`), 'not the beginning of it');
  await assert.rejects(getModel(settings, whole), {
    code: 'CheckpointDamaged',
    message: /model\.safetensors has the digest/,
  });
  await getModel(settings, whole);
});

test('two at once leave one whole model', async (t) => {
  const settings = settingsIn(t);
  const [one, other] = await Promise.all([getModel(settings, whole), getModel(settings, whole)]);
  assert.equal(one.folder, other.folder);
  assert.deepEqual(findCached(settings.cache, id, 'weights')?.missing, []);
});

test('where a list has no digests, those of the headers count; a model that was renamed is followed', async (t) => {
  hub.models.set('ratchet/old-name', { ...repositoryOf(folder), movedTo: id });
  hub.models.set(id, repositoryOf(folder, { listsDigests: false }));
  const settings = settingsIn(t);
  const got = await getModel(settings, { ...whole, id: 'ratchet/old-name' });
  assert.deepEqual(
    readFileSync(path.join(got.folder, 'model.safetensors')),
    readFileSync(path.join(folder, 'model.safetensors')),
  );
  assert.ok(hub.requests.some((line) => line.startsWith('HEAD')));
});

describe('a gated model', () => {
  test('is refused without a token and with one that has no access, with where its conditions are', async (t) => {
    hub.models.set(id, repositoryOf(folder, { gate: 'hf_right' }));
    const settings = settingsIn(t);
    await assert.rejects(getModel(settings, whole), {
      code: 'ModelUnsupported',
      message: new RegExp(`is gated: .*${hub.url}/${id}\\. There is no token here: \`hf auth login\`, or set HF_TOKEN`),
    });
    await assert.rejects(getModel(settingsIn(t, { token: { value: 'hf_wrong', from: 'HF_TOKEN' } }), whole), {
      message: /The token of HF_TOKEN has no access to it/,
    });
    assert.deepEqual(readdirSync(settings.cache), [], 'nothing is left behind');
  });

  test('is fetched with the right token, which is not shown to the server that stores large files', async (t) => {
    hub.models.set(id, repositoryOf(folder, { gate: 'hf_right' }));
    await getModel(settingsIn(t, { token: { value: 'hf_right', from: 'HF_TOKEN' } }), whole);
    assert.ok(downloads().length > 0);
    assert.deepEqual(
      downloads().filter((line) => line.includes('hf_right')),
      [],
    );
    assert.ok(hub.requests.some((line) => line.startsWith('GET') && line.includes('hf_right')));
  });
});

test('what is not there, and what has no safetensors, is refused before anything is fetched', async (t) => {
  const settings = settingsIn(t);
  await assert.rejects(getModel(settings, { ...whole, id: 'no/such' }), {
    code: 'ModelUnsupported',
    message: /is not there, or is not shown to everybody \(401\)/,
  });
  await assert.rejects(getModel(settings, { ...whole, revision: 'v9' }), { message: /has no revision v9/ });
  await assert.rejects(getModel(settings, { ...whole, revision: '../x' }), { code: 'ConfigInvalid' });
  const { files } = repositoryOf(folder, { add: { 'pytorch_model.bin': 'pickle' } });
  hub.models.set(id, {
    commit: 'a'.repeat(40),
    files: new Map([...files].filter(([name]) => !name.endsWith('.safetensors'))),
  });
  await assert.rejects(getModel(settings, whole), {
    message: /expected its weights as safetensors.* got pytorch_model\.bin/,
  });
  assert.deepEqual(downloads(), []);
});

test('what the embedded engine cannot compute is said from config.json, before any weights are fetched', async (t) => {
  hub.models.set(id, repositoryOf(folder, { add: { 'config.json': '{"model_type": "glm4_moe"}' } }));
  const accept = (config: string): void => void checkConfigText(config, 'config.json', { lora: null, sft: null });
  await assert.rejects(getModel(settingsIn(t), { ...whole, accept }), {
    code: 'ModelUnsupported',
    message: /glm4_moe/,
  });
  assert.deepEqual(downloads(), []);
});

test('a busy server is asked again', async (t) => {
  hub.troubles.push(503, 429);
  await getModel(settingsIn(t), whole);
});

test('offline, what is in the cache is taken and nothing is asked', async (t) => {
  const settings = settingsIn(t);
  await assert.rejects(getModel({ ...settings, isOffline: true }, whole), {
    message: /HF_HUB_OFFLINE says that nothing is fetched/,
  });
  const { folder: there } = await getModel(settings, whole);
  (hub.requests as string[]).length = 0;
  const got = await getModel({ ...settings, isOffline: true }, whole);
  assert.equal(got.folder, there);
  assert.deepEqual(hub.requests, []);
});

test('shards that an index names are fetched, and no other weights', async (t) => {
  const { files } = repositoryOf(folder);
  const weights = files.get('model.safetensors')!;
  const index = JSON.stringify({
    weight_map: { a: 'model-00001-of-00002.safetensors', b: 'model-00002-of-00002.safetensors' },
  });
  const sharded = new Map([...files].filter(([name]) => name !== 'model.safetensors'));
  for (const name of [
    'model-00001-of-00002.safetensors',
    'model-00002-of-00002.safetensors',
    'consolidated.safetensors',
  ])
    sharded.set(name, Buffer.concat([weights, Buffer.from(name)]));
  sharded.set('model.safetensors.index.json', Buffer.from(index));
  hub.models.set(id, { commit: 'a'.repeat(40), files: sharded });
  const settings = settingsIn(t);
  const got = await getModel(settings, whole);
  assert.deepEqual(
    readdirSync(got.folder).filter((name) => name.endsWith('.safetensors')),
    ['model-00001-of-00002.safetensors', 'model-00002-of-00002.safetensors'],
  );
  rmSync(path.join(got.folder, 'model-00002-of-00002.safetensors'));
  assert.deepEqual(findCached(settings.cache, id, 'weights')?.missing, ['model-00002-of-00002.safetensors']);
  assert.deepEqual(findCached(settings.cache, id, 'texts')?.missing, []);
});

test('a run file finds a model of the cache by its name, whatever machine the cache is on', async (t) => {
  const settings = settingsIn(t);
  const got = await getModel(settings, whole);
  const before = process.env['HF_HUB_CACHE'];
  process.env['HF_HUB_CACHE'] = settings.cache;
  t.after(() => {
    if (before === undefined) delete process.env['HF_HUB_CACHE'];
    else process.env['HF_HUB_CACHE'] = before;
  });
  const projectFolder = mkdtempSync(path.join(tmpdir(), 'hub-run-'));
  t.after(() => rmSync(projectFolder, { recursive: true, force: true }));
  writeFileSync(path.join(projectFolder, 'run.toml'), `model = "${id}"\n[[env]]\nid = "reverse-text"\n`);
  const { spec } = await loadRunConfig('run.toml', { projectFolder });
  assert.equal(spec.model, got.folder);
  assert.equal(modelName(spec.model), `${id}@${'a'.repeat(40)}`);
});

test('the environment is read as huggingface_hub reads it', (t) => {
  const home = mkdtempSync(path.join(tmpdir(), 'hub-home-'));
  t.after(() => rmSync(home, { recursive: true, force: true }));
  const usual = hubSettings({}, home);
  assert.deepEqual(usual, {
    endpoint: 'https://huggingface.co',
    cache: path.join(home, '.cache/huggingface/hub'),
    isOffline: false,
    token: null,
  });
  mkdirSync(path.join(home, 'h'));
  writeFileSync(path.join(home, 'h/token'), 'hf_file\n');
  const set = hubSettings({ HF_HOME: '~/h', HF_ENDPOINT: 'http://mirror/', HF_HUB_OFFLINE: 'YES' }, home);
  assert.deepEqual(set, {
    endpoint: 'http://mirror',
    cache: path.join(home, 'h/hub'),
    isOffline: true,
    token: { value: 'hf_file', from: path.join(home, 'h/token') },
  });
  assert.equal(hubSettings({ HF_TOKEN: 'hf_variable', HF_HOME: '~/h' }, home).token?.from, 'HF_TOKEN');
  assert.equal(hubSettings({ HF_HUB_CACHE: '/x', HF_HOME: '~/h' }, home).cache, '/x');
});

test('a mixture that the engine computes is too large or not, and is called nothing else', async (t) => {
  const project = mkdtempSync(path.join(tmpdir(), 'hub-mixture-'));
  t.after(() => rmSync(project, { recursive: true, force: true }));
  const why = async (model: string): Promise<string> => {
    writeFileSync(path.join(project, 'run.toml'), `model = "${model}"\n[[env]]\nid = "reverse-text"\n`);
    const { spec } = await loadRunConfig('run.toml', { projectFolder: project, isOnlyLookedAt: true });
    return notHere(spec, 'model').says;
  };
  assert.doesNotMatch(await why('Qwen/Qwen3-30B-A3B'), /dense|experts/);
  assert.match(await why('PrimeIntellect/INTELLECT-3'), /experts that every token goes through.*computes neither/);
});
