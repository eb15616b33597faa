/** A model folder comes from others. Links in it that leave its repository are refused, and opening its files never blocks. */
import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import { cp, mkdir, readFile, rename, rm, symlink, writeFile } from 'node:fs/promises';
import path from 'node:path';
import { test, type TestContext } from 'node:test';
import { readModelText, readTextFiles } from '../../engine/model/text-files.ts';
import { requireOwnFiles } from '../../engine/model/model-repository.ts';
import { loadModelFolder, loadParameters, saveModelFolder } from '../../engine/model/model-folder.ts';
import { loadTokenizer } from '../../engine/model/tokenizer/load-tokenizer.ts';
import { NotAFile, openRegular, openToAppend, readRegular, readRegularSync } from '../../host/regular-file.ts';
import { isModelFolder, nameOfFolder } from '../../cli/eval/subject/local-model.ts';
import { takeWeights, readVersion } from '../../backends/tinker/version-files.ts';
import { checkModel } from '../../load/checks/check-model.ts';
import { snapshotIn } from '../../backends/hub/hub-cache.ts';
import { preset, temporaryFolder } from './models.ts';

const secretText = 'a key of the user';

/** A preset model, a secret beside it, and what replaces one of its files. */
async function modelFolder(t: TestContext): Promise<{ readonly model: string; readonly secret: string }> {
  const folder = await temporaryFolder(t);
  const [model, secret] = [path.join(folder, 'model'), path.join(folder, 'secret')];
  await saveModelFolder(preset(), model);
  await writeFile(secret, secretText);
  return { model, secret };
}

const leadsOut = (error: Error): boolean =>
  error instanceof NotAFile && /found a link that leads out of .*model/.test(error.message);

test('a link that leads out of a model folder is refused by name, whichever file it replaces', async (t) => {
  const { model, secret } = await modelFolder(t);
  const optional = ['chat_template.jinja', 'additional_chat_templates/tool_use.jinja', 'generation_config.json', 'special_tokens_map.json', 'added_tokens.json', 'adapter_config.json']; // prettier-ignore
  for (const name of ['config.json', 'tokenizer.json', 'tokenizer_config.json', 'model.safetensors', ...optional]) {
    const file = path.join(model, name);
    const kept = path.join(path.dirname(model), 'kept');
    const isThere = await rename(file, kept).then(
      () => true,
      () => false,
    );
    await mkdir(path.dirname(file), { recursive: true });
    // The link is refused even if its target is the real file.
    await symlink(isThere ? kept : secret, file);
    await assert.rejects(loadModelFolder(model), leadsOut, name);
    await rm(file);
    if (isThere) await rename(kept, file);
  }
  const loaded = await loadModelFolder(model);
  assert.ok(!JSON.stringify(loaded.files).includes(secretText));
});

test('a folder in the model folder that links out of it does not count as one of its folders', async (t) => {
  const { model, secret } = await modelFolder(t);
  const outside = path.join(path.dirname(secret), 'templates');
  await mkdir(outside);
  await writeFile(path.join(outside, 'tool_use.jinja'), secretText);
  await symlink(outside, path.join(model, 'additional_chat_templates'));
  await assert.rejects(loadModelFolder(model), leadsOut);
  await assert.rejects(loadTokenizer(model), leadsOut);
});

test('a chain of links, a link by an absolute path and one to the folder above are refused as well', async (t) => {
  const { model, secret } = await modelFolder(t);
  const template = path.join(model, 'chat_template.jinja');
  for (const links of [
    [
      [secret, 'a'],
      ['a', 'chat_template.jinja'],
    ],
    [['../secret', 'chat_template.jinja']],
    [
      ['..', 'up'],
      ['up/secret', 'chat_template.jinja'],
    ],
  ]) {
    for (const [to, name] of links) await symlink(to!, path.join(model, name!));
    await assert.rejects(readTextFiles(model), leadsOut);
    for (const [, name] of links) await rm(path.join(model, name!));
  }
  // A link to another file in the folder is allowed, and so is a link to the folder itself.
  await writeFile(path.join(model, 'mine.jinja'), 'mine');
  await symlink('mine.jinja', template);
  assert.equal(await readModelText(model, 'chat_template.jinja'), 'mine');
  await symlink(model, path.join(path.dirname(model), 'again'));
  assert.equal(await readModelText(path.join(path.dirname(model), 'again'), 'chat_template.jinja'), 'mine');
});

/** The layout of huggingface_hub: every file of a snapshot is a link to a blob of its repository. */
async function cached(
  t: TestContext,
): Promise<{ readonly repository: string; readonly snapshot: string; readonly secret: string }> {
  // prettier-ignore
  const { model, secret } = await modelFolder(t);
  const repository = path.join(path.dirname(model), 'hub', 'models--owner--name');
  const snapshot = path.join(repository, 'snapshots', 'a'.repeat(40));
  await mkdir(path.join(repository, 'blobs'), { recursive: true });
  await mkdir(snapshot, { recursive: true });
  for (const name of ['config.json', 'tokenizer.json', 'tokenizer_config.json', 'model.safetensors']) {
    await cp(path.join(model, name), path.join(repository, 'blobs', `of-${name}`));
    await symlink(`../../blobs/of-${name}`, path.join(snapshot, name));
  }
  return { repository, snapshot, secret };
}

test("the links of the Hub's cache are followed to the blobs of their repository, and no further", async (t) => {
  const { repository, snapshot, secret } = await cached(t);
  const { parameters } = await loadModelFolder(snapshot);
  assert.equal(parameters.digest(), preset().parameters.digest());
  await loadTokenizer(snapshot);
  // Links into another repository of the cache are refused, also by way of a blob.
  const others = path.join(path.dirname(repository), 'models--owner--other', 'blobs');
  await mkdir(others, { recursive: true });
  await writeFile(path.join(others, 'x'), secretText);
  await symlink(secret, path.join(repository, 'blobs', 'linked'));
  for (const to of ['../../../models--owner--other/blobs/x', '../../blobs/linked', secret]) {
    await symlink(to, path.join(snapshot, 'chat_template.jinja'));
    await assert.rejects(loadModelFolder(snapshot), (error: Error) => /a link that leads out of/.test(error.message));
    await rm(path.join(snapshot, 'chat_template.jinja'));
  }
  // A folder that only has such a name has no repository above it.
  const { model } = await modelFolder(t);
  const called = path.join(path.dirname(model), 'snapshots', 'model');
  await mkdir(path.dirname(called));
  await rename(model, called);
  await writeFile(path.join(path.dirname(path.dirname(called)), 'above'), secretText);
  await symlink('../../above', path.join(called, 'chat_template.jinja'));
  await assert.rejects(loadModelFolder(called), leadsOut);
});

test('code that reads a single file of a model folder follows no other links', async (t) => {
  const { model, secret } = await modelFolder(t);
  await writeFile(path.join(model, 'adapter_config.json'), '{}');
  for (const [name, read] of [
    ['config.json', () => checkModel({ model } as Parameters<typeof checkModel>[0])],
    ['config.json', () => nameOfFolder(model)],
    ['tinker.json', () => readVersion(model)],
    ['adapter_model.safetensors', () => takeWeights(model, path.join(model, 'taken'))],
    ['extra.safetensors', () => nameOfFolder(model)],
    ['any', () => requireOwnFiles(model)],
  ] as const) {
    const file = path.join(model, name);
    const kept = await readFile(file).catch(() => null);
    await rm(file, { force: true });
    await symlink(secret, file);
    await assert.rejects(
      read().then((value) => assert.fail(`${name}: ${JSON.stringify(value)}`)),
      (error: Error) => leadsOut(error) || leadsOut(error.cause as Error),
      name,
    );
    await rm(file);
    if (kept) await writeFile(file, kept);
  }
  await requireOwnFiles(model);
  assert.ok(isModelFolder(model));
});

test(
  'anything but a regular file is refused at once, wherever a model folder should have one',
  { timeout: 120_000 },
  async (t) => {
    const { model } = await modelFolder(t);
    for (const name of ['model.safetensors', 'config.json', 'chat_template.jinja', 'adapter_config.json']) {
      const file = path.join(model, name);
      const kept = await readFile(file).catch(() => null);
      for (const put of [() => execFileSync('mkfifo', [file]), () => mkdir(file), () => symlink('/dev/zero', file)]) {
        await rm(file, { force: true, recursive: true });
        await put();
        await assert.rejects(loadModelFolder(model), /expected a file, found a/, name);
      }
      await rm(file, { force: true, recursive: true });
      if (kept) await writeFile(file, kept);
    }
    await rm(path.join(model, 'model.safetensors'));
    execFileSync('mkfifo', [path.join(model, 'model.safetensors')]);
    await assert.rejects(loadParameters(model), /found a FIFO/);
    await assert.rejects(nameOfFolder(model), /found a FIFO/);
    await assert.rejects(requireOwnFiles(model), /found a FIFO/);
    const hub = path.join(path.dirname(model), 'models--a--b');
    await mkdir(path.join(hub, 'refs'), { recursive: true });
    execFileSync('mkfifo', [path.join(hub, 'refs', 'main')]);
    assert.equal(snapshotIn(hub), null);
  },
);

test('a file opened for appending is a regular file, and is created if missing', async (t) => {
  const folder = await temporaryFolder(t);
  const file = path.join(folder, 'log');
  for (const line of ['one\n', 'two\n']) {
    const handle = await openToAppend(file, { within: [folder] });
    await handle.appendFile(line);
    await handle.close();
  }
  assert.equal(await readFile(file, 'utf8'), 'one\ntwo\n');
  await symlink(file, path.join(folder, 'link'));
  await assert.rejects(openToAppend(path.join(folder, 'link')), /found a link/);
  await assert.rejects(openRegular(path.join(folder, 'link'), { links: 'refused' }), /found a link/);
  assert.equal(String(await readRegular(path.join(folder, 'link'), 100, { within: [folder] })), 'one\ntwo\n');
  execFileSync('mkfifo', [path.join(folder, 'fifo')]);
  await assert.rejects(openToAppend(path.join(folder, 'fifo')), NotAFile);
  const elsewhere = await temporaryFolder(t);
  await symlink(elsewhere, path.join(folder, 'out'));
  await writeFile(path.join(elsewhere, 'x'), 'x');
  const through = path.join(folder, 'out', 'x');
  await assert.rejects(openToAppend(through, { within: [folder] }), /leads out of/);
  assert.throws(() => readRegularSync(through, 10, { within: [folder] }), /leads out of/);
  // A folder whose name has the same prefix is another folder.
  await mkdir(`${folder}-other`);
  t.after(() => rm(`${folder}-other`, { recursive: true }));
  await writeFile(`${folder}-other/x`, 'x');
  await symlink(`${folder}-other/x`, path.join(folder, 'alike'));
  await assert.rejects(openRegular(path.join(folder, 'alike'), { within: [folder] }), /leads out of/);
});
