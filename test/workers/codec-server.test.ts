/** A codec server shows encrypted payloads to the Temporal CLI and UI, and to nobody else. */
import assert from 'node:assert/strict';
import { execFile } from 'node:child_process';
import { randomBytes } from 'node:crypto';
import { connect } from 'node:net';
import { test, type TestContext } from 'node:test';
import { promisify } from 'node:util';
import { Client, Connection } from '@temporalio/client';
import { defaultPayloadConverter, type Payload } from '@temporalio/common';
import proto from '@temporalio/proto';
import type { ServerKey } from '../../engine/index.ts';
import { startCodecServer } from '../../workers/temporal/codec-server.ts';
import { AesPayloadCodec, dataConverterFor, readPayloadKeys } from '../../workers/temporal/payload-codec.ts';
import { ensureTemporalCli } from '../../workers/temporal/temporal-cli.ts';
import { startTemporalServer } from './fixtures/temporal-server.ts';

const newKey = () => randomBytes(32).toString('base64');
const keysOf = (RATCHET_PAYLOAD_KEY: string) => readPayloadKeys({ RATCHET_PAYLOAD_KEY });
const secret: ServerKey = { kind: 'secret', value: newKey() };
const chosen: ServerKey = { kind: 'chosen', value: 'a key of a person', variable: 'RATCHET_CODEC_KEY' };
const origin = 'http://ui.test:8233';
const words = 'a text that must not be read';

async function stage(t: TestContext, { keys = newKey(), key = secret, origins = [] as readonly string[] } = {}) {
  const said: string[] = [];
  const server = await startCodecServer({
    host: '127.0.0.1',
    port: 0,
    keys: keysOf(keys),
    key,
    origins,
    log: (line) => said.push(line),
  });
  t.after(() => server.close());
  const ask = async (
    path: string,
    body: unknown,
    { url = server.url, method = 'POST', ...headers }: Record<string, string> = {},
  ): Promise<{ status: number; text: string; headers: Headers }> => {
    const sent = method === 'POST' ? { body: typeof body === 'string' ? body : JSON.stringify(body) } : {};
    const answer = await fetch(`${url}${path}`, { method, headers, ...sent });
    return { status: answer.status, text: await answer.text(), headers: answer.headers };
  };
  return { ...server, said, ask };
}

const { Payload: PayloadMessage } = proto.temporal.api.common.v1;
const inJson = (payload: Payload) =>
  PayloadMessage.toObject(PayloadMessage.fromObject(payload), { bytes: String, json: true });
const plain = (): Payload => defaultPayloadConverter.toPayload({ words });
const encrypted = async (keys: string) =>
  (await new AesPayloadCodec(keysOf(keys)).encode([plain()])).map((one) => inJson(one));

test('the Temporal CLI shows an encrypted history with it, and not without it; also what an older key encrypted', async (t) => {
  const address = await startTemporalServer(t);
  const { path: cli } = await ensureTemporalCli({ log: () => {} });
  const show = async (...more: string[]): Promise<string> => {
    const args = ['workflow', 'show', '--address', address, '--workflow-id', 'hidden', '--detailed', ...more];
    return (await promisify(execFile)(cli, args)).stdout;
  };
  const old = newKey();
  const connection = await Connection.connect({ address });
  t.after(() => connection.close());
  const client = new Client({ connection, dataConverter: dataConverterFor(keysOf(old)) });
  await client.workflow.start('trainRun', { workflowId: 'hidden', taskQueue: 'nobody', args: [{ config: words }] });

  const { url, said } = await stage(t, { keys: `${newKey()} ${old}` });
  assert.doesNotMatch(await show(), new RegExp(words));
  assert.match(await show('--codec-endpoint', url), new RegExp(words));
  assert.match(said.join('\n'), /^127\.0\.0\.1: decode: 1 payloads$/m);

  const keyed = await stage(t, { keys: old, key: chosen });
  assert.match(await show('--codec-endpoint', keyed.url, '--codec-auth', `Bearer ${chosen.value}`), new RegExp(words));
  const wrong = await stage(t);
  assert.match(
    await show('--codec-endpoint', wrong.url),
    /encrypted with the key [0-9a-f]{12}, and this process has [0-9a-f]{12}\. Put that key into/,
  );
});

test('what it encodes it decodes; what was not encrypted, and what a payload has beside its data, stays as it is', async (t) => {
  const { ask, said } = await stage(t);
  const given = [inJson(plain()), { metadata: { encoding: 'YmluYXJ5L251bGw=' } }, {}];
  const encoded = await ask('/encode', { payloads: given });
  assert.equal(encoded.status, 200);
  assert.ok(!Buffer.from(encoded.text, 'base64').toString('latin1').includes(words));
  const { payloads } = JSON.parse(encoded.text) as { payloads: { metadata: Record<string, string> }[] };
  assert.equal(Buffer.from(payloads[0]!.metadata['encoding']!, 'base64').toString(), 'binary/encrypted');
  const decoded = await ask('/decode', { payloads }, { 'x-namespace': 'team.a1b2c' });
  assert.deepEqual(JSON.parse(decoded.text), { payloads: given });
  assert.equal(said.at(-1), '127.0.0.1 of namespace team.a1b2c: decode: 3 payloads');
  assert.deepEqual(JSON.parse((await ask('/decode', { payloads: given })).text), { payloads: given });
});

test('others on the machine do not know its address; beyond loopback a key is asked for', async (t) => {
  const keys = newKey();
  const payloads = await encrypted(keys);
  const open = await stage(t, { keys });
  const { origin: bare } = new URL(open.url);
  for (const url of [bare, `${bare}/`, open.url.slice(0, -1), `${open.url}x`])
    assert.equal((await ask401(open, url, payloads)).status, 401, url);
  assert.match((await ask401(open, bare, payloads)).text, /the whole address that ratchet codec printed/);
  assert.equal((await open.ask('/decode', { payloads })).status, 200);

  const keyed = await stage(t, { keys, key: chosen });
  for (const authorization of ['', chosen.value, 'Bearer another']) {
    const { status, text } = await keyed.ask('/decode', { payloads }, { authorization });
    assert.equal(status, 401);
    assert.match(text, /what RATCHET_CODEC_KEY was set to/);
  }
  const authorization = `Bearer ${chosen.value}`;
  assert.equal((await keyed.ask('/decode', { payloads }, { authorization })).status, 200);

  const everywhere = { host: '0.0.0.0', port: 0, keys: keysOf(keys), origins: [], log: () => {} };
  await assert.rejects(startCodecServer({ ...everywhere, key: secret }), /Expected a key in RATCHET_CODEC_KEY/);
});

const ask401 = ({ ask }: Awaited<ReturnType<typeof stage>>, url: string, payloads: unknown) =>
  ask('/decode', { payloads }, { url });

test('a page may ask from a named origin alone, also before it asks', async (t) => {
  const keys = newKey();
  const payloads = await encrypted(keys);
  const { ask, url } = await stage(t, { keys, origins: [origin] });
  const before = await ask('/decode', '', { method: 'OPTIONS', origin });
  assert.equal(before.status, 204);
  assert.equal(before.headers.get('access-control-allow-origin'), origin);
  assert.match(before.headers.get('access-control-allow-headers')!, /Authorization.*X-Namespace/);
  const answer = await ask('/decode', { payloads }, { origin });
  assert.equal(answer.status, 200);
  assert.equal(answer.headers.get('access-control-allow-origin'), origin);
  for (const foreign of ['http://evil.test', 'null', `${origin}0`, new URL(url).origin]) {
    for (const method of ['POST', 'OPTIONS']) {
      const refused = await ask('/decode', { payloads }, { method, origin: foreign });
      assert.equal(refused.status, 403, foreign);
      assert.equal(refused.headers.get('access-control-allow-origin'), null);
      assert.ok(!refused.text.includes(words));
    }
  }
});

test('a name that a page made lead here is refused', async (t) => {
  const { url } = await stage(t);
  const { port, pathname } = new URL(url);
  const socket = connect(Number(port), '127.0.0.1');
  socket.end(
    `POST ${pathname}/decode HTTP/1.1\r\nHost: evil.test:${port}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n`,
  );
  let answer = '';
  for await (const chunk of socket) answer += String(chunk);
  assert.match(answer, /^HTTP\/1\.1 403 .*Expected the header "Host" to name this machine/s);
});

test('a body that is no list of payloads, is too long, or was changed is refused in a sentence', async (t) => {
  const keys = newKey();
  const [good] = await encrypted(keys);
  const { ask } = await stage(t, { keys });
  for (const [body, pattern] of [
    ['', /^Expected \{"payloads": \[…\]\} in JSON/],
    ['[]', /Expected \{"payloads"/],
    [{ payloads: 3 }, /payloads/],
    [{ payloads: [{ data: 'not base64!' }] }, /payloads\[0\]\.data|payloads\.0\.data/],
    [{ payloads: [{ metadata: { encoding: 3 } }] }, /metadata/],
    [{ payloads: [{ metadata: good!['metadata'], body: '' }] }, /body/],
  ] as const) {
    const { status, text } = await ask('/decode', body);
    assert.equal(status, 400, text);
    assert.match(text, pattern);
  }
  const some = await ask('/decode', { payloads: [{ ...good, data: 'AAAA' }, good] });
  const { payloads } = JSON.parse(some.text) as { payloads: { data: string }[] };
  const [changed, right] = payloads.map(({ data }) => Buffer.from(data, 'base64').toString());
  assert.match(changed!, /was changed or cut/);
  assert.deepEqual(JSON.parse(right!), { words });
  const long = await ask('/decode', ' '.repeat(16 * 1024 * 1024 + 1));
  assert.equal(long.status, 413);
  assert.match(long.text, /at most 16777216 bytes/);
  assert.equal((await ask('/decode', '', { method: 'GET' })).status, 405);
  assert.equal((await ask('/download', '')).status, 404);
});
