import assert from 'node:assert/strict';
import { createHash } from 'node:crypto';
import { mkdir, readdir, rm, symlink, writeFile, readFile } from 'node:fs/promises';
import { request as httpRequest } from 'node:http';
import { join } from 'node:path';
import { test } from 'node:test';
import { setTimeout } from 'node:timers/promises';
import type OpenAI from 'openai';
import { type ModelFolder, Sampler, saveModelFolder, startPolicyServer } from '../../engine/index.ts';
import { overflowing, preset, temporaryFolder, wordRequest, words } from './models.ts';
import { openStage } from './server-stage.ts';

const models = [preset(0), preset(1), preset(2)];
const [first, second] = models as [ModelFolder, ModelFolder, ModelFolder];

async function errorOf(response: Response): Promise<{ status: number; message: string; param: string | null }> {
  const { error } = (await response.json()) as { error: { message: string; param: string | null } };
  return { status: response.status, message: error.message, param: error.param };
}

test('the openai client gets a chat completion with token ids and logprobs', async (t) => {
  const { client, hold } = await openStage(t);
  assert.equal((await hold('run:main:0', first, { digest: first.parameters.digest(), step: 0 })).status, 200);
  const request = {
    model: 'run:main:0',
    messages: [{ role: 'user' as const, content: 'cat' }],
    max_tokens: 8,
    n: 2,
    seed: 1,
    logprobs: true,
    return_token_ids: true,
  } satisfies OpenAI.ChatCompletionCreateParamsNonStreaming & { return_token_ids: boolean };
  const answer = (await client.chat.completions.create(request)) as OpenAI.ChatCompletion & {
    prompt_token_ids: number[];
  };
  assert.deepEqual(answer.prompt_token_ids, [3, 6, 4, 23, 2]);
  assert.equal(answer.choices.length, 2);
  for (const choice of answer.choices as (OpenAI.ChatCompletion.Choice & { token_ids: number[] })[]) {
    const content = choice.logprobs!.content!;
    assert.equal(content.length, choice.token_ids.length);
    assert.equal(choice.message.content, first.tokenizer.decode(choice.token_ids));
    assert.ok(content.every(({ logprob, bytes, top_logprobs }) => logprob < 0 && bytes && top_logprobs.length === 0));
    assert.equal(choice.finish_reason, choice.token_ids.at(-1) === 1 ? 'stop' : 'length');
  }
  const tokens = answer.choices.reduce((sum, choice) => sum + choice.logprobs!.content!.length, 0);
  assert.deepEqual(answer.usage, { prompt_tokens: 5, completion_tokens: tokens, total_tokens: 5 + tokens });
  assert.deepEqual((await client.chat.completions.create(request)).choices, answer.choices);
});

test('completions give what the sampler gives, choice by choice from the seeds', async (t) => {
  const { client, hold } = await openStage(t);
  await hold('policy', first);
  const requests = words.flatMap((word, p) => [0, 1].map((k) => wordRequest(first, word, 10 * p + k)));
  const sampler = await Sampler.open(first.config, { threads: 1 });
  const expected = await sampler.generate(first.parameters, requests);
  await sampler.release();
  const ours = { seeds: requests.map(({ seed }) => seed), return_token_ids: true };
  const answer = await client.completions.create({
    ...ours,
    model: 'policy',
    prompt: words.map((word) => first.tokenizer.renderChat([{ role: 'user', content: word }])),
    n: 2,
    max_tokens: 10,
    logprobs: 1,
  });
  const choices = answer.choices as (OpenAI.CompletionChoice & { token_ids: number[]; prompt_token_ids: number[] })[];
  choices.forEach((choice, i) => {
    assert.deepEqual(choice.token_ids, expected[i]!.tokenIds);
    assert.deepEqual(choice.logprobs!.token_logprobs!.map(Math.fround), expected[i]!.logprobs.map(Math.fround));
    assert.deepEqual(choice.prompt_token_ids, requests[i]!.promptTokenIds);
    assert.equal(choice.logprobs!.tokens!.length, choice.logprobs!.text_offset!.length);
    assert.equal(choice.text, first.tokenizer.decode(expected[i]!.tokenIds));
  });
});

test('a prompt may be text or ids, one or several', async (t) => {
  const { client, hold } = await openStage(t);
  await hold('policy', first);
  const texts: string[] = [];
  const ids = first.tokenizer.encode('<bos>cat<sep>');
  for (const prompt of ['<bos>cat<sep>', ['<bos>cat<sep>'], ids, [ids]]) {
    const { choices } = await client.completions.create({ model: 'policy', prompt, seed: 4, temperature: 1 });
    assert.equal(choices.length, 1);
    texts.push(choices[0]!.text);
  }
  assert.equal(new Set(texts).size, 1);
});

test('several versions are held at once, listed with their steps, and answer side by side', async (t) => {
  const { client, hold } = await openStage(t);
  for (const [step, model] of models.entries()) await hold(`run:main:${step}`, model, { step });
  const listed = (await client.models.list()).data as (OpenAI.Model & { step: number; digest: string })[];
  assert.deepEqual(
    listed.map(({ id, step, digest }) => [id, step, digest]),
    models.map((model, step) => [`run:main:${step}`, step, model.parameters.digest()]),
  );
  const ask = async (step: number): Promise<string> => {
    const prompt = '<bos>elephant<sep>';
    const { choices } = await client.completions.create({ model: `run:main:${step}`, prompt, seed: 3, max_tokens: 30 });
    return choices[0]!.text;
  };
  const together = await Promise.all([0, 1, 2].map(ask));
  assert.equal(new Set(together).size, 3);
  for (const step of [2, 0, 1]) assert.equal(await ask(step), together[step]);
});

test('beyond the limit the least recently used version goes; loading again is idempotent', async (t) => {
  const { client, hold, post } = await openStage(t, { maxVersions: 2 });
  const held = async (): Promise<string[]> => (await client.models.list()).data.map(({ id }) => id);
  await hold('run:main:0', models[0]!);
  await hold('run:main:1', models[1]!);
  await hold('run:main:1', models[1]!);
  assert.deepEqual(await held(), ['run:main:0', 'run:main:1']);
  await client.completions.create({ model: 'run:main:0', prompt: '<bos>cat<sep>' });
  await hold('run:main:2', models[2]!);
  assert.deepEqual(await held(), ['run:main:0', 'run:main:2']);
  const replaced = await post('/update_weights', { weight_dir: undefined, name: 'run:main:2' });
  assert.equal(replaced.status, 400);
});

test('a version that somebody keeps stays, whatever is loaded after it, until it is released or its time is over', async (t) => {
  const { client, hold, post } = await openStage(t, { maxVersions: 3 });
  const held = async (): Promise<string[]> => (await client.models.list()).data.map(({ id }) => id);
  const keep = (name: string, holder: string, seconds = 60) => post('/hold_version', { name, holder, seconds });
  const load = async (step: number): Promise<void> => void (await hold(`run:main:${step}`, models[step % 3]!));
  await load(0);
  assert.equal((await keep('run:main:0', 'eval')).status, 200);
  for (const step of [1, 2, 3, 4]) await load(step);
  assert.deepEqual(await held(), ['run:main:0', 'run:main:3', 'run:main:4']);
  assert.equal((await keep('run:main:0', 'another')).status, 200);
  const full = await errorOf(await keep('run:main:4', 'eval'));
  assert.equal(full.status, 429);
  assert.match(full.message, /room for 1/);
  assert.equal((await keep('run:main:9', 'eval')).status, 409);

  await post('/release_version', { name: 'run:main:0', holder: 'eval' });
  await load(5);
  assert.ok((await held()).includes('run:main:0'), 'another keeps it still');
  await keep('run:main:0', 'another', 0.01);
  await setTimeout(20);
  await load(6);
  assert.deepEqual(await held(), ['run:main:4', 'run:main:5', 'run:main:6']);
  assert.equal((await post('/release_version', { name: 'run:main:0', holder: 'eval' })).status, 200);
  assert.equal((await keep('run:main:5', '', 5)).status, 400);
});

test('a policy version that is not held is 409 and not retried; another model is 404', async (t) => {
  const { client, hold } = await openStage(t);
  await hold('run:main:3', first);
  const ask = (model: string): Promise<unknown> => client.completions.create({ model, prompt: '<bos>cat<sep>' });
  await assert.rejects(ask('run:main:2'), (error: InstanceType<typeof OpenAI.APIError>) => {
    assert.equal(error.status, 409);
    assert.equal(error.headers?.get('x-should-retry'), 'false');
    return /Held versions: run:main:3/.test(error.message);
  });
  await assert.rejects(ask('gpt-5'), { status: 404 });
});

test('weights with another digest than announced are refused and the held version stays', async (t) => {
  const { client, hold } = await openStage(t);
  await hold('run:main:0', first);
  const { status, message } = await errorOf(await hold('run:main:0', second, { digest: 'f'.repeat(64) }));
  assert.equal(status, 409);
  assert.match(message, /Nothing was loaded/);
  const [held] = (await client.models.list()).data as (OpenAI.Model & { digest: string })[];
  assert.equal(held!.digest, first.parameters.digest());
});

test('weights come from below the allowed roots only, links resolved', async (t) => {
  const { folder, post } = await openStage(t);
  const outside = await temporaryFolder(t);
  await saveModelFolder(first, join(outside, 'model'));
  await symlink(join(outside, 'model'), join(folder, 'link'));
  const load = async (weight_dir: string): Promise<number> =>
    (await post('/update_weights', { weight_dir, name: 'a' })).status;
  assert.equal(await load(join(outside, 'model')), 403);
  assert.equal(await load(join(folder, 'link')), 403);
  assert.equal(await load(join(folder, '..', outside.split('/').at(-1)!, 'model')), 403);
  assert.equal(await load(join(folder, 'none')), 404);
  // The answer must not reveal what exists elsewhere.
  assert.equal(await load(join(outside, 'none')), 403);
  await mkdir(join(folder, 'empty'));
  assert.equal(await load(join(folder, 'empty')), 400);
  await saveModelFolder(first, join(folder, 'torn'));
  await writeFile(join(folder, 'torn', 'model.safetensors'), 'torn');
  assert.equal(await load(join(folder, 'torn')), 422);
});

test('a version whose tokenizer changed is loaded anew, though its weights are the same', async (t) => {
  const { client, folder, post } = await openStage(t);
  const at = join(folder, 'same');
  await saveModelFolder(first, at);
  const load = async (): Promise<void> => {
    const asked = { weight_dir: at, name: 'a', digest: first.parameters.digest() };
    assert.equal((await post('/update_weights', asked)).status, 200);
  };
  const prompt = first.tokenizer.encode('<bos>elephant<sep>');
  const say = async (): Promise<string> =>
    (await client.completions.create({ model: 'a', prompt, seed: 3, max_tokens: 30 })).choices[0]!.text;
  await load();
  const before = await say();
  await load();
  assert.equal(await say(), before);
  const file = join(at, 'tokenizer.json');
  const tokenizer = JSON.parse(await readFile(file, 'utf8')) as { model: { vocab: Record<string, number> } };
  const { vocab } = tokenizer.model;
  const [one, other] = [before[0]!, ['a', 'b'].find((letter) => letter !== before[0])!];
  [vocab[one], vocab[other]] = [vocab[other]!, vocab[one]!];
  await writeFile(file, JSON.stringify(tokenizer));
  await load();
  assert.equal((await say())[0], other);
});

test('what is not honoured is refused by name', async (t) => {
  const { hold, post } = await openStage(t);
  await hold('policy', first);
  const chat = { model: 'policy', messages: [{ role: 'user', content: 'cat' }], max_tokens: 4 };
  const refused = {
    echo: true,
    best_of: 3,
    top_logprobs: 2,
    prompt_logprobs: 1,
    bad_words: ['a'],
    response_format: { type: 'json_object' },
    chat_template: '{{ messages }}',
    tool_choice: 'required',
    temprature: 1,
    constructor: 1,
  };
  for (const [key, value] of Object.entries(refused)) {
    const { status, message, param } = await errorOf(await post('/v1/chat/completions', { ...chat, [key]: value }));
    assert.deepEqual([status, param], [400, key]);
    assert.match(message, new RegExp(`"${key}"`), message);
  }
  const harmless = {
    stream: false,
    echo: false,
    tool_choice: 'none',
    top_p: 1,
    top_k: -1,
    min_p: 0,
    stop: null,
    tools: [],
    user: 'me',
    top_logprobs: 0,
  };
  assert.equal((await post('/v1/chat/completions', { ...chat, ...harmless })).status, 200);
});

test('malformed requests get a clear 4xx', async (t) => {
  const { hold, post, server } = await openStage(t);
  await hold('policy', first);
  const completion = { model: 'policy', prompt: '<bos>cat<sep>' };
  const bad: [unknown, RegExp][] = [
    ['{', /not JSON/],
    ['[]', /expected object/],
    [{ prompt: 'a' }, /model/],
    [{ ...completion, prompt: [] }, /prompt/],
    [{ ...completion, prompt: [['a']] }, /prompt/],
    [{ ...completion, prompt: [4, 99] }, /vocabulary/],
    [{ ...completion, prompt: '' }, /no tokens/],
    [{ ...completion, n: 0 }, /n/],
    [{ ...completion, n: 1e9 }, /at most/],
    [{ ...completion, max_tokens: 1e6 }, /maximum context length is 64 tokens/],
    [{ ...completion, temperature: 'hot' }, /temperature/],
    [{ ...completion, temperature: 1e9 }, /temperature/],
    [{ ...completion, seed: 1.5 }, /seed/],
    [{ ...completion, seeds: [1, 2] }, /expected 1, got 2/],
    [{ ...completion, logprobs: 5 }, /logprobs/],
  ];
  for (const [body, message] of bad) {
    const error = await errorOf(await post('/v1/completions', body));
    assert.equal(error.status, 400, error.message);
    assert.match(error.message, message);
  }
  assert.equal((await errorOf(await post('/v1/embeddings', {}))).status, 404);
  assert.equal((await fetch(`${server.url}/v1/completions`)).status, 405);
  assert.equal((await errorOf(await post('/v1/chat/completions', { model: 'policy', messages: [] }))).status, 400);
});

test('a body that is too large is refused before it is read', async (t) => {
  const { server } = await openStage(t);
  const status = await new Promise<number | undefined>((resolve, reject) => {
    const headers = { 'content-length': String(65 * 2 ** 20) };
    const sent = httpRequest(`${server.url}/v1/completions`, { method: 'POST', headers }, (response) => {
      resolve(response.statusCode);
      sent.destroy();
    });
    sent.on('error', reject);
    sent.write('{');
  });
  assert.equal(status, 413);
});

test('while paused new requests wait and the metrics say so', async (t) => {
  const { client, hold, post, server } = await openStage(t);
  await hold('policy', first);
  const metrics = async (): Promise<string> => (await fetch(`${server.url}/metrics`)).text();
  await post('/pause', {});
  let isDone = false;
  const waiting = client.completions.create({ model: 'policy', prompt: '<bos>cat<sep>' }).then(() => (isDone = true));
  await setTimeout(100);
  assert.equal(isDone, false);
  assert.match(await metrics(), /ratchet_requests_waiting 1\n/);
  assert.deepEqual(await (await fetch(`${server.url}/health`)).json(), { status: 'paused' });
  await post('/resume', {});
  await waiting;
  const text = await metrics();
  assert.match(
    text,
    /ratchet_requests_waiting 0\n[^]*ratchet_generation_tokens_total [1-9]\d*\n[^]*ratchet_versions_held 1\n/,
  );
});

test('a request that its client gave up is dropped', async (t) => {
  const { client, hold, server } = await openStage(t);
  await hold('policy', first);
  const controller = new AbortController();
  const many = { model: 'policy', prompt: '<bos>elephant<sep>', n: 3000, max_tokens: 50 };
  const given = client.completions.create(many, { signal: controller.signal });
  const refused = assert.rejects(given, /abort/i);
  const metricsMatch = async (pattern: RegExp): Promise<void> => {
    for (const end = Date.now() + 20_000; ; await setTimeout(5)) {
      const text = await (await fetch(`${server.url}/metrics`)).text();
      if (pattern.test(text)) return;
      if (Date.now() > end) assert.match(text, pattern);
    }
  };
  await metricsMatch(/ratchet_rows_running [1-9]/);
  controller.abort();
  await refused;
  await metricsMatch(/ratchet_rows_running 0\n[^]*ratchet_rows_waiting 0\n/);
});

test('broken weights give an error, never samples', async (t) => {
  const { client, hold } = await openStage(t);
  const broken = overflowing();
  await hold('policy', broken);
  await assert.rejects(client.completions.create({ model: 'policy', prompt: '<bos>cat<sep>' }), { status: 500 });
});

const chosen = { kind: 'chosen', value: 'secret', variable: 'POLICY_KEY' } as const;

test('beyond loopback a key is demanded, and asked for on every route but /health', async (t) => {
  await assert.rejects(startPolicyServer({ key: null, host: '0.0.0.0', threads: 1, allowRoots: [] }), {
    code: 'ConfigInvalid',
    message: /API key/,
  });
  const { server, client } = await openStage(t, { host: '0.0.0.0', key: chosen });
  assert.equal((await fetch(`http://127.0.0.1:${server.port}/v1/models`)).status, 401);
  assert.equal((await fetch(`http://127.0.0.1:${server.port}/health`)).status, 200);
  assert.deepEqual((await client.models.list()).data, []);
});

test('a version in use survives the loss of its folder', async (t) => {
  const { client, hold, folder } = await openStage(t);
  await hold('policy', first);
  await rm(join(folder, 'policy'), { recursive: true });
  assert.equal((await client.completions.create({ model: 'policy', prompt: '<bos>cat<sep>' })).choices.length, 1);
});

test('a web page of another place gets nothing from a server without a key, whatever name it made to lead here', async (t) => {
  const { server } = await openStage(t);
  const statusOf = (headers: Readonly<Record<string, string>>, path = '/v1/models'): Promise<number | undefined> =>
    new Promise((resolve, reject) => {
      const request = httpRequest(`${server.url}${path}`, { headers }, (response) => {
        response.resume();
        resolve(response.statusCode);
      });
      request.on('error', reject).end();
    });
  for (const host of [`127.0.0.1:${server.port}`, `localhost:${server.port}`, 'LOCALHOST', `[::1]:${server.port}`]) {
    assert.equal(await statusOf({ host }), 200, host);
  }
  for (const host of [
    'evil.example',
    `evil.example:${server.port}`,
    '127.0.0.1.evil.example',
    'localhost@evil.example',
  ]) {
    assert.equal(await statusOf({ host }), 403, host);
  }
  assert.equal(await statusOf({ origin: `http://localhost:3000` }), 200);
  for (const origin of ['https://evil.example', 'null']) assert.equal(await statusOf({ origin }), 403, origin);
  assert.equal(await statusOf({ host: 'evil.example' }, '/health'), 200, 'whether it is there is no secret');

  const keyed = await openStage(t, { key: chosen });
  const headers = { host: 'models.example', origin: 'https://models.example', authorization: 'Bearer secret' };
  const behindProxy = await new Promise<number | undefined>((resolve, reject) => {
    const request = httpRequest(`${keyed.server.url}/v1/models`, { headers }, (response) => {
      response.resume();
      resolve(response.statusCode);
    });
    request.on('error', reject).end();
  });
  assert.equal(behindProxy, 200, 'with a key it may stand behind a proxy of another name');
});

test('a version that another engine named is known by the list of its files, and by no other', async (t) => {
  const { client, folder, hold, post } = await openStage(t);
  await hold('run:main:1', models[1]!);
  const weight_dir = join(folder, 'run_main_1');
  const names = (await readdir(weight_dir)).sort();
  const digestOf = async (name: string) =>
    createHash('sha256')
      .update(await readFile(join(weight_dir, name)))
      .digest('hex');
  const lines = await Promise.all(names.map(async (name) => `${await digestOf(name)}  ${name}\n`));
  await writeFile(join(weight_dir, 'SHA256SUMS'), lines.join(''));
  const [digest, sums] = ['a'.repeat(64), await digestOf('SHA256SUMS')];
  const load = (more: object) => post('/update_weights', { weight_dir, name: 'run:main:1', digest, ...more });
  assert.equal((await load({})).status, 409);
  assert.equal((await load({ sums: 'b'.repeat(64) })).status, 409);
  assert.equal((await load({ sums })).status, 200);
  assert.equal((await client.models.list()).data.length, 1);
  // Held under that name, it is not read again: its folder may be gone.
  await rm(join(weight_dir, 'model.safetensors'));
  assert.equal((await load({ sums })).status, 200);
  await saveModelFolder(models[2]!, weight_dir);
  assert.equal((await load({ sums, digest: 'c'.repeat(64) })).status, 409, 'other weights than the list says');
});
