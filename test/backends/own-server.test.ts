/**
 * Servers that get the project's secret: those that prove to have it, at their own address, on the connection that is
 * used.
 */
import assert from 'node:assert/strict';
import dns, { type LookupOptions } from 'node:dns';
import { once } from 'node:events';
import { createServer, type IncomingHttpHeaders, request, type RequestListener } from 'node:http';
import { type AddressInfo, connect, createServer as createTcpServer } from 'node:net';
import { afterEach, test, type TestContext } from 'node:test';
import { HttpClient, NoAnswer } from '../../backends/inference/http-client.ts';
import { serversOf } from '../../backends/inference/index.ts';
import { ModelServer } from '../../backends/inference/model-server.ts';
import { InferenceSpec } from '../../config/run-spec.ts';
import { startPolicyServer } from '../../engine/index.ts';
import { holdSecret } from '../../host/project-secret.ts';
import { addressOf, proofOf } from '../../engine/server/gate.ts';
import { until } from '../eventually.ts';

const secret = 'secret-of-this-project';
const key = { kind: 'secret', value: secret } as const;
const get = { method: 'GET', route: '/v1/models', timeoutMs: 5_000 } as const;

/** Acts as a process of the project. */
function work(): void {
  holdSecret('', { RATCHET_SECRET: secret });
}
afterEach(() => holdSecret('/no/such/project', {}));

interface Listener {
  readonly url: string;
  readonly port: number;
  /** Headers of all that was asked, by route. */
  readonly heard: readonly { readonly route: string; readonly headers: IncomingHttpHeaders }[];
  close(): Promise<void>;
}

async function listen(
  t: TestContext,
  answer: RequestListener,
  at: { port?: number; host?: string } = {},
): Promise<Listener> {
  const heard: { route: string; headers: IncomingHttpHeaders }[] = [];
  const server = createServer((asked, reply) => {
    heard.push({ route: asked.url ?? '', headers: asked.headers });
    answer(asked, reply);
  });
  server.listen(at.port ?? 0, at.host ?? '127.0.0.1');
  await once(server, 'listening');
  const close = async (): Promise<void> => {
    server.closeAllConnections();
    server.close();
  };
  t.after(close);
  const { port } = server.address() as AddressInfo;
  return { url: `http://${at.host ?? '127.0.0.1'}:${port}`, port, heard, close };
}

const plain: RequestListener = (_, reply) => void reply.end('{}');

async function openOwn(t: TestContext, port = 0) {
  const server = await startPolicyServer({ threads: 1, allowRoots: [], key, port });
  t.after(() => server.close());
  return server;
}

function client(t: TestContext, url: string, isOwn?: boolean, keys: readonly string[] = []): HttpClient {
  const http = new HttpClient({ what: 'The server', url, keys, environment: {} }, { isOwn });
  t.after(() => http.close());
  return http;
}

function secretsHeard({ heard }: Listener): unknown[] {
  return heard.filter((one) => JSON.stringify(one).includes(secret));
}

test('a server of the project is told the secret, whether the run names it or not', async (t) => {
  work();
  const { url } = await openOwn(t);
  assert.equal((await client(t, url).ask(get)).status, 200);
  assert.equal((await client(t, url, true).ask(get)).status, 200);
  const many = client(t, url.replace('127.0.0.1', 'localhost'), true);
  const answers = await Promise.all(Array.from({ length: 20 }, () => many.ask(get)));
  assert.deepEqual(new Set(answers.map(({ status }) => status)), new Set([200]));
});

test('another server that a run names is asked without it', async (t) => {
  work();
  const stranger = await listen(t, plain);
  const http = client(t, stranger.url);
  for (let i = 0; i < 3; i++) assert.equal((await http.ask(get)).status, 200);
  assert.deepEqual(secretsHeard(stranger), []);
  assert.equal(stranger.heard.filter(({ route }) => route === '/health').length, 1, 'it is asked for a proof once');
  assert.ok(stranger.heard.every(({ headers }) => headers.authorization === undefined));
});

test('whoever took the port of the policy server is asked nothing, and the real one is asked when it is back', async (t) => {
  work();
  const server = await openOwn(t);
  const http = client(t, server.url, true);
  assert.equal((await http.ask(get)).status, 200);
  await server.close();
  const thief = await listen(t, plain, { port: server.port });
  await http.ask(get).catch(() => undefined); // a connection that was kept is broken
  await assert.rejects(http.ask({ ...get, method: 'POST', body: { prompt: 'private' } }), (error: unknown) => {
    assert.ok(error instanceof NoAnswer);
    assert.match(error.message, /does not prove that it has the secret of this project \(\.ratchet\/secret\)/);
    return true;
  });
  assert.deepEqual(new Set(thief.heard.map(({ route }) => route)), new Set(['/health']));
  assert.deepEqual(secretsHeard(thief), []);
  await thief.close();
  await openOwn(t, server.port);
  assert.equal((await http.ask(get)).status, 200);
});

test('a proof is no use at another address: neither at another port nor at another address of the loopback', async (t) => {
  work();
  const { url, port } = await openOwn(t);
  /** Passes on what it is asked to the real server, as a man in the middle does. */
  const relay: RequestListener = (asked, reply) => {
    const headers = { ...asked.headers, host: `127.0.0.1:${port}` };
    request(`${url}${asked.url}`, { method: asked.method, headers }, (answer) => {
      reply.writeHead(answer.statusCode!, answer.headers);
      answer.pipe(reply);
    }).end();
  };
  const places = [{}, ...(process.platform === 'linux' ? [{ host: '127.0.0.2', port }] : [])];
  for (const place of places) {
    const thief = await listen(t, relay, place);
    await assert.rejects(client(t, thief.url, true).ask(get), /does not prove/);
    assert.equal((await client(t, thief.url).ask(get)).status, 401, 'what it passes on has no secret');
    assert.deepEqual(secretsHeard(thief), []);
  }
});

test('a proof is no use on another connection', async (t) => {
  work();
  const { port } = await openOwn(t);
  // The first connection is passed through to the real server, every other one is the thief's.
  let connections = 0;
  let heard = '';
  const thief = createTcpServer((socket) => {
    socket.on('error', () => undefined);
    if (connections++ > 0) {
      socket.on('data', (chunk) => (heard += chunk.toString()));
    } else {
      const real = connect(port, '127.0.0.1').on('error', () => undefined);
      socket.pipe(real).pipe(socket);
    }
  });
  thief.listen(0, '127.0.0.1');
  await once(thief, 'listening');
  t.after(() => thief.close());
  const http = client(t, `http://127.0.0.1:${(thief.address() as AddressInfo).port}`, true);
  const asked = { ...get, timeoutMs: 300 };
  for (let i = 0; i < 2; i++) await assert.rejects(http.ask(asked), NoAnswer);
  assert.match(heard, /^GET \/health HTTP\/1\.1\r\n/);
  assert.doesNotMatch(heard, new RegExp(secret));
});

test('answers that are no proof are refused, however they are written', async (t) => {
  work();
  const proofFor = (headers: IncomingHttpHeaders, port: number): string =>
    proofOf(secret, String(headers['ratchet-challenge']), addressOf('127.0.0.1', port));
  const answers: readonly ((headers: IncomingHttpHeaders, port: number) => string)[] = [
    () => 'HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n',
    () => 'HTTP/1.1 200 OK\r\nratchet-proof: \r\ncontent-length: 0\r\n\r\n',
    (headers) =>
      `HTTP/1.1 200 OK\r\nratchet-proof: ${String(headers['ratchet-challenge'])}\r\ncontent-length: 0\r\n\r\n`,
    (headers, port) => `HTTP/1.1 200 OK\r\nratchet-proof: ${proofFor(headers, port + 1)}\r\ncontent-length: 0\r\n\r\n`,
    (_, port) => `HTTP/1.1 200 OK\r\nratchet-proof: ${proofFor({}, port)}\r\ncontent-length: 0\r\n\r\n`,
    (headers, port) =>
      `HTTP/1.1 200 OK\r\nratchet-proof: ${proofFor(headers, port)}\r\ncontent-length: 0\r\n\r\nHTTP/1.1 200 OK\r\n`,
    (headers, port) => `HTTP/1.1 200 OK\r\nratchet-proof: ${proofFor(headers, port)}\r\n\r\n`,
    () => `HTTP/1.1 200 OK\r\nx: ${'a'.repeat(20_000)}`,
    () => 'SSH-2.0-OpenSSH_9.6\r\n\r\n',
    () => '',
  ];
  for (const answer of answers) {
    const thief = await listen(t, (asked, reply) => {
      const text = answer(asked.headers, (asked.socket.address() as AddressInfo).port);
      reply.socket!.end(text);
    });
    await assert.rejects(client(t, thief.url, true).ask(get), /does not prove/);
    assert.deepEqual(secretsHeard(thief), []);
  }
});

test('a server of the project that is started where another one was is found', async (t) => {
  work();
  const stranger = await listen(t, plain);
  const http = client(t, stranger.url);
  assert.equal((await http.ask(get)).status, 200);
  await stranger.close();
  await openOwn(t, stranger.port);
  // A connection that was kept may have broken.
  const answer = await http.ask(get).catch(() => http.ask(get));
  assert.equal(answer.status, 200);
});

test('a server with a key of its own, and one on another host, is asked for no proof', async (t) => {
  work();
  const server = await listen(t, plain);
  const http = client(t, server.url, false, ['OTHER_KEY']);
  await http.ask({ ...get, headers: () => ({ Authorization: 'Bearer other' }) });
  assert.deepEqual(server.heard.map(({ route, headers }) => [route, headers.authorization]), [['/v1/models', 'Bearer other']]); // prettier-ignore
  const hosts = ['http://192.0.2.1:9', 'http://127.0.0.1.example:9', 'http://localhost.example:9'];
  for (const url of hosts) {
    const asked = client(t, url, true).ask({ ...get, timeoutMs: 50 });
    await assert.rejects(asked, (error: Error) => !error.message.includes('prove'), url);
  }
});

test('a server that is not on the loopback is asked for no proof, and is not told the secret', async (t) => {
  work();
  const server = await listen(t, plain);
  // An address that leads here, and is none of the loopback's as it is written.
  const mapped = `http://[::ffff:127.0.0.1]:${server.port}`;
  const isHere = await new Promise<boolean>((resolve) => {
    const socket = connect(server.port, '::ffff:127.0.0.1', () => resolve(true)).on('error', () => resolve(false));
    t.after(() => socket.destroy());
  });
  if (!isHere) return t.skip('this machine has no IPv6');
  for (const isOwn of [false, true]) assert.equal((await client(t, mapped, isOwn).ask(get)).status, 200);
  assert.deepEqual(server.heard.map(({ route, headers }) => [route, headers.authorization]), [['/v1/models', undefined], ['/v1/models', undefined]]); // prettier-ignore
});

test('a name that only begins or ends as one of the loopback is another host', async (t) => {
  work();
  const server = await listen(t, plain);
  t.mock.method(dns, 'lookup', (_: string, options: LookupOptions, done: (...found: unknown[]) => void) =>
    options.all === true ? done(null, [{ address: '127.0.0.1', family: 4 }]) : done(null, '127.0.0.1', 4),
  );
  for (const host of ['127.0.0.1.example', 'localhost.example', 'my-localhost'])
    assert.equal((await client(t, `http://${host}:${server.port}`, true).ask(get)).status, 200, host);
  assert.deepEqual(new Set(server.heard.map(({ route }) => route)), new Set(['/v1/models']));
  assert.deepEqual(secretsHeard(server), []);
});

test('a server on the loopback that is asked by https is never spoken to in clear', async (t) => {
  work();
  const heard: number[] = [];
  const server = createTcpServer((socket) => {
    socket.on('error', () => undefined);
    socket.on('data', (chunk) => {
      heard.push(chunk[0]!);
      socket.destroy();
    });
  });
  server.listen(0, '127.0.0.1');
  await once(server, 'listening');
  t.after(() => server.close());
  const { port } = server.address() as AddressInfo;
  for (const isOwn of [false, true]) await assert.rejects(client(t, `https://127.0.0.1:${port}`, isOwn).ask(get));
  const handshake = 0x16;
  assert.ok(heard.length >= 2 && heard.every((first) => first === handshake), heard.join());
});

test('a secret that is replaced is proven anew', async (t) => {
  const server = await openOwn(t);
  let held = 'that-of-before';
  const to = { what: 'The server', url: server.url, keys: [], environment: {} };
  const http = new HttpClient(to, { isOwn: true, secret: () => held });
  t.after(() => http.close());
  await assert.rejects(http.ask(get), /does not prove/);
  held = secret;
  assert.equal((await http.ask(get)).status, 200);
});

test('a server that is ours and breaks off is not asked again as a stranger', async (t) => {
  work();
  const server = await listen(t, (asked, reply) => {
    if (asked.url !== '/health') {
      asked.socket.destroy();
      return;
    }
    const { port } = asked.socket.address() as AddressInfo;
    const proof = proofOf(secret, String(asked.headers['ratchet-challenge']), addressOf('127.0.0.1', port));
    reply.writeHead(200, { 'ratchet-proof': proof, 'content-length': 0 }).end();
  });
  await assert.rejects(client(t, server.url).ask(get), NoAnswer);
  const asked = server.heard.filter(({ route }) => route === get.route);
  assert.ok(asked.length > 0 && asked.every(({ headers }) => headers.authorization !== undefined));
});

test('a connection to a server that is not ours is closed', async (t) => {
  work();
  let closed = 0;
  const thief = createTcpServer((socket) => {
    socket.on('error', () => undefined).on('close', () => closed++);
    socket.on('data', () => void socket.write('HTTP/1.1 200 OK\r\nratchet-proof: no\r\ncontent-length: 0\r\n\r\n'));
  });
  thief.listen(0, '127.0.0.1');
  await once(thief, 'listening');
  t.after(() => thief.close());
  const http = client(t, `http://127.0.0.1:${(thief.address() as AddressInfo).port}`, true);
  await assert.rejects(http.ask(get), /does not prove/);
  await until('the connection is closed', () => closed === 1);
});

test('each connection is asked for a proof of its own, and a head without end for no more', async (t) => {
  work();
  const challenges: unknown[] = [];
  const thief = await listen(t, (asked, reply) => {
    challenges.push(asked.headers['ratchet-challenge']);
    reply.socket!.write(`HTTP/1.1 200 OK\r\nx: ${'a'.repeat(20_000)}`); // and no more, nor an end
  });
  for (let i = 0; i < 2; i++) await assert.rejects(client(t, thief.url, true).ask(get), /does not prove/);
  assert.equal(new Set(challenges).size, 2);
  assert.match(String(challenges[0]), /^[\w-]{32}$/);
});

test('a process without a secret asks nobody that should prove to be ours, and others without one', async (t) => {
  const { url } = await openOwn(t);
  assert.equal((await client(t, url).ask(get)).status, 401);
  const stranger = await listen(t, plain);
  await assert.rejects(client(t, stranger.url, true).ask(get), /no secret of this project \(\.ratchet\/secret\) yet/);
  assert.deepEqual(stranger.heard, []);
});

test('the policy server that was started beside the workers must prove itself, unless the run names a key for it', () => {
  const poolSpec = (more: object) =>
    InferenceSpec.parse({ kind: 'embedded', url: null, ...more }) as Parameters<typeof serversOf>[0];
  const here = 'http://127.0.0.1:8420';
  assert.equal(serversOf(poolSpec({}), here)[0]!.isOwn, true);
  assert.equal(serversOf(poolSpec({ apiKeyVar: 'POLICY_KEY' }), here)[0]!.isOwn, false);
  assert.equal(serversOf(poolSpec({ url: here }), here)[0]!.isOwn, undefined);
});

test("a thief at the policy server's port makes a run wait, and the message says why", async (t) => {
  work();
  const thief = await listen(t, plain);
  const server = new ModelServer(
    { url: thief.url, apiKeyVar: null, headers: {}, headersFromEnv: {}, model: null, isOwn: true },
    { timeoutMs: 5_000, provider: 'cpu' },
  );
  t.after(() => server.close());
  assert.equal(await server.probe(), false);
  await assert.rejects(server.post('/v1/completions', {}), {
    code: 'InferenceUnavailable',
    message: /was told nothing/,
  });
});
