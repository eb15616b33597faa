/** A web page from elsewhere gets no answer from our own Temporal server's UI. */
import assert from 'node:assert/strict';
import { createServer, request } from 'node:http';
import type { AddressInfo } from 'node:net';
import { test, type TestContext } from 'node:test';
import { serverArguments } from '../../workers/temporal/dev-server.ts';
import { choosePort } from '../../workers/stack/ports.ts';
import { hiddenLoopback, openUiFront } from '../../workers/temporal/ui-front.ts';

/** A UI that echoes its requests, behind a front. */
async function stage(t: TestContext) {
  const asked: string[] = [];
  const ui = createServer((incoming, answer) => {
    asked.push(`${incoming.method} ${incoming.url}`);
    incoming.pipe(answer.writeHead(201, { 'set-cookie': '_csrf=1' }));
  });
  const host = hiddenLoopback();
  await new Promise<void>((resolve) => ui.listen(0, host, resolve));
  const port = await choosePort(0);
  const front = await openUiFront(port, { host, port: (ui.address() as AddressInfo).port });
  t.after(() => (front.close(), ui.close()));
  const ask = (headers: Record<string, string>, body = '') =>
    new Promise<{ status: number | undefined; text: string; cookie: unknown }>((resolve, reject) => {
      const sent = request({ host: '127.0.0.1', port, method: 'POST', path: '/api/x?y=1', headers }, (answer) => {
        let text = '';
        answer.on('data', (chunk) => (text += String(chunk)));
        answer.on('end', () => resolve({ status: answer.statusCode, text, cookie: answer.headers['set-cookie'] }));
      });
      sent.on('error', reject).end(body);
    });
  return { asked, ask, port, host };
}

test('the UI is asked by this machine’s name alone, and by no other place’s page', async (t) => {
  const { asked, ask, port } = await stage(t);
  for (const headers of [
    { host: 'evil.test' },
    { host: `evil.test:${port}`, origin: `http://evil.test:${port}` },
    { host: `127.0.0.1:${port}`, origin: 'https://evil.test' },
    { host: `127.0.0.1:${port}`, origin: 'null' },
    { host: '127.0.0.1.evil.test' },
  ]) {
    assert.equal((await ask(headers)).status, 403, JSON.stringify(headers));
  }
  assert.deepEqual(asked, []);

  const own = { host: `localhost:${port}`, origin: `http://localhost:${port}` };
  assert.deepEqual(await ask(own, 'words'), { status: 201, text: 'words', cookie: ['_csrf=1'] });
  assert.deepEqual(asked, ['POST /api/x?y=1']);
});

test('the UI itself, and the server’s HTTP, are where no page finds them', () => {
  assert.notEqual(hiddenLoopback('linux'), hiddenLoopback('linux'));
  assert.match(hiddenLoopback('linux'), /^127\.\d+\.\d+\.\d+$/);
  const args = serverArguments({ grpc: 1, ui: 2 }, 'file.db', { uiHost: '127.9.8.7' });
  assert.equal(args[args.indexOf('--ui-ip') + 1], '127.9.8.7');
  assert.ok(args.includes('frontend.httpAllowedHosts=["nobody.invalid"]'));
});
