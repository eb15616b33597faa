/** `ratchet chat` with a folder: a model's, an adapter's, and the model before its training beside it. */
import assert from 'node:assert/strict';
import { execFile } from 'node:child_process';
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { test } from 'node:test';
import { fileURLToPath } from 'node:url';
import { createAdapter, createPreset, saveAdapterFolder, saveModelFolder } from '../../engine/index.ts';

const ratchet = fileURLToPath(new URL('../../cli/ratchet.mjs', import.meta.url));

function chat(args: readonly string[], prompt: string): Promise<{ code: number; said: string }> {
  return new Promise((resolve) => {
    const child = execFile(process.execPath, [ratchet, 'chat', ...args], (error, stdout, stderr) =>
      resolve({ code: error === null ? 0 : Number(error.code), said: stdout + stderr }),
    );
    child.stdin!.end(prompt);
  });
}

test('a folder of an adapter answers, and its base before it; a whole model does not say what it was trained from', async (t) => {
  const folder = await mkdtemp(path.join(tmpdir(), 'chat-'));
  t.after(() => rm(folder, { recursive: true }));
  const [model, adapted] = [path.join(folder, 'model'), path.join(folder, 'adapter')];
  const preset = createPreset('preset:reverse-text-0.2m', { seed: 1 });
  await saveModelFolder(preset, model);
  const lora = { r: 2, alpha: 4, dropout: 0, targetModules: ['q_proj', 'v_proj', 'o_proj', 'up_proj', 'down_proj'] };
  const adapter = createAdapter(preset.config, lora, 0);
  for (let i = 0; i < adapter.flat.length; i++) adapter.flat[i] = Math.sin(i);
  const { 'config.json': _, ...files } = preset.files;
  await saveAdapterFolder({ adapter, base: model, baseDigest: preset.parameters.digest(), files }, adapted);

  const usual = ['--max-tokens', '12', '--temperature', '0'];
  const alone = await chat([model, ...usual], 'abcd\n');
  assert.equal(alone.code, 0, alone.said);
  const both = await chat([adapted, '--compare', ...usual], 'abcd\n');
  assert.equal(both.code, 0, both.said);
  const [, before, after] = /^before {2}(.*)\nafter {3}(.*)\n$/s.exec(both.said) ?? [];
  assert.equal(`${before}\n`, alone.said);
  assert.notEqual(after, before);

  const refused = await chat([model, '--compare'], 'abcd\n');
  assert.match(refused.said, /--compare: expected an adapter's folder, or a run: .* is a whole model/);
  assert.notEqual(refused.code, 0);
});
