import assert from 'node:assert/strict';
import { after, test } from 'node:test';
import { setTimeout } from 'node:timers/promises';
import { permutation, uniform } from '../../core/random.ts';
import { Sampler, type SequenceRequest, type SampleResult } from '../../engine/index.ts';
import { preset, randomParameters, tinyConfig, wordRequest, words } from './models.ts';

const model = preset(7);
const sampler = await Sampler.open(model.config, { threads: 1 });
after(() => sampler.release());
const generate = (requests: readonly SequenceRequest[]): Promise<SampleResult[]> =>
  sampler.generate(model.parameters, requests);

const requests = Array.from({ length: 40 }, (_, i) =>
  wordRequest(model, words[i % words.length]!, i, i % 5 === 0 ? 0.7 : 1),
);
const reference = await generate(requests);

test('a row has the same bits alone, permuted, among others and in a larger batch', async () => {
  for (const i of [0, 3, 17]) assert.deepEqual(await generate([requests[i]!]), [reference[i]]);
  const order = permutation(requests.length, 'order');
  assert.deepEqual(
    await generate(order.map((i) => requests[i]!)),
    order.map((i) => reference[i]),
  );
  const neighbours = Array.from({ length: 90 }, (_, i) => wordRequest(model, words[(3 * i) % words.length]!, 1000 + i));
  assert.deepEqual((await generate([...neighbours, ...requests])).slice(neighbours.length), reference);
});

test('a row has the same bits when it joins a batch that is running, and whatever cache lengths are in use', async () => {
  const long = { ...wordRequest(model, 'cat', 5), maxTokens: 40, stopTokenIds: [] };
  const running = generate(Array.from({ length: 3 }, () => long));
  const late = requests.map(async (request, i) => {
    await setTimeout(i % 7);
    return (await generate([request]))[0];
  });
  assert.deepEqual(await Promise.all(late), reference);
  const [first, second] = await running;
  assert.deepEqual(first, second);
  assert.deepEqual(await generate([long]), [first]);
});

test('a row that outgrows the cache of a running batch leaves its neighbours as they were', async () => {
  const running = generate(requests);
  await setTimeout(1);
  const long = { ...wordRequest(model, 'horse', 9), maxTokens: 57, stopTokenIds: [] };
  assert.equal((await generate([long]))[0]!.tokenIds.length, 57);
  assert.deepEqual(await running, reference);
});

test('another seed or another temperature gives other tokens; the same gives the same', async () => {
  const [request] = requests;
  assert.deepEqual(await generate([request!, request!]), [reference[0], reference[0]]);
  const seeds = await generate(Array.from({ length: 20 }, (_, seed) => ({ ...request!, seed })));
  assert.ok(new Set(seeds.map(({ tokenIds }) => tokenIds.join())).size > 15);
});

test('tokens are drawn as often as their probabilities say', async () => {
  const base = { ...wordRequest(model, 'dog', 0), maxTokens: 1, temperature: 1.5 };
  const drawn = await generate(Array.from({ length: 4000 }, (_, seed) => ({ ...base, seed })));
  const counts = new Map<number, number>();
  for (const { tokenIds } of drawn) counts.set(tokenIds[0]!, (counts.get(tokenIds[0]!) ?? 0) + 1);
  let total = 0;
  for (const [token, count] of counts) {
    const { logprobs } = drawn.find(({ tokenIds }) => tokenIds[0] === token)!;
    const probability = Math.exp(logprobs[0]!);
    total += probability;
    const deviation = Math.sqrt((probability * (1 - probability)) / drawn.length);
    assert.ok(Math.abs(count / drawn.length - probability) < 4.5 * deviation, `token ${token}`);
  }
  assert.ok(Math.abs(total - 1) < 0.01);
});

test('greedy decoding takes the likeliest token and reports it at temperature 1', async () => {
  const greedy = { ...wordRequest(model, 'tiger', 0), temperature: 0 };
  const [first, again] = await generate([greedy, { ...greedy, seed: 99 }]);
  assert.deepEqual(first, again);
  const sharp = await generate([{ ...greedy, temperature: 0.001 }]);
  assert.deepEqual(sharp[0]!.tokenIds, first!.tokenIds);
  assert.ok(first!.logprobs.every((logprob) => logprob < -1e-3));
});

test('sampling ends at a stop token, which is kept, or at max_tokens', () => {
  for (const { tokenIds, finishReason } of reference) {
    const stopped = tokenIds.at(-1) === 1;
    assert.equal(finishReason, stopped ? 'stop' : 'length');
    assert.equal(tokenIds.slice(0, -1).includes(1), false);
    if (!stopped) assert.equal(tokenIds.length, 10);
  }
  assert.ok(reference.some(({ finishReason }) => finishReason === 'stop'));
});

test('several versions of the weights share one sampler', async () => {
  const tiny = await Sampler.open(tinyConfig, { threads: 1 });
  const versions = [randomParameters(tinyConfig, 1), randomParameters(tinyConfig, 2)];
  const prompts = Array.from({ length: 6 }, (_, i) => ({
    promptTokenIds: Array.from({ length: 1 + i }, (_, t) => Math.floor(11 * uniform('prompt', i, t))),
    maxTokens: 8,
    temperature: 1,
    seed: i,
    stopTokenIds: [],
  }));
  const together = await Promise.all(versions.map((version) => tiny.generate(version, prompts)));
  assert.notDeepEqual(together[0], together[1]);
  for (const [i, version] of versions.entries()) assert.deepEqual(await tiny.generate(version, prompts), together[i]);
  await tiny.release();
});

test('an aborted call ends and its neighbours continue', async () => {
  const controller = new AbortController();
  const long = Array.from({ length: 8 }, (_, i) => ({
    ...wordRequest(model, 'ant', i),
    maxTokens: 50,
    stopTokenIds: [],
  }));
  const aborted = sampler.generate(model.parameters, long, { signal: controller.signal });
  const other = generate(requests);
  const refused = assert.rejects(aborted, /enough/);
  await setTimeout(1);
  controller.abort(new Error('enough'));
  await refused;
  assert.deepEqual(await other, reference);
  await assert.rejects(sampler.generate(model.parameters, requests, { signal: controller.signal }), /enough/);
  assert.deepEqual(sampler.counters.rowsRunning, 0);
});

test('calls made one after another without a pause are all answered', async () => {
  for (let i = 0; i < 30; i++) assert.equal((await generate([{ ...requests[i]!, maxTokens: 1 }])).length, 1);
  assert.deepEqual(await generate([]), []);
});

test('more rows than fit in a batch are sampled in turn', async () => {
  const many = Array.from({ length: 1500 }, (_, i) => ({ ...requests[i % 40]!, maxTokens: 2 }));
  const results = await generate(many);
  assert.deepEqual(results.slice(1480), results.slice(0, 20));
});

test('requests no model can sample are refused with the reason', async () => {
  const base = wordRequest(model, 'cat', 0);
  const refuses = (change: Partial<SequenceRequest>, message: RegExp): Promise<void> =>
    assert.rejects(generate([{ ...base, ...change }]), { code: 'InferenceRejected', message });
  await refuses({ promptTokenIds: [] }, /no tokens/);
  await refuses({ promptTokenIds: [30] }, /vocabulary of 30/);
  await refuses({ promptTokenIds: [-1] }, /outside the vocabulary/);
  await refuses({ promptTokenIds: [1.5] }, /outside the vocabulary/);
  await refuses({ maxTokens: 0 }, /integer ≥ 1/);
  await refuses({ maxTokens: 60 }, /65 positions; the model has 64/);
  await refuses({ temperature: -1 }, /temperature/);
  await refuses({ temperature: NaN }, /temperature/);
  await refuses({ temperature: 1e-9 }, /temperature/);
  await refuses({ seed: 2 ** 60 }, /seed/);
});
