/**
 * A run's folder is written by whichever user trained it. The things it names run, and are granted, only after the
 * reader's consent.
 */
import assert from 'node:assert/strict';
import { spawn, spawnSync } from 'node:child_process';
import { createHash } from 'node:crypto';
import {
  appendFileSync,
  chmodSync,
  existsSync,
  mkdirSync,
  mkdtempSync,
  readFileSync,
  realpathSync,
  rmSync,
  statSync,
  writeFileSync,
} from 'node:fs';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { test, type TestContext } from 'node:test';
import { fileURLToPath } from 'node:url';
import { grantNamed, namedByEnvironments, namedByInference, namedIn } from '../../load/grants/grant.ts';
import { loadRunConfig } from '../../load/load-run-config.ts';
import { putJson } from '../../store/objects.ts';
import { areOwn, type Asker, askGrants } from '../../cli/start/ask-grants.ts';
import { forkFrom } from '../../cli/commands/run/fork.ts';
import { inputOf } from '../../cli/eval/scheduled-input.ts';
import { askForVersions, inputsToPlay, typedByModels } from '../../cli/eval/subject/named-models.ts';
import { steerFromPage } from '../../cli/page/steer-from-page.ts';
import { subjectOf } from '../../cli/eval/subject/checkpoint-subject.ts';
import type { RunSpec } from '../../config/run-spec.ts';
import { trustedRootsVariable } from '../../core/child-environment.ts';
import type { EvaluatedEnvironment, EvaluatedModel } from '../../core/eval/evaluation.ts';
import { grantedAt, requireGrant, requireServer } from '../../host/grants.ts';
import { trustedData, trustedFile } from '../../host/trusted-files.ts';
import { layout } from '../../runs/layout.ts';
import { encodeStored } from '../../runs/forms/stored-forms.ts';
import { commitFirst, openRoles, runIn, type TestRun } from '../activities/runs.ts';

const ratchet = fileURLToPath(new URL('../../cli/ratchet.mjs', import.meta.url));

/** A project that is worked in, and beside it a folder with somebody else's run. */
function stage(t: TestContext) {
  const folder = realpathSync(mkdtempSync(path.join(tmpdir(), 'ratchet-strangers-run-')));
  const [project, strange] = ['project', 'strange'].map((name) => path.join(folder, name)) as [string, string];
  for (const one of [project, strange]) mkdirSync(one, { mode: 0o755 });
  const before = process.cwd();
  process.chdir(project);
  t.after(() => {
    process.chdir(before);
    rmSync(folder, { recursive: true, force: true });
  });
  const mark = path.join(folder, 'ran');
  const write = (file: string, text: string): string => {
    mkdirSync(path.dirname(file), { recursive: true, mode: 0o755 });
    writeFileSync(file, text, { mode: 0o644 });
    return file;
  };
  const code = (file: string): string =>
    write(
      file,
      `import { writeFileSync } from 'node:fs';\nwriteFileSync(${JSON.stringify(mark)}, 'ran');\nexport const loadEnvironment = () => ({});\nexport default () => 0;\n`,
    );
  return { folder, project, strange, mark, write, code };
}

const granted = (project: string): string =>
  existsSync(grantedAt(project)) ? readFileSync(grantedAt(project), 'utf8') : '';

const evaluated = (id: string, more: object = {}): NonNullable<RunSpec['eval']>['environments'][number] =>
  ({ id, name: 'words', args: {}, numExamples: 2, rolloutsPerExample: 1, ...more }) as never;

/** Its v0 is committed and sealed. */
async function makeRun(
  folder: string,
  change: (spec: RunSpec) => object = () => ({}),
  name = 'base',
): Promise<TestRun> {
  const made = await runIn(folder, { 'eval.interval': '5', 'eval.num-examples': '2' }, name);
  const spec = { ...made.spec, ...change(made.spec) } as RunSpec;
  const run = { ...made.run, spec: await putJson(made.store, 'specs/test.json', spec) };
  const changed = { ...made, spec, run };
  await made.store.put(layout.run(), encodeStored(layout.run(), { name, begunAt: '2026-01-01T00:00', spec }));
  await commitFirst(changed, openRoles());
  return changed;
}

const onEvil = (id: string) => (spec: RunSpec) => ({
  eval: { ...spec.eval!, environments: [{ ...spec.eval!.environments[0]!, id }] },
});

function typed(project: string, ...words: string[]): { readonly code: number | null; readonly said: string } {
  const { status, stdout, stderr } = spawnSync(process.execPath, [ratchet, ...words], {
    cwd: project,
    encoding: 'utf8',
    input: '',
  });
  return { code: status, said: stdout + stderr };
}

function asker(answer: string): Asker & { readonly asked: string[] } {
  const asked: string[] = [];
  return {
    asked,
    isThere: true,
    ask: (question) => {
      asked.push(question);
      return Promise.resolve(answer);
    },
  };
}

const nobody: Asker = { isThere: false, ask: () => assert.fail('nobody is there') };

const digestOf = (file: string): string => createHash('sha256').update(readFileSync(file)).digest('hex');

test('evaluating somebody’s run without a terminal names its code with the digest, and runs and grants nothing', async (t) => {
  const { project, strange, mark, code } = stage(t);
  const evil = code(path.join(strange, 'base', 'evil.ts'));
  await makeRun(strange, onEvil(evil));
  const { code: exit, said } = typed(project, 'eval', 'checkpoints', 'base', '--store', strange);
  assert.equal(exit, 2, said);
  const line = `${evil} sha256 ${digestOf(evil).slice(0, 16)}`;
  assert.ok(said.includes(`--grant '${line}'`), said);
  assert.match(
    said,
    /^The run base in .* names what you have not granted: .*evil\.ts \(sha256 [0-9a-f]{16}…\)\. Nothing was started/m,
  );
  assert.equal(existsSync(mark), false);
  assert.equal(granted(project), '');
  assert.equal(existsSync(path.join(project, '.ratchet')), false);
  assert.equal(existsSync(path.join(strange, 'base', 'evals')), false, 'nothing is written there');
  // The digest is of what was looked at.
  appendFileSync(evil, '\n');
  const changed = typed(project, 'eval', 'checkpoints', 'base', '--store', strange, '--grant', line);
  assert.equal(changed.code, 2, changed.said);
  assert.equal(granted(project), '');
});

test('so does every command that uses what the folder names', async (t) => {
  const { project, strange, mark, code, write } = stage(t);
  const evil = code(path.join(strange, 'base', 'evil.ts'));
  const config = write(path.join(strange, 'base', 'evil.toml'), runFile(`[[env]]\nid = ${JSON.stringify(evil)}\n`));
  const { store, run } = await makeRun(strange, (spec) => ({
    ...onEvil(evil)(spec),
    inference: { kind: 'module', import: { path: evil, sha256: null }, options: {} },
  }));
  const key = layout.source(run.spec.key);
  await store.put(key, encodeStored(key, { config, overrides: {}, attempt: 1 }));
  const remembered = `${layout.allEvaluations('main')}checkpoints.json`;
  const evaluation = {
    environment: evaluated(evil),
    model: { kind: 'endpoint', model: 'm', servers: [], sampling: {} },
  };
  await store.put(remembered, encodeStored(remembered, { subject: { kind: 'planned', evaluations: [evaluation] } }));
  const at = ['--store', strange];
  for (const words of [
    ['eval', 'checkpoints', 'base', '--env', 'reverse-text', ...at],
    ['eval', 'checkpoints', 'base', '--backfill', ...at],
    ['eval', '--weights-dir', path.join(strange, 'base', 'weights')],
    ['eval', 'run', 'reverse-text', '--run', 'base', '-n', '1', ...at],
    ['eval', 'schedule', '--run', 'base', '--every', '1h', ...at],
    ['rewind', 'base', '--step', '0', ...at],
    ['fork', 'base', '--step', '0', '--name', 'mine', ...at],
  ]) {
    const { code: exit, said } = typed(project, ...words);
    assert.equal(exit, 2, `${words.join(' ')}\n${said}`);
    assert.match(said, /names what you have not granted: .*evil\.ts/, words.join(' '));
    assert.equal(granted(project), '', words.join(' '));
    assert.equal(existsSync(mark), false, words.join(' '));
  }
  assert.equal(existsSync(path.join(project, 'outputs')), false);
  // Commands that only read ask for no grant.
  for (const words of [
    ['status', 'base', ...at],
    ['audit', 'base', ...at],
    ['report', 'base', ...at, '--out', path.join(project, 'report.html')],
    ['checkpoints', 'base', ...at],
    ['eval', 'checkpoints', 'base', '--dry-run', ...at],
    ['advise', 'base', ...at],
  ]) {
    const { said } = typed(project, ...words);
    assert.doesNotMatch(said, /not granted/, words.join(' '));
    assert.equal(granted(project), '', words.join(' '));
    assert.equal(existsSync(mark), false, words.join(' '));
  }
});

const runFile = (more: string): string =>
  `model = "preset:reverse-text-0.2m"\nmax_steps = 12\nseed = 3\nbatch_size = 8\nrollouts_per_example = 4\nmax_async_level = 0\n${more}`;
const words = '[[env]]\nid = "reverse-text"\n';

test('a person at the terminal is asked in one sentence: no grants nothing, yes grants what was named', async (t) => {
  const { project, strange, code } = stage(t);
  const evil = code(path.join(strange, 'base', 'evil.ts'));
  const server = {
    kind: 'openai',
    url: 'http://127.0.0.1:45001/v1',
    apiKeyVar: 'OPENAI_API_KEY',
    headersFromEnv: { 'X-Token': 'HF_TOKEN' },
  };
  const { run } = await makeRun(strange, (spec) => ({ inference: { ...spec.inference, ...server } }));
  const model = { kind: 'version', model: 'base', run, policy: {}, sampling: {} } as unknown as EvaluatedModel;
  const place = { name: 'base', store: run.store };
  const lines = [evil, ...namedByInference({ inference: server } as never)];
  for (const answer of ['n', '', 'no', 'yay']) {
    const no = asker(answer);
    await assert.rejects(
      askGrants(place, { lines, environments: [] }, {}, no),
      /the answer was no, and nothing was granted/,
    );
    assert.equal(no.asked.length, 1);
    const [question] = no.asked as [string];
    for (const word of [
      evil,
      'the server http://127.0.0.1:45001',
      'the key in OPENAI_API_KEY for http://127.0.0.1:45001',
      'HF_TOKEN',
    ])
      assert.ok(question.includes(word), question);
    assert.equal(question.includes('\n'), false);
    assert.equal(granted(project), '');
  }
  await assert.rejects(
    askForVersions([model], [], { store: strange }),
    /key OPENAI_API_KEY http:\/\/127\.0\.0\.1:45001/,
  );
  assert.equal(granted(project), '');
  const yes = asker('y');
  await askGrants(place, { lines, environments: [] }, {}, yes);
  assert.equal(yes.asked.length, 1);
  assert.deepEqual(
    granted(project).trim().split('\n').sort(),
    [
      evil,
      'key HF_TOKEN http://127.0.0.1:45001',
      'key OPENAI_API_KEY http://127.0.0.1:45001',
      'server http://127.0.0.1:45001',
      `sha256 ${digestOf(evil)} ${evil}`,
    ].sort(),
  );
  await askGrants(place, { lines, environments: [] }, {}, nobody);
  await askForVersions([model], [], { store: strange });
  // It is another file now.
  appendFileSync(evil, '\n');
  await assert.rejects(askGrants(place, { lines, environments: [] }, {}, nobody), /evil\.ts/);
  assert.throws(
    () => trustedFile(evil, 'It', { [trustedRootsVariable]: project }),
    /it was changed since it was granted/,
  );
});

test('a key is granted for its server alone', async (t) => {
  const { project, strange } = stage(t);
  const place = { name: 'base', store: `file://${strange}/` };
  const lines = ['server http://a.example', 'key ONE http://a.example'];
  await assert.rejects(
    askGrants(place, { lines, environments: [] }, { grant: [lines[0]!] }, nobody),
    /--grant 'key ONE http:\/\/a\.example'/,
  );
  assert.equal(granted(project), '');
  await askGrants(place, { lines, environments: [] }, { grant: [...lines, 'key OTHER http://b.example'] }, nobody);
  assert.equal(granted(project), `${lines.join('\n')}\n`);
});

const python = (folder: string) => ({ module: 'toy', api: 'v1', folder, verifiers: '0.4.0', version: '1.0' });

/** Things that evaluating a version uses. */
test('each kind of thing that an evaluated run names is asked for', async (t) => {
  const { project, strange, code, write } = stage(t);
  const file = code(path.join(strange, 'evil.mjs'));
  const endpoints = write(
    path.join(strange, 'endpoints.toml'),
    '[[endpoint]]\nendpoint_id = "e"\nmodel = "m"\nurl = "http://127.0.0.1:45002/v1"\nkey = "OPENAI_API_KEY"\n',
  );
  const venv = path.join(strange, 'venv');
  mkdirSync(venv);
  const variables = { names: ['HF_TOKEN'], files: [write(path.join(strange, 'keys.env'), 'A=b\n')] };
  const pool = { endpoints: null, headers: {}, headersFromEnv: {}, apiKeyVar: null };
  const kinds: Readonly<Record<string, readonly [change: object, says: RegExp]>> = {
    'an environment file': [{ id: file }, /evil\.mjs \(sha256/],
    'a Python folder': [{ id: 'toy', python: python(venv) }, /venv \(a folder\)/],
    'its arguments': [
      { id: 'toy', python: python(venv), args: { command: 'evil' } },
      /the environment toy with the arguments \{"command":"evil"\}/,
    ],
    'its variables': [{ id: 'toy', python: python(venv), variables }, /which sees HF_TOKEN/],
    'a file of variables': [{ id: 'toy', python: python(venv), variables }, /keys\.env \(sha256/],
    'a judge': [
      { id: 'reverse-text', args: { url: 'http://127.0.0.1:45003', key_var: 'OPENAI_API_KEY' } },
      /the environment reverse-text with the arguments .*45003.*OPENAI_API_KEY/,
    ],
    'no sandbox': [{ id: 'python-code', args: { sandbox: 'none' } }, /Python that a model wrote, without a sandbox/],
    'an interpreter': [{ id: 'python-code', args: { python: path.join(venv, 'bin/python') } }, /venv\/bin\/python/],
    'an inference module': [
      { inference: { kind: 'module', import: { path: file, sha256: null }, options: {} } },
      /evil\.mjs \(sha256/,
    ],
    'servers with keys': [
      { inference: { ...pool, kind: 'openai', url: ['http://127.0.0.1:45004'], apiKeyVar: 'OPENAI_API_KEY' } },
      /the key in OPENAI_API_KEY for http:\/\/127\.0\.0\.1:45004/,
    ],
    'headers from the environment': [
      { inference: { ...pool, kind: 'openai', url: 'http://127.0.0.1:45004', headersFromEnv: { a: 'HF_TOKEN' } } },
      /the key in HF_TOKEN for/,
    ],
    'an endpoints file': [
      { inference: { ...pool, kind: 'openai', url: null, endpoints: { path: endpoints, id: 'e' } } },
      /endpoints\.toml \(sha256 \w+…\), which names http:\/\/127\.0\.0\.1:45002\/v1 with the key in OPENAI_API_KEY/,
    ],
    'a weights agent': [
      {
        inference: {
          ...pool,
          kind: 'vllm',
          url: 'http://127.0.0.1:45004',
          vllm: { weightsAgent: 'http://127.0.0.1:45005', program: null },
        },
      },
      /RATCHET_WEIGHTS_AGENT_KEY for http:\/\/127\.0\.0\.1:45005/,
    ],
    'a Tinker server': [
      { inference: { kind: 'tinker', url: 'http://127.0.0.1:45006', apiKeyVar: 'TINKER_API_KEY' } },
      /the key in TINKER_API_KEY for http:\/\/127\.0\.0\.1:45006/,
    ],
  };
  const place = { name: 'base', store: `file://${strange}/` };
  for (const [kind, [change, says]] of Object.entries(kinds)) {
    const spec = change as Partial<RunSpec>;
    const environments = 'id' in change ? [evaluated('', change)] : [];
    const lines = spec.inference ? namedByInference(spec as RunSpec) : namedByEnvironments(environments);
    const pools =
      spec.inference && 'endpoints' in spec.inference && spec.inference.endpoints ? [spec.inference.endpoints] : [];
    await assert.rejects(askGrants(place, { lines, environments, endpoints: pools }, {}, nobody), says, kind);
    assert.equal(granted(project), '', kind);
  }
});

test('each kind of thing that a run file of somebody’s names is asked for before a fork of its run', async (t) => {
  const { project, strange, mark, code, write } = stage(t);
  const file = code(path.join(strange, 'evil.mjs'));
  const quoted = JSON.stringify(file);
  const rows = write(
    path.join(strange, 'rows.jsonl'),
    '{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}\n',
  );
  const template = write(path.join(strange, 'chat.jinja'), '{{ messages }}');
  const { run, store } = await makeRun(strange);
  const kinds: Readonly<Record<string, readonly [more: string, says: RegExp]>> = {
    'a loss': [`[trainer.loss]\ntype = "custom"\nimport = ${quoted}\n${words}`, /evil\.mjs \(sha256/],
    'an advantage': [`[trainer.advantage]\ntype = "custom"\nimport = ${quoted}\n${words}`, /evil\.mjs \(sha256/],
    'a trainer': [`[trainer]\nkind = "module"\nimport = ${quoted}\n${words}`, /evil\.mjs \(sha256/],
    inference: [`[inference]\nkind = "module"\nimport = ${quoted}\n${words}`, /evil\.mjs \(sha256/],
    'an environment': [`[[env]]\nid = ${quoted}\n`, /evil\.mjs \(sha256/],
    'a program for vLLM': [`[inference]\nkind = "vllm"\nprogram = ${quoted}\n${words}`, /evil\.mjs \(sha256/],
    rows: [`[sft]\nsteps = 1\ndata = ${JSON.stringify(rows)}\n${words}`, /rows\.jsonl \(sha256/],
    'a chat template': [`[tokenizer]\nchat_template = ${JSON.stringify(template)}\n${words}`, /chat\.jinja \(sha256/],
    servers: [
      `[inference]\nkind = "openai"\nurl = "http://127.0.0.1:45004"\napi_key_var = "OPENAI_API_KEY"\n${words}`,
      /the key in OPENAI_API_KEY for/,
    ],
    'a teacher': [
      `[teacher]\nmodel = "m"\nurl = "http://127.0.0.1:45007"\napi_key_var = "OPENAI_API_KEY"\n[trainer.loss]\nteacher_tau = 0.5\n${words}`,
      /45007/,
    ],
    'a search for prompts': [
      `[gepa]\nreflection_model = "m"\nurl = "http://127.0.0.1:45008"\ninterval = 5\n${words}`,
      /45008/,
    ],
    'a webhook': [
      `[notify]\nwebhook = "http://127.0.0.1:45009/hook"\nsecret_var = "NOTIFY_SECRET"\n${words}`,
      /the key in NOTIFY_SECRET for http:\/\/127\.0\.0\.1:45009/,
    ],
    'another store': [`[store]\nuri = "file://${strange}/private/"\n${words}`, /the store file:.*\/private\//],
    'a bucket': [`[store]\nuri = "s3://bucket/x/"\n${words}`, /the store s3:\/\/bucket AWS/],
  };
  const left: string[] = [];
  for (const [kind, [more, says]] of Object.entries(kinds)) {
    const config = write(path.join(strange, 'evil.toml'), runFile(more));
    const key = layout.source(run.spec.key);
    await store.put(key, encodeStored(key, { config, overrides: {}, attempt: 1 }));
    const fork = forkFrom(run, { step: 0, name: 'mine', overrides: {} }, { store: strange }, nobody);
    await fork.then(
      () => left.push(`${kind}: not asked`),
      (error: Error) => {
        if (!says.test(error.message) || !/names what you have not granted: .*evil\.toml/.test(error.message))
          left.push(`${kind}: ${error.message}`);
      },
    );
    assert.equal(granted(project), '', kind);
    assert.equal(existsSync(mark), false, kind);
  }
  assert.deepEqual(left, []);
});

test('settings that a run’s folder keeps beside a file of ours are not ours', async (t) => {
  const { project, strange, write } = stage(t);
  write(path.join(project, 'own.toml'), runFile(words));
  const { run, store } = await makeRun(strange);
  const key = layout.source(run.spec.key);
  const overrides = {
    'inference.kind': 'openai',
    'inference.url': 'http://127.0.0.1:45011',
    'inference.api-key-var': 'OPENAI_API_KEY',
  };
  await store.put(key, encodeStored(key, { config: path.join(project, 'own.toml'), overrides, attempt: 1 }));
  const fork = (settings: Readonly<Record<string, string>>) =>
    forkFrom(run, { step: 0, name: 'mine', overrides: settings }, { store: strange }, nobody);
  await assert.rejects(fork({}), (error: Error) => {
    assert.match(error.message, /the server http:\/\/127\.0\.0\.1:45011; the key in OPENAI_API_KEY for/);
    assert.doesNotMatch(error.message, /own\.toml \(sha256/);
    return true;
  });
  assert.equal(granted(project), '');
  // Typed now, it is ours.
  await fork({ 'inference.url': 'http://127.0.0.1:45012', 'inference.api-key-var': 'OTHER_KEY' });
  assert.deepEqual(granted(project).trim().split('\n'), [
    'server http://127.0.0.1:45012',
    'key OTHER_KEY http://127.0.0.1:45012',
    `store ${strange}`,
  ]);
});

test('a folder makes nothing typed: neither by a file that is none without what is typed, nor by files of ours laid over each other', async (t) => {
  const { project, strange, write } = stage(t);
  const { run, store } = await makeRun(strange);
  const key = layout.source(run.spec.key);
  const fork = (overrides: Readonly<Record<string, string>>) =>
    forkFrom(run, { step: 0, name: 'mine', overrides }, { store: strange }, nobody);
  const server = '[inference]\nkind = "openai"\nurl = "http://127.0.0.1:45016"\n';
  const half = write(path.join(strange, 'half.toml'), `learning_rate = "none"\n${runFile(server + words)}`);
  await store.put(key, encodeStored(key, { config: half, overrides: {}, attempt: 1 }));
  await assert.rejects(
    fork({ 'learning-rate': '1e-5' }),
    /half\.toml \(sha256.*the server http:\/\/127\.0\.0\.1:45016/,
  );
  const [first, second] = [
    write(path.join(project, 'first.toml'), runFile(server + words)),
    write(path.join(project, 'second.toml'), '[inference]\napi_key_var = "OPENAI_API_KEY"\n'),
  ];
  await store.put(key, encodeStored(key, { config: first, over: [{ file: second }], overrides: {}, attempt: 1 }));
  await assert.rejects(fork({}), /not granted: the key in OPENAI_API_KEY for http:\/\/127\.0\.0\.1:45016\. Nothing/);
  assert.equal(granted(project), '');
});

test('a run of one’s own goes on without a question, in a store anywhere', async (t) => {
  const { folder, project, strange, code, write } = stage(t);
  const [inside, outside] = [code(path.join(project, 'own.ts')), code(path.join(folder, 'mine', 'elsewhere.ts'))];
  const config = write(
    path.join(project, 'own.toml'),
    runFile(
      `[inference]\nkind = "openai"\nurl = "http://127.0.0.1:45013"\napi_key_var = "OPENAI_API_KEY"\n[[env]]\nid = ${JSON.stringify(inside)}\n[[env]]\nid = ${JSON.stringify(outside)}\n`,
    ),
  );
  const { spec } = await loadRunConfig(config, { projectFolder: project });
  // Loaded as by `ratchet train`.
  grantNamed(project, [config, ...namedIn(spec)]);
  const before = granted(project);
  for (const place of [path.join(project, 'outputs'), strange]) {
    mkdirSync(place, { recursive: true });
    const entries = [evaluated(inside), evaluated(outside)];
    const { run, store } = await makeRun(place, () => ({ inference: spec.inference }));
    const key = layout.source(run.spec.key);
    await store.put(key, encodeStored(key, { config, overrides: {}, attempt: 1 }));
    const model = { kind: 'version', model: 'base', run, policy: {}, sampling: {} } as unknown as EvaluatedModel;
    await askForVersions([model], entries, { store: place });
    await forkFrom(run, { step: 0, name: `fork-${path.basename(place)}`, overrides: {} }, { store: place }, nobody);
    const typed = place === strange ? `store ${strange}\n` : '';
    assert.equal(granted(project), before + typed, place);
  }
});

test('a run file of somebody’s that was agreed to once speaks for nothing else, and no file speaks for what was changed', async (t) => {
  const { project, strange, code, write } = stage(t);
  const evil = code(path.join(strange, 'evil.ts'));
  const { run, store } = await makeRun(strange);
  const key = layout.source(run.spec.key);
  let forks = 0;
  const fork = (answers: Asker) => {
    forks += 1;
    return forkFrom(run, { step: 0, name: `mine-${forks}`, overrides: {} }, { store: strange }, answers);
  };
  for (const folder of [strange, project]) {
    const config = write(path.join(folder, 'run.toml'), runFile(`[[env]]\nid = ${JSON.stringify(evil)}\n`));
    await store.put(key, encodeStored(key, { config, overrides: {}, attempt: 1 }));
    if (folder === strange) await fork(asker('y'));
    await fork(nobody);
    appendFileSync(evil, '\n');
    await assert.rejects(fork(nobody), /not granted: \S*evil\.ts \(sha256 \w+…\)\. Nothing/, folder);
    await fork(asker('y'));
  }
  // Its text is other now, and names a server.
  const config = write(
    path.join(strange, 'run.toml'),
    runFile(`[inference]\nkind = "openai"\nurl = "http://127.0.0.1:45014"\n${words}`),
  );
  await store.put(key, encodeStored(key, { config, overrides: {}, attempt: 1 }));
  await assert.rejects(fork(nobody), /run\.toml \(sha256.*the server http:\/\/127\.0\.0\.1:45014/);
});

test('a run file that was agreed to is nobody’s own, and what was not there is granted to nobody', async (t) => {
  const { project, strange, code, write } = stage(t);
  const place = { name: 'base', store: `file://${strange}/` };
  const agreed = write(path.join(strange, 'agreed.toml'), runFile(words));
  await askGrants(place, { lines: [agreed], environments: [] }, {}, asker('y'));
  const named = write(path.join(strange, 'named.toml'), runFile(words));
  grantNamed(project, [named]);
  assert.deepEqual(
    [areOwn(place, [named]), areOwn(place, [agreed]), areOwn(place, [named, agreed])],
    [true, false, false],
  );
  const before = granted(project);
  const later = path.join(strange, 'later.ts');
  await askGrants(place, { lines: [later], environments: [] }, {}, asker('y'));
  assert.equal(granted(project), before);
  code(later);
  await assert.rejects(askGrants(place, { lines: [later], environments: [] }, {}, nobody), /later\.ts \(sha256/);
});

test('what lies in a run’s folder is not of the project, wherever that was copied to', async (t) => {
  const { project, mark, code } = stage(t);
  const environment = { [trustedRootsVariable]: project };
  for (const store of ['outputs', 'runs']) {
    const evil = code(path.join(project, store, 'base', 'evil.ts'));
    const { run } = await makeRun(path.join(project, store), onEvil(evil));
    const model = { kind: 'version', model: 'base', run, policy: {}, sampling: {} } as unknown as EvaluatedModel;
    await assert.rejects(askForVersions([model], [evaluated(evil)], { store }), /evil\.ts \(sha256/, store);
    // Workers take no code from there, and data all the same.
    assert.throws(() => trustedFile(evil, 'It', environment), /it lies in a run's folder/);
    assert.equal(trustedData(evil, 'It', environment), evil);
    await askGrants(run, { lines: [evil], environments: [] }, {}, asker('y'));
    assert.equal(trustedFile(evil, 'It', environment), evil);
  }
  // Beside the runs of a store that a command names, as well.
  const beside = code(path.join(project, 'runs', 'beside.ts'));
  const place = { name: 'base', store: `file://${project}/runs/` };
  await assert.rejects(askGrants(place, { lines: [beside], environments: [] }, {}, nobody), /beside\.ts \(sha256/);
  const typedHere = code(path.join(project, 'outputs', 'mine.ts'));
  grantNamed(project, [typedHere]);
  assert.equal(trustedFile(typedHere, 'It', environment), typedHere);
  assert.equal(existsSync(mark), false);
});

test('a file that others can change is granted as it was, and asked for again once it is another', async (t) => {
  const { project, strange, code } = stage(t);
  const shared = code(path.join(strange, 'shared.ts'));
  chmodSync(shared, 0o666);
  const place = { name: 'base', store: `file://${project}/outputs/` };
  grantNamed(project, [shared]);
  await askGrants(place, { lines: [shared], environments: [] }, {}, nobody);
  appendFileSync(shared, '\n');
  await assert.rejects(askGrants(place, { lines: [shared], environments: [] }, {}, nobody), /shared\.ts/);
  // A worker of our own server takes nothing that others can change, granted or not.
  assert.throws(() => trustedFile(shared, 'It', { [trustedRootsVariable]: project }), /anybody may write/);
  grantNamed(project, [shared]);
  await askGrants(place, { lines: [shared], environments: [] }, {}, nobody);
  // No digest says what a folder was.
  const venv = path.join(strange, 'venv');
  mkdirSync(venv);
  grantNamed(project, [venv]);
  await askGrants(place, { lines: [venv], environments: [] }, {}, nobody);
  chmodSync(venv, 0o777);
  await assert.rejects(askGrants(place, { lines: [venv], environments: [] }, {}, nobody), /venv \(a folder\)/);
});

test(
  'the run of another user whose settings and run file name code: fork and rewind ask, a note does not, and nothing runs',
  { skip: process.getuid?.() !== 0 && 'only root can make files of another user' },
  async (t) => {
    const { project, strange, mark, code, write } = stage(t);
    const own = path.join(strange, 'base');
    const evil = path.join(own, 'evil.mjs');
    const quoted = JSON.stringify(evil);
    const venv = path.join(own, 'venv');
    const plant = (): void => {
      code(evil);
      for (const name of ['vllm', 'venv/bin/python', 'venv/bin/python3']) {
        write(path.join(own, name), `#!/bin/sh\necho ran > ${mark}\n`);
        chmodSync(path.join(own, name), 0o755);
      }
    };
    const kinds: Readonly<Record<string, readonly [file: string, change: (spec: RunSpec) => object, names: RegExp]>> = {
      modules: [
        `[trainer]\nkind = "module"\nimport = ${quoted}\n[inference]\nkind = "module"\nimport = ${quoted}\n[[env]]\nid = ${quoted}\n`,
        onEvil(evil),
        /names what you have not granted: .*evil\.mjs/,
      ],
      programs: [
        `[inference]\nkind = "vllm"\nprogram = ${JSON.stringify(path.join(own, 'vllm'))}\n${words}`,
        (spec) => ({ eval: { ...spec.eval!, environments: [evaluated('toy', { python: python(venv) })] } }),
        /names what you have not granted: .*vllm/,
      ],
    };
    for (const [kind, [file, change, names]] of Object.entries(kinds)) {
      plant();
      const config = write(path.join(own, 'evil.toml'), runFile(file));
      const { trainer, inference } = (await loadRunConfig(config, { projectFolder: strange })).spec;
      const { run, store } = await makeRun(strange, (spec) => ({ ...change(spec), trainer, inference }));
      const key = layout.source(run.spec.key);
      await store.put(key, encodeStored(key, { config, overrides: {}, attempt: 1 }));
      spawnSync('chown', ['-R', '54321:54321', strange]);
      assert.equal(statSync(config).uid, 54_321);
      const at = ['--store', strange];
      for (const asking of [
        ['fork', 'base', '--step', '0', '--name', 'mine', ...at],
        ['rewind', 'base', '--step', '0', ...at],
      ]) {
        const { code: exit, said } = typed(project, ...asking);
        assert.equal(exit, 2, `${kind} ${asking.join(' ')}\n${said}`);
        assert.match(said, names, `${kind} ${asking.join(' ')}`);
      }
      for (const looking of [
        ['note', 'base', 'looked at', ...at],
        ['chat', 'base', ...at],
        ['attach', 'base', ...at],
        ['index-run', 'base', ...at],
        ['fsck', 'base', ...at],
      ]) {
        const { code: exit, said } = typed(project, ...looking);
        if (looking[0] === 'note') assert.equal(exit, 0, said);
      }
      assert.equal(existsSync(mark), false, kind);
      assert.equal(granted(project), '', kind);
      assert.equal(existsSync(path.join(project, 'outputs')), false, kind);
      rmSync(own, { recursive: true });
    }
  },
);

test('a store that nobody typed is asked for: a run that says it may be anybody’s', async (t) => {
  const { project } = stage(t);
  const run = { name: 'base', store: 's3://bucket/x/', spec: { key: 'k', sha256: 's', bytes: 1 } };
  const model = { kind: 'version', model: 'base', run, policy: {}, sampling: {} } as unknown as EvaluatedModel;
  assert.deepEqual(typedByModels([model], {}), []);
  assert.deepEqual(typedByModels([model], { store: 's3://bucket/x' }), ['store s3://bucket AWS']);
  assert.equal(granted(project), '');
});

test('code that is not what the run had is refused before anybody is asked, and what has no digest is loaded as it was asked for', async (t) => {
  const { project, strange, code } = stage(t);
  const evil = code(path.join(strange, 'evil.ts'));
  const { run } = await makeRun(strange, () => ({
    inference: { kind: 'module', import: { path: evil, sha256: 'f'.repeat(64) }, options: {} },
  }));
  const model = { kind: 'version', model: 'base', run, policy: {}, sampling: {} } as unknown as EvaluatedModel;
  await assert.rejects(
    askForVersions([model], [], { store: strange }),
    /the run had \S*evil\.ts with sha256 f{16}…; put that/,
  );
  const ofEnvironment = [evaluated(evil, { sha256: 'e'.repeat(64) })];
  const plain = { ...(await makeRun(strange, undefined, 'plain')).run };
  const other = { ...model, run: plain } as EvaluatedModel;
  await assert.rejects(askForVersions([other], ofEnvironment, { store: strange }), /with sha256 e{16}…/);
  assert.equal(granted(project), '');
  const play = async (environment: EvaluatedEnvironment) => {
    const [input] = await inputsToPlay([{ environment, model: other }], { isTyped: false }, { store: strange });
    return input?.environment.sha256;
  };
  // Resolved again right before generation: the folder may have changed.
  await assert.rejects(play(evaluated(evil)), /evil\.ts \(sha256/);
  await askGrants(plain, { lines: [evil], environments: [] }, {}, asker('y'));
  assert.equal(await play(evaluated(evil)), digestOf(evil));
  assert.equal(await play(evaluated('reverse-text')), undefined);
});

test('a worker asks nobody: what it refuses says where a person is asked, or what to type', (t) => {
  const { project, strange } = stage(t);
  const environment = { [trustedRootsVariable]: project };
  const server = { url: 'http://127.0.0.1:45015/v1', keys: ['OPENAI_API_KEY'] };
  assert.throws(
    () => requireServer(server, 'The inference server', environment),
    /npx ratchet-rl eval checkpoints RUN asks for it, or takes --grant 'server http:\/\/127\.0\.0\.1:45015'/,
  );
  assert.throws(
    () => requireGrant('sandbox-none', 'Python', environment),
    /npx ratchet-rl eval checkpoints RUN asks for it, or takes --grant 'sandbox-none'/,
  );
  assert.throws(
    () => trustedFile(path.join(strange, 'evil.ts'), 'The environment', environment),
    /Where a stored run names it: npx ratchet-rl eval checkpoints RUN asks for it/,
  );
});

test('a schedule asks for the run’s own environments, and for none beside a file', async (t) => {
  const { project, strange, code, write } = stage(t);
  const evil = code(path.join(strange, 'base', 'evil.ts'));
  await makeRun(strange, onEvil(evil));
  const options = { run: 'base', store: strange, onRegression: 'flag', catchUp: '10m' } as const;
  await assert.rejects(inputOf(undefined, options), /evil\.ts \(sha256/);
  assert.equal(granted(project), '');
  const file = write(path.join(project, 'suite.toml'), '[[eval]]\nenv_id = "reverse-text"\n');
  assert.equal((await inputOf(file, options)).input.run?.name, 'base');
});

test('a schedule is of the pool that was typed, else of its run’s', async (t) => {
  const { strange } = stage(t);
  const queue = { pool: 'gpus', team: 'default', priority: 0, startAt: null, labels: {} };
  await makeRun(strange, () => ({ queue }));
  await makeRun(strange, () => ({}), 'alone');
  const options = { store: strange, onRegression: 'flag', catchUp: '10m' } as const;
  const poolOf = async (more: { readonly run: string; readonly pool?: string }) =>
    (await inputOf(undefined, { ...options, ...more })).pool;
  assert.equal(await poolOf({ run: 'base' }), 'gpus');
  assert.equal(await poolOf({ run: 'base', pool: 'other' }), 'other');
  assert.equal(await poolOf({ run: 'alone' }), null);
});

test('what a call left for --backfill is the folder’s, and --env is typed', async (t) => {
  const { strange, code } = stage(t);
  const { run, store } = await makeRun(strange);
  const key = `${layout.allEvaluations('main')}checkpoints.json`;
  const subject = { kind: 'planned', evaluations: [{ environment: evaluated(code(path.join(strange, 'evil.ts'))) }] };
  await store.put(key, encodeStored(key, { subject: { ...subject, isTyped: true } }));
  assert.equal((await subjectOf(run, { backfill: true, evalBase: true })).isTyped, false);
  assert.equal((await subjectOf(run, { env: ['reverse-text'], evalBase: true })).isTyped, true);
  assert.equal((await subjectOf(run, { evalBase: true })).isTyped, false);
});

test('a name that would move the cursor, or begin another line of grants, is neither shown as it is nor granted', async (t) => {
  const { project, strange } = stage(t);
  const place = { name: 'base', store: `file://${strange}/` };
  await assert.rejects(
    askGrants(place, { lines: ['/x\u001b[2J\u202e.ts'], environments: [] }, {}, nobody),
    (error: Error) => {
      assert.deepEqual(
        ['\u001b', '\u202e'].filter((sign) => error.message.includes(sign)),
        [],
      );
      return true;
    },
  );
  const lines = ['/x\nsandbox-none'];
  await assert.rejects(askGrants(place, { lines, environments: [] }, { grant: lines }, asker('y')), /line break/);
  assert.equal(granted(project), '');
});

test('the page forks nothing that is not granted, and says what to type at a terminal', async (t) => {
  const { project, strange, code, write } = stage(t);
  const evil = code(path.join(strange, 'base', 'evil.ts'));
  const config = write(path.join(strange, 'base', 'evil.toml'), runFile(`[[env]]\nid = ${JSON.stringify(evil)}\n`));
  const { run, store } = await makeRun(strange);
  const key = layout.source(run.spec.key);
  await store.put(key, encodeStored(key, { config, overrides: {}, attempt: 1 }));
  const steer = steerFromPage(run.store);
  await assert.rejects(
    async () => steer('base', { what: 'fork', value: '0 mine' }, null),
    /type npx ratchet-rl fork base --step 0 --name mine --store file:.* --grant '.*evil\.toml sha256 .*' --grant '.*evil\.ts sha256/,
  );
  assert.equal(granted(project), '');
});

/** A terminal of its own, whose person answers. */
const person = `
import os, pty, sys
pid, fd = pty.fork()
if pid == 0:
    os.execv(sys.argv[2], sys.argv[2:])
said, hasAnswered = b'', False
while True:
    try:
        piece = os.read(fd, 65536)
    except OSError:
        break
    if not piece:
        break
    said += piece
    if b'[y/N]' in said and not hasAnswered:
        hasAnswered = True
        os.write(fd, sys.argv[1].encode() + b'\\n')
sys.stdout.buffer.write(said)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
`;

const hasPython = spawnSync('python3', ['-c', 'import pty']).status === 0;

test(
  'at a real terminal, n leaves no trace, y forks, and what is read by a program asks nothing',
  { skip: !hasPython && 'there is no python3 here' },
  async (t) => {
    const { project, strange, code, write } = stage(t);
    const evil = code(path.join(strange, 'base', 'evil.ts'));
    const config = write(path.join(strange, 'base', 'evil.toml'), runFile(`[[env]]\nid = ${JSON.stringify(evil)}\n`));
    const { run, store } = await makeRun(strange, onEvil(evil));
    const key = layout.source(run.spec.key);
    await store.put(key, encodeStored(key, { config, overrides: {}, attempt: 1 }));
    const fork = ['fork', 'base', '--step', '0', '--name', 'mine', '--store', strange];
    const evaluate = ['eval', 'checkpoints', 'base', '--store', strange];
    const answered = (
      answer: string,
      typedWords: readonly string[],
    ): Promise<{ readonly code: number | null; readonly said: string }> =>
      new Promise((resolve) => {
        const command = [process.execPath, ratchet, ...typedWords];
        const child = spawn('python3', ['-c', person, answer, ...command], { cwd: project });
        let said = '';
        for (const stream of [child.stdout, child.stderr]) stream.on('data', (piece) => (said += String(piece)));
        child.once('close', (exit) => resolve({ code: exit, said }));
      });
    const json = await answered('y', [...evaluate, '--json']);
    assert.equal(json.code, 2, json.said);
    assert.doesNotMatch(json.said, /\[y\/N\]/);
    const no = await answered('n', evaluate);
    assert.equal(no.code, 2, no.said);
    assert.match(no.said.replaceAll(/\s+/g, ' '), /evil\.ts \(sha256 \w+…\).*Use it\? \[y\/N\].*nothing was granted/);
    assert.equal(existsSync(path.join(project, '.ratchet')), false);
    const yes = await answered('y', fork);
    assert.equal(yes.code, 0, yes.said);
    assert.match(yes.said, /mine begins at step 0 of base/);
    assert.match(granted(project), /^\/.*evil\.ts$/m);
  },
);

test("a stranger's agent is asked for with what it runs, and where its sandboxes are", async (t) => {
  const { project, strange } = stage(t);
  const provider = { kind: 'ssh', host: 'me@box', port: null, identityFile: null, knownHostsFile: null, folder: '/tmp' } as const; // prettier-ignore
  const pool = { provider, quota: null, warm: 0, costPerHour: 0 };
  const sandbox = { pool, files: null, setup: ['make'], network: 'open' };
  const score = { files: null, function: null, judge: null };
  const tasks = { path: 'theirs/tasks', sha256: null, hub: { subset: null, split: 'train' } };
  const program = { command: ['sh', '-c', 'cat ~/.ssh/*'], tasks, evalTasks: null, sandbox, score, models: [] };
  const environment = evaluated('mine', { program });
  const named = { lines: namedByEnvironments([environment]), environments: [environment] };
  const no = asker('n');
  await assert.rejects(askGrants({ name: 'base', store: `file:${strange}` }, named, {}, no), /the answer was no/);
  assert.match(no.asked[0]!, /sandboxes of \{.*"host":"me@box","identityFile":null,"kind":"ssh".*; the agent mine, which runs \["sh","-c","cat ~\/\.ssh\/\*"\] in sandboxes of kind ssh, set up by \["make"\], with the network of its machine/); // prettier-ignore
  assert.equal(granted(project), '');
});
