import assert from 'node:assert/strict';
import { test } from 'node:test';
import type { ModelFolder } from '../../engine/index.ts';
import { preset } from './models.ts';
import { chainModel, openStage } from './server-stage.ts';

const model = preset(1);
const prompt = '<bos>elephant<sep>';
const base = {
  model: 'policy',
  prompt,
  seed: 3,
  max_tokens: 20,
  ignore_eos: true,
  return_token_ids: true,
  logprobs: 1,
};

interface Choice {
  text: string;
  finish_reason: string;
  stop_reason: string | number | null;
  token_ids: number[];
  logprobs: { tokens: string[]; token_logprobs: number[]; text_offset: number[] };
  sampling_logprobs?: number[];
}

async function choicesOf(
  ask: <Answer>(path: string, body: unknown) => Promise<Answer>,
  extra: Record<string, unknown>,
): Promise<Choice[]> {
  return (await ask<{ choices: Choice[] }>('/v1/completions', { ...base, ...extra })).choices;
}

test('a stop string ends the text across the borders of tokens, the ids stay whole', async (t) => {
  const { hold, ask } = await openStage(t);
  await hold('policy', model);
  const [free] = (await choicesOf(ask, {})) as [Choice];
  assert.equal(free.finish_reason, 'length');
  assert.equal(free.stop_reason, null);
  assert.equal(free.token_ids.length, 20);
  const stop = free.text.slice(6, 9);
  const end = free.text.indexOf(stop);
  for (const include_stop_str_in_output of [false, true]) {
    const [cut] = (await choicesOf(ask, { stop: ['never', stop], include_stop_str_in_output })) as [Choice];
    assert.equal(cut.text, free.text.slice(0, include_stop_str_in_output ? end + stop.length : end));
    assert.equal(cut.finish_reason, 'stop');
    assert.equal(cut.stop_reason, stop);
    assert.deepEqual(cut.token_ids, free.token_ids.slice(0, cut.token_ids.length));
    assert.ok(model.tokenizer.decode(cut.token_ids).endsWith(stop));
    assert.equal(cut.logprobs.token_logprobs.length, cut.token_ids.length);
  }
  const [later] = (await choicesOf(ask, { stop, min_tokens: 15 })) as [Choice];
  assert.ok(later.token_ids.length > 15, 'no stop string counts before min_tokens');
});

test('a stop token is no text and is named as the reason; the end of the model is not named', async (t) => {
  const { hold, ask } = await openStage(t);
  await hold('policy', model);
  const [free] = (await choicesOf(ask, {})) as [Choice];
  const stopToken = free.token_ids[5]!;
  const place = free.token_ids.indexOf(stopToken);
  const [cut] = (await choicesOf(ask, { stop_token_ids: [stopToken] })) as [Choice];
  assert.deepEqual(cut.token_ids, free.token_ids.slice(0, place + 1));
  assert.equal(cut.text, model.tokenizer.decode(cut.token_ids.slice(0, -1)));
  assert.deepEqual([cut.finish_reason, cut.stop_reason], ['stop', stopToken]);
  const [shown] = (await choicesOf(ask, { stop_token_ids: [stopToken], include_stop_str_in_output: true })) as [Choice];
  assert.equal(shown.text, model.tokenizer.decode(cut.token_ids));
  const forced = { ignore_eos: false, allowed_token_ids: [1, 4], logit_bias: { 1: 100 } };
  const [ended] = (await choicesOf(ask, forced)) as [Choice];
  assert.deepEqual([ended.token_ids, ended.text, ended.finish_reason, ended.stop_reason], [[1], '', 'stop', null]);
});

test('special tokens are text where asked for', async (t) => {
  const { hold, ask } = await openStage(t);
  await hold('policy', model);
  const forced = { allowed_token_ids: [3], max_tokens: 2 };
  assert.equal((await choicesOf(ask, forced))[0]!.text, '');
  assert.equal((await choicesOf(ask, { ...forced, skip_special_tokens: false }))[0]!.text, '<bos><bos>');
});

test('allowed tokens, bias, truncation and penalties decide what is sampled; the trainer is told from what', async (t) => {
  const { hold, ask } = await openStage(t);
  await hold('policy', model);
  const [free] = (await choicesOf(ask, {})) as [Choice];
  assert.equal(free.sampling_logprobs, undefined, 'nothing was modified');
  const only = new Set(
    (await choicesOf(ask, { allowed_token_ids: [7, 8], n: 5 })).flatMap(({ token_ids }) => token_ids),
  );
  assert.deepEqual(only, new Set([7, 8]));
  const [biased] = (await choicesOf(ask, { logit_bias: { 9: 100 } })) as [Choice];
  assert.deepEqual(new Set(biased.token_ids), new Set([9]));
  const [narrow] = (await choicesOf(ask, { top_k: 1 })) as [Choice];
  const [greedy] = (await choicesOf(ask, { temperature: 0 })) as [Choice];
  assert.deepEqual(narrow.token_ids, greedy.token_ids);
  assert.ok(narrow.sampling_logprobs!.every((logprob) => Math.abs(logprob) < 1e-6));
  assert.ok(narrow.logprobs.token_logprobs.every((logprob) => logprob < -0.1));
  for (const [name, value] of Object.entries({
    top_p: 0.5,
    min_p: 0.5,
    repetition_penalty: 2,
    presence_penalty: 2,
    frequency_penalty: 2,
  })) {
    const [choice] = (await choicesOf(ask, { [name]: value })) as [Choice];
    assert.equal(choice.sampling_logprobs?.length, choice.token_ids.length, name);
    assert.notDeepEqual(choice.sampling_logprobs, choice.logprobs.token_logprobs, name);
  }
});

test('tokens beside logprobs may be written as ids', async (t) => {
  const { hold, ask } = await openStage(t);
  await hold('policy', model);
  const [choice] = (await choicesOf(ask, { return_tokens_as_token_ids: true })) as [Choice];
  assert.deepEqual(
    choice.logprobs.tokens,
    choice.token_ids.map((id) => `token_id:${id}`),
  );
});

test('values outside of their range are refused by name', async (t) => {
  const { hold, refusal } = await openStage(t);
  await hold('policy', model);
  const wrong: Record<string, unknown[]> = {
    top_p: [0, 1.1, '1'],
    top_k: [-2, 1.5],
    min_p: [-0.1, 2],
    repetition_penalty: [0, -1],
    presence_penalty: [-3, 3],
    frequency_penalty: [-3, 3],
    temperature: [-1, 101, 'hot', []],
    logit_bias: [
      [],
      { a: 1 },
      { 5: 101 },
      { 5: '1' },
      Object.fromEntries(Array.from({ length: 1025 }, (_, i) => [i, 1])),
    ],
    allowed_token_ids: [['a'], [-1], 5],
    stop: ['', [''], 5, [5], Array.from({ length: 17 }, () => 'a'), 'a'.repeat(257)],
    stop_token_ids: [[-1], 'a', Array.from({ length: 1025 }, () => 1)],
    min_tokens: [-1, 1.5],
    max_tokens: [0, -1, 1.5, '5'],
    ignore_eos: ['yes', 1],
    seed: [1.5, 1e300, '1'],
    seeds: [[1.5], 'a', [1, 2]],
    n: [0, -1, 1e9, 'a'],
    stream: ['yes', 1],
    stream_options: [{ include_usage: true }, 5],
    return_token_ids: [1],
    logprobs: [2, -1, true],
    prompt: [[], '', [[]], [1.5], [-1], [[1], 'a'], { a: 1 }, null, 5],
    model: ['', 5, null, 'm'.repeat(300)],
  };
  for (const [name, values] of Object.entries(wrong)) {
    for (const value of values) {
      const { status, message, param } = await refusal('/v1/completions', { ...base, [name]: value });
      const shown = `${name} ${JSON.stringify(value)?.slice(0, 60)}: ${message}`;
      assert.equal(status, 400, shown);
      if (name !== 'prompt') assert.equal(param?.split('.')[0], name, shown);
      assert.ok(message.length < 1100, shown);
    }
  }
  const { message } = await refusal('/v1/completions', { ...base, prompt: [3, 'a'] });
  assert.match(message, /a list of token ids .* got a list of 2 numbers and strings/);
});

test('what is asked of one request has a bound, and says so', async (t) => {
  const { hold, refusal } = await openStage(t);
  const roomy: ModelFolder = chainModel(['a']);
  await hold('policy', roomy);
  const over = { ...base, n: 60_000, max_tokens: 1000 };
  assert.match((await refusal('/v1/completions', over)).message, /up to 60000000 tokens .* at most 16777216/);
  const streamed = { ...base, n: 2000, stream: true };
  assert.match((await refusal('/v1/completions', streamed)).message, /2000 choices in a stream; at most 1024/);
  const checked = { ...base, n: 60_000, prompt: Array.from({ length: 2000 }, () => 5) };
  assert.match((await refusal('/v1/completions', checked)).message, /token ids to look at/);
});

test('a prompt that is too long is refused in the words verifiers looks for, before minutes are spent on it', async (t) => {
  const { hold, refusal } = await openStage(t);
  await hold('policy', model);
  for (const long of [Array.from({ length: 64 }, () => 4), 'a'.repeat(100), 'a'.repeat(10_000_000)]) {
    const { status, message } = await refusal('/v1/completions', { ...base, prompt: long });
    assert.equal(status, 400);
    assert.match(message, /^This model's maximum context length is 64 tokens\./);
  }
  const messages = [{ role: 'user', content: 'a'.repeat(100_000) }];
  assert.match(
    (await refusal('/v1/chat/completions', { model: 'policy', messages })).message,
    /maximum context length/,
  );
});
