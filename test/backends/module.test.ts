import assert from 'node:assert/strict';
import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { test, type TestContext } from 'node:test';
import { loadRunConfig } from '../../load/load-run-config.ts';
import { openInference } from '../../backends/inference/index.ts';
import { openTrainer } from '../../backends/trainer/index.ts';

const config = `
model = "preset:reverse-text-0.2m"
max_steps = 2
batch_size = 8
rollouts_per_example = 4
[[env]]
id = "reverse-text"
`;

test('a trainer and an inference of one’s own are files named in the config, called with its options', async (t) => {
  const folder = await project(t, {
    'own.js': 'export default (args) => ({ ...args, sample: async () => args.says, bringTo: async () => {} });',
  });
  const { spec, warnings } = await load(
    folder,
    '[inference]\nkind = "module"\nimport = "./own.js"\noptions = { says = 7 }',
  );
  assert.equal(await openInference(spec.inference, '').sample({} as never), 7);
  assert.match(warnings.join(), /executes code of its own: .*own\.js/);
});

test('what a module must export is said when it does not', async (t) => {
  const folder = await project(t, {
    'half.js': 'export default () => ({ open() {}, close() {} });',
    'none.js': 'export const trainer = 1;',
  });
  const open = async (file: string): Promise<unknown> => {
    const { spec } = await load(folder, `[trainer]\nkind = "module"\nimport = "./${file}"`);
    return openTrainer(spec.trainer);
  };
  await assert.rejects(open('half.js'), /half\.js: .* missing: trainStep, sftStep, digest/);
  await assert.rejects(open('none.js'), /none\.js must export the custom trainer as its default/);
  await assert.rejects(open('gone.js'), /run\.toml:\d+:1 {2}trainer\.import\n[\s\S]*gone\.js: there is no such file/);
  await assert.rejects(load(folder, '[trainer]\nkind = "module"'), /a file with the code, because kind is "module"/);
  await assert.rejects(load(folder, '[inference]\nimport = "./none.js"'), /nothing, or kind = "module"/);
});

test('what a trainer of one’s own answers is looked at: no version is made of a loss that is no number, or of an answer without a digest; what it throws is the engine’s failure', async (t) => {
  const trainer = (outcome: string): string => `
const digest = 'a'.repeat(64);
export default () => ({
  open: async () => ({ digest }), digest: async () => digest, trainStep: async () => (${outcome}),
  sftStep: async () => ({ applied: true, metrics: { loss: NaN } }), exportTo: async () => {}, saveOptimizer: async () => new Uint8Array(),
  restoreOptimizer: async () => {}, close: async () => {}, fingerprint: async () => 'mine',
});`;
  const folder = await project(t, {
    'good.js': trainer('{ applied: true, digest, metrics: { loss: 1 } }'),
    'refuses.js': trainer("{ applied: false, reason: 'the loss is NaN', digest, metrics: { loss: NaN, kl: 2 } }"),
    'nan.js': trainer('{ applied: true, digest, metrics: { loss: NaN, grad_norm: Infinity, kl: 0 } }'),
    'nothing.js': trainer('undefined'),
    'throws.js': trainer('undefined.rows'),
    'full.js': trainer("(() => { throw Object.assign(new Error('no space'), { code: 'ENOSPC' }); })()"),
    'digest.js': trainer("{ applied: true, digest: 'abc', metrics: {} }"),
  });
  const open = async (file: string) => {
    const { spec } = await load(folder, `[trainer]\nkind = "module"\nimport = "./${file}"`);
    return openTrainer(spec.trainer);
  };
  const step = async (file: string) => (await open(file)).trainStep({} as never);
  assert.deepEqual((await step('good.js')).metrics, { loss: 1 });
  assert.equal(await (await open('good.js')).fingerprint!(), 'mine');
  assert.ok(!(await open('good.js')).logprobs, 'what it does not have it does not have');
  const { applied, reason, metrics } = await step('refuses.js');
  assert.deepEqual([applied, reason, metrics], [false, 'the loss is NaN', { kl: 2 }]);
  await assert.rejects(step('nan.js'), {
    code: 'EngineDied',
    message: /nan\.js: trainStep\(\) applied a step although loss is NaN, grad_norm is Infinity/,
  });
  await assert.rejects((await open('good.js')).sftStep({} as never), {
    code: 'EngineDied',
    message: /sftStep\(\) .* loss is NaN/,
  });
  await assert.rejects(step('nothing.js'), {
    code: 'Unsupported',
    message: /nothing\.js: trainStep\(\) answered otherwise/,
  });
  await assert.rejects(step('throws.js'), {
    code: 'EngineDied',
    message: /throws\.js: trainStep\(\): TypeError: Cannot read properties of undefined/,
  });
  await assert.rejects(step('full.js'), { code: 'ENOSPC' });
  await assert.rejects(step('digest.js'), { code: 'Unsupported', message: /64 hexadecimal digits/ });
});

async function project(t: TestContext, files: Readonly<Record<string, string>>): Promise<string> {
  const folder = await mkdtemp(path.join(tmpdir(), 'ratchet-module-'));
  t.after(() => rm(folder, { recursive: true, force: true }));
  for (const [name, text] of Object.entries(files)) await writeFile(path.join(folder, name), text);
  return folder;
}

async function load(folder: string, more: string): ReturnType<typeof loadRunConfig> {
  await writeFile(path.join(folder, 'run.toml'), `${config}${more}\n`);
  return loadRunConfig('run.toml', { projectFolder: folder });
}
