/** The guard in front of a vLLM that we start: `python/ratchet_vllm.py`, in Python, and vLLM's start with it. */
import assert from 'node:assert/strict';
import { execFileSync, spawnSync } from 'node:child_process';
import { readFileSync, writeFileSync } from 'node:fs';
import path from 'node:path';
import { test, type TestContext } from 'node:test';
import { fileURLToPath } from 'node:url';
import { loadRunConfig } from '../../load/load-run-config.ts';
import { addressOf, proofOf } from '../../engine/server/gate.ts';
import { vllmCommandLine, vllmRole } from '../../workers/stack/vllm-role.ts';
import { temporaryFolder } from './fixtures/processes.ts';

const hasPython = spawnSync('python3', ['--version']).status === 0;
const skip = !hasPython && 'there is no python3';
const python = fileURLToPath(new URL('../../python', import.meta.url));
const key = 'key-of-this-vllm';
const secret = 'secret-of-this-project';

/** Each request through the middleware, before an application that says which requests came to it. */
const program = `
import asyncio, json, sys
from ratchet_vllm import RequireKey

async def app(scope, receive, send):
    if scope["type"] != "lifespan":
        await send({"type": "http.response.start", "status": 299, "headers": []})
        await send({"type": "http.response.body", "body": b""})
    else:
        await send({"type": "lifespan.startup.complete"})

async def ask(guard, scope):
    said = []
    async def send(message):
        said.append({k: v if not isinstance(v, bytes) else v.decode() for k, v in message.items() if k != "headers"})
        said[-1]["headers"] = {k.decode(): v.decode() for k, v in message.get("headers", [])}
    await guard({**scope, "headers": [(k.encode(), v.encode()) for k, v in scope.get("headers", {}).items()]}, None, send)
    return said

guard = RequireKey(app)
print(json.dumps([asyncio.run(ask(guard, scope)) for scope in json.load(sys.stdin)]))
`;

interface Said {
  readonly type: string;
  readonly status?: number;
  readonly code?: number;
  readonly body?: string;
  readonly headers: Readonly<Record<string, string>>;
}

function askAll(scopes: readonly object[], env: Record<string, string>): Said[][] {
  const options = { input: JSON.stringify(scopes), env: { PATH: process.env['PATH'], PYTHONPATH: python, ...env } };
  return JSON.parse(execFileSync('python3', ['-B', '-c', program], { ...options, encoding: 'utf8' })) as Said[][];
}

const http = (route: string, headers: Record<string, string> = {}, method = 'POST') => ({
  type: 'http',
  method,
  path: route,
  headers,
  server: ['127.0.0.1', 8000],
});

test('every route but /health asks for the key: those that vLLM leaves open as well', { skip }, () => {
  const routes =
    '/v1/completions /v1/load_lora_adapter /collective_rpc /pause /resume /update_weights /sleep /metrics /tokenize /invocations /server_info /ping / /health/../pause /healthx //pause'.split(
      ' ',
    );
  const strangers: Record<string, string>[] = [{}, { authorization: 'Bearer ' }, { authorization: `Bearer ${key}x` }];
  const asked = routes.flatMap((route) => ['GET', 'POST', 'OPTIONS'].flatMap((method) => strangers.map((one) => http(route, one, method)))); // prettier-ignore
  const said = askAll(asked, { VLLM_API_KEY: key, RATCHET_SECRET: secret });
  for (const [i, [start, body]] of said.entries()) {
    assert.equal(start!.status, 401, JSON.stringify(asked[i]));
    assert.match(body!.body!, /Expected the header/);
    JSON.parse(body!.body!);
  }
  const known = askAll(routes.map((route) => http(route, { authorization: `Bearer ${key}` })), { VLLM_API_KEY: key }); // prettier-ignore
  assert.ok(known.every(([start]) => start!.status === 299));
});

test('a socket is closed, and the start of the server is let through', { skip }, () => {
  const [socket, lifespan] = askAll([{ type: 'websocket', path: '/health' }, { type: 'lifespan' }], {
    VLLM_API_KEY: key,
  });
  assert.deepEqual(socket!.map(({ type, code }) => [type, code]), [['websocket.close', 1008]]); // prettier-ignore
  assert.equal(lifespan![0]!.type, 'lifespan.startup.complete');
});

test(
  'it proves what our clients ask for, as our own servers do, with the secret and never with the key',
  { skip },
  () => {
    const challenge = { 'ratchet-challenge': 'once' };
    const health = [
      http('/health', challenge, 'GET'),
      { ...http('/health', challenge, 'GET'), server: ['::ffff:10.0.0.5', 8001] },
      { ...http('/health', challenge, 'GET'), server: ['::1', 8001] },
      http('/health', {}, 'GET'),
    ];
    const said = askAll(health, { VLLM_API_KEY: key, RATCHET_SECRET: secret });
    const proofs = said.map(([start]) => start!.headers['ratchet-proof']);
    assert.deepEqual(proofs, [
      proofOf(secret, 'once', addressOf('127.0.0.1', 8000)),
      proofOf(secret, 'once', addressOf('::ffff:10.0.0.5', 8001)),
      proofOf(secret, 'once', addressOf('::1', 8001)),
      undefined,
    ]);
    assert.deepEqual(said.map(([start]) => start!.status), [200, 200, 200, 299]); // prettier-ignore
    const [without] = askAll([http('/health', challenge, 'GET')], { VLLM_API_KEY: key });
    assert.equal(without![0]!.headers['ratchet-proof'], undefined);
  },
);

test('without a key it does not start', { skip }, () => {
  assert.throws(() => askAll([], { VLLM_API_KEY: '' }), /expected a key in VLLM_API_KEY/);
});

async function specOf(t: TestContext, more: string) {
  const folder = temporaryFolder(t);
  // Something that is called vllm, and is not started here.
  const program = path.join(folder, 'vllm');
  writeFileSync(program, '', { mode: 0o755 });
  const file = path.join(folder, 'run.toml');
  writeFileSync(
    file,
    `model = "preset:reverse-text-vllm-0.2m"\n[[env]]\nid = "reverse-text"\n[inference]\nkind = "vllm"\nprogram = "${program}"\n${more}`,
  );
  return { folder, spec: (await loadRunConfig(file, { projectFolder: folder })).spec };
}

test('a vLLM that we start asks for the secret of its project, which no argument has', async (t) => {
  const { folder, spec } = await specOf(t, '');
  const { role } = (await vllmRole(spec, folder))!;
  const own = readFileSync(path.join(folder, '.ratchet/secret'), 'utf8').trim();
  assert.deepEqual([role.env!['VLLM_API_KEY'], role.env!['RATCHET_SECRET']], [own, own]);
  assert.deepEqual(role.args.slice(-2), ['--middleware', 'ratchet_vllm.RequireKey']);
  assert.equal(role.env!['PYTHONPATH']!.split(path.delimiter)[0]!.replace(/\/$/, ''), python.replace(/\/$/, ''));
  assert.ok(!JSON.stringify(role.args).includes(own));
  const line = (await vllmCommandLine(spec, folder))!;
  assert.ok(!line.includes(own), 'what check prints has no secret');
  assert.match(line, /VLLM_API_KEY="\$\(cat \S+\.ratchet\/secret\)" .*--middleware ratchet_vllm\.RequireKey$/);
});

test('one with a key of the user’s asks for that, and proves itself with the secret', async (t) => {
  process.env['VLLM_GUARD_TEST_KEY'] = 'chosen';
  t.after(() => delete process.env['VLLM_GUARD_TEST_KEY']);
  const { folder, spec } = await specOf(t, 'api_key_var = "VLLM_GUARD_TEST_KEY"\n');
  const { role } = (await vllmRole(spec, folder))!;
  const own = readFileSync(path.join(folder, '.ratchet/secret'), 'utf8').trim();
  assert.deepEqual([role.env!['VLLM_API_KEY'], role.env!['RATCHET_SECRET']], ['chosen', own]);
});
