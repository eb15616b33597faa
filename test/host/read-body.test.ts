/** Bodies from servers are read up to a bound, whatever their compression, and not below a minimum rate. */
import assert from 'node:assert/strict';
import { createServer, type RequestListener } from 'node:http';
import type { AddressInfo } from 'node:net';
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { test, type TestContext } from 'node:test';
import { brotliCompressSync, gzipSync } from 'node:zlib';
import { getModel } from '../../backends/hub/get-model.ts';
import { HubClient } from '../../backends/hub/hub-client.ts';
import { askedAgain } from '../../backends/hub/hub-client.ts';
import { asItIs, Pace, readBody, readBodyText, UnwantedBody } from '../../host/read-body.ts';
import { RatchetError } from '../../core/errors.ts';
import { hubAnswerMsMax } from '../../core/limits.ts';

async function served(t: TestContext, answer: RequestListener): Promise<string> {
  const server = createServer(answer).listen(0, '127.0.0.1');
  await new Promise((resolve) => server.once('listening', resolve));
  t.after(() => {
    server.closeAllConnections();
    server.close();
  });
  return `http://127.0.0.1:${(server.address() as AddressInfo).port}`;
}

const megabyte = 1024 * 1024;

test('a body is read whole, or refused if it is too long, says so, or is compressed too far or twice', async (t) => {
  const zeros = Buffer.alloc(64 * megabyte);
  const answers: Readonly<Record<string, [Buffer, Record<string, string>]>> = {
    '/small': [Buffer.from('{"a":1}'), {}],
    '/packed': [gzipSync('{"a":1}'), { 'content-encoding': 'gzip' }],
    '/long': [Buffer.alloc(3 * megabyte, 'a'), {}],
    '/bomb': [gzipSync(zeros), { 'content-encoding': 'gzip' }],
    '/brotli': [brotliCompressSync(zeros), { 'content-encoding': 'br' }],
    '/twice': [gzipSync(gzipSync('{"a":1}')), { 'content-encoding': 'gzip, gzip' }],
  };
  const asked: unknown[] = [];
  const url = await served(t, (request, response) => {
    asked.push(request.headers['accept-encoding']);
    const [body, headers] = answers[request.url!]!;
    response.writeHead(200, headers);
    response.write(body.subarray(0, 10)); // chunked, so without a length
    response.end(body.subarray(10));
  });
  const read = async (at: string): Promise<string> =>
    readBodyText(await fetch(url + at, { headers: asItIs }), at, megabyte);
  assert.equal(await read('/small'), '{"a":1}');
  assert.equal(await read('/packed'), '{"a":1}');
  for (const at of ['/long', '/bomb', '/brotli'])
    await assert.rejects(read(at), (error: Error) => error instanceof UnwantedBody && /at most 1048576 bytes/.test(error.message), at); // prettier-ignore
  await assert.rejects(read('/twice'), /compressed 2 times/);
  assert.deepEqual(new Set(asked), new Set(['identity']));
  const headers = new Headers({ 'content-length': '2000000' });
  await assert.rejects(readBody({ headers, body: null }, 'it', megabyte), /got one of 2000000/);
});

test('an endless body is abandoned as soon as it exceeds the bound', async (t) => {
  let sent = 0;
  const url = await served(t, (_, response) => {
    const part = Buffer.alloc(65_536, 'a');
    const more = (): void => {
      while (!response.destroyed && response.write(part)) sent += part.length;
      sent += part.length;
    };
    response.on('drain', more);
    more();
  });
  await assert.rejects(readBody(await fetch(url), 'it', megabyte), UnwantedBody);
  assert.ok(sent < 64 * megabyte, `${sent} bytes were sent`);
});

test('a download below the minimum rate is reported once', async (t) => {
  t.mock.timers.enable({ apis: ['setTimeout'] });
  let stalls = 0;
  const pace = new Pace({ ms: 1_000, bytesMin: 100 }, () => stalls++);
  for (let i = 0; i < 10; i++) {
    pace.came(60);
    pace.came(40);
    t.mock.timers.tick(1_000);
  }
  assert.equal(stalls, 0);
  pace.came(99);
  t.mock.timers.tick(1_000);
  assert.equal(stalls, 1);
  pace.end();
  t.mock.timers.tick(10_000);
  assert.equal(stalls, 1);
});

function hubAt(endpoint: string, t: TestContext) {
  const cache = mkdtempSync(path.join(tmpdir(), 'ratchet-hub-'));
  t.after(() => rmSync(cache, { recursive: true, force: true }));
  return { endpoint, cache, isOffline: false, token: null };
}

test('the description of a repository is read up to a bound, also compressed, and is not requested again after a refusal', async (t) => {
  let asked = 0;
  const bomb = gzipSync(Buffer.alloc(400 * megabyte, ' '));
  const url = await served(t, (_, response) => {
    asked++;
    response.writeHead(200, { 'content-type': 'application/json', 'content-encoding': 'gzip' }).end(bomb);
  });
  const before = process.memoryUsage().rss;
  await assert.rejects(
    getModel(hubAt(url, t), { id: 'a/b', parts: 'weights' }),
    /at most 67108864 bytes, got a longer one/,
  );
  assert.equal(asked, 1);
  assert.ok(process.memoryUsage().rss - before < 300 * megabyte);
});

test('a server that used up the time for a whole answer is not asked again', async (t) => {
  let now = 0;
  t.mock.method(performance, 'now', () => now);
  let asked = 0;
  const slow = (): Promise<never> => {
    asked++;
    now += hubAnswerMsMax + 1;
    return Promise.reject(new RatchetError('ServerUnavailable', 'nothing came'));
  };
  await assert.rejects(askedAgain(5, 1, slow), /nothing came/);
  assert.equal(asked, 1);
  const quick = (): Promise<never> => {
    asked++;
    return Promise.reject(new RatchetError('ServerUnavailable', 'not there'));
  };
  await assert.rejects(askedAgain(5, 1, quick), /not there/);
  assert.equal(asked, 6);
});

test('endless redirects and endless headers do not count as an answer', async (t) => {
  const url = await served(t, (request, response) => {
    const n = Number(/\d+$/.exec(request.url!)?.[0] ?? 0) + 1;
    if (request.url!.includes('headers')) response.writeHead(200, { 'x-long': 'a'.repeat(400_000) }).end();
    else response.writeHead(302, { location: `/on/${n}` }).end();
  });
  const client = new HubClient(hubAt(url, t));
  await assert.rejects(client.repository('a/b', 'main'), { code: 'ServerUnavailable' });
  await assert.rejects(client.file('a/b', 'c'.repeat(40), 'x'), /more than 5 redirects/);
  await assert.rejects(client.file('a/headers', 'c'.repeat(40), 'x'), { code: 'ServerUnavailable' });
});
