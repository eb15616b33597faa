/** The address in front of the policy: what programs send and get by each API, and what of it is trained. */
import assert from 'node:assert/strict';
import { EventEmitter, once } from 'node:events';
import { statSync } from 'node:fs';
import { request as ask } from 'node:http';
import path from 'node:path';
import { describe, test } from 'node:test';
import type OpenAI from 'openai';
import { RatchetError } from '../../../core/errors.ts';
import { trajectoryRows } from '../../../core/rl/rollout/trajectories.ts';
import type { CaptureOptions } from '../../../backends/environments/agent/capture/types.ts';
import { assertOneRow, clientOf, eventsOf, keptNotes, lookUp, open, post, twoTurns, user } from './open-capture.ts';
import { callOf, tokenizer } from './scripted-policy.ts';

describe('chat completions', () => {
  for (const stream of [false, true]) {
    test(`a program with tools, ${stream ? 'streamed' : 'whole'}: its turns are one row of what was sampled`, async (t) => {
      const { capture, url } = await open(t);
      const client = clientOf(url, capture);
      const messages: OpenAI.ChatCompletionMessageParam[] = [
        { role: 'developer', content: 'You are a dictionary.' },
        {
          role: 'user',
          content: [
            { type: 'text', text: 'What is ' },
            { type: 'text', text: 'an owl?' },
          ],
        },
      ];
      const say = async () => {
        const body = { model: 'policy', messages, tools: [lookUp], temperature: 0.2 };
        if (!stream) return (await client.chat.completions.create(body)).choices[0]!;
        return (await client.chat.completions.stream(body).finalChatCompletion()).choices[0]!;
      };
      const first = await say();
      assert.equal(first.finish_reason, 'tool_calls');
      assert.equal(first.message.content?.trim(), 'Let me see.');
      const call = first.message.tool_calls![0] as OpenAI.ChatCompletionMessageFunctionToolCall;
      assert.deepEqual(call.function, { name: 'look_up', arguments: '{"word": "owl"}' });
      messages.push(first.message, { role: 'tool', tool_call_id: call.id, content: 'a bird of the night' });
      const second = await say();
      assert.deepEqual([second.message.content, second.finish_reason], ['It means an owl.', 'stop']);
      assertOneRow(capture);
      assert.deepEqual(
        capture.turns.map(({ call: place, heard }) => [place?.after, heard?.length]),
        [
          [null, 2],
          [capture.turns[0]!.call!.id, 1],
        ],
      );
      assert.deepEqual(capture.calls.sampled, 2);
    });
  }

  test('usage and log probabilities are given where they are asked for', async (t) => {
    const { capture, url } = await open(t, () => 'yes');
    const client = clientOf(url, capture);
    const body = { model: 'policy', messages: [user('Is it?')], logprobs: true };
    const { usage, choices } = await client.chat.completions.create(body);
    const [turn] = capture.turns;
    assert.deepEqual(
      [usage?.prompt_tokens, usage?.completion_tokens],
      [turn!.promptTokenIds.length, turn!.tokenIds.length],
    );
    assert.deepEqual(
      choices[0]!.logprobs?.content?.map(({ token, logprob }) => [token, logprob]),
      turn!.tokenIds.map((id, i) => [tokenizer.tokenText(id), turn!.logprobs![i]]),
    );
    const stream = await client.chat.completions.create({
      ...body,
      stream: true,
      stream_options: { include_usage: true },
    });
    const chunks = [];
    for await (const chunk of stream) chunks.push(chunk);
    assert.equal(chunks.at(-1)!.usage?.completion_tokens, turn!.tokenIds.length);
  });

  test('what a call wants less of is honoured; what the run decides is reported', async (t) => {
    const { capture, policy, url } = await open(t, () => 'one two three four');
    const client = clientOf(url, capture);
    const body = {
      model: 'policy',
      messages: [user('Count.')],
      max_completion_tokens: 2,
      stop: ['three'],
      temperature: 0.1,
      top_p: 0.5,
      user: 'me',
    };
    const first = await client.chat.completions.create(body);
    assert.deepEqual([first.choices[0]!.finish_reason, policy.asked[0]!.maxTokens], ['length', 2]);
    assert.deepEqual(policy.asked[0]!.stop, ['three']);
    assert.equal(policy.asked[0]!.temperature, 1);
    await client.chat.completions.create({ ...body, temperature: 0.2, seed: 5 });
    assert.deepEqual(capture.ignored, ['temperature', 'top_p', 'seed']);
  });

  test('GET /budget says what is left, and that nothing is limited', async (t) => {
    const left = async (more: Parameters<typeof open>[2]): Promise<unknown> => {
      const { capture, url } = await open(t, undefined, more);
      const answer = await fetch(`${url}/budget`, { headers: { 'x-api-key': capture.key } });
      return [answer.status, await answer.json()];
    };
    assert.deepEqual(await left({ beside: { budget: () => ({ tokens: 7 }) } }), [200, { tokens: 7 }]);
    assert.deepEqual(await left({}), [200, {}]);
  });

  test('bad bodies, keys, models and routes are refused in the words of the API', async (t) => {
    const { capture, url } = await open(t);
    const chat = `${url}/v1/chat/completions`;
    const hello = { model: 'policy', messages: [{ role: 'user', content: 'a' }] };
    const refusals = [
      [await post(chat, { key: 'another' }, hello), 401, /key of this rollout/],
      [await post(chat, capture, hello, {}), 401, /key of this rollout/],
      [await post(chat, capture, { ...hello, model: 'gpt' }), 404, /"gpt" does not exist .* Known: policy/],
      [await post(chat, capture, { ...hello, n: 2 }), 400, /"n": expected 1, got 2/],
      [await post(chat, capture, { model: 'policy', messages: [] }), 400, /"messages": .*a list of/],
      [
        await post(chat, capture, { ...hello, messages: [{ role: 'user', content: [{ type: 'image_url' }] }] }),
        400,
        /parts of type "text"/,
      ],
      [await post(`${url}/v1/embeddings`, capture, hello), 404, /no POST \/embeddings/],
    ] as const;
    for (const [{ status, body }, expected, says] of refusals) {
      assert.equal(status, expected);
      assert.match((body['error'] as { message: string }).message, says);
    }
    assert.deepEqual([capture.turns, capture.calls.refused], [[], refusals.length]);
  });
});

describe('responses', () => {
  const tool: OpenAI.Responses.FunctionTool = { type: 'function', ...lookUp.function, strict: null };

  test('items in and out, streamed with the events of the API in their order', async (t) => {
    const { capture, url } = await open(t);
    const client = clientOf(url, capture);
    const input: OpenAI.Responses.ResponseInputItem[] = [{ role: 'user', content: 'What is an owl?' }];
    const body = { model: 'policy', instructions: 'You are a dictionary.', tools: [tool], store: false };
    const events: OpenAI.Responses.ResponseStreamEvent[] = [];
    for await (const event of await client.responses.create({ ...body, input, stream: true })) events.push(event);
    assert.deepEqual(
      events.map(({ type }) => type.replace(/^response\./, '')),
      [
        'created',
        'in_progress',
        'output_item.added',
        'content_part.added',
        'output_text.delta',
        'output_text.done',
        'content_part.done',
        'output_item.done',
        'output_item.added',
        'function_call_arguments.delta',
        'function_call_arguments.done',
        'output_item.done',
        'completed',
      ],
    );
    assert.deepEqual(
      events.map((event) => event.sequence_number),
      [...events.keys()],
    );
    const last = events.at(-1)!;
    assert(last.type === 'response.completed');
    const call = last.response.output.find((item) => item.type === 'function_call')!;
    input.push(...(last.response.output as OpenAI.Responses.ResponseInputItem[]), {
      type: 'function_call_output',
      call_id: call.call_id,
      output: 'a bird',
    });
    const second = await client.responses.create({ ...body, input });
    assert.equal(second.output_text, 'It means an owl.');
    assertOneRow(capture);
  });

  test('a program may name the response before in place of its items', async (t) => {
    const { capture, url } = await open(t);
    const client = clientOf(url, capture);
    const body = { model: 'policy', tools: [tool] };
    const first = await client.responses.create({ ...body, input: 'What is an owl?' });
    const call = first.output.find((item) => item.type === 'function_call')!;
    const second = await client.responses.create({
      ...body,
      previous_response_id: first.id,
      input: [{ type: 'function_call_output', call_id: call.call_id, output: 'a bird' }],
    });
    assert.deepEqual([second.output_text, second.previous_response_id], ['It means an owl.', first.id]);
    assertOneRow(capture);
    const missing = client.responses.create({ ...body, previous_response_id: 'resp_x', input: 'a' });
    await assert.rejects(missing, /404 There is no response "resp_x"/);
  });

  test('a tool of free text becomes a function of one text, and its calls come back as they were declared', async (t) => {
    const { capture, url } = await open(t, () => callOf('patch', { input: '+ a line' }));
    const first = await clientOf(url, capture).responses.create({
      model: 'policy',
      tools: [{ type: 'custom', name: 'patch', description: 'Changes files.' }],
      input: 'Add a line.',
    });
    const { type, input } = first.output[0] as { type: string; input: string };
    assert.deepEqual([type, input], ['custom_tool_call', '+ a line']);
  });
});

describe("Anthropic's messages", () => {
  const tool = { name: 'look_up', description: 'Looks a word up.', input_schema: lookUp.function.parameters };
  const question = { role: 'user', content: 'What is an owl?' };
  const body = {
    model: 'policy',
    max_tokens: 500,
    system: [{ type: 'text', text: 'You are a dictionary.', cache_control: { type: 'ephemeral' } }],
    tools: [tool],
  };
  const answered = (content: unknown, id: string) => [
    question,
    { role: 'assistant', content },
    { role: 'user', content: [{ type: 'tool_result', tool_use_id: id, content: [{ type: 'text', text: 'a bird' }] }] },
  ];

  test('blocks in and out', async (t) => {
    const { capture, url } = await open(t);
    const first = await post(`${url}/v1/messages`, capture, { ...body, messages: [question] });
    const content = first.body['content'] as { type: string; id: string; input: object; text: string }[];
    assert.equal(first.body['stop_reason'], 'tool_use');
    assert.deepEqual(
      content.map(({ type }) => type),
      ['text', 'tool_use'],
    );
    assert.deepEqual(content[1]!.input, { word: 'owl' });
    const messages = answered(content, content[1]!.id);
    const second = await post(`${url}/v1/messages`, capture, { ...body, messages });
    assert.deepEqual(second.body['content'], [{ type: 'text', text: 'It means an owl.' }]);
    assert.equal(second.body['stop_reason'], 'end_turn');
    assertOneRow(capture);
    const counted = await post(`${url}/v1/messages/count_tokens`, capture, { ...body, messages });
    assert.deepEqual(counted.body, { input_tokens: capture.turns[1]!.promptTokenIds.length });
  });

  test('a stream has the events of the API in their order', async (t) => {
    const { capture, url } = await open(t);
    const { text } = await post(`${url}/v1/messages`, capture, { ...body, stream: true, messages: [question] });
    const events = eventsOf(text);
    assert.deepEqual(
      events.map(({ event }) => event),
      [
        'message_start',
        'content_block_start',
        'content_block_delta',
        'content_block_stop',
        'content_block_start',
        'content_block_delta',
        'content_block_stop',
        'message_delta',
        'message_stop',
      ],
    );
    assert.ok(events.every(({ event, data }) => data['type'] === event));
    const { delta } = events[5]!.data as unknown as { delta: { partial_json: string } };
    assert.deepEqual(JSON.parse(delta.partial_json), { word: 'owl' });
  });

  test('errors have its form', async (t) => {
    const { capture, url } = await open(t);
    const wrong = await post(`${url}/v1/messages`, capture, { ...body, model: 'other', messages: [question] });
    assert.deepEqual([wrong.status, wrong.body['type']], [404, 'error']);
    assert.equal((wrong.body['error'] as { type: string }).type, 'not_found_error');
    const keyless = await post(`${url}/v1/messages`, capture, body, { authorization: 'Bearer sk-other' });
    assert.equal((keyless.body['error'] as { type: string }).type, 'authentication_error');
  });
});

describe('the address', () => {
  test('is a socket in a folder that only this user may enter, which goes with the rollout', async (t) => {
    const { capture } = await open(t);
    const folder = path.dirname(capture.socket);
    assert.equal(statSync(folder).mode & 0o777, 0o700);
    const status = await new Promise((resolve, reject) => {
      const headers = { authorization: `Bearer ${capture.key}` };
      const sent = ask({ socketPath: capture.socket, path: '/v1/models', headers }, (got) => resolve(got.statusCode));
      sent.on('error', reject).end();
    });
    assert.equal(status, 200);
    await capture.close();
    assert.throws(() => statSync(folder), /ENOENT/);
  });

  test('a model is found by its name in the address; escapes that are no text name none', async (t) => {
    const { capture, url } = await open(t, () => 'unused');
    const { data } = await clientOf(url, capture).models.list();
    const headers = { authorization: `Bearer ${capture.key}` };
    const statusOf = async (name: string): Promise<number> =>
      (await fetch(`${url}/v1/models/${name}`, { headers })).status;
    assert.equal(await statusOf(encodeURIComponent(data[0]!.id)), 200);
    assert.deepEqual([await statusOf('%ZZ'), await statusOf('%E0%A4%A')], [404, 404]);
  });

  test('parallel calls and sub-agents are branches: each sampled token is trained once', async (t) => {
    const { capture, url } = await open(t, (prompt) => (/(\w+)\?/.exec(prompt.slice(-80))?.[1] ?? 'what').repeat(2));
    const client = clientOf(url, capture);
    const words = ['owl', 'cat', 'owl', 'dog', 'owl'];
    await Promise.all(
      words.map((word) =>
        client.chat.completions.create({ model: 'policy', messages: [{ role: 'user', content: `${word}?` }] }),
      ),
    );
    assert.equal(new Set(capture.turns.map(({ call }) => call!.id)).size, words.length);
    const rows = trajectoryRows(capture.turns, 'interleaved');
    assert.equal(rows.length, words.length);
    const trained = rows.flatMap(({ lossMask }) => lossMask).filter((mask) => mask === 1).length;
    assert.equal(trained, capture.turns.flatMap(({ tokenIds }) => tokenIds).length);
  });

  test('calls for another model go to its endpoint, are counted apart, and answered again from the notes', async (t) => {
    const notes = keptNotes();
    let asked = 0;
    const judge: NonNullable<CaptureOptions['others']>[string] = {
      chat: ({ messages, fields }) => {
        assert.deepEqual([messages[0]!.content, fields], ['Right?', { temperature: 0, max_tokens: 9 }]);
        asked++;
        const usage = { promptTokens: 5, completionTokens: 1 };
        const none = { promptTokenIds: null, tokenIds: null, logprobs: null };
        return Promise.resolve({ text: `yes ${asked}`, finishReason: 'stop' as const, usage, ...none });
      },
    };
    for (const life of [1, 2]) {
      const { capture, url } = await open(t, twoTurns, { others: { judge }, notes });
      const body = { model: 'judge', messages: [{ role: 'user', content: 'Right?' }], temperature: 0, max_tokens: 9 };
      const heard = [];
      for (let i = 0; i < 2; i++) {
        const { body: answer } = await post(`${url}/v1/chat/completions`, capture, body);
        heard.push((answer['choices'] as { message: { content: string } }[])[0]!.message.content);
      }
      assert.deepEqual(heard, ['yes 1', 'yes 2']);
      const { others, othersRecalled, otherUsage, sampled } = capture.calls;
      assert.deepEqual([others, othersRecalled, sampled], [2, life === 1 ? 0 : 2, 0]);
      assert.equal(otherUsage.promptTokens, life === 1 ? 10 : 0);
      assert.deepEqual(capture.turns, []);
    }
    assert.equal(asked, 2);
  });

  test('a prompt that is too long is refused in words that programs know, and the rollout goes on', async (t) => {
    const says = (prompt: string): string => {
      if (prompt.includes('long')) throw new RatchetError('PromptTooLong', 'It has 9 tokens; the context is 8.');
      return 'short';
    };
    const { capture, url } = await open(t, says);
    const body = (content: string) => ({ model: 'policy', messages: [{ role: 'user', content }] });
    const refused = await post(`${url}/v1/chat/completions`, capture, body('long'));
    assert.deepEqual(
      [refused.status, (refused.body['error'] as { code: string }).code],
      [400, 'context_length_exceeded'],
    );
    assert.match(String(capture.refusal), /It has 9 tokens/);
    assert.equal((await post(`${url}/v1/chat/completions`, capture, body('a'))).status, 200);
    assert.deepEqual([capture.refusal, capture.failure], [undefined, undefined]);
    for (let i = 0; i < 8; i++) await post(`${url}/v1/chat/completions`, capture, body(`long ${i}`));
    assert.match(String(capture.failure), /It has 9 tokens/);
    assert.ok(capture.ended.aborted);
  });

  test('a model that does not answer ends the rollout with its error', async (t) => {
    const gone = new RatchetError('InferenceUnavailable', 'no server');
    const { capture, url } = await open(t, () => Promise.reject(gone));
    const body = { model: 'policy', messages: [{ role: 'user', content: 'a' }] };
    assert.equal((await post(`${url}/v1/chat/completions`, capture, body)).status, 503);
    assert.equal(capture.failure, gone);
    assert.ok(capture.ended.aborted);
  });

  test('an answer whose program went away is given to it when it asks again, and trained once', async (t) => {
    const canSay = new EventEmitter();
    const { capture, policy, url } = await open(t, async () => {
      await once(canSay, 'now');
      return 'late';
    });
    const body = { model: 'policy', messages: [{ role: 'user' as const, content: 'a' }] };
    const gone = new AbortController();
    const first = clientOf(url, capture).chat.completions.create(body, { signal: gone.signal });
    while (policy.asked.length === 0) await new Promise((resolve) => setTimeout(resolve, 1));
    gone.abort();
    await assert.rejects(first);
    await new Promise((resolve) => setTimeout(resolve, 20));
    const again = clientOf(url, capture).chat.completions.create(body);
    await new Promise((resolve) => setTimeout(resolve, 20));
    canSay.emit('now');
    assert.equal((await again).choices[0]!.message.content, 'late');
    assert.deepEqual([policy.asked.length, capture.turns.length], [1, 1]);
  });

  test('what lies beside the model is asked with the same key', async (t) => {
    const notes = keptNotes();
    const { capture, url } = await open(t, twoTurns, { notes, beside: { budget: () => ({ tokens: 12 }) } });
    const budget = await fetch(`${url}/budget`, { headers: { 'x-api-key': capture.key } });
    assert.deepEqual(await budget.json(), { tokens: 12 });
    assert.equal((await fetch(`${url}/budget`)).status, 401);
    const begun = await post(`${url}/effects/send%20mail`, capture, { kind: 'once', arguments: { to: 'a' } });
    assert.deepEqual([begun.status, begun.body['state']], [200, 'make']);
    const settled = await post(`${url}/effects/send%20mail/settle`, capture, { answer: 'sent' });
    assert.deepEqual(settled.body, { state: 'settled', answer: 'sent' });
    // The next attempt does not send it again.
    const next = await open(t, twoTurns, { notes });
    const again = await post(`${next.url}/effects/send%20mail`, next.capture, { kind: 'once', arguments: { to: 'a' } });
    assert.deepEqual(again.body, { state: 'settled', answer: 'sent' });
  });

  test('a rollout that nobody goes on with makes its effects, too', async (t) => {
    const { capture, url } = await open(t);
    const effect = { kind: 'once', arguments: { to: 'a' } };
    const begun = await post(`${url}/effects/a`, capture, effect);
    assert.deepEqual([begun.status, begun.body['state'], begun.body['again']], [200, 'make', false]);
    await post(`${url}/effects/a/settle`, capture, { answer: 1 });
    assert.deepEqual((await post(`${url}/effects/a`, capture, effect)).body, { state: 'settled', answer: 1 });
  });

  test('an effect that cannot be written down ends the rollout', async (t) => {
    const taken = new RatchetError('StoreUnavailable', 'the store is away');
    const notes = { ...keptNotes(), put: () => Promise.reject(taken) };
    const { capture, url } = await open(t, twoTurns, { notes });
    const { status } = await post(`${url}/effects/a`, capture, { kind: 'once' });
    assert.deepEqual([status, capture.failure, capture.ended.aborted], [503, taken, true]);
  });
});
