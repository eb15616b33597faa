import assert from 'node:assert/strict';
import { mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { test, type TestContext } from 'node:test';
import { initLab } from '../../cli/commands/prepare/init.ts';
import { starterFiles, starterKinds } from '../../cli/start/starters.ts';
import { loadEvaluationFile } from '../../load/evaluations/load-evaluations.ts';
import { loadPromptSearchFile } from '../../load/searches/load-prompt-search.ts';
import { loadRunConfig } from '../../load/load-run-config.ts';
import { dialects } from '../../config/dialects/index.ts';
import { parseConfigFile } from '../../config/parse-config-file.ts';

function folder(t: TestContext): string {
  const made = mkdtempSync(path.join(tmpdir(), 'ratchet-init-'));
  t.after(() => rmSync(made, { recursive: true }));
  return made;
}

const names = ['alphabet-sort', 'gsm8k', 'math-python', 'reverse-text', 'wiki-search', 'wordle'];

test('without a flag there are runs, evaluations, prompt optimizations and endpoints, for the six environments of the documents, and runs on other engines', async () => {
  const files = [...(await starterFiles('ratchet')).keys()];
  const [runs, ...others] = ['rl', 'eval', 'gepa'].map((kind) => names.map((name) => `configs/${kind}/${name}.toml`));
  const engines = ['skyrl', 'tinker', 'vllm'].map((engine) => `configs/rl/${engine}-reverse-text.toml`);
  assert.deepEqual(files, [...runs!, ...engines, ...others.flat(), 'configs/endpoints.toml']);
});

test('evaluations and prompt searches find the endpoints that are written beside them; a typed path is from here', async (t) => {
  const projectFolder = folder(t);
  await initLab('ratchet', projectFolder);
  const options = { projectFolder, isSet: () => true };
  const { evaluations } = await loadEvaluationFile('configs/eval/reverse-text.toml', options);
  const search = await loadPromptSearchFile('configs/gepa/reverse-text.toml', options);
  for (const { spec, input } of [evaluations[0]!, search]) {
    assert.equal(spec.model.endpointsPath, 'configs/endpoints.toml');
    assert.equal(input.model.model, 'gpt-4.1-mini');
    assert.match(JSON.stringify(input.model), /"https:\/\/api\.openai\.com\/v1"/);
  }
  const over = { endpoints_path: '../endpoints.toml' };
  await assert.rejects(loadEvaluationFile('configs/eval/reverse-text.toml', { ...options, over }), /no endpoint "gpt-4\.1-mini"/); // prettier-ignore
});

const known = new Set(dialects.map(({ name }) => name.split('-')[0]));
const dialectOf = { ratchet: 'ratchet', lab: 'hosted', 'prime-rl': 'prime', 'vf-rl': 'vf' };

for (const kind of starterKinds) {
  test(`every file of the kind ${kind} loads as what it is`, async (t) => {
    const projectFolder = folder(t);
    await initLab(kind, projectFolder);
    for (const [name, text] of await starterFiles(kind)) {
      const isRun = !/configs\/(?:eval|gepa|endpoints)/.test(name);
      if (isRun && !known.has(dialectOf[kind])) continue; // A dialect that this tree does not have.
      const parsed = parseConfigFile(text, { file: name });
      assert(parsed.ok, `${name}: ${JSON.stringify(parsed)}`);
      assert.equal(parsed.kind, isRun ? 'run' : /configs\/(eval|gepa|endpoints)/.exec(name)![1]);
      if (!isRun) continue;
      const { missing } = await loadRunConfig(name, { projectFolder, isOnlyLookedAt: true });
      const isHub = kind !== 'ratchet' || name.includes('gsm8k');
      assert.deepEqual(
        missing.map(({ install }) => install),
        isHub ? [`primeintellect/${path.basename(name, '.toml')}`] : [],
      );
    }
  });
}

test('what is there stays as it is, and both are said', async (t) => {
  const place = folder(t);
  mkdirSync(path.join(place, 'configs/rl'), { recursive: true });
  writeFileSync(path.join(place, 'configs/rl/wordle.toml'), '# mine');
  const said = await initLab('ratchet', place);
  assert.equal(readFileSync(path.join(place, 'configs/rl/wordle.toml'), 'utf8'), '# mine');
  assert.match(said, /^wrote {2}configs\/rl\/ {2}alphabet-sort\.toml.*wiki-search\.toml.*vllm-reverse-text\.toml$/m);
  assert.match(said, /^left as it was {2}configs\/rl\/ {2}wordle\.toml$/m);
  assert.match(said, /npx ratchet-rl train configs\/rl\/reverse-text\.toml/);
  const again = await initLab('ratchet', place);
  assert.doesNotMatch(again, /^wrote/m);
});
