import assert from 'node:assert/strict';
import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { describe, test } from 'node:test';
import { setTimeout as delay } from 'node:timers/promises';
import { type ChatRequest, openInference } from '../../backends/inference/index.ts';
import type { RatchetError } from '../../core/errors.ts';
import { InferenceSpec } from '../../config/run-spec.ts';
import { complete, type FakeAnswer, type FakeModelServer, fakeModelServer, reply } from './fake-model-server.ts';
import { OpenAiInference } from '../../backends/inference/openai/openai.ts';
import { ServerPool } from '../../backends/inference/pool.ts';
import { eventually } from '../eventually.ts';
import { type Fate, startProxy } from './misbehaving-proxy.ts';
import { policyOf, v1, ask, open, openImpatient, servers, coded, groupsAt, slowly } from './pooled-servers.ts';

describe('who is asked', () => {
  test('a group stays on one server, and groups are shared out evenly', async (t) => {
    const all = await servers(t, 3);
    for (const server of all) server.answers['/v1/completions'] = slowly(20);
    const inference = open(t, all);
    const asked = Array.from({ length: 12 }, (_, group) => Array.from({ length: 4 }, (_, index) => ask(group, index)));
    const samples = await Promise.all(asked.flat().map((request) => inference.sample(request)));
    asked
      .flat()
      .forEach(({ promptTokenIds }, i) => assert.deepEqual(samples[i]!.tokenIds, promptTokenIds.toReversed()));
    assert.deepEqual(
      all.map((server) => groupsAt(server).length),
      [4, 4, 4],
    );
    assert.equal(new Set(all.flatMap(groupsAt)).size, 12);
  });

  test('the turns of a rollout go to one server, say whose they are, and share no cache with other versions', async (t) => {
    const all = await servers(t, 2);
    const inference = open(t, all);
    for (let turn = 0; turn < 6; turn++) await inference.sample(ask(1, 0, { promptTokenIds: [1, turn] }));
    const [used, idle] = all.toSorted((a, b) => b.calls.length - a.calls.length) as [FakeModelServer, FakeModelServer];
    assert.deepEqual([used.calls.length, idle.calls.length], [6, 0]);
    for (const { headers, body } of used.calls) {
      assert.equal(headers['x-session-id'], 'run/main/1/0');
      assert.deepEqual([body['cache_salt'], body.model, body['seed']], ['v1', 'v1', 7]);
    }
  });

  test('a server has no more in flight than it may; others wait in turn, and those who give up leave the queue', async (t) => {
    const [server] = (await servers(t, 1)) as [FakeModelServer];
    server.answers['/v1/completions'] = slowly(30);
    const inference = open(t, [server], { maxConcurrent: 2 });
    const stop = new AbortController();
    const ended: number[] = [];
    const asking = Array.from({ length: 8 }, async (_, i) => {
      const { tokenIds } = await inference.sample(ask(i, 0, i === 4 ? { signal: stop.signal } : {}));
      ended.push(tokenIds.at(-1)!);
    });
    setTimeout(() => stop.abort(new Error('enough')), 10);
    await assert.rejects(asking[4]!, /enough/);
    await Promise.all(asking.filter((_, i) => i !== 4));
    assert.equal(server.flight.most, 2);
    assert.deepEqual(
      server.calls.map(({ body }) => body.prompt![0]),
      [0, 1, 2, 3, 5, 6, 7],
    );
    assert.equal(ended.length, 7);
  });

  test('runs that wait for a server share it equally, however much each asks for; one that comes later does not catch up on what it did not ask for', async (t) => {
    const [server] = (await servers(t, 1)) as [FakeModelServer];
    server.answers['/v1/completions'] = slowly(10);
    const [large, small] = [policyOf('large:main:1'), policyOf('small:main:7')];
    for (const { name } of [large, small]) server.held.add(name);
    const inference = open(t, [server], { maxConcurrent: 2 });
    const many = Array.from({ length: 80 }, (_, i) => inference.sample(ask(i, 0, { policy: large })));
    await eventually('half of them are asked', () => Promise.resolve(server.calls.length), (asked) => asked >= 20, { everyMs: 1 }); // prettier-ignore
    const few = Array.from({ length: 6 }, (_, i) => inference.sample(ask(i, 0, { policy: small })));
    const from = server.calls.length;
    await Promise.all(few);
    const since = server.calls.slice(from).map(({ body }) => body.model);
    const ofSmall = since.filter((model) => model === small.name).length;
    assert.equal(ofSmall, 6);
    const last = since.lastIndexOf(small.name) + 1;
    assert.ok(last >= 11 && last <= 14, `six of ${last}: half of the server`);
    await Promise.all(many);
  });

  test('a server that is full sends the rest of its group elsewhere', async (t) => {
    const all = await servers(t, 2);
    for (const server of all) server.answers['/v1/completions'] = slowly(30);
    const inference = open(t, all, { maxConcurrent: 4 });
    await Promise.all(Array.from({ length: 8 }, (_, index) => inference.sample(ask(1, index))));
    assert.deepEqual(
      all.map(({ calls }) => calls.length),
      [4, 4],
    );
  });
});

describe('servers in trouble', () => {
  test('one that asks to be left alone is, for as long as it says, and others take its place', async (t) => {
    const all = await servers(t, 2);
    const [busy, other] = all as [FakeModelServer, FakeModelServer];
    busy.answers['/v1/completions'] = (_, response) =>
      reply(response, 429, { error: { message: 'slow down' } }, { 'retry-after': '30' });
    const inference = open(t, all);
    for (let i = 0; i < 10; i++) await inference.sample(ask(i));
    assert.deepEqual([busy.calls.length, other.calls.length], [1, 10]);
  });

  test('one that is busy is not asked without end, whatever it says of when it may be asked', async (t) => {
    for (const said of ['0', '-5', 'Wed, 21 Oct 2015 07:28:00 GMT']) {
      const [server] = (await servers(t, 1)) as [FakeModelServer];
      server.answers['/v1/completions'] = (_, response) => reply(response, 429, {}, { 'retry-after': said });
      const signal = AbortSignal.timeout(1_000);
      await assert.rejects(open(t, [server]).sample(ask(1, 0, { signal })));
      assert(server.calls.length <= 6, `Retry-After: ${said} was asked ${server.calls.length} times in a second`);
    }
  });

  test('one that answers with what is not JSON is sick: its rollouts go elsewhere, and it is quarantined', async (t) => {
    for (const page of ['<html>Sign in</html>', '{"choices":[{"index":0,"tok', '']) {
      const [sick, other] = (await servers(t, 2)) as [FakeModelServer, FakeModelServer];
      sick.answers['/v1/completions'] = (_, response) => reply(response, 200, page);
      const inference = open(t, [sick, other]);
      for (let i = 0; i < 12; i++) await inference.sample(ask(i));
      assert(sick.calls.length < 12 && other.calls.length === 12);
    }
    const [alone] = (await servers(t, 1)) as [FakeModelServer];
    alone.answers['/v1/completions'] = (_, response) => reply(response, 200, '<html>Sign in</html>');
    const told = coded('InferenceUnavailable', 'not JSON', 'Sign in');
    await assert.rejects(openImpatient(t, [alone], 300).sample(ask(1)), told);
  });

  test('ids that no tokenizer has are refused', async (t) => {
    const [server] = (await servers(t, 1)) as [FakeModelServer];
    for (const ids of [[1.5], [-3], ['7']]) {
      const choice = { index: 0, finish_reason: 'stop', token_ids: ids, logprobs: { token_logprobs: [-1] } };
      server.answers['/v1/completions'] = (_, response) => reply(response, 200, { choices: [choice] });
      await assert.rejects(open(t, [server]).sample(ask(1)), coded('InferenceRejected', 'token ids'));
    }
  });

  test('a server alone that asks to be left alone is asked again after that', async (t) => {
    const [server] = (await servers(t, 1)) as [FakeModelServer];
    let asked = 0;
    const times: number[] = [];
    server.answers['/v1/completions'] = (call, response) => {
      times.push(performance.now());
      if (asked++ > 0) return complete(call, response);
      reply(response, 503, 'no room', { 'retry-after': '0.4' });
    };
    await open(t, [server]).sample(ask(1));
    assert(times[1]! - times[0]! >= 390, `after ${times[1]! - times[0]!} ms`);
  });

  test('one that fails three times in a row is quarantined, and back after a probe, with the version it missed', async (t) => {
    const all = await servers(t, 2);
    const [sick, well] = all as [FakeModelServer, FakeModelServer];
    const fail: FakeAnswer = (_, response) => reply(response, 500, 'broken');
    sick.answers = { '/v1/completions': fail, '/health': fail };
    const inference = open(t, all);
    for (let i = 0; i < 30; i++) await inference.sample(ask(i));
    assert.equal(well.calls.length, 30);
    assert.equal(sick.calls.length, 3);
    await inference.bringTo(policyOf('v2'));
    assert.deepEqual([sick.held.has('v2'), well.held.has('v2')], [false, true]);

    await until(() => sick.probes > 1);
    sick.answers = {};
    sick.calls.length = 0;
    const back = async (): Promise<void> => {
      for (let i = 100; sick.calls.length === 0; i++) {
        await inference.sample(ask(i, 0, { policy: policyOf('v2') }));
        await delay(10);
      }
    };
    await back();
    assert.deepEqual(
      sick.calls.slice(0, 2).map(({ route }) => route),
      ['/update_weights', '/v1/completions'],
    );
    // A run that was started over has other weights under the same version names.
    const anew = { ...policyOf('v2'), version: { ...policyOf('v2').version, digest: 'f'.repeat(64) } };
    sick.calls.length = 0;
    for (let i = 200; sick.calls.length === 0; i++) await inference.sample(ask(i, 0, { policy: anew }));
    assert.equal(sick.calls[0]!.route, '/update_weights');
  });

  test('nobody is lost with a server that dies in the middle of its work', async (t) => {
    const all = await servers(t, 2);
    for (const server of all) server.answers['/v1/completions'] = slowly(150);
    const inference = open(t, all);
    const sampling = Promise.all(Array.from({ length: 40 }, (_, i) => inference.sample(ask(i))));
    await delay(50);
    await all[0]!.stop();
    (await sampling).forEach(({ tokenIds }, i) => assert.deepEqual(tokenIds, [0, i]));
  });

  test('while no server can be asked one waits; after a while it is InferenceUnavailable, with why and since when', async (t) => {
    const all = await servers(t, 2);
    const inference = openImpatient(t, all, 600);
    await Promise.all(all.map((server) => server.stop()));
    const expected = coded('InferenceUnavailable', all[0]!.url, all[1]!.url, 'nobody listens there', 'since 20');
    await assert.rejects(inference.sample(ask(1)), expected);
    await fakeModelServer(t, all[1]!.port);
    assert.deepEqual((await inference.sample(ask(2))).tokenIds, [0, 2]);
  });

  test('a turn that takes too long is asked for elsewhere', async (t) => {
    const all = await servers(t, 2);
    all[0]!.answers['/v1/completions'] = () => undefined;
    const inference = open(t, all, { timeoutS: 0.2 });
    await Promise.all(Array.from({ length: 4 }, (_, i) => inference.sample(ask(i))));
    assert.equal(all[1]!.calls.length, 4);
  });

  const fates = ['cut request', 'cut answer', 'lose answer', 'hang'] as const satisfies readonly Fate[];
  for (const fate of fates) {
    test(`where connections end with "${fate}", each rollout has its answer all the same`, async (t) => {
      const [server] = (await servers(t, 1)) as [FakeModelServer];
      const proxy = await startProxy(server.port);
      t.after(() => proxy.close());
      let requests = 0;
      proxy.decide = () => (++requests % 7 === 0 ? fate : 'pass');
      const inference = open(t, `http://127.0.0.1:${proxy.port}`, { timeoutS: 0.3 });
      const asked = Array.from({ length: 60 }, (_, i) => ask(i));
      const samples = await Promise.all(asked.map((request) => inference.sample(request)));
      samples.forEach(({ tokenIds }, i) => assert.deepEqual(tokenIds, [0, i]));
      assert(proxy.spoiled > 5, `${proxy.spoiled} spoiled`);
    });
  }
});

describe('servers that join and leave', () => {
  test('an endpoints file is read again: who joins has the version before it is asked, who leaves is asked no more', async (t) => {
    const [first, second] = (await servers(t, 2)) as [FakeModelServer, FakeModelServer];
    second.held.clear();
    const folder = await mkdtemp(path.join(tmpdir(), 'ratchet-endpoints-'));
    t.after(() => rm(folder, { recursive: true, force: true }));
    const file = path.join(folder, 'endpoints.toml');
    const entry = ({ url }: FakeModelServer) =>
      `[[endpoint]]\nendpoint_id = "mine"\nmodel = "m"\nurl = "${url}/v1"\nkey = "EMPTY"\n`;
    await writeFile(file, entry(first));
    const spec = InferenceSpec.parse({ kind: 'openai', url: null, endpoints: { path: file, id: 'mine' } });
    const said: string[] = [];
    const inference = openInference(spec, '', (line) => said.push(line));
    t.after(() => inference.close?.());
    await inference.sample(ask(1));
    assert.equal(first.calls.length, 1);

    await writeFile(file, '[[endpoint]]\nendpoint_id = 7');
    await until(() => said.some((line) => line.includes('stay as they are')));
    await inference.sample(ask(2));
    assert.equal(first.calls.length, 2);

    await writeFile(file, entry(second));
    await until(() => said.includes(`inference server ${second.url} has joined`));
    assert(said.includes(`inference server ${first.url} has left`), said.join('\n'));
    await inference.sample(ask(3));
    assert.equal(first.calls.length, 2);
    assert.deepEqual(
      second.calls.map(({ route }) => route),
      ['/update_weights', '/v1/completions'],
    );
  });
});

describe('keys', () => {
  const variable = 'RATCHET_TEST_INFERENCE_KEY';

  test('a key is sent from its environment variable, and an error that repeats it is told without it', async (t) => {
    process.env[variable] = 'planted-key-0451';
    t.after(() => delete process.env[variable]);
    const [server] = (await servers(t, 1)) as [FakeModelServer];
    server.answers['/v1/completions'] = ({ headers }, response) =>
      reply(response, 401, { error: { message: `no such key: ${headers.authorization}` } });
    const inference = open(t, [server], { apiKeyVar: variable, headers: { 'x-team': 'blue' } });
    await assert.rejects(inference.sample(ask(1)), (error: Error) => {
      coded('InferenceRejected', 'no such key: Bearer [secret]')(error);
      assert(!`${error.message}${error.stack}${String(error.cause)}`.includes('planted'));
      return true;
    });
    const { headers } = server.calls[0]!;
    assert.deepEqual([headers.authorization, headers['x-team']], ['Bearer planted-key-0451', 'blue']);
  });

  test('a key that no header can carry is said, and not repeated', async (t) => {
    const [server] = (await servers(t, 1)) as [FakeModelServer];
    const before = process.env[variable];
    t.after(() => (before === undefined ? delete process.env[variable] : (process.env[variable] = before)));
    process.env[variable] = 'planted\nkey-0452';
    const inference = open(t, [server], { apiKeyVar: variable });
    await assert.rejects(inference.sample(ask(1)), (error: RatchetError) => {
      assert(!error.message.includes('planted'));
      return coded('ConfigInvalid', 'authorization', 'line break')(error);
    });
  });

  test('a key that is not there is said by the name of its variable', async (t) => {
    const [server] = (await servers(t, 1)) as [FakeModelServer];
    const inference = open(t, [server], { apiKeyVar: variable });
    await assert.rejects(inference.sample(ask(1)), coded('ConfigInvalid', variable));
    assert.equal(server.calls.length, 0);
  });
});

describe('asking by messages', () => {
  const request = (tokens: ChatRequest['tokens']): ChatRequest => ({
    policy: v1,
    messages: [{ role: 'user', content: 'hello' }],
    maxTokens: 4,
    temperature: 0.7,
    tokens,
    seed: 3,
  });
  const message = {
    content: null,
    tool_calls: [{ id: 'c', type: 'function', function: { name: 'add', arguments: '{}' } }],
  };
  const answer = (more: object, choice: object = {}): FakeAnswer => {
    const body = { choices: [{ finish_reason: 'tool_calls', message, ...choice }], ...more };
    return (_, response) => reply(response, 200, body);
  };

  test('the turn comes back with the ids that were read and sampled', async (t) => {
    const [server] = (await servers(t, 1)) as [FakeModelServer];
    const choice = { token_ids: [5, 6], logprobs: { content: [{ logprob: -1 }, { logprob: -2 }] } };
    const usage = { prompt_tokens: 3, completion_tokens: 2 };
    server.answers['/v1/chat/completions'] = answer({ prompt_token_ids: [1, 2, 3], usage }, choice);
    assert.deepEqual(await open(t, [server]).chat!(request('required')), {
      text: '',
      toolCalls: [{ name: 'add', arguments: '{}' }],
      finishReason: 'stop',
      promptTokenIds: [1, 2, 3],
      tokenIds: [5, 6],
      logprobs: [-1, -2],
      usage: { promptTokens: 3, completionTokens: 2 },
    });
    const { body } = server.calls[0]!;
    assert.deepEqual([body['return_token_ids'], body['logprobs'], body['cache_salt']], [true, true, 'v1']);
  });

  test('an answer without ids will do for evaluations, and is refused for training with the reason', async (t) => {
    const [server] = (await servers(t, 1)) as [FakeModelServer];
    server.answers['/v1/chat/completions'] = answer({});
    const inference = open(t, [server]);
    const { tokenIds, logprobs, usage } = await inference.chat!(request('none'));
    assert.deepEqual([tokenIds, logprobs, usage], [null, null, null]);
    const sent = Object.keys(server.calls[0]!.body).sort();
    assert.deepEqual(sent, ['max_tokens', 'messages', 'model', 'seed', 'temperature']);
    const reason = coded('InferenceRejected', 'without token ids', 'evaluations', 'return_token_ids');
    await assert.rejects(inference.chat!(request('required')), reason);
  });
});

async function until(isSo: () => boolean): Promise<void> {
  for (const giveUpAt = Date.now() + 20_000; !isSo();) {
    assert(Date.now() < giveUpAt, 'it does not come about');
    await delay(50);
  }
}

test('a server that accepts connections and answers nothing is named, and is used again when it answers', async (t) => {
  const [server] = await servers(t, 1);
  const proxy = await startProxy(Number(new URL(server!.url).port));
  t.after(() => proxy.close());
  const url = `http://127.0.0.1:${proxy.port}`;
  const address = { url, apiKeyVar: null, headers: {}, headersFromEnv: {}, model: null };
  const pool = new ServerPool([address], { maxConcurrent: 4, timeoutMs: 9_000, provider: 'cpu', quietMs: 100 });
  t.after(() => pool.close());
  const inference = new OpenAiInference(pool);
  proxy.decide = () => 'hang';
  const sampling = inference.sample(ask(1));
  await eventually(
    'it is named',
    () => Promise.resolve(inference.silence() ?? ''),
    (said) => said.includes(url) && said.includes('answered nothing for') && said.includes('restart it'),
  );
  proxy.decide = () => 'pass';
  await eventually(
    'it is back',
    () => Promise.resolve(inference.silence()),
    (said) => said === null,
  );
  assert.ok((await sampling).tokenIds.length > 0);
});
