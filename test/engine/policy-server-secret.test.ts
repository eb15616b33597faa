/** A policy server on the loopback answers only clients with the secret, whatever user of the machine asks. */
import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { readFileSync } from 'node:fs';
import { request } from 'node:http';
import path from 'node:path';
import { createInterface } from 'node:readline';
import { test } from 'node:test';
import { createPreset, startPolicyServer } from '../../engine/index.ts';
import { addressOf, proofOf } from '../../engine/server/gate.ts';
import { temporaryFolder } from './models.ts';
import { openStage } from './server-stage.ts';

const secret = 'secret-of-this-project';
const key = { kind: 'secret', value: secret } as const;
const authorization = `Bearer ${secret}`;
const model = createPreset('preset:reverse-text-0.2m', { seed: 0 });

interface Answer {
  readonly status: number;
  readonly text: string;
  readonly headers: Readonly<Record<string, unknown>>;
}

function ask(url: string, headers: Record<string, string>, { method = 'GET', body = '' } = {}): Promise<Answer> {
  return new Promise((resolve, reject) => {
    request(url, { method, headers }, (response) => {
      let text = '';
      response.on('data', (chunk: Buffer) => (text += chunk.toString()));
      response.on('end', () => resolve({ status: response.statusCode!, text, headers: response.headers }));
    })
      .on('error', reject)
      .end(body);
  });
}

test('without the secret it samples, tells, loads and pauses nothing; with it, it does', async (t) => {
  const lines: string[] = [];
  const { server, hold, folder } = await openStage(t, { key, log: (line) => void lines.push(line) });
  const load = JSON.stringify({ name: 'run:main:1', weight_dir: path.join(folder, 'run_main_0') });
  const sample = JSON.stringify({ model: 'run:main:0', prompt: '<bos>cat<sep>' });
  assert.equal((await hold('run:main:0', model)).status, 200);
  const routes: readonly (readonly [method: string, route: string, body: string])[] = [
    ['GET', '/v1/models', ''],
    ['GET', '/metrics', ''],
    ['GET', '/version', ''],
    ['POST', '/v1/completions', sample],
    ['POST', '/v1/chat/completions', sample],
    ['POST', '/v1/chat/completions/tokens', sample],
    ['POST', '/inference/v1/generate', sample],
    ['POST', '/tokenize', sample],
    ['POST', '/detokenize', sample],
    ['POST', '/update_weights', load],
    ['POST', '/hold_version', JSON.stringify({ name: 'run:main:0', holder: 'x', seconds: 60 })],
    ['POST', '/release_version', JSON.stringify({ name: 'run:main:0', holder: 'x' })],
    ['POST', '/pause', ''],
    ['POST', '/resume', ''],
    ['GET', '/no/such/route', ''],
  ];
  const strangers: readonly Record<string, string>[] = [
    {},
    { authorization: 'Bearer' },
    { authorization: 'Bearer ' },
    { authorization: `Bearer ${secret}x` },
    { authorization: `Bearer ${secret.slice(0, -1)}` },
    { authorization: `Basic ${secret}` },
    { authorization: secret },
    { 'x-api-key': secret },
  ];
  for (const [method, route, body] of routes) {
    for (const headers of strangers) {
      const { status, text } = await ask(`${server.url}${route}`, headers, { method, body });
      const said = `${method} ${route} ${JSON.stringify(headers)}`;
      assert.equal(status, 401, said);
      assert.match(
        text,
        /Expected the header \\"Authorization: Bearer KEY\\" with the secret .*\.ratchet\/secret/,
        said,
      );
      assert.ok(!text.includes(folder) && !text.includes('run:main'), said);
    }
  }
  const held = await ask(`${server.url}/v1/models`, { authorization });
  assert.deepEqual(
    (JSON.parse(held.text) as { data: { id: string }[] }).data.map(({ id }) => id),
    ['run:main:0'],
    'nobody loaded a version',
  );
  assert.equal((await ask(`${server.url}/health`, {})).text, '{"status":"ok"}', 'nobody paused it');
  assert.equal(
    (await ask(`${server.url}/v1/completions`, { authorization }, { method: 'POST', body: sample })).status,
    200,
  );
  assert.equal((await ask(`${server.url}/pause`, { authorization }, { method: 'POST' })).status, 200);
  assert.doesNotMatch(lines.join('\n'), new RegExp(secret), 'the log has no secret');
});

test('a web page of another place is refused before the secret is looked at, and with it', async (t) => {
  const { server } = await openStage(t, { key });
  for (const headers of [{ host: 'rebound.example' }, { origin: 'https://evil.example' }] as Record<string, string>[]) {
    assert.equal((await ask(`${server.url}/v1/models`, headers)).status, 403);
    assert.equal((await ask(`${server.url}/v1/models`, { ...headers, authorization })).status, 403);
  }
});

test('it proves at its own address alone that it has the secret, and tells nothing else by that', async (t) => {
  const { server } = await openStage(t, { key });
  const proofFor = async (headers: Record<string, string>) =>
    (await ask(`${server.url}/health`, { 'ratchet-challenge': 'once', ...headers })).headers['ratchet-proof'];
  const own = proofOf(secret, 'once', addressOf('127.0.0.1', server.port));
  assert.equal(await proofFor({}), own);
  assert.equal(await proofFor({ host: '127.0.0.1:1' }), own, 'it is asked for another address, and says its own');
  assert.equal((await ask(`${server.url}/health`, {})).headers['ratchet-proof'], undefined);
  assert.equal((await ask(`${server.url}/v1/models`, { authorization: `Bearer ${own}` })).status, 401);
  const chosen = await openStage(t, { key: { kind: 'chosen', value: 'weak', variable: 'KEY' } });
  const { headers } = await ask(`${chosen.server.url}/health`, { 'ratchet-challenge': 'once' });
  assert.equal(headers['ratchet-proof'], undefined, 'a key that a person chose could be guessed from it');
});

test('the secret of a folder is no key for a server that others reach', async () => {
  await assert.rejects(startPolicyServer({ host: '0.0.0.0', threads: 1, allowRoots: [], key }), {
    code: 'ConfigInvalid',
    message: /--api-key-env/,
  });
});

test('one that is started by hand makes the secret of its folder, and says how it is asked', async (t) => {
  const folder = await temporaryFolder(t);
  const main = new URL('../../engine/server/main.ts', import.meta.url).pathname;
  const args = ['--import', import.meta.resolve('tsx'), main, '--allow-root', folder];
  const child = spawn(process.execPath, args, { cwd: folder, stdio: ['ignore', 'pipe', 'inherit'] });
  t.after(() => child.kill('SIGKILL'));
  const said: string[] = [];
  for await (const line of createInterface({ input: child.stdout })) {
    said.push(line);
    if (line.startsWith('ask it with:')) break;
  }
  const url = /http:\S+/.exec(said[0]!)![0];
  assert.equal((await ask(`${url}/v1/models`, {})).status, 401);
  const file = path.join(folder, '.ratchet/secret');
  const own = readFileSync(file, 'utf8').trim();
  assert.equal((await ask(`${url}/v1/models`, { authorization: `Bearer ${own}` })).status, 200);
  const command = said.at(-1)!.replace('ask it with:', '').trim();
  assert.doesNotMatch(said.join('\n'), new RegExp(own));
  const shell = spawn('sh', ['-c', command.replace('curl ', 'curl -sS ')], { stdio: ['ignore', 'pipe', 'inherit'] });
  let answered = '';
  shell.stdout.on('data', (chunk: Buffer) => (answered += chunk.toString()));
  await once(shell, 'close');
  assert.equal(answered, '{"object":"list","data":[]}');
});
