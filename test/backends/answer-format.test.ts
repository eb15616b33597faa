/** A form that an answer must have (`response_format`): who sees to it, and who refuses. */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { openInference } from '../../backends/inference/index.ts';
import { InferenceSpec } from '../../config/run-spec.ts';
import { chatPolicy } from '../../play/policy/chat-policy.ts';
import { fakeModelServer } from './fake-model-server.ts';
import { open as openPool, v1 } from './pooled-servers.ts';

const policy = v1;
const responseFormat = { type: 'json_schema', json_schema: { name: 'word', schema: { type: 'object' } } };
const request = { policy, promptTokenIds: [3, 10], maxTokens: 4, temperature: 1, seed: 5, responseFormat };

test('vLLM gets it, and its log probabilities are those of the answers that have the form', async (t) => {
  const server = await fakeModelServer(t);
  server.held.add(policy.name);
  const inference = openPool(t, [server]);
  const formed = await inference.sample(request);
  const { responseFormat: _, ...free } = request;
  const plain = await inference.sample(free);
  assert.deepEqual(
    server.calls.filter(({ route }) => route === '/v1/completions').map(({ body }) => body['response_format']),
    [responseFormat, undefined],
  );
  assert.deepEqual([formed.logprobs, formed.samplingLogprobs], [null, plain.logprobs]);
});

for (const [engine, spec] of [
  ["Ratchet's policy server", { kind: 'embedded', url: 'http://127.0.0.1:9' }],
  [
    'Tinker API',
    { kind: 'tinker', server: 'skyrl', url: 'http://127.0.0.1:9', apiKeyVar: null, timeoutS: 1, maxConcurrent: 1 },
  ],
] as const) {
  test(`${engine} has nothing for it and is not asked`, async (t) => {
    const inference = openInference(InferenceSpec.parse(spec), '');
    t.after(() => inference.close?.());
    await assert.rejects(inference.sample(request), {
      code: 'Unsupported',
      message: new RegExp(`^"response_format" is not supported by .*${engine}`),
    });
  });
}

test('an API gets it, and the tool that must be called, as they came', async () => {
  const asked: unknown[] = [];
  const none = { promptTokenIds: null, tokenIds: null, logprobs: null, usage: null };
  const chat = ({ fields }: { readonly fields: object }) => {
    asked.push(fields);
    return Promise.resolve({ text: '{}', finishReason: 'stop' as const, ...none });
  };
  const api = chatPolicy({ endpoint: { chat }, fields: { temperature: 0 } });
  const heard = [{ role: 'user', content: 'What is an owl?' } as const];
  const constraints = { toolChoice: 'required', responseFormat };
  await api.sample(heard, { call: { after: null, heard, constraints } });
  assert.deepEqual(asked, [{ temperature: 0, tool_choice: 'required', response_format: responseFormat }]);
});
