/** Answers of servers that are not quite OpenAI's: what is in them is used, and what they report means what its status would. */
import assert from 'node:assert/strict';
import { createServer, type IncomingMessage, type ServerResponse } from 'node:http';
import { once } from 'node:events';
import { text as textOf } from 'node:stream/consumers';
import type { AddressInfo } from 'node:net';
import { describe, test, type TestContext } from 'node:test';
import * as zlib from 'node:zlib';
import { openJudge } from '../../backends/environments/judge.ts';
import { answerJson } from '../../backends/inference/openai/answer-json.ts';
import { turnIn } from '../../backends/inference/openai/chat-answer.ts';
import { type EndpointOptions, openEndpoint } from '../../backends/inference/openai/endpoint.ts';
import { chatPolicy } from '../../play/policy/chat-policy.ts';
import type { ChatMessage } from '../../core/rl/rollout/rollout.ts';
import { samplesIn } from '../../backends/inference/openai/openai-bodies.ts';

const root = 'http://server';

/** An answer whose only choice has this message. */
const chat = (message: unknown, choice: object = {}, body: object = {}): string =>
  JSON.stringify({ id: 'c', choices: [{ index: 0, finish_reason: 'stop', message, ...choice }], ...body });
const said42 = { role: 'assistant', content: '42' };
const whole = chat(said42);
const read = (text: string) => turnIn(answerJson(text), { tokens: 'none' }, root);

describe('an answer with a text is used', () => {
  const counts = { promptTokens: 3, completionTokens: 1 };
  const ended = (reason: unknown) => chat(said42, { finish_reason: reason });
  const used = (usage: unknown) => chat(said42, {}, { usage });
  const texts: Readonly<Record<string, readonly [body: string, right: Partial<ReturnType<typeof read>>]>> = {
    // Words for the end of a turn.
    'eos (TGI)': [ended('eos_token'), { text: '42', finishReason: 'stop' }],
    'end_turn (Anthropic)': [ended('end_turn'), { finishReason: 'stop' }],
    'STOP (Gemini)': [ended('STOP'), { finishReason: 'stop' }],
    'COMPLETE (Cohere)': [ended('COMPLETE'), { finishReason: 'stop' }],
    'guardrail_intervened (Bedrock)': [ended('guardrail_intervened'), { text: '42', finishReason: 'stop' }],
    'sensitive (Zhipu)': [ended('sensitive'), { finishReason: 'stop' }],
    'malformed_function_call (Gemini)': [ended('malformed_function_call'), { finishReason: 'stop' }],
    'error beside a text (OpenRouter)': [ended('error'), { text: '42', finishReason: 'stop' }],
    'an empty word': [ended(''), { finishReason: 'stop' }],
    'no word': [ended(null), { finishReason: 'stop' }],
    'a number': [ended(7), { finishReason: 'stop' }],
    'an object (SGLang)': [ended({ type: 'length', length: 4 }), { finishReason: 'length' }],
    'max_tokens (Anthropic)': [ended('max_tokens'), { finishReason: 'length' }],
    'MAX_TOKENS (Gemini)': [ended('MAX_TOKENS'), { finishReason: 'length' }],
    'FINISH_REASON_MAX_TOKENS (Vertex)': [ended('FINISH_REASON_MAX_TOKENS'), { finishReason: 'length' }],
    'model_length (Mistral)': [ended('model_length'), { finishReason: 'length' }],
    'model_context_window_exceeded (Zhipu)': [ended('model_context_window_exceeded'), { finishReason: 'length' }],
    // Counts.
    'usage empty': [used({}), { usage: null }],
    'usage null': [used(null), { usage: null }],
    'usage half': [used({ prompt_tokens: 3 }), { usage: null }],
    'usage of which the total tells the rest': [used({ prompt_tokens: 3, total_tokens: 4 }), { usage: counts }],
    'usage in floats': [used({ prompt_tokens: 3.0, completion_tokens: 1.2 }), { usage: counts }],
    'usage in texts': [used({ prompt_tokens: '3', completion_tokens: '1' }), { usage: counts }],
    'usage under other names': [used({ input_tokens: 3, output_tokens: 1 }), { usage: counts }],
    'usage that is a list': [used([]), { text: '42', usage: null }],
    'usage below zero': [used({ prompt_tokens: -3, completion_tokens: 1 }), { usage: null }],
    // Shapes of content.
    'content in parts': [chat({ content: [{ type: 'text', text: '4' }, '2'] }), { text: '42' }],
    'content in parts of another name': [chat({ content: [{ type: 'output_text', text: '42' }] }), { text: '42' }],
    'content that is one part': [chat({ content: { type: 'text', text: '42' } }), { text: '42' }],
    'a part that is not known (Mistral)': [
      chat({
        content: [
          { type: 'reference', reference_ids: [1] },
          { type: 'text', text: '42' },
        ],
      }),
      { text: '42' },
    ],
    'thoughts between the parts (Magistral)': [
      chat({
        content: [
          { type: 'thinking', thinking: [{ type: 'text', text: 'hm' }] },
          { type: 'text', text: '42' },
        ],
      }),
      { text: '42', reasoning: 'hm' },
    ],
    // Thoughts.
    reasoning: [chat({ ...said42, reasoning: 'hm' }), { text: '42', reasoning: 'hm' }],
    reasoning_content: [chat({ ...said42, reasoning_content: 'hm', reasoning: null }), { reasoning: 'hm' }],
    'reasoning_content empty beside reasoning': [
      chat({ ...said42, reasoning_content: '', reasoning: 'hm' }),
      { reasoning: 'hm' },
    ],
    'reasoning as a list': [chat({ ...said42, reasoning: ['h', { text: 'm' }] }), { reasoning: 'hm' }],
    'reasoning as an object': [chat({ ...said42, reasoning: { content: 'hm' } }), { reasoning: 'hm' }],
    'reasoning_details (OpenRouter)': [
      chat({
        ...said42,
        reasoning_details: [
          { type: 'reasoning.text', text: 'h' },
          { type: 'reasoning.summary', summary: 'm' },
        ],
      }),
      { reasoning: 'hm' },
    ],
    'reasoning that cannot be read': [chat({ ...said42, reasoning: 7 }), { text: '42' }],
    // Unrequested log probabilities.
    'logprobs empty': [chat(said42, { logprobs: {} }), { text: '42', logprobs: null }],
    'logprobs null': [chat(said42, { logprobs: null }), { text: '42' }],
    'logprobs with an empty list': [chat(said42, { logprobs: { content: [] } }), { text: '42' }],
    'logprobs that are none': [chat(said42, { logprobs: { content: [{ logprob: null }] } }), { text: '42' }],
    'logprobs as a list': [chat(said42, { logprobs: [] }), { text: '42' }],
    // The rest of the body.
    'created as a text': [chat(said42, {}, { created: 'today', object: null, id: null }), { text: '42' }],
    'fields that are not known': [
      chat({ ...said42, audio: null, annotations: [] }, { x: 1 }, { provider: 'p' }),
      { text: '42' },
    ],
    'an error that is null': [chat(said42, { error: null }, { error: null }), { text: '42' }],
    'a second choice': [
      JSON.stringify({
        choices: [
          { index: 1, message: { content: 'other' } },
          { index: 0, message: said42 },
        ],
      }),
      { text: '42' },
    ],
    'a text in place of a message': [JSON.stringify({ choices: [{ index: 0, text: '42' }] }), { text: '42' }],
    'a delta in place of a message': [JSON.stringify({ choices: [{ index: 0, delta: said42 }] }), { text: '42' }],
    'no index': [JSON.stringify({ choices: [{ message: said42 }] }), { text: '42', finishReason: 'stop' }],
    // Bytes around it.
    'a byte order mark': [`\uFEFF${whole}`, { text: '42' }],
    'blanks before it, to keep the connection': [`\n\n   ${whole}\n`, { text: '42' }],
    'NaN and infinities (Python)': [
      whole.replace('"id":"c"', '"id":"NaN: -Infinity","a":NaN,"b":[-Infinity,Infinity]'),
      { text: '42' },
    ],
    'the end of a stream behind it (9router)': [`${whole}\n\ndata: [DONE]\n\n`, { text: '42' }],
    'one event': [`data: ${whole}\n\n`, { text: '42' }],
    'a stream (llm-gateway)': [
      [
        ': OPENROUTER PROCESSING',
        '',
        'data:{"choices":[{"index":0,"delta":{"role":"assistant","content":"4"}}]}',
        '',
        'data: {"choices":[{"index":0,"delta":{"content":"2"},"finish_reason":"length"}],"usage":{"prompt_tokens":3,"completion_tokens":1}}',
        '',
      ].join('\r\n'),
      { text: '42', finishReason: 'length', usage: counts },
    ],
    // Refusals.
    'a refusal in place of content': [
      chat({ content: null, refusal: 'I cannot help with that.' }),
      { text: 'I cannot help with that.', isRefusal: true },
    ],
    'a refusal among the parts': [
      chat({ content: [{ type: 'refusal', refusal: 'No.' }] }),
      { text: 'No.', isRefusal: true },
    ],
    'an empty refusal': [chat({ ...said42, refusal: '' }), { text: '42' }],
  };
  for (const [what, [body, right]] of Object.entries(texts)) {
    test(what, () => {
      const turn = read(body);
      assert.deepEqual({ ...turn, ...right }, turn);
      assert.equal(turn.isRefusal, right.isRefusal);
    });
  }
});

describe('an answer with calls is used', () => {
  const call = { id: 'call9', type: 'function', function: { name: 'look', arguments: '{"key":2512292042121000001}' } };
  const right = [{ name: 'look', arguments: '{"key":2512292042121000001}' }];
  const bare = { name: 'look', arguments: '{}' };
  const calls: Readonly<Record<string, readonly [body: string, right: unknown]>> = {
    'content null': [chat({ content: null, tool_calls: [call] }, { finish_reason: 'tool_calls' }), right],
    'content missing': [chat({ tool_calls: [call] }, { finish_reason: null }), right],
    'no id, type or index': [chat({ tool_calls: [{ function: bare }] }), [bare]],
    'an empty id (Gemini)': [chat({ tool_calls: [{ id: '', function: bare }] }), [bare]],
    'no arguments (Bedrock)': [chat({ tool_calls: [{ function: { name: 'look' } }] }), [bare]],
    'empty arguments (Qwen)': [chat({ tool_calls: [{ function: { name: 'look', arguments: '' } }] }), [bare]],
    'arguments as an object, with their numbers and the order of their keys (TGI, llama.cpp)': [
      chat({ tool_calls: [{ function: { name: 'look', arguments: 'HERE' } }] }).replace(
        '"HERE"',
        '{"b": 2512292042121000001, "10": 2.0, "1": 1e400}',
      ),
      [{ name: 'look', arguments: '{"b": 2512292042121000001, "10": 2.0, "1": 1e400}' }],
    ],
    'the older form': [chat({ content: null, function_call: bare }, { finish_reason: 'function_call' }), [bare]],
    'a call without its function': [chat({ tool_calls: [bare] }), [bare]],
    'one call in place of a list': [chat({ tool_calls: call }), right],
    'a stream of pieces': [
      [
        `data: {"choices":[{"delta":{"tool_calls":[{"index":0,"id":"call9","function":{"name":"look","arguments":"{\\"key\\":25122920"}}]}}]}`,
        `data: {"choices":[{"delta":{"tool_calls":[{"index":0,"function":{"arguments":"42121000001}"}}]}}]}`,
        'data: [DONE]',
      ].join('\n\n'),
      right,
    ],
  };
  for (const [what, [body, right]] of Object.entries(calls)) {
    test(what, () => assert.deepEqual(read(body).toolCalls, right));
  }
  test('ids of calls go back to the server that gave them', async (t) => {
    const calling = chat({ content: '', tool_calls: [call, { function: bare }] });
    const server = await answering(t, { body: calling }, {});
    const endpoint = opened(t, server.url);
    const policy = chatPolicy({ endpoint, fields: {} });
    const asked = { role: 'user', content: '?' } as const;
    const { toolCalls } = await policy.sample([asked]);
    assert.deepEqual(toolCalls, [...right, bare]);
    const answers = [1, 2].map(() => ({ role: 'tool', content: 'done' }) as const);
    await policy.sample([asked, { role: 'assistant', content: '' }, ...answers]);
    const [, said, first, second] = (JSON.parse(server.asked[1]!.body) as { messages: ChatMessage[] }).messages;
    assert.deepEqual(said!.tool_calls![0], call);
    assert.deepEqual([first!.tool_call_id, second!.tool_call_id], ['call9', 'call_0_1']);
  });
  test('a call without a name is refused, with what came', () => {
    const nameless = chat({ tool_calls: [{ function: { arguments: '{"a":1}' } }] });
    assert.throws(() => read(nameless), { code: 'InferenceRejected', message: /expected a call with the name.*"a/ });
  });
});

test('a turn of training is used only with what it is trained on, in order and whole', () => {
  const choice = (index: unknown, id: number, more: object = {}) => ({
    index,
    token_ids: [id],
    logprobs: { token_logprobs: [-0.5] },
    ...more,
  });
  const ids = (choices: unknown, count: number) =>
    samplesIn({ choices }, { count, root }).map(({ tokenIds }) => tokenIds[0]);
  assert.deepEqual(ids([choice(1, 8), choice(0, 7)], 2), [7, 8]);
  assert.deepEqual(ids([choice(undefined, 7), choice(undefined, 8)], 2), [7, 8]);
  assert.deepEqual(ids([choice(1, 8), choice(0, 7)], 1), [7]);
  for (const wrong of [[choice(0, 7)], [choice(0, 7), choice(0, 8)], [choice(0, 7), choice(null, 8)]])
    assert.throws(() => ids(wrong, 2), { code: 'InferenceRejected' });
  for (const none of [null, []]) assert.throws(() => ids(none, 1), { code: 'InferenceUnavailable' });
  const ended = (finish_reason: unknown) =>
    samplesIn({ choices: [choice(0, 7, { finish_reason })] }, { count: 1, root })[0]!.finishReason;
  assert.deepEqual(['stop', 'repetition', null, 'length', 'max_tokens'].map(ended), [
    'stop',
    'stop',
    'stop',
    'length',
    'length',
  ]);
  for (const reason of ['abort', 'error']) assert.throws(() => ended(reason), { code: 'InferenceUnavailable' });
});

/** A server that gives these answers, the last of them for ever. */
async function answering(t: TestContext, ...answers: readonly Given[]) {
  const asked: { url: string; method: string; body: string; authorization: string | undefined }[] = [];
  const server = createServer((request, response) => void answer(request, response));
  const answer = async (request: IncomingMessage, response: ServerResponse): Promise<void> => {
    const { url = '', method = '', headers } = request;
    const body = await textOf(request);
    if (url.endsWith('/health')) {
      response.end('{}');
      return;
    }
    asked.push({ url, method, body, authorization: headers.authorization });
    const {
      status = 200,
      headers: given = {},
      body: said = whole,
    } = answers[Math.min(asked.length, answers.length) - 1]!;
    response.writeHead(status, given).end(said);
  };
  server.listen(0, '127.0.0.1');
  await once(server, 'listening');
  t.after(() => {
    server.close();
    server.closeAllConnections();
  });
  return { asked, url: `http://127.0.0.1:${(server.address() as AddressInfo).port}` };
}

interface Given {
  readonly status?: number;
  readonly headers?: Readonly<Record<string, string>>;
  readonly body?: string | Buffer;
}

function opened(t: TestContext, url: string, options: Partial<EndpointOptions & { key: string }> = {}) {
  const { key = null, ...more } = options;
  const endpoint = openEndpoint([{ model: 'm', baseUrl: `${url}/v1`, apiKeyVar: key, headers: {} }], {
    timeoutMs: 5_000,
    maxConcurrent: 4,
    patienceMs: 300,
    ...more,
  });
  t.after(() => endpoint.close());
  return endpoint;
}

function asking(...opening: Parameters<typeof opened>) {
  return opened(...opening).chat({ messages: [{ role: 'user', content: 'What is 6 times 7?' }], fields: {} });
}

/** An error in the body of an answer with status 200: asked again where its own status would be, or final, in the words of the server. */
const reports: Readonly<Record<string, readonly [body: unknown, kind: 'again' | 'final' | 'overlong', words: RegExp]>> =
  {
    'OpenRouter, rate limit': [
      { error: { message: 'Rate limit exceeded: 20 a minute for this model', code: 429 }, user_id: 'u' },
      'again',
      /20 a minute/,
    ],
    'OpenRouter, provider': [
      { error: { message: 'Provider returned error', code: 502, metadata: { raw: 'upstream is down' } } },
      'again',
      /Provider returned error \(upstream is down\)/,
    ],
    'OpenRouter, in the choice': [
      {
        choices: [
          { index: 0, finish_reason: 'error', error: { code: 502, message: 'cut' }, message: { content: 'four' } },
        ],
      },
      'again',
      /cut/,
    ],
    'OpenRouter, moderation': [{ error: { code: 403, message: 'Your input was flagged' } }, 'final', /flagged/],
    'OpenRouter, credits': [{ error: { code: 402, message: 'Insufficient credits' } }, 'final', /credits/],
    'LiteLLM, rate limit': [
      { error: { message: 'RateLimitError', type: 'None', param: 'None', code: '429' } },
      'again',
      /RateLimit/,
    ],
    'LiteLLM, key': [
      { error: { message: 'Authentication Error', type: 'auth_error', code: '401' } },
      'final',
      /Authentication/,
    ],
    'vLLM, overlong': [
      {
        object: 'error',
        message: "This model's maximum context length is 4096 tokens.",
        type: 'BadRequestError',
        code: 400,
      },
      'overlong',
      /4096/,
    ],
    'vLLM, model': [
      { object: 'error', message: 'The model `x` does not exist.', type: 'NotFoundError', code: 404 },
      'final',
      /does not exist/,
    ],
    'SGLang, overlong': [
      {
        object: 'error',
        message: "The input (9 tokens) is longer than the model's context length (8 tokens).",
        code: 400,
      },
      'overlong',
      /context length/,
    ],
    'TGI, overloaded': [{ error: 'Model is overloaded', error_type: 'overloaded' }, 'again', /overloaded/],
    'TGI, overlong': [
      { error: '`inputs` tokens + `max_new_tokens` must be <= 4096', error_type: 'validation' },
      'overlong',
      /4096/,
    ],
    'llama.cpp, loading': [
      { error: { code: 503, message: 'Loading model', type: 'unavailable_error' } },
      'again',
      /Loading/,
    ],
    'llama.cpp, overlong': [
      {
        error: {
          code: 400,
          message: 'the request exceeds the available context size',
          type: 'exceed_context_size_error',
        },
      },
      'overlong',
      /context size/,
    ],
    'Azure, content filter': [
      {
        error: {
          code: 'content_filter',
          message: "The response was filtered due to Azure's content management policy",
        },
      },
      'final',
      /content management/,
    ],
    'Azure, API management': [
      { statusCode: 429, message: 'Rate limit is exceeded. Try again in 9 seconds.' },
      'again',
      /Try again/,
    ],
    'Bedrock, throttled': [{ __type: 'ThrottlingException', message: 'Too many tokens, please wait' }, 'again', /wait/],
    'Bedrock, overlong': [{ message: 'Input is too long for requested model.' }, 'overlong', /too long/],
    'Anthropic, overloaded': [
      { type: 'error', error: { type: 'overloaded_error', message: 'Overloaded' } },
      'again',
      /Overloaded/,
    ],
    'Gemini, a list': [
      [{ error: { code: 429, message: 'Quota exceeded', status: 'RESOURCE_EXHAUSTED' } }],
      'again',
      /Quota/,
    ],
    'FastAPI, a text': [{ detail: 'Not authenticated: invalid API key' }, 'final', /invalid API key/],
    'FastAPI, a list': [
      { detail: [{ loc: ['body', 'messages'], msg: 'Field required', type: 'value_error.invalid_request' }] },
      'final',
      /body\.messages: Field required/,
    ],
    'Cloudflare, errors': [
      { success: false, errors: [{ code: 3040, message: 'Capacity temporarily exceeded' }] },
      'again',
      /Capacity/,
    ],
    'MiniMax, base_resp': [
      { choices: null, base_resp: { status_code: 1002, status_msg: 'rate limit' } },
      'again',
      /rate limit/,
    ],
    'Qianfan, error_msg': [{ error_code: 18, error_msg: 'Open api qps request limit reached' }, 'again', /qps/],
    'DashScope, throttled': [
      { code: 'Throttling.RateQuota', message: 'Requests rate limit exceeded' },
      'again',
      /rate limit/,
    ],
    'a text': [{ error: 'upstream timed out' }, 'again', /timed out/],
    'choices null': [{ choices: null }, 'again', /null in their place/],
    'choices empty': [{ id: 'c', choices: [], usage: {} }, 'again', /an empty list/],
    'an error of no kind': [{ error: { message: 'Something odd' } }, 'again', /Something odd/],
  };

describe('an error in an answer that went well', () => {
  for (const [what, [body, kind, words]] of Object.entries(reports)) {
    test(`${what}: ${kind}`, async (t) => {
      const server = await answering(t, { body: JSON.stringify(body), headers: { 'retry-after': '0' } }, {});
      if (kind === 'again') return assert.equal((await asking(t, server.url)).text, '42');
      const code = kind === 'final' ? 'InferenceRejected' : 'PromptTooLong';
      await assert.rejects(asking(t, server.url), (error: Error & { code: string }) => {
        assert.equal(error.code, code);
        assert.match(error.message, words);
        return true;
      });
      assert.equal(server.asked.length, 1);
    });
  }

  test('that never ends is final, in the words of the server', async (t) => {
    for (const body of [
      '{"choices":[]}',
      '{"error":{"message":"Something odd"}}',
      '<html><title>Sign in</title></html>',
      '',
    ]) {
      const server = await answering(t, { body });
      const words = /choices|Something odd|Sign in|not JSON: ""/;
      await assert.rejects(asking(t, server.url), { code: 'InferenceRejected', message: words });
      assert(server.asked.length > 1);
    }
  });

  test('is told without the key that it repeats', async (t) => {
    process.env['RATCHET_ODD_ANSWERS_KEY'] = 'a-key-of-a-test';
    for (const body of ['{"error":{"code":401,"message":"wrong key a-key-of-a-test"}}', 'wrong key a-key-of-a-test']) {
      const server = await answering(t, { body });
      await assert.rejects(asking(t, server.url, { key: 'RATCHET_ODD_ANSWERS_KEY' }), (error: Error) => {
        assert.match(error.message, /wrong key/);
        assert.doesNotMatch(error.message, /a-key-of-a-test/);
        return true;
      });
    }
    const empty = await answering(t, { status: 502, body: '', headers: { 'content-encoding': 'gzip' } }, {});
    assert.equal((await asking(t, empty.url)).text, '42');
  });

  test('means the same to a judge', async (t) => {
    const limited = reports['OpenRouter, rate limit']![0];
    const server = await answering(t, { body: JSON.stringify(limited), headers: { 'retry-after': '0' } }, {});
    assert.equal(await openJudge({ base_url: `${server.url}/v1`, model: 'm' }).ask('?'), '42');
    const keyless = await answering(t, { body: JSON.stringify(reports['LiteLLM, key']![0]) });
    await assert.rejects(
      openJudge({ base_url: `${keyless.url}/v1`, model: 'm' }).ask('?'),
      /401.*Authentication Error/,
    );
    assert.equal(keyless.asked.length, 1);
    const odd = await answering(t, { body: `\uFEFF${chat({ content: [{ type: 'text', text: '4' }] })}` });
    assert.equal(await openJudge({ base_url: `${odd.url}/v1`, model: 'm' }).ask('?'), '4');
  });
});

test('errors with a status of their own are told in the words of the server, whatever their shape', async (t) => {
  const page =
    '<!DOCTYPE html><html><head><title>api.example | 401: No</title><style>p{}</style></head><body><p>Ray 7</p></body>';
  const told: readonly (readonly [string, RegExp])[] = [
    [page, /answered 401: a page in HTML: api\.example \| 401: No: Ray 7/],
    ['{"detail":"no such key"}', /answered 401: no such key/],
    ['{"message":"no such key"}', /answered 401: no such key/],
    ['{"errors":[{"message":"a"},{"message":"b"}]}', /answered 401: a; b/],
  ];
  for (const [body, words] of told) {
    const server = await answering(t, { status: 401, body });
    await assert.rejects(asking(t, server.url), { code: 'InferenceRejected', message: words });
  }
});

test('a conflict is asked again, and is final when it stays', async (t) => {
  const once = await answering(t, { status: 409, body: '{"error":"busy"}' }, {});
  assert.equal((await asking(t, once.url)).text, '42');
  const always = await answering(t, { status: 409, body: '{"error":"busy"}' });
  await assert.rejects(asking(t, always.url), { code: 'InferenceRejected', message: /answered 409: busy/ });
});

describe('a redirect', () => {
  test('that keeps the method is followed within the server, with body and key', async (t) => {
    process.env['RATCHET_ODD_ANSWERS_KEY'] = 'key-of-a-test';
    for (const status of [307, 308]) {
      const server = await answering(t, { status, headers: { location: '/v1/chat/completions/' }, body: '' }, {});
      assert.equal((await asking(t, server.url, { key: 'RATCHET_ODD_ANSWERS_KEY' })).text, '42');
      const [first, second] = server.asked;
      assert.deepEqual(second, { ...first, url: '/v1/chat/completions/' });
      assert.equal(second?.authorization, 'Bearer key-of-a-test');
      const judge = openJudge({ base_url: `${server.url}/v1`, model: 'm' });
      assert.equal(await judge.ask('?'), '42');
    }
  });

  test('to another server, or that loses the question, is refused: from where, to where, and what to type', async (t) => {
    const other = await answering(t, {});
    for (const status of [301, 302, 303, 307, 308]) {
      const location = `${other.url}/api/v1/chat/completions?key=1`;
      const server = await answering(t, { status, headers: { location }, body: '' });
      const message = new RegExp(
        `${server.url}/v1/chat/completions answered ${status}, a redirect to ${other.url}/api/v1/chat/completions\\. Nothing.*write its address in place of this one: ${other.url}/api/v1$`,
      );
      await assert.rejects(asking(t, server.url), { code: 'InferenceRejected', message });
      assert.equal(server.asked.length, 1);
      await assert.rejects(
        openJudge({ base_url: `${server.url}/v1`, model: 'm', max_retries: 0 }).ask('?'),
        /a redirect to .*write its address/,
      );
    }
    assert.equal(other.asked.length, 0);
    for (const status of [301, 302, 303]) {
      const server = await answering(t, { status, headers: { location: '/login' }, body: '' });
      await assert.rejects(asking(t, server.url), {
        message: /a redirect to .*\/login\. It is not followed with what was asked/,
      });
    }
  });

  test('that leads nowhere, or round and round, ends with a sentence', async (t) => {
    const nowhere = await answering(t, { status: 307, body: '' });
    await assert.rejects(asking(t, nowhere.url), { message: /answered 307, a redirect that does not say where to/ });
    const round = await answering(t, { status: 307, headers: { location: '/v1/chat/completions' }, body: '' });
    await assert.rejects(asking(t, round.url), { code: 'InferenceRejected', message: /a redirect to/ });
    assert.equal(round.asked.length, 6);
  });
});

/** Node supports zstd from 22.15 on; before that, the answer is refused with a message. */
function zstdPacked(text: string): [string | undefined, Buffer][] {
  const { zstdCompressSync: pack } = zlib as { readonly zstdCompressSync?: (text: string) => Buffer };
  return pack === undefined ? [] : ['zstd', undefined].map((packing) => [packing, pack(text)]);
}

test('a packed answer that was not asked for is read; one that cannot be ends with a sentence', async (t) => {
  const packed: readonly (readonly [string | undefined, Buffer | string])[] = [
    ['gzip', zlib.gzipSync(whole)],
    [undefined, zlib.gzipSync(whole)],
    ['deflate', zlib.deflateSync(whole)],
    ['deflate', zlib.deflateRawSync(whole)],
    ['Deflate', zlib.deflateSync(whole, { level: 1 })],
    ['br', zlib.brotliCompressSync(whole)],
    ['br, gzip', zlib.gzipSync(zlib.brotliCompressSync(whole))],
    ['identity', zlib.gzipSync(whole)],
    ...zstdPacked(whole),
    ['gzip', whole],
    ['frobnicate', whole],
  ];
  for (const [packing, body] of packed) {
    const server = await answering(t, { body, headers: packing === undefined ? {} : { 'content-encoding': packing } });
    assert.equal((await asking(t, server.url)).text, '42', packing);
  }
  const wrong: readonly (readonly [string, Buffer | string, RegExp])[] = [
    [
      'frobnicate',
      'xxxx',
      /expected a plain answer, or one packed by gzip, deflate(?: or br|, br or zstd), got content-encoding "frobnicate"/,
    ],
    ['gzip', 'xxxx', /not packed by gzip, as it says/],
    [
      'zstd',
      Buffer.from('28b52ffd00', 'hex'),
      /not packed by zstd, as it says|"zstd", which Node reads from 22\.15 on/,
    ],
  ];
  for (const [packing, body, message] of wrong) {
    const server = await answering(t, { body, headers: { 'content-encoding': packing } });
    await assert.rejects(asking(t, server.url), { code: 'InferenceRejected', message });
  }
});

test('-Infinity is no log probability to train on', () => {
  const text = '{"choices":[{"index":0,"token_ids":[1],"logprobs":{"token_logprobs":[-Infinity]}}]}';
  assert.throws(() => samplesIn(answerJson(text), { count: 1, root }), {
    code: 'InferenceRejected',
    message: /expected a list of log probabilities/,
  });
});
