import assert from 'node:assert/strict';
import { once } from 'node:events';
import { connect } from 'node:net';
import { test } from 'node:test';
import { setTimeout } from 'node:timers/promises';
import type OpenAI from 'openai';
import { Parameters } from '../../engine/index.ts';
import { overflowing, preset } from './models.ts';
import { chainModel, openStage, type Stage } from './server-stage.ts';

const model = preset(1);
const request = { model: 'policy', prompt: '<bos>elephant<sep>', seed: 3, max_tokens: 12, n: 3, logprobs: 1 };
const chatRequest = {
  model: 'policy',
  messages: [{ role: 'user' as const, content: 'cat' }],
  seed: 5,
  max_tokens: 12,
  n: 2,
};

type WithIds<Choice> = Choice & { token_ids?: number[]; prompt_token_ids?: number[]; stop_reason: unknown };

test('a streamed completion adds up to the one that comes at once', async (t) => {
  const { client, hold } = await openStage(t);
  await hold('policy', model);
  const ours = { ...request, return_token_ids: true };
  const whole = (await client.completions.create(ours)).choices as WithIds<OpenAI.CompletionChoice>[];
  const stream = await client.completions.create({ ...ours, stream: true, stream_options: { include_usage: true } });
  const told = whole.map(() => ({ text: '', ids: [] as number[], logprobs: [] as number[], offsets: [] as number[] }));
  const prompts: number[][] = [];
  const endings: unknown[] = [];
  let usage: OpenAI.CompletionUsage | null | undefined;
  for await (const chunk of stream) {
    if (chunk.choices.length === 0) usage = chunk.usage;
    for (const choice of chunk.choices as WithIds<OpenAI.CompletionChoice>[]) {
      const so = told[choice.index]!;
      so.text += choice.text;
      so.ids.push(...choice.token_ids!);
      so.logprobs.push(...choice.logprobs!.token_logprobs!);
      so.offsets.push(...choice.logprobs!.text_offset!);
      if (choice.prompt_token_ids) prompts.push(choice.prompt_token_ids);
      if (choice.finish_reason) endings[choice.index] = [choice.finish_reason, choice.stop_reason];
    }
  }
  whole.forEach((choice, i) => {
    assert.equal(told[i]!.text, choice.text);
    assert.deepEqual(told[i]!.ids, choice.token_ids);
    assert.deepEqual(told[i]!.logprobs, choice.logprobs!.token_logprobs);
    assert.deepEqual(told[i]!.offsets, choice.logprobs!.text_offset);
    assert.deepEqual(endings[i], [choice.finish_reason, choice.stop_reason]);
    assert.deepEqual(prompts[i], choice.prompt_token_ids);
  });
  const completion_tokens = told.reduce((sum, { ids }) => sum + ids.length, 0);
  assert.deepEqual(usage, { prompt_tokens: 10, completion_tokens, total_tokens: 10 + completion_tokens });
});

test("the openai client's stream helper gives the chat completion that comes at once", async (t) => {
  const { client, hold } = await openStage(t);
  await hold('policy', model);
  const whole = await client.chat.completions.create({ ...chatRequest, logprobs: true });
  const stream = client.chat.completions.stream({ ...chatRequest, logprobs: true });
  let text = '';
  stream.on('content', (delta) => (text += delta));
  const final = await stream.finalChatCompletion();
  assert.deepEqual(
    final.choices.map(({ message, finish_reason, logprobs }) => [
      message.content ?? '',
      finish_reason,
      logprobs!.content,
    ]),
    whole.choices.map(({ message, finish_reason, logprobs }) => [message.content, finish_reason, logprobs!.content]),
  );
  const lengths = whole.choices.map(({ message }) => message.content!.length);
  assert.equal(text.length, lengths[0]! + lengths[1]!);
});

test('a stop string never shows in a stream, not even in part', async (t) => {
  const { client, hold } = await openStage(t);
  await hold('policy', chainModel(['one ', 'st', 'op', 'ped st', 'o', 'p!', ' never']));
  const stream = await client.chat.completions.create({ ...chatRequest, n: 1, stop: 'stop!', stream: true });
  let text = '';
  for await (const { choices } of stream) {
    text += choices[0]!.delta.content ?? '';
    assert.ok('one stopped '.startsWith(text), text);
    if (choices[0]!.finish_reason) assert.equal((choices[0] as { stop_reason?: unknown }).stop_reason, 'stop!');
  }
  assert.equal(text, 'one stopped ');
});

test('text that is held back for a stop string comes at the end', async (t) => {
  const { client, hold } = await openStage(t);
  await hold('policy', chainModel(['on', 'e st', 'o']));
  const stream = client.chat.completions.stream({ ...chatRequest, n: 1, stop: ['stop!', 'never'] });
  assert.equal((await stream.finalChatCompletion()).choices[0]!.message.content, 'one sto');
});

test('a refusal comes before the stream begins', async (t) => {
  const { client, hold } = await openStage(t);
  await hold('policy', model);
  await assert.rejects(client.completions.create({ ...request, stream: true, top_p: 2 }), {
    status: 400,
    param: 'top_p',
  });
  await assert.rejects(client.completions.create({ ...request, stream: true, model: 'none' }), { status: 404 });
  await assert.rejects(client.completions.create({ ...request, stream: true, max_tokens: 1000 }), { status: 400 });
});

test('what breaks inside a stream is told as an event that the client throws', async (t) => {
  const { client, hold } = await openStage(t);
  const broken = overflowing();
  await hold('policy', broken);
  const stream = await client.completions.create({ ...request, stream: true });
  await assert.rejects(
    async () => {
      for await (const chunk of stream) assert.fail(JSON.stringify(chunk));
    },
    (error: InstanceType<typeof OpenAI.APIError>) =>
      error.code === 'CheckpointDamaged' && /not numbers/.test(error.message),
  );
});

test('a stream that its client leaves is dropped', async (t) => {
  const stage = await openStage(t);
  await stage.hold('policy', endless());
  const stream = await stage.client.completions.create({ ...request, n: 4, max_tokens: 1900, stream: true });
  for await (const _ of stream) break;
  await settled(stage);
  assert.ok((await stage.metric('ratchet_generation_tokens_total')) < 4 * 1900);
});

test('a reader that does not read costs no memory and ends with its connection', async (t) => {
  const stage = await openStage(t);
  await stage.hold('policy', endless());
  const body = JSON.stringify({ ...request, n: 64, max_tokens: 1900, return_token_ids: true, stream: true });
  const socket = connect(stage.server.port, '127.0.0.1');
  socket.pause();
  await once(socket, 'connect');
  socket.write(`POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: ${body.length}\r\n\r\n${body}`);
  for (let sampled = 0; sampled < 64 * 1900;) {
    await setTimeout(20);
    sampled = await stage.metric('ratchet_generation_tokens_total');
  }
  await setTimeout(50);
  assert.equal(await stage.metric('ratchet_requests_running'), 1, 'the answer waits for its reader');
  socket.destroy();
  await settled(stage);
});

/** Says the same letter until max_tokens. */
function endless(): ReturnType<typeof chainModel> {
  const folder = chainModel(['a']);
  const { parameters } = folder;
  assert.ok(parameters instanceof Parameters);
  const output = parameters.view('lm_head.weight');
  output.fill(0);
  for (let id = 0; id < 128; id++) output[98 * 128 + id] = 10;
  return folder;
}

async function settled(stage: Stage): Promise<void> {
  const names = [
    'ratchet_requests_running',
    'ratchet_rows_running',
    'ratchet_rows_waiting',
    'ratchet_key_value_bytes_used',
  ];
  for (let attempts = 1000; attempts > 0; attempts--) {
    const values = await Promise.all(names.map((name) => stage.metric(name)));
    if (values.every((value) => value === 0)) return;
    await setTimeout(10);
  }
  assert.fail('something never ended');
}
