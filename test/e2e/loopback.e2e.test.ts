/** A stack as another user of the machine finds it: its ports answer nothing without the secret, which that user cannot read. */
import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { chmodSync, existsSync, readdirSync, readFileSync, rmSync, statSync, writeFileSync } from 'node:fs';
import path from 'node:path';
import { text } from 'node:stream/consumers';
import { after, before, test } from 'node:test';
import { createPreset, saveModelFolder } from '../../engine/index.ts';
import type { trainRun } from '../../workflows/train-run.ts';
import { until } from '../eventually.ts';
import { openSmallProject, type SmallProject, smallRun } from './small-run.ts';

const run = smallRun.replace('max_steps = 12', 'max_steps = 3').replace('interval = 6', 'interval = 3').replace('steps = 60', 'steps = 10'); // prettier-ignore
const otherUid = 65_534;

let project: SmallProject;
let secret: string;
before(async () => {
  project = await openSmallProject({ 'run.toml': run }, {}, true);
  secret = readFileSync(secretFile(), 'utf8').trim();
});
after(() => project?.close());

function secretFile(): string {
  return path.join(project.folder, '.ratchet/secret');
}

/** Address of `/metrics` from the metrics worker's log. */
async function metricsUrl(): Promise<string> {
  const log = path.join(project.folder, '.ratchet/logs/metrics-worker.log');
  let url: string | undefined;
  await until('/metrics is served', async () => {
    url = /http:\/\/\S+\/metrics/.exec(existsSync(log) ? readFileSync(log, 'utf8') : '')?.[0];
    return url;
  });
  return url!;
}

interface Call {
  readonly url: string;
  readonly method: string;
  readonly body?: string;
  readonly headers?: Readonly<Record<string, string>>;
}

/** Status and text of each answer, asked for by a process of another user where this one may become it. */
async function askAs(uid: number | undefined, calls: readonly Call[]): Promise<{ status: number; text: string }[]> {
  const program = `
const said = [];
for (const { url, ...init } of JSON.parse(process.argv[1])) {
  const answer = await fetch(url, init);
  said.push({ status: answer.status, text: await answer.text() });
}
console.log(JSON.stringify(said));`;
  const child = spawn(process.execPath, ['--input-type=module', '-e', program, JSON.stringify(calls)], {
    cwd: '/',
    env: {},
    stdio: ['ignore', 'pipe', 'inherit'],
    ...(uid === undefined ? {} : { uid, gid: uid }),
  });
  return JSON.parse(await text(child.stdout)) as { status: number; text: string }[];
}

async function calls(): Promise<Call[]> {
  const { policyUrl, folder } = project;
  const weight_dir = path.join(folder, 'outputs/model');
  if (!existsSync(weight_dir)) await saveModelFolder(createPreset('preset:reverse-text-0.2m', { seed: 0 }), weight_dir);
  const post = (route: string, body: object): Call => ({
    url: `${policyUrl}${route}`,
    method: 'POST',
    body: JSON.stringify(body),
  });
  return [
    post('/update_weights', { name: 'private:main:0', weight_dir }),
    post('/v1/completions', { model: 'private:main:0', prompt: '<bos>cat<sep>' }),
    { url: `${policyUrl}/v1/models`, method: 'GET' },
    { url: `${policyUrl}/metrics`, method: 'GET' },
    { url: await metricsUrl(), method: 'GET' },
    post('/pause', {}),
    post('/resume', {}),
  ];
}

const asked = async (uid: number | undefined): Promise<void> => {
  const known = (await calls()).map((call) => ({ ...call, headers: { authorization: `Bearer ${secret}` } }));
  const first = await askAs(undefined, known);
  assert.deepEqual(new Set(first.map(({ status }) => status)), new Set([200]), JSON.stringify(first));
  for (const headers of [{}, { authorization: 'Bearer guessed' }]) {
    const answers = await askAs(
      uid,
      (await calls()).map((call) => ({ ...call, headers })),
    );
    for (const { status, text } of answers) {
      assert.equal(status, 401, text);
      assert.ok(text.includes('.ratchet/secret') && !text.includes(secret) && !text.includes(project.folder), text);
    }
  }
  const [health] = await askAs(uid, [{ url: `${project.policyUrl}/health`, method: 'GET' }]);
  assert.deepEqual(health, { status: 200, text: '{"status":"ok"}' }, 'it is not paused');
};

test('whoever has no secret samples, loads, pauses and reads nothing', () => asked(undefined));

const skip = process.getuid?.() !== 0 && 'only root can be another user';

test('another user of the machine samples, loads, pauses and reads nothing', { skip }, () => asked(otherUid));

test(
  'another user finds the secret in no file, argument or environment',
  { skip: skip || process.platform !== 'linux' },
  async () => {
    // Other users may enter the folder.
    chmodSync(project.folder, 0o755);
    assert.equal(statSync(secretFile()).mode & 0o777, 0o600);
    const pids = Object.values(project.stack.pids()).flatMap((pid) => pid ?? []);
    const program = `
const { readFileSync } = require('fs');
const read = (file) => { try { return readFileSync(file, 'utf8'); } catch (error) { return error.code; } };
console.log(JSON.stringify(JSON.parse(process.argv[1]).map(read)));`;
    const read = async (uid: number, files: readonly string[]): Promise<string[]> => {
      const child = spawn(process.execPath, ['-e', program, JSON.stringify(files)], {
        cwd: '/',
        env: {},
        uid,
        gid: uid,
        stdio: ['ignore', 'pipe', 'inherit'],
      });
      return JSON.parse(await text(child.stdout)) as string[];
    };
    const inProc = (name: string): string[] => pids.map((pid) => `/proc/${pid}/${name}`);
    assert.deepEqual(new Set(await read(otherUid, [secretFile(), ...inProc('environ')])), new Set(['EACCES']));
    const lines = await read(otherUid, inProc('cmdline'));
    assert.ok(lines.some((line) => line.includes('policy-server')) && !lines.join('').includes(secret));
    assert.ok(!(await read(0, inProc('environ'))).join('').includes(secret), 'no process is started with it');
  },
);

test('a run goes on when the secret is removed and its processes are killed, and nothing that it writes has the secret', async () => {
  rmSync(secretFile());
  const handle = await project.client.workflow.start<typeof trainRun>('trainRun', {
    workflowId: 'run',
    taskQueue: 'ratchet',
    args: [{ config: 'run.toml', run: 'run' }],
  });
  await until('step 1', () => project.commit('run', 1));
  for (const name of ['policy server', 'rollout worker']) process.kill(project.stack.pids()[name]!, 'SIGKILL');
  const { step, ledger } = await handle.result();
  assert.deepEqual([step, ledger.isSound], [3, true]);
  for (const folder of ['.ratchet', 'outputs']) {
    for (const name of readdirSync(path.join(project.folder, folder), { recursive: true, encoding: 'utf8' })) {
      const file = path.join(project.folder, folder, name);
      if (statSync(file).isFile()) assert.ok(!readFileSync(file).includes(secret), file);
    }
  }
});

test('a running stack keeps the secret that it was started with, whatever the file says meanwhile', async () => {
  const other = 'a'.repeat(43);
  writeFileSync(secretFile(), `${other}\n`, { mode: 0o600 });
  const call = (key: string): Call => ({
    url: `${project.policyUrl}/v1/models`,
    method: 'GET',
    headers: { authorization: `Bearer ${key}` },
  });
  const answers = await askAs(undefined, [call(other), call(secret)]);
  assert.deepEqual(answers.map(({ status }) => status), [401, 200]); // prettier-ignore
});
