/** `ratchet model export` of a folder with an adapter: all three forms are that policy. */
import assert from 'node:assert/strict';
import { execFile } from 'node:child_process';
import { mkdir, readFile } from 'node:fs/promises';
import path from 'node:path';
import { test } from 'node:test';
import { fileURLToPath } from 'node:url';
import { namedVersion } from '../../cli/stored/open-version.ts';
import { createAdapter, loadModelFolder, readGguf, saveAdapterFolder, saveModelFolder } from '../../engine/index.ts';
import { temporaryFolder } from '../engine/models.ts';

const ratchet = fileURLToPath(new URL('../../cli/ratchet.mjs', import.meta.url));
const tiny = fileURLToPath(new URL('../data/gguf/tiny-llama.gguf', import.meta.url));

const run = (cwd: string, ...args: string[]): Promise<{ code: number; said: string }> =>
  new Promise((resolve) =>
    execFile(process.execPath, [ratchet, ...args], { cwd, env: { ...process.env, HOME: cwd } }, (error, out, err) =>
      resolve({ code: error === null ? 0 : Number(error.code), said: out + err }),
    ),
  );

test('a folder with an adapter is written for llama.cpp, for transformers and for PEFT', async (t) => {
  const folder = await temporaryFolder(t);
  const base = await readGguf(tiny);
  await mkdir(path.join(folder, 'base'));
  await saveModelFolder(base, path.join(folder, 'base'));
  const lora = { r: 2, alpha: 4, dropout: 0, targetModules: ['q_proj', 'down_proj'] };
  const adapter = createAdapter(base.config, lora, 1);
  adapter.flat.fill(0.01);
  const baseDigest = base.parameters.digest();
  await saveAdapterFolder({ adapter, base: '../base', baseDigest }, path.join(folder, 'policy'));

  const [gguf, merged, peft] = ['--gguf=out.gguf', '--merged=merged', '--adapter=peft'];
  const { code, said } = await run(folder, 'model', 'export', './policy', gguf, merged, peft, '--type', 'f32');
  assert.equal(code, 0, said);
  assert.match(
    said,
    /out\.gguf: GGUF, f32, for llama\.cpp\n {2}merged: safetensors, float32, .*\n {2}peft: adapter for PEFT, on .*base/,
  );
  const policy = await loadModelFolder(path.join(folder, 'policy'));
  assert.notDeepEqual(policy.parameters.flat, base.parameters.flat);
  for (const back of [
    await readGguf(path.join(folder, 'out.gguf')),
    await loadModelFolder(path.join(folder, 'merged')),
  ]) {
    assert.deepEqual(back.parameters.flat, policy.parameters.flat);
    assert.deepEqual(back.tokenizer.encode('the end'), policy.tokenizer.encode('the end'));
  }
  assert.equal((await loadModelFolder(path.join(folder, 'peft'))).parameters.digest(), policy.parameters.digest());
  const config = JSON.parse(await readFile(path.join(folder, 'peft/adapter_config.json'), 'utf8')) as object;
  assert.deepEqual(config, { ...config, base_model_name_or_path: path.join(folder, 'base'), r: 2, lora_alpha: 4 });

  const again = await run(folder, 'model', 'export', './policy', gguf);
  assert.match(again.said, /expected a place where nothing is yet, got .*out\.gguf/);
  assert.equal(again.code, 2);
});

test('a GGUF file that is not there, and a folder that cannot be made, are one line each', async (t) => {
  const folder = await temporaryFolder(t);
  const absent = await run(folder, 'model', 'import', 'none.gguf');
  assert.equal(absent.said, 'none.gguf: expected a GGUF file, but there is no such file.\n');
  const nowhere = await run(folder, 'model', 'import', tiny, '--out', 'no/such');
  assert.match(
    nowhere.said,
    /^expected a folder in one that is there, got .*no.such\. Name another one with --out\.\n$/,
  );
  assert.deepEqual([absent.code, nowhere.code], [2, 2]);
});

test('an import goes into the empty folder that one before it left, and into no other', async (t) => {
  const folder = await temporaryFolder(t);
  await mkdir(path.join(folder, 'made'));
  const first = await run(folder, 'model', 'import', tiny, '--out', 'made');
  assert.equal(first.code, 0, first.said);
  const second = await run(folder, 'model', 'import', tiny, '--out', 'made');
  assert.match(second.said, /^expected a folder that is not there yet, or is empty, got .*made\. Name another one/);
  assert.equal(second.code, 2);
  assert.ok((await loadModelFolder(path.join(folder, 'made'))).parameters.flat.length > 0);
});

test('RUN@STEP names a step of a run, with or without v; beside --step it is refused', () => {
  assert.deepEqual(namedVersion('my-run@40', undefined), { run: 'my-run', step: '40' });
  assert.deepEqual(namedVersion('my-run@v0', undefined), { run: 'my-run', step: '0' });
  assert.deepEqual(namedVersion('my-run', '3'), { run: 'my-run', step: '3' });
  assert.deepEqual(namedVersion('me@home', undefined), { run: 'me@home', step: undefined });
  assert.throws(() => namedVersion('my-run@40', '3'), /--step: expected nothing beside my-run@40/);
});
