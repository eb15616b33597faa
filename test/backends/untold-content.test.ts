/**
 * Another user names files of the project through Temporal: no message reveals their contents, and nothing in
 * `.ratchet` is read.
 */
import assert from 'node:assert/strict';
import { mkdirSync, mkdtempSync, realpathSync, rmSync, symlinkSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { test, type TestContext } from 'node:test';
import { toFailure } from '../../activities/around/failures.ts';
import { grantNamed } from '../../load/grants/grant.ts';
import { loadEvaluationFile } from '../../load/evaluations/load-evaluations.ts';
import { loadPromptSearchFile } from '../../load/searches/load-prompt-search.ts';
import { loadRunConfig } from '../../load/load-run-config.ts';
import { readVariablesFile } from '../../backends/environments/variables.ts';
import { readEndpoints } from '../../backends/inference/openai/endpoints-file.ts';
import { secretFileVariable, trustedRootsVariable } from '../../core/child-environment.ts';
import { requireModelPlace, trustedData, trustedFile } from '../../host/trusted-files.ts';
import { hasCode } from '../store/store.contract.ts';

const canary = 'canary7f3a';

const run = 'model = "preset:reverse-text-0.2m"\n[[env]]\nid = "reverse-text"\n';

function projectOf(t: TestContext): string {
  const project = realpathSync(mkdtempSync(path.join(tmpdir(), 'ratchet-untold-')));
  const before = process.env[trustedRootsVariable];
  t.after(() => {
    if (before === undefined) delete process.env[trustedRootsVariable];
    else process.env[trustedRootsVariable] = before;
    rmSync(project, { recursive: true, force: true });
  });
  return project;
}

/** All that a history gets to read of an error. */
function toldBy(error: unknown): string {
  const failure = toFailure(error);
  const said: string[] = [];
  for (let at: unknown = failure; at instanceof Error; at = at.cause) said.push(at.message);
  return said.join('\n');
}

async function saidOf(work: () => unknown): Promise<string> {
  try {
    await work();
  } catch (error) {
    return toldBy(error);
  }
  return assert.fail('nothing was refused');
}

/** A way in which a workflow names a file, and a content that is refused with words of it. */
type Way = readonly [name: string, content: string, work: (file: string, projectFolder: string) => unknown];

const asRun = (file: string, projectFolder: string) => loadRunConfig(file, { projectFolder });
const inRun =
  (settings: (file: string) => Record<string, string>) =>
  (file: string, projectFolder: string): unknown => {
    writeFileSync(path.join(projectFolder, 'run.toml'), run);
    return loadRunConfig('run.toml', { projectFolder, overrides: settings(file) });
  };
const laidOver = (file: string, projectFolder: string): unknown => {
  writeFileSync(path.join(projectFolder, 'run.toml'), run);
  return loadRunConfig('run.toml', { projectFolder, over: [{ file }] });
};
const asEvaluations = (file: string, projectFolder: string) => loadEvaluationFile(file, { projectFolder });
const asSearch = (file: string, projectFolder: string) => loadPromptSearchFile(file, { projectFolder });
const registry = `[[endpoint]]\nendpoint_id = "${canary}"\nmodel = "m"\nurl = "http://127.0.0.1:1/v1"\nkey = "K"\n`;
const withRegistry = (file: string, projectFolder: string): unknown => {
  writeFileSync(path.join(projectFolder, 'eval.toml'), '[[eval]]\nid = "reverse-text"\n');
  const over = { endpoints_path: file, endpoint_id: 'none' };
  return loadEvaluationFile('eval.toml', { projectFolder, over });
};

const ways: readonly Way[] = [
  ['run file with an unknown key', `${canary} = 1\n`, asRun],
  ['run file with an unknown value', `max_steps = "${canary}"\n${run}`, asRun],
  ['run file of another kind', `[${canary}]\npassword = "x"\n`, asRun],
  ['run file with an environment that is none', `${run}[[env]]\nid = "${canary}/no"\n`, asRun],
  ['run file that ends with a wrong key', `${run}[sampling]\n${canary} = 3\n`, asRun],
  ['file laid over', `[sampling]\n${canary} = 3\n`, laidOver],
  ['file of evaluations', `[[eval]]\nid = "reverse-text"\n${canary} = 1\n`, asEvaluations],
  ['file of a prompt search', `[gepa]\n${canary} = 1\n[[env]]\nid = "reverse-text"\n`, asSearch],
  ['registry with an unknown key', `[[endpoint]]\nendpoint_id = "a"\n${canary} = 1\n`, withRegistry],
  ['registry with other aliases', registry, withRegistry],
  [
    'endpoints with other aliases',
    registry,
    (file, folder) => readEndpoints({ path: path.join(folder, file), id: 'no' }),
  ],
  [
    'endpoints of another kind',
    `[[endpoint]]\n${canary} = 1\n`,
    (file, folder) => readEndpoints({ path: path.join(folder, file), id: 'no' }),
  ],
  [
    'endpoints that a run names',
    registry,
    inRun((file) => ({ 'inference.kind': 'openai', 'inference.endpoints_path': file, 'inference.endpoint_id': 'no' })),
  ],
  ['chat template', `{{ a }} {% ${canary} %}`, inRun((file) => ({ 'tokenizer.chat_template': `./${file}` }))],
  ['supervised rows', `{"${canary}": "b"}\n`, inRun((file) => ({ 'sft.data': `./${file}`, 'sft.steps': '1' }))],
];

test('no refusal of a file that a workflow names has a word of what is in it, and the command line has', async (t) => {
  const projectFolder = projectOf(t);
  for (const [name, content, work] of ways) {
    const file = `${name.replaceAll(' ', '-')}${name.endsWith('rows') ? '.jsonl' : '.toml'}`;
    writeFileSync(path.join(projectFolder, file), content);
    delete process.env[trustedRootsVariable];
    const atCommandLine = await saidOf(() => work(file, projectFolder));
    assert.ok(atCommandLine.includes(canary), `${name}: ${atCommandLine}`);
    process.env[trustedRootsVariable] = projectFolder;
    const told = await saidOf(() => work(file, projectFolder));
    assert.ok(!told.includes(canary) && told.includes(file), `${name}: ${told}`);
    assert.ok(told.includes('what a file holds is not told through Temporal'), `${name}: ${told}`);
  }
});

test('a run file that is one tells what is wrong with settings that are laid over it', async (t) => {
  const projectFolder = projectOf(t);
  writeFileSync(path.join(projectFolder, 'run.toml'), run);
  process.env[trustedRootsVariable] = projectFolder;
  const wrong = { max_steps: 'many' };
  assert.match(await saidOf(() => loadRunConfig('run.toml', { projectFolder, overrides: wrong })), /many/);
});

test('a file is put into a table of a run by those alone who send its text', async (t) => {
  const projectFolder = projectOf(t);
  const text = `password = "${canary}"\n`;
  writeFileSync(path.join(projectFolder, 'run.toml'), run);
  writeFileSync(path.join(projectFolder, 'secret.toml'), text);
  process.env[trustedRootsVariable] = projectFolder;
  const over = [{ file: 'secret.toml', section: 'sampling' }];
  const load = (sent?: string) =>
    loadRunConfig('run.toml', {
      projectFolder,
      over,
      ...(sent === undefined ? {} : { sent: { texts: { 'secret.toml': sent }, beside: {} } }),
    });
  for (const sent of [undefined, '', `${text} `]) {
    const told = await saidOf(() => load(sent));
    assert.match(told, /^secret\.toml is not put into \[sampling\] through Temporal/);
    assert.ok(!told.includes(canary));
  }
  // A caller who has the file gets its problems with their lines.
  assert.match(await saidOf(() => load(text)), /secret\.toml/);
});

test('what lies in .ratchet is neither run file, template, data nor model, by its path and through links', async (t) => {
  const projectFolder = projectOf(t);
  const kept = path.join(projectFolder, '.ratchet');
  mkdirSync(path.join(kept, 'python/env/bin'), { recursive: true });
  mkdirSync(path.join(kept, 'models/m'), { recursive: true });
  for (const name of ['secret', 'granted', 'python/env/pyvenv.cfg']) writeFileSync(path.join(kept, name), canary);
  symlinkSync(path.join(kept, 'secret'), path.join(projectFolder, 'link.toml'));
  symlinkSync(path.join(kept, 'secret'), path.join(projectFolder, 'link.jsonl'));
  symlinkSync(kept, path.join(projectFolder, 'folder'));
  writeFileSync(path.join(projectFolder, 'other-secret'), canary);
  const environment = { [trustedRootsVariable]: projectFolder, [secretFileVariable]: 'other-secret' };
  const names = [
    '.ratchet/secret',
    '.ratchet/granted',
    '.ratchet/not-there',
    '.ratchet',
    'link.toml',
    'folder/secret',
    'folder',
    'other-secret',
    'src/../.ratchet/secret',
    '.ratchet/python/env/pyvenv.cfg',
  ];
  for (const name of names) {
    const file = path.join(projectFolder, name);
    const refused = hasCode('ConfigInvalid', 'what lies in .ratchet is read by Ratchet alone');
    assert.throws(() => trustedFile(file, 'It', environment), refused, name);
    assert.throws(() => trustedData(file, 'It', environment), refused, name);
  }
  for (const name of ['.ratchet/models/m', 'folder/models/m'])
    assert.throws(
      () => requireModelPlace(path.join(projectFolder, name), 'The model', environment),
      hasCode('ConfigInvalid', 'is not taken from Temporal'),
    );
  // Environments for Python are made there.
  const python = path.join(kept, 'python/env');
  assert.equal(trustedFile(python, 'It', environment), python);
  assert.equal(trustedFile(path.join(python, 'bin'), 'It', environment), path.join(python, 'bin'));

  process.env[trustedRootsVariable] = projectFolder;
  grantNamed(projectFolder, [path.join(kept, 'secret')]);
  for (const work of [
    () => asRun('.ratchet/secret', projectFolder),
    () => asRun('link.toml', projectFolder),
    () => asEvaluations('.ratchet/secret', projectFolder),
    () => asSearch('folder/secret', projectFolder),
    () => readVariablesFile(path.join(kept, 'secret')),
    () => readEndpoints({ path: path.join(kept, 'secret'), id: 'no' }),
    () => inRun(() => ({ 'tokenizer.chat_template': '.ratchet/secret' }))('', projectFolder),
    () => inRun(() => ({ 'sft.data': './link.jsonl', 'sft.steps': '1' }))('', projectFolder),
    () => inRun(() => ({ 'trainer.loss.import': './.ratchet/secret' }))('', projectFolder),
  ]) {
    const told = await saidOf(work);
    assert.ok(!told.includes(canary), told);
  }
});

test('a file is a system prompt through Temporal only where the run file names it, or its text is sent', async (t) => {
  const projectFolder = projectOf(t);
  const secret = path.join(projectFolder, '.env');
  writeFileSync(secret, `KEY=${canary}\n`);
  writeFileSync(path.join(projectFolder, 'run.toml'), run);
  writeFileSync(path.join(projectFolder, 'own.toml'), run.replace('id =', 'system_prompt = ".env"\nid ='));
  writeFileSync(path.join(projectFolder, 'eval.toml'), '[[eval]]\nid = "reverse-text"\n');
  const overrides = { 'env.0.system_prompt': '.env' };
  const atCommandLine = await loadRunConfig('run.toml', { projectFolder, overrides });
  process.env[trustedRootsVariable] = projectFolder;
  const digestAlone = { ...atCommandLine.sent, texts: {} };
  for (const work of [
    () => loadRunConfig('run.toml', { projectFolder, overrides }),
    () => loadRunConfig('run.toml', { projectFolder, overrides, sent: digestAlone }),
    () => loadEvaluationFile('eval.toml', { projectFolder, over: { system_prompt: '.env', model: 'm' } }),
  ]) {
    const told = await saidOf(work);
    assert.ok(!told.includes(canary) && told.includes('what a file holds is not told through Temporal'), told);
  }
  for (const options of [
    { file: 'run.toml', overrides, sent: atCommandLine.sent },
    { file: 'own.toml', overrides: { max_steps: '3' } },
  ]) {
    const { spec } = await loadRunConfig(options.file, { projectFolder, ...options });
    assert.equal(spec.environments[0]!.systemPrompt, `KEY=${canary}\n`, options.file);
  }
});

test('the plan of an evaluation tells nothing of a file outside of the project that is named as an environment', async (t) => {
  const [projectFolder, elsewhere] = [projectOf(t), projectOf(t)];
  writeFileSync(path.join(projectFolder, 'eval.toml'), '[[eval]]\nid = "reverse-text"\n');
  writeFileSync(path.join(elsewhere, 'private.ts'), 'export {};\n');
  process.env[trustedRootsVariable] = projectFolder;
  const told = [];
  for (const name of ['private', 'missing']) {
    const id = path.join(elsewhere, `${name}.ts`);
    const over = { id, model: 'm', api_base_url: 'http://127.0.0.1:1/v1', api_key_var: 'NONE' };
    const said = await saidOf(() => loadEvaluationFile('eval.toml', { projectFolder, over }));
    told.push(said.replaceAll(name, 'NAME'));
  }
  assert.equal(told[0], told[1]);
  assert.match(told[0]!, /is not taken from Temporal/);
});
