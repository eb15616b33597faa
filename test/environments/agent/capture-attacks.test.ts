/** What programs send that an address in front of a policy does not expect: keys, bodies, fields, and clients that go away. */
import assert from 'node:assert/strict';
import { EventEmitter, once } from 'node:events';
import { connect } from 'node:net';
import { describe, test } from 'node:test';
import { gzipSync } from 'node:zlib';
import { until } from '../../eventually.ts';
import type { Turn } from '../../../core/rl/rollout/rollout.ts';
import { trajectoryRows } from '../../../core/rl/rollout/trajectories.ts';
import { assertOneRow, clientOf, type Json, keptNotes, lookUp, open, post, user } from './open-capture.ts';

const chat = '/v1/chat/completions';
const responses = '/v1/responses';
const messages = '/v1/messages';

const question = [{ role: 'user', content: 'What is an owl?' }];
const bodies: Readonly<Record<string, Json>> = {
  [chat]: { model: 'policy', messages: question },
  [responses]: { model: 'policy', input: 'What is an owl?' },
  [messages]: { model: 'policy', max_tokens: 50, messages: question },
};
const named = { name: 'look_up', description: 'Looks a word up.' };
const { parameters } = lookUp.function;
const toolsOf: Readonly<Record<string, Json>> = {
  [chat]: lookUp as unknown as Json,
  [responses]: { type: 'function', ...named, parameters },
  [messages]: { ...named, input_schema: parameters },
};

const schema = { type: 'object', properties: { word: { type: 'string' } } };

const errorOf = ({ body }: { readonly body: Json }): Json => body['error'] as Json;

describe('a field that asks for what the policy cannot give', () => {
  for (const [path, field, value] of [
    [chat, 'n', 5],
    [chat, 'top_logprobs', 5],
    [chat, 'logit_bias', { 5: 100 }],
    [chat, 'modalities', ['text', 'audio']],
    [chat, 'audio', { voice: 'alloy' }],
    [chat, 'prediction', { type: 'content', content: 'x' }],
    [chat, 'web_search_options', {}],
    [chat, 'guided_json', schema],
    [chat, 'functions', [{ name: 'f' }]],
    [chat, 'max_tokens', 0],
    [chat, 'max_tokens', -1],
    [chat, 'stop', ''],
    [chat, 'tool_choice', 'maybe'],
    [chat, 'tool_choice', 'required'],
    [chat, 'response_format', { type: 'xml' }],
    [responses, 'background', true],
    [responses, 'conversation', 'conv_1'],
    [responses, 'prompt', { id: 'pmpt_1' }],
    [responses, 'top_logprobs', 3],
    [responses, 'max_output_tokens', 0],
    [responses, 'input', []],
    [messages, 'mcp_servers', [{ type: 'url', url: 'http://x', name: 'x' }]],
    [messages, 'container', 'c'],
    [messages, 'max_tokens', 0],
  ] as const) {
    test(`${path} with ${field}: ${JSON.stringify(value)} is refused by name`, async (t) => {
      const { capture, policy, url } = await open(t);
      const refused = await post(url + path, capture, { ...bodies[path], [field]: value });
      const { message, type } = errorOf(refused) as { message: string; type: string };
      assert.deepEqual([refused.status, type, policy.asked.length], [400, 'invalid_request_error', 0]);
      assert.match(message, new RegExp(`^"${field}`));
      if (path !== messages) assert.match(String(errorOf(refused)['param']), new RegExp(`^${field}`));
      assert.deepEqual([capture.calls.refused, capture.failure], [1, undefined]);
    });
  }

  for (const [path, content, says] of [
    [
      chat,
      [...question, { role: 'assistant', content: null, function_call: { name: 'f', arguments: '{}' } }],
      /"messages\.1\.function_call"/,
    ],
    [messages, [...question, { role: 'assistant', content: 'It is' }], /"messages": .* an answer that is begun/],
    [messages, [{ role: 'user', content: [{ type: 'tool_result', content: 'a' }] }], /tool_use_id/],
    [messages, [{ role: 'user', content: [{ type: 'image', source: {} }] }], /"messages\.0\.content": .*"image"/],
    [
      messages,
      [{ role: 'user', content: [{ type: 'tool_result', tool_use_id: 'a', content: [{ type: 'image' }] }] }],
      /"messages\.0\.content": .*"image"/,
    ],
  ] as const) {
    // prettier-ignore
    test(`${path} with messages that would be told in part: ${String(says)}`, async (t) => {
      const { capture, url } = await open(t);
      const refused = await post(url + path, capture, { ...bodies[path], messages: content });
      assert.equal(refused.status, 400);
      assert.match(String(errorOf(refused)['message']), says);
    });
  }

  test('at a value that asks for nothing it is no reason', async (t) => {
    const { capture, policy, url } = await open(t, () => 'a bird');
    const neutral = { n: 1, logit_bias: {}, top_logprobs: 0, response_format: { type: 'text' }, tool_choice: 'auto', audio: null, functions: null, parallel_tool_calls: true }; // prettier-ignore
    assert.equal((await post(url + chat, capture, { ...bodies[chat], ...neutral })).status, 200);
    assert.deepEqual([policy.asked.length, capture.ignored], [1, []]);
  });
});

test('fields that the run file decides, and that nobody knows, are named for people once', async (t) => {
  const { capture, policy, url } = await open(t, () => 'a bird');
  const decided = {
    temperature: 0.1,
    top_p: 0.2,
    seed: 3,
    frequency_penalty: 1,
    reasoning_effort: 'low',
    frobnicate: 1,
  };
  for (let i = 0; i < 2; i++)
    await post(url + chat, capture, { ...bodies[chat], ...decided, parallel_tool_calls: false });
  assert.deepEqual(capture.ignored, [...Object.keys(decided), 'parallel_tool_calls']);
  const failed = { type: 'tool_result', tool_use_id: 'a', content: 'no', is_error: true };
  const more = { thinking: { type: 'adaptive' }, top_k: 4, output_config: { effort: 'low' } };
  await post(url + messages, capture, {
    ...bodies[messages],
    ...more,
    messages: [{ role: 'user', content: [failed] }],
  });
  const own = { reasoning: { effort: 'low' }, text: { verbosity: 'low' }, truncation: 'auto' };
  await post(url + responses, capture, { ...bodies[responses], ...own, tools: [{ type: 'web_search' }] });
  assert.deepEqual(capture.ignored.slice(7), [
    'thinking',
    'top_k',
    'output_config.effort',
    'tool_result.is_error',
    'truncation',
    'tools of type web_search',
    'text.verbosity',
    'reasoning.effort',
  ]);
  assert.ok(policy.asked.every(({ temperature, topP }) => temperature === 1 && topP === 1));
});

describe('what a call demands of its answer', () => {
  const format = { type: 'json_schema', json_schema: { name: 'word', schema } };
  for (const [path, demand] of [
    [chat, { response_format: format }],
    [responses, { text: { format: { type: 'json_schema', name: 'word', schema } } }],
    [messages, { output_config: { format: { type: 'json_schema', name: 'word', schema } } }],
  ] as const) {
    test(`${path}: a form of the answer reaches the engine, and is another call than one without`, async (t) => {
      const stored: Turn[] = [];
      const script = { says: () => '{"word": "owl"}', onTurn: (turn: Turn) => void stored.push(turn) };
      const { capture, policy, url } = await open(t, script);
      await post(url + path, capture, { ...bodies[path], ...demand });
      assert.deepEqual(policy.asked[0]!.responseFormat, format);
      const again = await open(t, { ...script, recorded: [...stored] });
      await post(again.url + path, again.capture, bodies[path]!);
      assert.deepEqual(again.capture.calls, { ...again.capture.calls, sampled: 1, recalled: 0 });
      await post(again.url + path, again.capture, { ...bodies[path], ...demand });
      assert.deepEqual(again.capture.calls, { ...again.capture.calls, sampled: 1, recalled: 1 });
    });
  }

  for (const [path, required, one] of [
    [chat, 'required', { type: 'function', function: { name: 'look_up' } }],
    [responses, 'required', { type: 'function', name: 'look_up' }],
    [messages, { type: 'any' }, { type: 'tool', name: 'look_up' }],
  ] as const) {
    test(`${path}: a call that must be made is refused for this policy, with the field`, async (t) => {
      const { capture, policy, url } = await open(t);
      for (const choice of [required, one]) {
        const body = { ...bodies[path], tools: [toolsOf[path]], tool_choice: choice };
        const refused = await post(url + path, capture, body);
        assert.equal(refused.status, 400);
        assert.match(String(errorOf(refused)['message']), /^"tool_choice" is not supported/);
        if (path !== messages) assert.equal(errorOf(refused)['param'], 'tool_choice');
      }
      assert.equal(policy.asked.length, 0);
    });
  }

  test('no tool, and some of them, is what the model is told of', async (t) => {
    const prompts: string[] = [];
    const { capture, url } = await open(t, (prompt) => (prompts.push(prompt), 'a bird'));
    const other = { type: 'function', function: { name: 'count', parameters: {} } };
    const tools = [lookUp, other];
    const allowed = { mode: 'auto', tools: [{ type: 'function', function: { name: 'count' } }] };
    await post(url + chat, capture, { ...bodies[chat], tools, tool_choice: 'none' });
    await post(url + chat, capture, { ...bodies[chat], tools, tool_choice: { type: 'allowed_tools', allowed_tools: allowed } }); // prettier-ignore
    assert.deepEqual(
      prompts.map((prompt) => ['look_up', 'count'].filter((name) => prompt.includes(`"${name}"`))),
      [[], ['count']],
    );
  });

  test('another model gets all of it', async (t) => {
    const got: unknown[] = [];
    const none = { promptTokenIds: null, tokenIds: null, logprobs: null, usage: null };
    const judge = {
      chat: ({ fields }: { readonly fields: object }) => {
        got.push(fields);
        return Promise.resolve({ text: 'yes', finishReason: 'stop' as const, ...none });
      },
    };
    const { capture, url } = await open(t, () => 'unused', { others: { judge } });
    const sent = {
      logit_bias: { 5: 100 },
      response_format: format,
      stop: ['x'],
      tool_choice: 'required',
      presence_penalty: 1,
    };
    await post(url + chat, capture, { ...bodies[chat], model: 'judge', tools: [lookUp], ...sent });
    const tool_choice = { type: 'tool', name: 'look_up' };
    await post(url + messages, capture, { ...bodies[messages], model: 'judge', tools: [toolsOf[messages]], tool_choice, stop_sequences: ['x'] }); // prettier-ignore
    const forced = { type: 'function', function: { name: 'look_up' } };
    assert.deepEqual(got, [sent, { stop: ['x'], tool_choice: forced, max_tokens: 50 }]);
    assert.deepEqual(capture.ignored, []);
  });
});

describe('answers', () => {
  test("a stop text that ended a turn is named as Anthropic's API does", async (t) => {
    const { capture, url } = await open(t, () => 'one two three');
    const body = { ...bodies[messages], stop_sequences: ['four', 'two'] };
    const { body: answer } = await post(url + messages, capture, body);
    assert.deepEqual([answer['stop_reason'], answer['stop_sequence']], ['stop_sequence', 'two']);
  });

  test('responses have log probabilities where they include them', async (t) => {
    const { capture, url } = await open(t, () => 'a bird');
    const client = clientOf(url, capture);
    const asked = { model: 'policy', input: 'What?', include: ['message.output_text.logprobs' as const] };
    const { output } = await client.responses.create(asked);
    const [part] = (output[0] as { content: { logprobs: { logprob: number }[] }[] }).content;
    assert.deepEqual(
      part!.logprobs.map(({ logprob }) => logprob),
      capture.turns[0]!.logprobs,
    );
  });

  test('instructions are those of each call: given anew with a response before, they are no second ones', async (t) => {
    const prompts: string[] = [];
    const { capture, url } = await open(t, (prompt) => (prompts.push(prompt), 'a bird'));
    const client = clientOf(url, capture);
    const body = { model: 'policy', instructions: 'You are a dictionary.' };
    const first = await client.responses.create({ ...body, input: 'What is an owl?' });
    await client.responses.create({ ...body, input: 'And a cat?', previous_response_id: first.id });
    assertOneRow(capture);
    assert.equal(prompts[1]!.split('You are a dictionary.').length, 2);
    await client.responses.create({ model: 'policy', input: 'And a cat?', previous_response_id: first.id });
    assert.ok(!prompts[2]!.includes('dictionary'), 'they are not carried on');
  });
});

describe('keys and secrets', () => {
  test('a key counts as a bearer token or as x-api-key, and nowhere else', async (t) => {
    const { capture, policy, url } = await open(t, () => 'a bird');
    const other = await open(t);
    const statuses = [];
    for (const [query, headers] of [
      [`?key=${capture.key}&api_key=${capture.key}`, {}],
      ['', { authorization: `Basic ${capture.key}` }],
      ['', { authorization: capture.key }],
      ['', { authorization: `Bearer ${capture.key}x` }],
      ['', { authorization: `Bearer ${other.capture.key}` }],
      ['', { 'x-api-key': '' }],
      ['', { cookie: `key=${capture.key}` }],
      ['', { authorization: `bearer ${capture.key}` }],
      ['', { 'x-api-key': capture.key }],
    ] as [string, Record<string, string>][]) {
      statuses.push((await post(url + chat + query, capture, bodies[chat]!, headers)).status);
    }
    assert.deepEqual(statuses, [...Array.from({ length: 7 }, () => 401), 200, 200]);
    assert.equal(policy.asked.length, 2);
  });

  test('what the program prints of its own environment is not stored, and a command with the key works', async (t) => {
    const stored: Turn[] = [];
    const token = 'kx"7$&-of-a-judge';
    const says = (prompt: string): string => `use ${/sk-[\w-]+/.exec(prompt)![0]}`;
    const notes = keptNotes();
    for (const life of [1, 2]) {
      const script = { says, recorded: [...stored], onTurn: (turn: Turn) => void stored.push(turn) };
      const { capture, url } = await open(t, script, { secrets: [token], notes });
      const content = `OPENAI_API_KEY=${capture.key}\nTOKEN=${token}`;
      const { body, text } = await post(url + chat, capture, {
        ...bodies[chat],
        messages: [{ role: 'user', content }],
      });
      const [choice] = body['choices'] as [{ message: { content: string } }];
      assert.equal(choice.message.content, `use ${capture.key}`);
      assert.ok(!text.includes('kx'));
      const streamed = await post(url + chat, capture, { ...bodies[chat], stream: true, messages: [{ role: 'user', content: `again ${content}` }] }); // prettier-ignore
      assert.ok(streamed.text.includes(capture.key));
      const effect = { kind: 'idempotent', arguments: { key: capture.key, token } };
      await post(`${url}/effects/e`, capture, effect);
      const named = await post(`${url}/effects/for%20${capture.key}/a%2F%2Fb%2Fsettle`, capture, { kind: 'keyed' });
      assert.deepEqual(
        [named.body['idempotency_key'], named.body['again']],
        [`unique for ${capture.key}/a//b/settle`, life === 2],
      );
      const kept = JSON.stringify([stored, capture.turns, ...(await notes.all('effect'))]);
      assert.ok(!kept.includes(capture.key) && !kept.includes('kx'), kept);
      // The keys of two lives differ; their calls are the same.
      assert.deepEqual([capture.calls.sampled, capture.calls.recalled], life === 1 ? [2, 0] : [0, 2]);
    }
  });

  test('a key of an effect that is no text is refused', async (t) => {
    const { capture, url } = await open(t, () => 'a bird', { notes: keptNotes() });
    for (const key of ['%zz', '%ED%A0%80'])
      assert.equal((await post(`${url}/effects/${key}`, capture, { kind: 'once' })).status, 400);
    assert.deepEqual([capture.calls.refused, capture.failure], [2, undefined]);
  });

  test('a secret is found in every usual spelling, and what is beside it stays', async (t) => {
    const { capture, url } = await open(t, () => 'a bird', { secrets: [spelledSecret] });
    for (const [what, { sent, kept }] of Object.entries(spellings)) {
      const response = await fetch(url + chat, {
        method: 'POST',
        headers: { 'x-api-key': capture.key },
        body: `{"model": "policy", "messages": [{"role": "user", "content": ${sent}}]}`,
      });
      assert.equal(response.status, 200, what);
      assert.equal(capture.turns.at(-1)!.heard!.at(-1)!.content, kept, what);
    }
  });
});

const spelledSecret = String.raw`pä/ss"w\örd+1 x`;
const inAscii = (json: string): string =>
  json.replaceAll(/[\u0080-\uFFFF]/g, (one) => String.raw`\u${one.charCodeAt(0).toString(16).padStart(4, '0')}`);
const json = (value: unknown): string => JSON.stringify(value);
const spellings: Readonly<Record<string, { readonly sent: string; readonly kept: string }>> = {
  plain: { sent: json(`a ${spelledSecret}.`), kept: 'a [secret].' },
  'escaped solidus': { sent: json(`a ${spelledSecret}.`).replaceAll('/', String.raw`\/`), kept: 'a [secret].' },
  'escapes of letters beyond ASCII': { sent: inAscii(json(`a ${spelledSecret}.`)), kept: 'a [secret].' },
  'escapes of letters of ASCII': { sent: json(`a ${spelledSecret}.`).replaceAll('p', String.raw`\u0070`), kept: 'a [secret].' }, // prettier-ignore
  'JSON in JSON': { sent: json(inAscii(json({ key: spelledSecret }))), kept: '{"key":"[secret]"}' },
  'JSON in JSON in JSON': { sent: json(json([inAscii(json(`C:${spelledSecret}"`))])), kept: String.raw`["\"C:[secret]\\\"\""]` }, // prettier-ignore
  'in a URL': { sent: json(`?a=${encodeURIComponent(spelledSecret)}&b=1`), kept: '?a=[secret]&b=1' },
  'in a form': { sent: json(new URLSearchParams({ a: spelledSecret, b: '1' }).toString()), kept: 'a=[secret]&b=1' },
  'in base64, behind a name': { sent: json(Buffer.from(`me:${spelledSecret}`).toString('base64')), kept: 'bWU6[secret]g=' }, // prettier-ignore
  'in base64 of URLs': { sent: json(Buffer.from(spelledSecret).toString('base64url')), kept: '[secret]g' },
  'behind a backslash': { sent: json(`\\${spelledSecret}\n`), kept: '[secret]\n' },
};

describe('requests', () => {
  test('each route says which method it takes; HEAD is a GET without its body', async (t) => {
    const { capture, url } = await open(t);
    const headers = { 'x-api-key': capture.key };
    const ask = (method: string, path: string) => fetch(url + path, { method, headers });
    for (const [method, path, allowed] of [
      ['GET', chat, 'POST'],
      ['OPTIONS', messages, 'POST'],
      ['DELETE', responses, 'POST'],
      ['POST', '/v1/models', 'GET, HEAD'],
    ] as const) {
      const refused = await ask(method, path);
      assert.deepEqual([refused.status, refused.headers.get('allow')], [405, allowed]);
    }
    const head = await ask('HEAD', '/v1/models');
    assert.deepEqual([head.status, await head.text()], [200, '']);
    assert.equal((await ask('GET', '/v1/responses/resp_1')).status, 404);
  });

  test('a body that is packed is refused by its header', async (t) => {
    const { capture, url } = await open(t);
    const response = await fetch(url + chat, {
      method: 'POST',
      headers: { 'x-api-key': capture.key, 'content-encoding': 'gzip' },
      body: gzipSync(JSON.stringify(bodies[chat])),
    });
    const { error } = (await response.json()) as { error: { message: string; param: string } };
    assert.deepEqual([response.status, error.param], [415, 'content-encoding']);
  });

  for (const [what, body, says] of [
    ['bytes that are no text', Buffer.from([0x7b, 0xff, 0x7d]), /UTF-8/],
    ['nesting without end', `{"model":"policy","messages":${'['.repeat(100_000)}`, /nested deeper/],
    ['a list', '[]', /expected object/],
    ['nothing', '', /"model"/],
    ['a torn text', '{"model":', /not JSON/],
    [
      'a name of every object as its model',
      '{"model":"__proto__","messages":[{"role":"user","content":"a"}]}',
      /"__proto__" does not exist/,
    ],
  ] as const) {
    // prettier-ignore
    test(`a body of ${what} is refused, and the next call is answered`, async (t) => {
      const { capture, url } = await open(t, () => 'a bird');
      const response = await fetch(url + chat, { method: 'POST', headers: { 'x-api-key': capture.key }, body });
      const { error } = (await response.json()) as { error: { message: string } };
      assert.ok(response.status === 400 || response.status === 404);
      assert.match(error.message, says);
      assert.equal((await post(url + chat, capture, bodies[chat]!)).status, 200);
    });
  }

  test('half of a character, and names of every object, are stored as they came', async (t) => {
    const { capture, url } = await open(t, () => 'a bird');
    const odd =
      '{"model":"policy","__proto__":{"n":5},"messages":[{"role":"user","content":"a\\ud800b","__proto__":{"role":"tool"}}]}';
    const response = await fetch(url + chat, { method: 'POST', headers: { 'x-api-key': capture.key }, body: odd });
    assert.equal(response.status, 200);
    assert.deepEqual(capture.turns[0]!.heard, [{ role: 'user', content: 'a\ud800b' }]);
    assert.equal(({} as Json)['n'], undefined);
  });

  test('a history of ten thousand messages is one call, whichever API it comes by', async (t) => {
    const { capture, policy, url } = await open(t, { says: () => 'a bird', readsPrompt: false });
    const many = Array.from({ length: 9999 }, (_, i) => ({
      role: i % 2 === 0 ? 'user' : 'assistant',
      content: `m${i}`,
    }));
    assert.equal((await post(url + chat, capture, { ...bodies[chat], messages: many })).status, 200);
    assert.equal((await post(url + messages, capture, { ...bodies[messages], messages: many })).status, 200);
    assert.equal((await post(url + responses, capture, { ...bodies[responses], input: many })).status, 200);
    assert.equal(new Set(policy.asked.map(({ promptTokenIds }) => promptTokenIds.length)).size, 1);
  });

  test('requests of HTTP 1.0, and several on one connection before an answer, are answered in order', async (t) => {
    const { capture, url } = await open(t, (prompt) => /q\d/.exec(prompt)![0]);
    const talk = async (text: string, answers: number): Promise<string> => {
      const socket = connect(Number(new URL(url).port), '127.0.0.1');
      socket.write(text);
      let got = '';
      for await (const chunk of socket as AsyncIterable<Buffer>) {
        got += chunk.toString();
        if (got.split('"finish_reason"').length > answers) break;
      }
      return got;
    };
    const request = (version: string, n: number): string => {
      const body = JSON.stringify({ ...bodies[chat], messages: [{ role: 'user', content: `q${n}` }] });
      return `POST ${chat} HTTP/${version}\r\nHost: x\r\nAuthorization: Bearer ${capture.key}\r\nContent-Length: ${body.length}\r\n\r\n${body}`; // prettier-ignore
    };
    const old = await talk(request('1.0', 1), 1);
    assert.match(old, /^HTTP\/1\.1 200 [\s\S]*connection: close[\s\S]*"content":"q1"/i);
    const many = await talk([2, 3, 4].map((n) => request('1.1', n)).join(''), 3);
    assert.deepEqual(many.match(/"content":"q\d"/g), ['"content":"q2"', '"content":"q3"', '"content":"q4"']);
  });
});

describe('calls and their ends', () => {
  test('200 parallel calls are 200 turns, each stored and trained once', async (t) => {
    const stored: Turn[] = [];
    const says = (_: string, { seed }: { readonly seed: number }): string => `owl ${seed}`;
    const { capture, url } = await open(t, { says, onTurn: (turn) => void stored.push(turn) });
    const answers = await Promise.all(Array.from({ length: 200 }, () => post(url + chat, capture, bodies[chat]!)));
    const texts = answers.map(({ body }) => (body['choices'] as [{ message: { content: string } }])[0].message.content);
    assert.equal(new Set(texts).size, 200);
    assert.deepEqual([stored.length, new Set(stored.map(({ call }) => call!.id)).size], [200, 200]);
    assert.equal(trajectoryRows(capture.turns, 'interleaved').length, 200);
  });

  test('a further attempt of a client at a call that was answered gets that answer; other equal calls are new ones', async (t) => {
    const { capture, policy, url } = await open(t, (_, { seed }) => `owl ${seed}`);
    const retry = { 'x-api-key': capture.key, 'x-stainless-retry-count': '1' };
    const contentOf = async (headers?: Record<string, string>): Promise<string> => {
      const { body } = await post(url + chat, capture, bodies[chat]!, headers);
      return (body['choices'] as [{ message: { content: string } }])[0].message.content;
    };
    const first = await contentOf();
    assert.equal(await contentOf(retry), first);
    const second = await contentOf();
    assert.notEqual(second, first);
    assert.equal(await contentOf(retry), second);
    assert.deepEqual([policy.asked.length, capture.turns.length], [2, 2]);
    // Once the program has gone on from both, a further attempt cannot be one at either.
    for (const content of [first, second]) {
      const history = [...question, { role: 'assistant', content }, { role: 'user', content: 'Go on.' }];
      await post(url + chat, capture, { ...bodies[chat], messages: history });
    }
    assert.ok(![first, second].includes(await contentOf(retry)));
  });

  test('a client that goes away within an answer: its turn is stored once, and given when it asks again', async (t) => {
    const stored: Turn[] = [];
    const says = (): string => Array.from({ length: 3000 }, (_, i) => `w${i}`).join(' ');
    const { capture, policy } = await open(t, { says, maxTokens: 60_000, onTurn: (turn) => void stored.push(turn) });
    const body = JSON.stringify({ ...bodies[chat], stream: true, logprobs: true });
    const request = `POST ${chat} HTTP/1.1\r\nHost: x\r\nx-api-key: ${capture.key}\r\nContent-Length: ${body.length}\r\n\r\n${body}`;
    const gone = connect(capture.socket);
    gone.write(request);
    await once(gone, 'readable'); // the answer has begun; more than a socket holds is left
    gone.destroy();
    await until('the end of the answer', () => capture.turns.length === 0, { everyMs: 1 });
    const again = connect(capture.socket);
    again.write(request);
    let got = '';
    for await (const chunk of again as AsyncIterable<Buffer>) {
      got += chunk.toString();
      if (got.includes('[DONE]')) break;
    }
    assert.match(got, /w2999/);
    assert.deepEqual([policy.asked.length, stored.length, capture.turns.length], [1, 1, 1]);
  });

  test('after the end of the rollout no call is sampled, and clients do not ask again', async (t) => {
    const rollout = new AbortController();
    const { capture, policy, url } = await open(t, () => 'a bird', { signal: rollout.signal });
    rollout.abort(new Error('given up'));
    const response = await fetch(url + chat, {
      method: 'POST',
      headers: { 'x-api-key': capture.key },
      body: JSON.stringify(bodies[chat]),
    });
    assert.deepEqual([response.status, response.headers.get('x-should-retry')], [503, 'false']);
    assert.equal(policy.asked.length, 0);
  });

  test('a call that is under way when the address closes ends at the engine, and is no failure of the rollout', async (t) => {
    const begun = new EventEmitter();
    const { capture, policy, url } = await open(t, (_, { signal }) => {
      begun.emit('call');
      return new Promise((_resolve, reject) =>
        signal!.addEventListener('abort', () => reject(signal!.reason as Error)),
      );
    });
    const asked = once(begun, 'call');
    const call = clientOf(url, capture).chat.completions.create({ model: 'policy', messages: [user('a')] });
    call.catch(() => undefined);
    await asked;
    await capture.close();
    await assert.rejects(call);
    assert.equal(policy.asked[0]!.signal!.aborted, true);
    assert.deepEqual([capture.failure, capture.turns], [undefined, []]);
  });
});
