import assert from 'node:assert/strict';
import { once } from 'node:events';
import { mkdir, readFile, rm, writeFile } from 'node:fs/promises';
import { connect } from 'node:net';
import { join } from 'node:path';
import { test } from 'node:test';
import {
  decodeSafetensors,
  encodeSafetensors,
  type ModelFolder,
  saveModelFolder,
  startPolicyServer,
  withChatTemplate,
} from '../../engine/index.ts';
import { saveAdapterFolder } from '../../engine/model/adapter-folder.ts';
import { createAdapter, mergeAdapter } from '../../engine/model/lora.ts';
import { preset, temporaryFolder } from './models.ts';
import { chainModel, openStage } from './server-stage.ts';

const model = preset(1);
const token_ids = model.tokenizer.encode('<bos>elephant<sep>');

interface Generated {
  request_id: string;
  choices: {
    index: number;
    token_ids: number[];
    finish_reason: string;
    logprobs: { content: { token: string; logprob: number }[] } | null;
    sampling_logprobs?: number[];
  }[];
  usage: { completion_tokens: number };
}

test('/inference/v1/generate takes token ids and gives token ids with their logprobs', async (t) => {
  const { hold, ask, refusal } = await openStage(t);
  await hold('policy', model);
  const sampling_params = { temperature: 1, max_tokens: 9, logprobs: 1, seed: 4, n: 2, skip_special_tokens: false };
  const body = { model: 'policy', request_id: 'mine', token_ids, sampling_params };
  const answer = await ask<Generated>('/inference/v1/generate', body);
  assert.equal(answer.request_id, 'mine');
  assert.equal(answer.choices.length, 2);
  for (const choice of answer.choices) {
    assert.deepEqual(
      choice.logprobs!.content.map(({ token }) => token),
      choice.token_ids.map((id) => `token_id:${id}`),
    );
    assert.ok(choice.logprobs!.content.every(({ logprob }) => logprob < 0));
    assert.equal(choice.sampling_logprobs, undefined);
  }
  assert.equal(
    answer.usage.completion_tokens,
    answer.choices.reduce((sum, choice) => sum + choice.token_ids.length, 0),
  );
  const truncated = await ask<Generated>('/inference/v1/generate', {
    token_ids,
    sampling_params: { ...sampling_params, n: 1, top_p: 0.7 },
  });
  assert.equal(truncated.choices[0]!.sampling_logprobs!.length, truncated.choices[0]!.token_ids.length);
  const untilFull = await ask<Generated>('/inference/v1/generate', {
    token_ids,
    sampling_params: { ignore_eos: true, allowed_token_ids: [5] },
  });
  assert.equal(
    untilFull.choices[0]!.token_ids.length,
    64 - token_ids.length,
    'without max_tokens the context is filled',
  );
  const scored = { ...body, sampling_params: { ...sampling_params, prompt_logprobs: 1 } };
  const { status, param } = await refusal('/inference/v1/generate', scored);
  assert.deepEqual([status, param], [400, 'sampling_params.prompt_logprobs']);
});

test('/inference/v1/generate streams as well', async (t) => {
  const { hold, post, ask } = await openStage(t);
  await hold('policy', model);
  const body = { token_ids, sampling_params: { max_tokens: 9, logprobs: 1, seed: 4 } };
  const [whole] = (await ask<Generated>('/inference/v1/generate', body)).choices;
  const text = await (await post('/inference/v1/generate', { ...body, stream: true })).text();
  const events = text.split('\n\n').filter((event) => event !== '');
  assert.equal(events.pop(), 'data: [DONE]');
  const chunks = events.map((event) => JSON.parse(event.slice('data: '.length)) as Generated);
  assert.deepEqual(
    chunks.flatMap(({ choices }) => choices[0]!.token_ids),
    whole!.token_ids,
  );
  assert.deepEqual(
    chunks.flatMap(({ choices }) => choices[0]!.logprobs!.content),
    whole!.logprobs!.content,
  );
});

interface Chat {
  prompt_token_ids: number[];
  choices: { token_ids: number[]; message: { content: string } }[];
}

test('a conversation continues token for token, as verifiers does it', async (t) => {
  const { hold, ask, refusal } = await openStage(t);
  await hold('policy', model);
  const sampling = { max_completion_tokens: 8, seed: 2, logprobs: true, return_token_ids: true, tools: null };
  const messages = [{ role: 'user', content: 'cat' }];
  const first = await ask<Chat>('/v1/chat/completions', { model: 'policy', messages, ...sampling });
  const tokens = [...first.prompt_token_ids, ...first.choices[0]!.token_ids, ...token_ids];
  const second = await ask<Chat>('/v1/chat/completions/tokens', { model: 'policy', messages, tokens, ...sampling });
  assert.deepEqual(second.prompt_token_ids, tokens);
  const rendered = await ask<Chat>('/v1/chat/completions/tokens', { model: 'policy', messages, ...sampling });
  assert.deepEqual(rendered.choices, first.choices);
  assert.equal((await refusal('/v1/chat/completions/tokens', { model: 'policy', ...sampling })).param, 'tokens');
});

test('a chat template is told the time that weights are loaded with, and loaded with another one they are another model', async (t) => {
  const { hold, ask, refusal, folder } = await openStage(t);
  const time = '2026-11-26T23:59';
  const dated = withChatTemplate(chainModel(['ab']), '{{ strftime_now("%d.%m.%Y %H:%M, %a %B") }}');
  assert.equal((await hold('policy', dated, { template_time: time })).status, 200);
  const rendered = async (): Promise<string> => {
    const { tokens } = await ask<{ tokens: number[] }>('/tokenize', { messages: [{ role: 'user', content: 'x' }] });
    return dated.tokenizer.decode(tokens);
  };
  assert.equal(await rendered(), '26.11.2026 23:59, Thu November');
  assert.equal((await hold('policy', dated, { template_time: '2026-12-01T00:00' })).status, 200);
  assert.equal(await rendered(), '01.12.2026 00:00, Tue December');
  const { message } = await refusal('/update_weights', { name: 'policy', weight_dir: folder, template_time: 'today' });
  assert.match(message, /template_time.*expected a time such as 2026-11-26T14:05/);
});

test('/tokenize and /detokenize speak for the tokenizer', async (t) => {
  const { hold, ask, refusal } = await openStage(t);
  await hold('policy', model);
  const answer = await ask('/tokenize', { model: 'policy', prompt: '<bos>cat', return_token_strs: true });
  assert.deepEqual(answer, {
    count: 4,
    max_model_len: 64,
    tokens: [3, 6, 4, 23],
    token_strs: ['<bos>', 'c', 'a', 't'],
  });
  const messages = [{ role: 'user', content: 'cat' }];
  assert.deepEqual((await ask('/tokenize', { messages }))['tokens'], [3, 6, 4, 23, 2]);
  assert.deepEqual(await ask('/detokenize', { tokens: [3, 6, 4, 23, 2] }), { prompt: '<bos>cat<sep>' });
  assert.deepEqual(await ask('/detokenize', { tokens: [] }), { prompt: '' });
  assert.match((await refusal('/detokenize', { tokens: [30] })).message, /outside the vocabulary of 30/);
  assert.match((await refusal('/tokenize', {})).message, /either "prompt" or "messages"/);
  assert.match((await refusal('/tokenize', { prompt: 'a', messages })).message, /either "prompt" or "messages"/);
  assert.match((await refusal('/tokenize', { prompt: 'a'.repeat(2 ** 21) })).message, /at most 1048576/);
});

test('the model may be left out while a single version is held', async (t) => {
  const { hold, ask, refusal } = await openStage(t);
  assert.match((await refusal('/tokenize', { prompt: 'a' })).message, /one of none/);
  await hold('one', model);
  assert.deepEqual((await ask('/tokenize', { prompt: 'a' }))['tokens'], [4]);
  await hold('two', preset(2));
  const { status, message } = await refusal('/tokenize', { prompt: 'a' });
  assert.equal(status, 400);
  assert.match(message, /one of one, two/);
});

test('the metrics count tokens, rows, keys and values, and how long clients wait', async (t) => {
  const { hold, ask, metric, server } = await openStage(t);
  await hold('policy', model);
  const sampling_params = { max_tokens: 5, n: 4, ignore_eos: true };
  await ask('/inference/v1/generate', { token_ids, sampling_params });
  assert.equal(await metric('ratchet_generation_tokens_total'), 20);
  assert.equal(await metric('vllm:generation_tokens_total'), 20);
  assert.equal(await metric('ratchet_prompt_tokens_total'), 4 * token_ids.length);
  assert.equal(await metric('ratchet_prompt_tokens_computed_total'), token_ids.length, 'a prompt is computed once');
  assert.equal(await metric('ratchet_time_to_first_token_seconds_count'), 4);
  assert.equal(await metric('ratchet_inter_token_seconds_count'), 16);
  assert.equal(await metric('ratchet_request_seconds_count'), 1);
  assert.equal(await metric('ratchet_time_to_first_token_seconds_bucket\\{le="\\+Inf"\\}'), 4);
  assert.equal(await metric('ratchet_key_value_bytes_used'), 0);
  assert.equal(await metric('vllm:num_requests_running'), 0);
  assert.ok((await metric('ratchet_key_value_bytes_max')) > 0);
  const text = await (await fetch(`${server.url}/metrics`)).text();
  const lines = text.trimEnd().split('\n');
  const wrong = lines.filter((line) => !/^(# (HELP|TYPE) \S+ .+|[a-z_:]+(\{le="[^"]+"\})? [\d.e+-]+)$/.test(line));
  assert.deepEqual(wrong, [], 'Prometheus reads every line');
});

test('small routes of vLLM answer as it does', async (t) => {
  const { server } = await openStage(t);
  const get = async (path: string): Promise<unknown> => (await fetch(`${server.url}${path}`)).json();
  assert.deepEqual(await get('/liveness'), { status: 'ok' });
  assert.deepEqual(await get('/ping'), {});
  assert.match(((await get('/version')) as { version: string }).version, /onnxruntime-node \d/);
});

test('a server without weights, or one that is paused, is not ready, and says so without a key', async (t) => {
  const key = { kind: 'chosen', value: 'open sesame', variable: 'POLICY_KEY' } as const;
  const empty = await startPolicyServer({ host: '127.0.0.1', port: 0, threads: 1, allowRoots: [], key });
  t.after(() => empty.close());
  const ready = async (url: string): Promise<unknown[]> => {
    const answer = await fetch(`${url}/ready`);
    return [answer.status, await answer.json()];
  };
  assert.deepEqual(await ready(empty.url), [503, { status: 'not ready', because: 'it holds no weights' }]);
  const { server, hold } = await openStage(t);
  await hold('policy', model);
  assert.deepEqual(await ready(server.url), [200, { status: 'ready' }]);
  await fetch(`${server.url}/pause`, { method: 'POST' });
  assert.deepEqual(await ready(server.url), [503, { status: 'not ready', because: 'it is paused' }]);
  assert.equal((await fetch(`${server.url}/health`)).status, 200);
});

/** A base and a policy that is an adapter of it, as PEFT lays it out. */
async function saveAdapter(folder: string, baseFolder: string): Promise<ModelFolder> {
  const base = preset(0);
  await saveModelFolder(base, baseFolder);
  const lora = { r: 4, alpha: 8, dropout: 0, targetModules: ['q_proj', 'v_proj'], rankStabilized: false };
  const adapter = createAdapter(base.config, lora, 7);
  for (let i = 0; i < adapter.flat.length; i++) adapter.flat[i] = Math.sin(i);
  await mkdir(folder, { recursive: true });
  await saveAdapterFolder({ adapter, base: baseFolder, baseDigest: base.parameters.digest() }, folder);
  const digest = base.parameters.digest();
  return { ...base, parameters: mergeAdapter(base.parameters, adapter, digest) };
}

test('a LoRA adapter is held beside its base and sampled merged', async (t) => {
  const { folder, post, ask, hold } = await openStage(t);
  const merged = await saveAdapter(join(folder, 'adapter'), join(folder, 'base'));
  const digest = merged.parameters.digest();
  const load = (name: string, extra: object = {}): Promise<Response> =>
    post('/update_weights', { name, weight_dir: join(folder, 'adapter'), digest, ...extra });
  const response = await load('run:main:1');
  assert.equal(response.status, 200, await response.clone().text());
  assert.equal(((await response.json()) as { digest: string }).digest, digest);
  assert.equal((await load('run:main:2', { digest: '0'.repeat(64) })).status, 409);
  await hold('plain', { ...merged, parameters: merged.parameters });
  const body = { token_ids, sampling_params: { max_tokens: 9, logprobs: 1, seed: 4 } };
  const [adapted, plain] = await Promise.all(
    ['run:main:1', 'plain'].map((name) => ask<Generated>('/inference/v1/generate', { ...body, model: name })),
  );
  assert.deepEqual(adapted!.choices, plain!.choices);
});

test('the base of an adapter must be below the allowed roots as well', async (t) => {
  const { folder, refusal } = await openStage(t);
  const outside = await temporaryFolder(t);
  await saveAdapter(join(folder, 'adapter'), join(outside, 'base'));
  const { status, message } = await refusal('/update_weights', { name: 'a', weight_dir: join(folder, 'adapter') });
  assert.equal(status, 403, message);
  assert.match(message, /base .* outside of the allowed roots/);
});

test('what is no HTTP, or takes its time, gets an answer in the form of all others', async (t) => {
  const { server } = await openStage(t);
  const send = async (text: string): Promise<string> => {
    const socket = connect(server.port, '127.0.0.1');
    socket.end(text);
    const chunks: Buffer[] = [];
    for await (const chunk of socket as AsyncIterable<Buffer>) chunks.push(chunk);
    return Buffer.concat(chunks).toString();
  };
  const smuggled =
    'POST /health HTTP/1.1\r\nhost: a\r\ncontent-length: 4\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n';
  for (const [text, status] of [
    ['GARBAGE\r\n\r\n', 400],
    [smuggled, 400],
    [`GET /health HTTP/1.1\r\nhost: a\r\nx: ${'x'.repeat(20_000)}\r\n\r\n`, 431],
    ['CONNECT a:1 HTTP/1.1\r\nhost: a:1\r\n\r\n', 400],
    ['POST /health HTTP/1.1\r\nhost: a\r\nexpect: wonders\r\ncontent-length: 0\r\nconnection: close\r\n\r\n', 417],
  ] as const) {
    const answer = await send(text);
    assert.match(answer, new RegExp(`^HTTP/1.1 ${status} `), text);
    const body = JSON.parse(answer.slice(answer.indexOf('\r\n\r\n'))) as { error: { message: string; type: string } };
    assert.equal(body.error.type, 'invalid_request_error');
  }
});

test('requests that come on one connection before the first is answered are answered in order', async (t) => {
  const { server, hold } = await openStage(t);
  await hold('policy', model);
  const body = JSON.stringify({ model: 'policy', prompt: 'a', max_tokens: 2 });
  const one = `POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: ${body.length}\r\n\r\n${body}`;
  const socket = connect(server.port, '127.0.0.1');
  socket.write(`${one.repeat(30)}GET /health HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n`);
  let text = '';
  socket.on('data', (chunk) => (text += chunk.toString()));
  await once(socket, 'close');
  assert.equal(text.match(/HTTP\/1.1 200 OK/g)!.length, 31);
  assert.ok(text.endsWith('{"status":"ok"}'));
});

test('a version may ask for a GPU, and without its libraries that is refused with what they are', async (t) => {
  const { hold } = await openStage(t);
  const response = await hold('policy', preset(0), { provider: 'cuda' });
  if (response.status === 200) return t.skip('there is a GPU');
  const { error } = (await response.json()) as { error: { message: string } };
  assert.equal(response.status, 501);
  assert.equal(response.headers.get('x-should-retry'), 'false');
  assert.match(error.message, /expected an NVIDIA GPU, CUDA 12, cuDNN 9, .* provider = "cpu" needs none\.$/);
  assert.equal((await hold('policy', preset(0), { provider: 'cpu' })).status, 200);
});

test('weights that are not numbers are refused with the tensor, not sampled', async (t) => {
  const { hold } = await openStage(t);
  const broken = preset(0);
  broken.parameters.view('model.norm.weight')[3] = NaN;
  const response = await hold('policy', broken);
  assert.equal(response.status, 422);
  assert.match(await response.text(), /finite numbers in tensor \\"model\.norm\.weight\\", got NaN at position 3/);
});

test('a base of several files is one, and an adapter on it is refused once a file of it has changed', async (t) => {
  const { folder, post } = await openStage(t);
  const base = join(folder, 'base');
  const merged = await saveAdapter(join(folder, 'adapter'), base);
  const whole = join(base, 'model.safetensors');
  const { tensors } = decodeSafetensors(await readFile(whole), whole);
  const shardOf = (place: number) => `model-0000${place + 1}-of-00002.safetensors`;
  const parts = [0, 1].map((place) => [...tensors].filter((_, i) => i % 2 === place));
  for (const [place, part] of parts.entries())
    await writeFile(join(base, shardOf(place)), encodeSafetensors(Object.fromEntries(part)));
  const weight_map = Object.fromEntries([...tensors.keys()].map((name, i) => [name, shardOf(i % 2)]));
  await writeFile(join(base, 'model.safetensors.index.json'), JSON.stringify({ weight_map }));
  await rm(whole);
  const load = (name: string): Promise<Response> =>
    post('/update_weights', { name, weight_dir: join(folder, 'adapter'), digest: merged.parameters.digest() });
  assert.equal((await load('one')).status, 200);
  const [first, ...others] = parts[1]!;
  const [name, { shape, data }] = first!;
  const changed = { shape, data: Float32Array.from(data as Float32Array, (value) => value + 1) };
  await writeFile(join(base, shardOf(1)), encodeSafetensors(Object.fromEntries([[name, changed], ...others])));
  assert.equal((await load('two')).ok, false);
});
