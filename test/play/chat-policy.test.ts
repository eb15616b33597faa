import assert from 'node:assert/strict';
import { test } from 'node:test';
import { resultRow } from '../../core/rl/rollout/results.ts';
import { chatPolicy } from '../../play/policy/chat-policy.ts';
import { openEndpoint, type EndpointRequest } from '../../backends/inference/index.ts';
import { startContentServer } from '../../bench/content-server.ts';

test('calls of tools come back in the form that the API wants, with the ids that it was told', async () => {
  const asked: EndpointRequest[] = [];
  const policy = chatPolicy({
    fields: { temperature: 0 },
    endpoint: {
      chat: async (request) => {
        asked.push(request);
        const isFirst = asked.length === 1;
        return {
          text: isFirst ? 'Let me see.' : 'Three.',
          ...(isFirst ? { toolCalls: [{ name: 'add', arguments: '{"a":1,"b":2}' }] } : {}),
          finishReason: 'stop' as const,
          promptTokenIds: null,
          tokenIds: null,
          logprobs: null,
          usage: { promptTokens: 7, completionTokens: 3 },
        };
      },
    },
  });
  const question = { role: 'user', content: 'What is 1+2?' } as const;
  const first = await policy.sample([question]);
  assert.deepEqual(first.toolCalls, [{ name: 'add', arguments: '{"a":1,"b":2}' }]);
  assert.deepEqual(first.said, { usage: { promptTokens: 7, completionTokens: 3 } });
  // The continuation of TypeScript environments: the text, then the answers.
  await policy.sample([question, { role: 'assistant', content: 'Let me see.' }, { role: 'tool', content: '3' }]);
  const [, assistant, tool] = asked[1]?.messages ?? [];
  assert.deepEqual(
    assistant?.tool_calls?.map(({ id }) => id),
    [tool?.tool_call_id],
  );
  assert.equal(assistant?.tool_calls?.[0]?.function.name, 'add');
});

test('a turn that the server tells as a refusal stays one, in the store and in results', async () => {
  const policy = chatPolicy({
    fields: {},
    endpoint: {
      chat: () =>
        Promise.resolve({
          text: 'I cannot help with that.',
          isRefusal: true as const,
          finishReason: 'stop' as const,
          promptTokenIds: null,
          tokenIds: null,
          logprobs: null,
          usage: null,
        }),
    },
  });
  const turn = await policy.sample([{ role: 'user', content: 'Do it.' }]);
  assert.deepEqual(turn.said, { usage: null, isRefusal: true });
  const example = { id: 0, prompt: [], answer: '' };
  const rollout = { group: 0, index: 0, exampleId: 0, turns: [turn], outcome: 'ok', reward: 0, metrics: {} } as const;
  assert.deepEqual(resultRow(rollout, { example, place: {} })['completion'], [
    { role: 'assistant', content: 'I cannot help with that.', refusal: 'I cannot help with that.' },
  ]);
});

test('a request goes out as verifiers sends it, and a server that does not know the model is a refusal', async (t) => {
  const server = await startContentServer({ refuse: ({ body }) => (body['model'] === 'gone' ? 404 : undefined) });
  t.after(() => server.close());
  const options = { timeoutMs: 5_000, maxConcurrent: 8 };
  const open = (model: string, baseUrl: string) =>
    openEndpoint([{ model, baseUrl, apiKeyVar: null, headers: { 'x-a': 'b' } }], options);
  const endpoint = open('m', `${server.url}/v1`);
  t.after(() => endpoint.close());
  const fields = { max_tokens: 5, temperature: null, extra_body: { top_k: 3 }, n: 1 };
  const messages = [{ role: 'user', content: 'word' }] as const;
  await endpoint.chat({ messages, fields, session: 's/1' });
  const { body, headers } = server.answered[0]!;
  assert.deepEqual(body, { model: 'm', messages, max_completion_tokens: 5, n: 1, top_k: 3 });
  assert.deepEqual([headers['x-session-id'], headers['x-a'], headers.authorization], ['s/1', 'b', undefined]);
  const gone = open('gone', server.url); // without /v1, as people write it
  t.after(() => gone.close());
  await assert.rejects(gone.chat({ messages, fields: {} }), { code: 'InferenceRejected' });
});

test('of a server that nobody listens at it says where, and nothing of a run', async (t) => {
  const endpoint = openEndpoint([{ model: 'm', baseUrl: 'http://127.0.0.1:9/v1', apiKeyVar: null, headers: {} }], {
    timeoutMs: 5_000,
    maxConcurrent: 8,
    patienceMs: 0,
  });
  t.after(() => endpoint.close());
  await assert.rejects(endpoint.chat({ messages: [{ role: 'user', content: 'word' }], fields: {} }), (error: Error) => {
    assert.match(
      error.message,
      /http:\/\/127\.0\.0\.1:9 .*nobody listens there\. Is it running, and is that its address\?/,
    );
    assert.doesNotMatch(error.message, /\[inference\]|ratchet(?:-rl)? dev/);
    assert.equal(error.message.split('Is it running').length, 2);
    return true;
  });
});
