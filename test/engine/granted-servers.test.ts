/**
 * Servers that workers of our own Temporal server may ask and send keys to: none that another user of the machine
 * names.
 */
import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { appendFileSync, chmodSync, mkdirSync, readFileSync, writeFileSync } from 'node:fs';
import { once } from 'node:events';
import path from 'node:path';
import { test } from 'node:test';
import { MockActivityEnvironment } from '@temporalio/testing';
import { createOpenRun } from '../../activities/open-run.ts';
import { createPlanEvaluations } from '../../activities/evaluation/plan-evaluations.ts';
import { grantNamed, namedByEnvironments, namedByModel, namedIn } from '../../load/grants/grant.ts';
import { loadEvaluationFile } from '../../load/evaluations/load-evaluations.ts';
import { loadRunConfig } from '../../load/load-run-config.ts';
import { type EnvironmentEntry, openEnvironment } from '../../backends/environments/index.ts';
import { weightsAgentKeyVar } from '../../core/names.ts';
import { requireNamed } from '../../backends/environments/named.ts';
import { openJudge } from '../../backends/environments/judge.ts';
import { openEndpoint, openInference } from '../../backends/inference/index.ts';
import { readEndpoints } from '../../backends/inference/openai/endpoints-file.ts';
import { ModelServer } from '../../backends/inference/model-server.ts';
import { askWeightsAgent } from '../../backends/inference/vllm/weights-agent-client.ts';
import { openRunStore } from '../../store/index.ts';
import { TinkerHttp } from '../../backends/tinker/http.ts';
import { grantedAt, grantedLines, linesOfServerOf, requireServer, writeGrants } from '../../host/grants.ts';
import { key, listener, notAsked, secret, stage } from './grant-stage.ts';

const chat = {
  messages: [{ role: 'user' as const, content: 'hello' }],
  fields: {},
  seed: 1,
  path: [],
} as unknown as Parameters<ReturnType<typeof openEndpoint>['chat']>[0];

const version = { weights: 'weights/step_1/', file: {}, sums: {} };
const policy = { name: 'run:1', folder: '', version } as unknown as Parameters<ReturnType<typeof askWeightsAgent>>[0];

test('a server that nobody named hears nothing, whoever asks it, on the loopback neither', async (t) => {
  stage(t);
  const { url, heard } = await listener(t);
  const address = { url, headers: {}, headersFromEnv: {}, model: null };
  const ask = (apiKeyVar: string | null, headersFromEnv = {}) => {
    const server = new ModelServer({ ...address, apiKeyVar, headersFromEnv }, { timeoutMs: 5_000, provider: 'cpu' });
    t.after(() => server.close());
    return server.post('/v1/chat/completions', {});
  };
  await assert.rejects(ask(key), notAsked);
  await assert.rejects(ask(null), notAsked);
  await assert.rejects(ask(null, { 'x-key': key }), notAsked);
  const endpoint = openEndpoint([{ model: 'm', baseUrl: `${url}/v1`, apiKeyVar: key, headers: {} }], {
    timeoutMs: 5_000,
    maxConcurrent: 1,
  });
  t.after(() => endpoint.close());
  await assert.rejects(endpoint.chat(chat), notAsked);
  const tinker = new TinkerHttp({ url, apiKeyVar: key, server: 'tinker' }, { patienceMs: 0, say: () => undefined });
  await assert.rejects(tinker.get('/api/v1/healthz'), notAsked);
  await assert.rejects(askWeightsAgent(url)(policy), notAsked);
  assert.deepEqual(heard, []);
});

test('a key goes to the server that it was named with, not to another that was named without it', async (t) => {
  const { project } = stage(t);
  const [own, other] = [await listener(t), await listener(t)];
  const model = (url: string, apiKeyVar: string | null) => ({
    kind: 'endpoint' as const,
    model: 'm',
    servers: [{ model: 'm', baseUrl: `${url}/v1`, apiKeyVar, headers: {} }],
    sampling: {},
  });
  grantNamed(project, [...namedByModel(model(own.url, key)), ...namedByModel(model(other.url, null))]);
  const ask = (url: string, apiKeyVar: string | null) =>
    new ModelServer(
      { url, apiKeyVar, headers: {}, headersFromEnv: {}, model: null },
      { timeoutMs: 5_000, provider: 'cpu' },
    ).get('/v1/models');
  await ask(own.url, key);
  await ask(own.url, null);
  await ask(other.url, null);
  await assert.rejects(ask(other.url, key), new RegExp(`is not asked with the key in ${key}`));
  await assert.rejects(ask(own.url, 'PATH'), /is not asked with the key in PATH/);
  const patience = { patienceMs: 0, say: () => undefined };
  const tinker = (url: string) => new TinkerHttp({ url, apiKeyVar: key, server: 'tinker' }, patience);
  await tinker(own.url).get('/api/v1/healthz');
  await assert.rejects(tinker(other.url).get('/api/v1/healthz'), new RegExp(`is not asked with the key in ${key}`));
  process.env[weightsAgentKeyVar] = secret;
  t.after(() => delete process.env[weightsAgentKeyVar]);
  await assert.rejects(
    askWeightsAgent(own.url)(policy),
    new RegExp(`is not asked with the key in ${weightsAgentKeyVar}`),
  );
  assert.deepEqual(own.heard.map(({ authorization }) => authorization), [`Bearer ${secret}`, undefined, undefined]); // prettier-ignore
  assert.deepEqual(own.heard.map((headers) => headers['x-api-key']), [undefined, undefined, secret]); // prettier-ignore
  assert.deepEqual(other.heard.map(({ authorization }) => authorization), [undefined]); // prettier-ignore
});

test('an origin is the same however it is written, and another one is not', (t) => {
  const { project } = stage(t);
  writeGrants(project, ['server https://api.example.com', 'key K https://api.example.com']);
  for (const url of ['https://API.example.com:443/v1', 'https://api.example.com/other/', 'https://me@api.example.com'])
    requireServer({ url, keys: ['K'] }, 'It');
  for (const url of [
    'http://api.example.com',
    'https://api.example.com:8443',
    'https://api.example.com.evil.org',
    'https://api.example.com@evil.org/v1',
    'other://api.example.com',
  ]) {
    assert.throws(() => requireServer({ url, keys: [] }, 'It'), notAsked, url);
  }
});

test('a server that a command started is asked while that command runs, and no longer', async (t) => {
  const { project } = stage(t);
  const command = spawn(process.execPath, ['-e', 'setTimeout(() => {}, 60_000)']);
  const { url } = await listener(t);
  writeGrants(project, linesOfServerOf(command.pid!, url));
  requireServer({ url, keys: [] }, 'It');
  assert.throws(() => requireServer({ url, keys: [key] }, 'It'), notAsked);
  command.kill('SIGKILL');
  await once(command, 'exit');
  assert.throws(() => requireServer({ url, keys: [] }, 'It'), notAsked);
});

test('the policy server beside the workers is asked without a word; where none was started nobody is', async (t) => {
  const { write, project } = stage(t);
  const { url } = await listener(t);
  const run = write('run.toml', 'model = "preset:reverse-text-0.2m"\n[[env]]\nid = "reverse-text"\n');
  const { inference } = (await loadRunConfig(run, { projectFolder: project })).spec;
  assert.throws(() => openInference(inference, ''), /without a policy server/);
  openInference(inference, url);
  requireServer({ url, keys: [] }, 'It');
});

test('a run file names its servers, their keys and headers at a command line', async (t) => {
  const { write, project } = stage(t);
  const { url } = await listener(t);
  const base = 'model = "preset:reverse-text-0.2m"\n[[env]]\nid = "reverse-text"\n';
  const inference = `[inference]\nkind = "openai"\nurl = "${url}"\napi_key_var = "${key}"\nheaders_from_env = { x-more = "RATCHET_MORE" }\n`;
  const { spec } = await loadRunConfig(write('run.toml', base + inference), { projectFolder: project });
  const named = namedIn(spec);
  for (const line of [`server ${url}`, `key ${key} ${url}`, `key RATCHET_MORE ${url}`])
    assert.ok(named.includes(line), line);
  grantNamed(project, named);
  requireServer({ url, keys: [key, 'RATCHET_MORE'] }, 'It');
});

test('a run file of the project grants its servers where it is started as it stands, and nothing that was laid over it', async (t) => {
  const { write, project } = stage(t);
  const [own, evil] = [await listener(t), await listener(t)];
  const run = write(
    'run.toml',
    `model = "preset:reverse-text-0.2m"\n[[env]]\nid = "reverse-text"\n[inference]\nkind = "openai"\nurl = "${own.url}"\napi_key_var = "${key}"\n`,
  );
  const keyless = write('keyless.toml', `inference.url = "${evil.url}"\n`);
  const open = createOpenRun({
    projectFolder: project,
    whatSearchAttributesLack: async () => null,
    isWorkflowRunning: async () => false,
  });
  const start = (name: string, input: object) =>
    new MockActivityEnvironment().run(open, { config: run, run: name, ...input }, name, 'execution');
  await start('a', { overrides: { 'inference.url': evil.url } });
  for (const { url } of [own, evil]) assert.throws(() => requireServer({ url, keys: [] }, 'It'), notAsked);
  // Two files grant each server, but not the key of one for the server of the other.
  await start('b', { over: [{ file: keyless }] });
  requireServer({ url: evil.url, keys: [] }, 'It');
  assert.throws(() => requireServer({ url: evil.url, keys: [key] }, 'It'), notAsked);
  await start('c', {});
  requireServer({ url: own.url, keys: [key] }, 'It');
});

test('the judge of a run file is granted where the run is started as it stands, and no other', async (t) => {
  const { write, project } = stage(t);
  const judge = `judge = { base_url = "https://judge.example/v1", model = "m", api_key_var = "${key}" }`;
  const run = write(
    'run.toml',
    `model = "preset:reverse-text-0.2m"\n[[env]]\nid = "wiki-search"\nargs = { ${judge} }\n`,
  );
  const open = createOpenRun({
    projectFolder: project,
    whatSearchAttributesLack: async () => null,
    isWorkflowRunning: async () => false,
  });
  const start = (overrides: Record<string, string>) =>
    new MockActivityEnvironment().run(open, { config: run, run: 'a', overrides }, 'a', 'execution');
  const lines = () => grantedLines(project).filter((line) => line.startsWith('environment '));
  const refused = /The environment wiki-search with these arguments and variables is not taken from Temporal/;
  await assert.rejects(start({ 'env.0.args.judge.base_url': 'http://127.0.0.1:9/v1' }), refused);
  await assert.rejects(start({ max_steps: '3' }), refused);
  assert.equal(lines().length, 0);
  await start({}).catch((error: Error) => assert.doesNotMatch(error.message, refused));
  assert.equal(lines().length, 1);
  await assert.rejects(start({ 'env.0.args.judge.api_key_var': 'RATCHET_OTHER' }), refused);
});

test('a file of evaluations grants its servers as it stands, and nothing that was laid over it', async (t) => {
  const { write, project } = stage(t);
  const [own, evil] = [await listener(t), await listener(t)];
  const file = write(
    'evals.toml',
    `model = "m"\napi_base_url = "${own.url}/v1"\napi_key_var = "${key}"\n[[eval]]\nid = "reverse-text"\n`,
  );
  const plan = createPlanEvaluations({ projectFolder: project, isWorkflowRunning: async () => false });
  const ask = (over: Record<string, string>) =>
    new MockActivityEnvironment().run(plan, { config: file, over, request: 'a/b', goOn: 'never' as const });
  await ask({ api_base_url: `${evil.url}/v1` });
  assert.throws(() => requireServer({ url: evil.url, keys: [key] }, 'It'), notAsked);
  assert.throws(() => requireServer({ url: own.url, keys: [key] }, 'It'), notAsked);
  await ask({});
  requireServer({ url: own.url, keys: [key] }, 'It');
  assert.throws(() => requireServer({ url: evil.url, keys: [] }, 'It'), notAsked);
});

test('an endpoints file of the project names its servers; one of somebody else is not read', async (t) => {
  const { write, project, folder } = stage(t);
  const { url } = await listener(t);
  const text = `[[endpoint]]\nendpoint_id = "a"\nmodel = "m"\nurl = "${url}/v1"\nkey = "${key}"\n`;
  const strange = path.join(folder, 'endpoints.toml');
  writeFileSync(strange, text, { mode: 0o644 });
  assert.throws(() => readEndpoints({ path: strange, id: 'a' }), /not taken from Temporal/);
  const evals = write('evals.toml', '[[eval]]\nid = "reverse-text"\nmodel = "a"\n');
  const over = { endpoints_path: strange };
  await assert.rejects(loadEvaluationFile(evals, { projectFolder: project, over }), /not taken from Temporal/);
  assert.throws(() => requireServer({ url, keys: [key] }, 'It'), notAsked);
  readEndpoints({ path: write('endpoints.toml', text), id: 'a' });
  requireServer({ url, keys: [key] }, 'It');
  assert.match(readFileSync(grantedAt(project), 'utf8'), /^server /m);
});

test('an environment is not loaded with a judge that nobody named', async (t) => {
  const { project } = stage(t);
  const { url, heard } = await listener(t);
  const judged = (args: object) => ({ id: 'wiki-search', name: 'wiki-search', args: args as Record<string, string> });
  for (const args of [{ base_url: `${url}/v1`, model: 'm' }, { api_key_var: key }, { judge: { base_url: url } }])
    await assert.rejects(openEnvironment(judged(args)), /not taken from Temporal/);
  // Parsers accept more spellings of a URL than the usual one.
  for (const base_url of [url.replace('//', ''), url.replace('//', '\\\\'), url.replace('tp://', '\ttp:')])
    await assert.rejects(
      openEnvironment(judged({ judge: { base_url, model: 'm' } })),
      /not taken from Temporal/,
      base_url,
    );
  const named = judged({ judge: { base_url: `${url}/v1`, model: 'm', api_key_var: key } });
  grantNamed(project, namedByEnvironments([named]));
  await openEnvironment(named).catch((error: Error) => assert.doesNotMatch(error.message, /not taken from Temporal/));
  assert.deepEqual(heard, []);
});

test('an environment in Python is told the variables that it was named with, and no others', (t) => {
  const { project } = stage(t);
  const python = { api: 'v0', module: 'judged', folder: '/env', version: '1' } as unknown as EnvironmentEntry['python'];
  const told = (names: string[], files: string[] = [], args = {}) =>
    requireNamed({ id: 'judged', args, python, variables: { names, files } });
  const named = { id: 'judged', args: {}, python, variables: { names: ['JUDGE_KEY'], files: ['/env/keys'] } };
  assert.throws(() => told([]), /not taken from Temporal/);
  grantNamed(project, namedByEnvironments([named]));
  told(['JUDGE_KEY'], ['/env/keys']);
  told([]);
  assert.throws(() => told(['JUDGE_KEY', 'OTHER_KEY']), /Expected the line "key OTHER_KEY environment /);
  assert.throws(() => told(['JUDGE_KEY'], ['/env/other']), /Expected the line "key \/env\/other environment /);
  assert.throws(() => told(['JUDGE_KEY'], [], { url: 'http://elsewhere' }), /not taken from Temporal/);
});

test('a bucket is written to with our credentials where it was named, and nowhere else', (t) => {
  const { project } = stage(t);
  const evil = 's3://bucket/runs/?endpoint=http://127.0.0.1:9';
  assert.throws(
    () => openRunStore(evil, 'run'),
    /store s3:\/\/bucket at http:\/\/127.0.0.1:9 is not taken from Temporal/i,
  );
  assert.throws(() => openRunStore('s3://bucket/runs/', 'run'), /at AWS is not taken/);
  writeGrants(project, ['store s3://bucket AWS']);
  openRunStore('s3://bucket/runs/', 'run');
  assert.throws(() => openRunStore(evil, 'run'), /not taken from Temporal/);
  assert.throws(() => openRunStore('s3://other/runs/', 'run'), /not taken from Temporal/);
});

test('no redirect takes a key along', async (t) => {
  const { project } = stage(t);
  const thief = await listener(t, (_, reply) =>
    reply.writeHead(200, { 'content-type': 'application/json' }).end('{"choices":[{"message":{"content":"1"}}]}'),
  );
  const own = await listener(t, (_, reply) => reply.writeHead(307, { location: `${thief.url}/v1/x` }).end());
  writeGrants(project, [`server ${own.url}`, `key ${key} ${own.url}`]);
  const server = new ModelServer(
    { url: own.url, apiKeyVar: key, headers: {}, headersFromEnv: {}, model: null },
    { timeoutMs: 5_000, provider: 'cpu' },
  );
  await server.get('/v1/models');
  assert.equal(thief.heard.length, 0);
  const tinker = new TinkerHttp({ url: own.url, apiKeyVar: key, server: 'tinker' }, { patienceMs: 0, say: () => {} });
  await tinker.get('/api/v1/download').catch(() => undefined);
  const judge = openJudge({ base_url: `${own.url}/v1`, model: 'm', api_key_var: key, max_retries: 0 });
  await judge.ask('?').catch(() => undefined);
  assert.equal(own.heard.filter(({ authorization }) => authorization === `Bearer ${secret}`).length, 2);
  assert.ok(own.heard.some((headers) => headers['x-api-key'] === secret));
  assert.ok(!JSON.stringify(thief.heard).includes(secret));
});

test('what others may have written to is no grant', { skip: process.getuid === undefined }, (t) => {
  const { project } = stage(t);
  mkdirSync(path.join(project, '.ratchet'), { mode: 0o777 });
  const file = grantedAt(project);
  appendFileSync(file, 'server http://evil.example\n');
  chmodSync(file, 0o666);
  assert.throws(() => requireServer({ url: 'http://evil.example', keys: [] }, 'It'), notAsked);
});
