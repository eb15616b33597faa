import assert from 'node:assert/strict';
import { once } from 'node:events';
import { createServer } from 'node:http';
import type { AddressInfo } from 'node:net';
import { describe, test, type TestContext } from 'node:test';
import { isTrouble, TinkerClient } from '../../backends/tinker/index.ts';
import { RatchetError } from '../../core/errors.ts';
import { eventually } from '../eventually.ts';

/** One answer: a status and a body, or nothing at all. */
type Answer = readonly [status: number, body: unknown] | 'hang up';
interface Asked {
  readonly route: string;
  readonly body: Record<string, unknown>;
  readonly key: string | undefined;
}

/** A server that answers each route by a script, the last answer again and again. */
async function scripted(t: TestContext, script: Readonly<Record<string, readonly Answer[]>>) {
  const asked: Asked[] = [];
  const given = new Map<string, number>();
  const server = createServer((request, response) => {
    const chunks: Buffer[] = [];
    request.on('data', (chunk: Buffer) => chunks.push(chunk));
    request.on('end', () => {
      const route = request.url!.replace('/api/v1/', '');
      const text = Buffer.concat(chunks).toString('utf8');
      const key = request.headers['x-api-key'] as string | undefined;
      asked.push({ route, body: text === '' ? {} : (JSON.parse(text) as Record<string, unknown>), key });
      const answers = script[route] ?? usual[route] ?? [[404, { detail: 'Not Found' }]];
      const turn = given.get(route) ?? 0;
      given.set(route, turn + 1);
      const answer = answers[Math.min(turn, answers.length - 1)]!;
      if (answer === 'hang up') request.socket.destroy();
      else {
        const body = Buffer.isBuffer(answer[1]) ? answer[1] : JSON.stringify(answer[1]);
        response.writeHead(answer[0], { 'content-type': 'application/json' }).end(body);
      }
    });
  });
  server.listen(0, '127.0.0.1');
  await once(server, 'listening');
  t.after(() => server.closeAllConnections());
  t.after(() => server.close());
  const url = `http://127.0.0.1:${(server.address() as AddressInfo).port}`;
  const said: string[] = [];
  const client = new TinkerClient(
    { url, apiKeyVar: null, server: 'skyrl' },
    { patienceMs: 1_500, say: (line) => said.push(line), heartbeatMs: 20 },
  );
  t.after(() => client.close());
  const count = (route: string): number => asked.filter((one) => one.route === route).length;
  return { client, url, asked, said, count };
}

const usual: Readonly<Record<string, readonly Answer[]>> = {
  create_session: [[200, { session_id: 's1' }]],
  session_heartbeat: [[200, {}]],
  create_model: [[200, { request_id: '1', model_id: 'm1' }]],
  optim_step: [[200, { request_id: '2' }]],
  save_weights: [[200, { request_id: '3' }]],
  asample: [[200, { request_id: '4' }]],
  unload_model: [[200, { request_id: '5' }]],
};
const model: Answer = [200, { model_id: 'm1' }];
const stepped: Answer = [200, { metrics: { 'skyrl.ai/grad_norm': 2 } }];
const adam = { learning_rate: 1, beta1: 0.9, beta2: 0.9, eps: 1, weight_decay: 0, grad_clip_norm: 0 };
const wish = { baseModel: 'b', rank: 4, seed: 0 };

/** The first future is the model's; these are what the second one is answered with. */
async function step(t: TestContext, ...answers: readonly Answer[]) {
  const stage = await scripted(t, { retrieve_future: [model, ...answers] });
  const made = await stage.client.createModel(wish);
  return { ...stage, result: made.optimStep(adam) };
}

describe('what a Tinker server promised', () => {
  test('is asked for again while it is not there: try_again, 408, 5xx, a connection that breaks off', async (t) => {
    const tryAgain: Answer = [
      200,
      { type: 'try_again', queue_state: 'paused_capacity', queue_state_reason: 'no GPUs' },
    ];
    const { result, said, count } = await step(t, tryAgain, [408, {}], [502, 'bad gateway'], 'hang up', stepped);
    assert.deepEqual(await result, { 'skyrl.ai/grad_norm': 2 });
    assert.equal(count('optim_step'), 1, 'the step itself is never sent again');
    assert.ok(
      said.some((line) => line.includes('no GPUs')),
      said.join(),
    );
  });

  test('may first be told about, and then be asked for', async (t) => {
    const { result, asked } = await step(t, [200, { status: 'complete_metadata', response_payload_size: 9 }], stepped);
    await result;
    const polls = asked.filter(({ route }) => route === 'retrieve_future').slice(1);
    assert.deepEqual(
      polls.map(({ body }) => body['allow_metadata_only']),
      [true, undefined],
    );
  });

  test('a 400 is asked for three more times, and then believed', async (t) => {
    const good = await step(t, [400, { detail: 'a proxy' }], [400, { detail: 'a proxy' }], stepped);
    await good.result;
    const bad = await step(t, [400, { detail: 'LoRA rank 99 must be between 1 and 8' }]);
    await assert.rejects(bad.result, (error) => isTrouble(error, 'refused') && /rank 99/.test(error.message));
    assert.equal(bad.count('retrieve_future'), 1 + 4);
  });

  test('of a model that is not loaded is lost, as is a promise that is gone', async (t) => {
    const gone = await step(t, [400, { detail: 'Model m1 not loaded (likely stale request from previous server)' }]);
    await assert.rejects(gone.result, (error) => isTrouble(error, 'lost'));
    const expired = await step(t, [410, { detail: 'gone' }]);
    await assert.rejects(expired.result, (error) => isTrouble(error, 'lost'));
    assert.equal(expired.count('optim_step'), 1);
  });

  test('a failure says whose it is', async (t) => {
    const user = await step(t, [200, { error: 'sequence too long', category: 'user' }]);
    await assert.rejects(user.result, (error) => isTrouble(error, 'refused') && /too long/.test(error.message));
    const server = await step(t, [200, { error: 'CUDA out of memory', category: 'server' }]);
    await assert.rejects(server.result, (error) => isTrouble(error, 'failed'));
  });

  test('what may be done twice is sent again when its promise is gone', async (t) => {
    const sampled: Answer = [200, { sequences: [{ stop_reason: 'stop', tokens: [1], logprobs: [-0.5] }] }];
    const { client, count } = await scripted(t, { retrieve_future: [[410, {}], sampled] });
    const { sequences } = await client.sample({ path: 'p', prompt: [1], params: { max_tokens: 1, temperature: 1 } });
    assert.deepEqual(sequences, [{ stopReason: 'stop', tokens: [1], logprobs: [-0.5] }]);
    assert.equal(count('asample'), 2);
  });
});

describe('a call to a Tinker server', () => {
  test('that breaks off is lost where it may have been done, and is sent again where that does no harm', async (t) => {
    const broken = await scripted(t, { retrieve_future: [model], optim_step: ['hang up', [200, { request_id: '2' }]] });
    const made = await broken.client.createModel(wish);
    await assert.rejects(made.optimStep(adam), (error) => isTrouble(error, 'lost'));
    assert.equal(broken.count('optim_step'), 1);
    const saved = await scripted(t, {
      retrieve_future: [model, [200, { path: 'tinker://m1/weights/a' }]],
      save_weights: ['hang up', [200, { request_id: '3' }]],
    });
    assert.equal(await (await saved.client.createModel(wish)).saveWeights('a', null), 'tinker://m1/weights/a');
    assert.equal(saved.count('save_weights'), 2);
  });

  test('that is turned away for now is made again: 429, 503', async (t) => {
    const { client, count, said } = await scripted(t, {
      retrieve_future: [model, stepped],
      optim_step: [
        [429, {}],
        [200, { request_id: '2' }],
      ],
    });
    await (await client.createModel(wish)).optimStep(adam);
    assert.equal(count('optim_step'), 2);
    assert.ok(said.some((line) => line.startsWith('waiting for the Tinker server')));
  });

  test('to a server that is away is given up after a while, and says what to do', async () => {
    const client = new TinkerClient(
      { url: 'http://127.0.0.1:9', apiKeyVar: null, server: 'skyrl' },
      { patienceMs: 600 },
    );
    await assert.rejects(
      client.capabilities(),
      (error) => isTrouble(error, 'away') && /Is it running/.test(error.message),
    );
  });

  test('a checkpoint whose name is taken is the one that was asked for, if it is whole', async (t) => {
    const taken: Answer = [409, { detail: "Checkpoint 'a' already exists for model 'm1'" }];
    const { client } = await scripted(t, {
      retrieve_future: [model],
      save_weights: [taken],
      'training_runs/m1/checkpoints': [[200, { checkpoints: [{ tinker_path: 'tinker://m1/weights/a' }] }]],
    });
    const made = await client.createModel(wish);
    assert.equal(await made.saveWeights('a', null), 'tinker://m1/weights/a');
    await assert.rejects(made.saveWeights('b', null), (error) => isTrouble(error, 'lost'));
  });

  test('a session that the server forgot is opened again', async (t) => {
    const { client, count } = await scripted(t, {
      create_session: [
        [200, { session_id: 's1' }],
        [200, { session_id: 's2' }],
      ],
      create_model: [
        [404, { detail: 'Session not found' }],
        [200, { request_id: '1', model_id: 'm2' }],
      ],
      retrieve_future: [[200, {}]],
    });
    assert.equal((await client.createModel(wish)).id, 'm2');
    assert.equal(count('create_session'), 2);
  });

  test('a session is kept alive from here, and no longer once it is over', async (t) => {
    const { client, count } = await scripted(t, {
      session_heartbeat: [
        [200, {}],
        [200, {}],
        [410, {}],
      ],
    });
    await client.session();
    await eventually(
      'a third heartbeat',
      async () => count('session_heartbeat'),
      (beats) => beats >= 3,
      { everyMs: 5 },
    );
    await new Promise((resolve) => setTimeout(resolve, 100));
    assert.equal(count('session_heartbeat'), 3);
  });

  test('a key comes from the environment, is named where it is missing, and never stands in an error', async (t) => {
    const { url, asked } = await scripted(t, {
      get_server_capabilities: [[401, { detail: 'no such key: tml-secretsecret' }]],
    });
    const client = new TinkerClient(
      { url, apiKeyVar: 'RATCHET_TEST_TINKER_KEY', server: 'tinker' },
      { patienceMs: 10 },
    );
    await assert.rejects(
      client.capabilities(),
      (error) =>
        error instanceof RatchetError &&
        error.code === 'ConfigInvalid' &&
        /RATCHET_TEST_TINKER_KEY/.test(error.message),
    );
    process.env['RATCHET_TEST_TINKER_KEY'] = 'tml-secretsecret';
    t.after(() => delete process.env['RATCHET_TEST_TINKER_KEY']);
    await assert.rejects(
      client.capabilities(),
      (error) => isTrouble(error, 'refused') && !error.message.includes('secretsecret'),
    );
    assert.equal(asked.at(-1)!.key, 'tml-secretsecret');
  });

  test('a loss that the server does not know is found without a model', async (t) => {
    const unknown = await scripted(t, { forward_backward: [[422, { detail: [{ loc: ['body', 'loss_fn'] }] }]] });
    assert.equal(await unknown.client.knowsLoss('cispo'), false);
    const known = await scripted(t, { forward_backward: [[404, { detail: 'Model not found' }]] });
    assert.equal(await known.client.knowsLoss('ppo'), true);
  });
});

/** A server that records the client's key, and answers with a status and headers by path. */
async function noting(
  t: TestContext,
  answers: Readonly<Record<string, readonly [number, Record<string, string>, string]>>,
) {
  const asked: [path: string, key: string | undefined][] = [];
  const server = createServer((request, response) => {
    asked.push([request.url!, request.headers['x-api-key'] as string | undefined]);
    const [status, headers, body] = answers[request.url!] ?? [404, {}, ''];
    response.writeHead(status, headers).end(body);
  }).listen(0, '127.0.0.1');
  await once(server, 'listening');
  t.after(() => server.close());
  t.after(() => server.closeAllConnections());
  return { url: `http://127.0.0.1:${(server.address() as AddressInfo).port}`, asked };
}

describe('numbers as the JSON of Python writes them', () => {
  const python = (text: string): Answer => [200, Buffer.from(text)];

  test('are read in the metrics of a step', async (t) => {
    const { result } = await step(t, python('{"metrics": {"a": NaN, "b": Infinity, "c": -Infinity, "d": 1.5}}'));
    assert.deepEqual(await result, { a: NaN, b: Infinity, c: -Infinity, d: 1.5 });
  });

  test('are read in the answer to a pass', async (t) => {
    const answer = python(
      '{"loss_fn_outputs": [{"logprobs": {"data": [-0.5, NaN, -Infinity]}}], "metrics": {"loss:sum": NaN}}',
    );
    const stage = await scripted(t, { retrieve_future: [model, answer], forward: [[200, { request_id: '6' }]] });
    const made = await stage.client.createModel(wish);
    const passed = await made.forward([{ tokens: [1, 2, 3], inputs: {} }]);
    assert.deepEqual(passed, { logprobs: [[-0.5, NaN, -Infinity]], metrics: { 'loss:sum': NaN } });
  });

  test('are read in a sample; the texts in it stay as they are', async (t) => {
    const sampled =
      '{"sequences": [{"stop_reason": "stop", "tokens": [7, 8], "logprobs": [-Infinity, NaN], "note": "NaN, -Infinity"}], "prompt_logprobs": [null, -Infinity]}';
    const { client } = await scripted(t, { retrieve_future: [python(sampled)] });
    const { sequences, promptLogprobs } = await client.sample({
      path: 'tinker://a',
      prompt: [1, 2],
      params: { max_tokens: 1, temperature: 1, seed: 0, stop: [] },
      promptLogprobs: true,
    });
    assert.deepEqual(sequences, [{ stopReason: 'stop', tokens: [7, 8], logprobs: [-Infinity, NaN] }]);
    assert.deepEqual(promptLogprobs, [null, -Infinity]);
  });

  test('what is no JSON of Python either is told', async (t) => {
    const { result } = await step(t, python('{"metrics": {"a": Nan}}'));
    await assert.rejects(result, (error) => isTrouble(error) && /expected JSON, got/.test(error.message));
  });
});

describe('the key of a Tinker server', () => {
  const variable = 'RATCHET_TEST_TINKER_KEY';
  const open = (t: TestContext, url: string) => {
    process.env[variable] = 'tml-secretsecret';
    t.after(() => delete process.env[variable]);
    const client = new TinkerClient({ url, apiKeyVar: variable, server: 'tinker' }, { patienceMs: 10 });
    t.after(() => client.close());
    return client.http;
  };

  test('does not go where the server sends a download on to, nor to a name that begins like its own', async (t) => {
    const elsewhere = await noting(t, { '/file': [200, {}, 'weights'], '/back': [200, {}, 'weights'] });
    const own = await noting(t, {
      '/base/api/v1/archive': [302, { location: `${elsewhere.url}/file` }, ''],
      '/base/api/v1/moved': [302, { location: '/base/api/v1/here' }, ''],
      '/base/api/v1/here': [200, {}, 'weights'],
      '/basement': [200, {}, ''],
    });
    const http = open(t, `${own.url}/base`);
    assert.equal(Buffer.from((await http.get('/api/v1/archive')).bytes).toString(), 'weights');
    await http.get('/api/v1/moved');
    await http.get(`${own.url}/basement`);
    await http.get(`${elsewhere.url}/back`);
    assert.deepEqual(elsewhere.asked, [['/file', undefined], ['/back', undefined]]); // prettier-ignore
    const key = 'tml-secretsecret';
    assert.deepEqual(own.asked, [
      ['/base/api/v1/archive', key],
      ['/base/api/v1/moved', key],
      ['/base/api/v1/here', key],
      ['/basement', undefined],
    ]);
  });

  test('and what is posted go nowhere but to the server that was named', async (t) => {
    const elsewhere = await noting(t, { '/': [200, {}, '{}'] });
    const own = await noting(t, { '/api/v1/asample': [307, { location: `${elsewhere.url}/` }, ''] });
    await assert.rejects(open(t, own.url).post('/api/v1/asample', { body: {}, mayRepeat: true }), /answered 307/);
    assert.deepEqual(elsewhere.asked, []);
  });

  test('a reply that does not end is given up at its limit', async (t) => {
    const own = await noting(t, { '/api/v1/long': [200, {}, 'x'.repeat(100_000)] });
    await assert.rejects(open(t, own.url).get('/api/v1/long', { bytesMax: 50_000 }), /at most 50000 bytes/);
  });
});
