import assert from 'node:assert/strict';
import { after, test } from 'node:test';
import { setTimeout } from 'node:timers/promises';
import { permutation, uniform } from '../../core/random.ts';
import { Sampler, type SequenceRequest, type SampleResult } from '../../engine/sample/sampler.ts';
import { preset, randomParameters, tinyConfig, wordRequest, words } from './models.ts';

const model = preset(7);
const sampler = await Sampler.open(model.config, { threads: 1 });
after(() => sampler.release());
const generate = (requests: readonly SequenceRequest[], of = sampler): Promise<SampleResult[]> =>
  of.generate(model.parameters, requests);

/** Every parameter, alone and together, among rows that use none. */
const changes: readonly Partial<SequenceRequest>[] = [
  {},
  { topP: 0.7 },
  {},
  { topK: 3 },
  { minP: 0.3 },
  { repetitionPenalty: 1.5 },
  {},
  { presencePenalty: 0.8, frequencyPenalty: 0.4 },
  { logitBias: new Map([[5, 3]]) },
  { temperature: 0 },
  { allowedTokenIds: [1, 4, 5, 6] },
  { minTokens: 4 },
  {},
  { ignoreEnd: true },
  { temperature: 0, repetitionPenalty: 1.3 },
  { isFinished: (tokenIds) => tokenIds.length === 3 },
  { topP: 0.9, topK: 12, minP: 0.01, repetitionPenalty: 1.2, temperature: 0.8, minTokens: 2 },
];
const mixed = Array.from({ length: 51 }, (_, i): SequenceRequest => ({
  ...wordRequest(model, words[i % words.length]!, i),
  ...changes[i % changes.length],
}));
const reference = await generate(mixed);

test('a row has the same bits alone, permuted and among rows that sample otherwise', async () => {
  for (const [i, request] of mixed.slice(0, changes.length).entries()) {
    assert.deepEqual(await generate([request]), [reference[i]], JSON.stringify(changes[i]));
  }
  const order = permutation(mixed.length, 'mixed');
  assert.deepEqual(
    await generate(order.map((i) => mixed[i]!)),
    order.map((i) => reference[i]),
  );
});

test('a prompt of any length has the same bits alone, beside a longer one and after its beginning', async (t) => {
  const config = { ...tinyConfig, positionsMax: 160 };
  const parameters = randomParameters(config, 3);
  const small = await Sampler.open(config, { threads: 1 });
  t.after(() => small.release());
  const requestOf = (length: number, salt: number): SequenceRequest => ({
    promptTokenIds: Array.from({ length }, (_, i) => Math.floor(config.vocabularySize * uniform(salt, i))),
    maxTokens: 3,
    temperature: 1,
    seed: length,
    stopTokenIds: [],
  });
  // The attention kernel takes 32 positions at a time for heads of 16: what is left over must not be a single one.
  for (const length of [1, 2, 3, 31, 32, 33, 34, 63, 64, 65, 66, 96, 97, 98, 128, 129, 130]) {
    const asked = requestOf(length, length);
    const alone = await small.generate(parameters, [asked]);
    parameters.changed();
    const [beside] = await small.generate(parameters, [asked, requestOf(length + 20, 500)]);
    assert.deepEqual([beside], alone, `${length} tokens beside more`);
    parameters.changed();
    if (length < 66) continue;
    await small.generate(parameters, [requestOf(65, length)]);
    assert.deepEqual(await small.generate(parameters, [asked]), alone, `${length} tokens after 65 of them`);
    parameters.changed();
  }
});

test('another sampler, and two and three threads, give the same bits', async () => {
  for (const threads of [1, 2, 3]) {
    const other = await Sampler.open(model.config, { threads, rowsPerThreadMin: 1 });
    assert.deepEqual(await generate(mixed, other), reference, `${threads} threads`);
    const late = mixed.map(async (request, i) => {
      await setTimeout(i % 5);
      return (await generate([request], other))[0];
    });
    assert.deepEqual(await Promise.all(late), reference, `${threads} threads, one by one`);
    await other.release();
  }
});

test('packed weights give the same tokens and nearly the same logprobs, in any batch, version by version', async (t) => {
  const packed = await Sampler.open(model.config, { threads: 1, packWeights: true });
  t.after(() => packed.release());
  const results = await generate(mixed, packed);
  assert.deepEqual(
    results.map(({ tokenIds }) => tokenIds),
    reference.map(({ tokenIds }) => tokenIds),
  );
  const differences = results.flatMap(({ logprobs }, i) =>
    logprobs.map((each, k) => each - reference[i]!.logprobs[k]!),
  );
  assert.ok(differences.every((difference) => Math.abs(difference) < 1e-4));
  const others = [1, 2, 3].map((seed) => preset(seed).parameters);
  const plain = mixed.slice(0, 6);
  const [first] = await Promise.all(others.map((parameters) => packed.generate(parameters, plain)));
  assert.deepEqual(await packed.generate(others[0]!, plain), first);
  assert.deepEqual(await generate([mixed[3]!], packed), [results[3]]);
  const several = await Sampler.open(model.config, { threads: 2, packWeights: true, rowsPerThreadMin: 1 });
  assert.deepEqual(await generate(mixed, several), results);
  assert.deepEqual(await several.generate(others[0]!, plain), first);
  await several.release();
});

test('logprobs are the model’s own; samplingLogprobs those of what was drawn from, the same array where that is the same', () => {
  for (const [i, { logprobs, samplingLogprobs }] of reference.entries()) {
    const change = changes[i % changes.length]!;
    const isPlain =
      Object.keys(change).every((name) => ['ignoreEnd', 'isFinished'].includes(name)) || change.temperature === 0;
    if (isPlain && change.repetitionPenalty === undefined) assert.equal(samplingLogprobs, logprobs);
    assert.equal(samplingLogprobs.length, logprobs.length);
    if (change.topK !== undefined && change.repetitionPenalty === undefined) {
      assert.ok(samplingLogprobs.every((logprob, t) => logprob >= logprobs[t]! - 1e-6));
      assert.ok(samplingLogprobs.some((logprob, t) => logprob > logprobs[t]! + 1e-3));
    }
  }
});

test('min_tokens forbids stop tokens, ignoreEnd passes them, and a hook ends a row', async () => {
  const ends = { ...wordRequest(model, 'cat', 0), logitBias: new Map([[1, 50]]) };
  const [stopped, atLeast, ignoring, hooked, both] = await generate([
    ends,
    { ...ends, minTokens: 4 },
    { ...ends, ignoreEnd: true },
    { ...ends, ignoreEnd: true, isFinished: (ids) => ids.length === 2 },
    { ...ends, minTokens: 5, isFinished: () => true },
  ]);
  assert.deepEqual(stopped!.tokenIds, [1]);
  assert.equal(stopped!.finishReason, 'stop');
  assert.equal(atLeast!.tokenIds.indexOf(1), 4);
  assert.equal(atLeast!.tokenIds.length, 5);
  assert.deepEqual(
    ignoring!.tokenIds,
    Array.from({ length: 10 }, () => 1),
  );
  assert.equal(ignoring!.finishReason, 'length');
  assert.deepEqual(hooked, { ...ignoring!, ...firstTwo(ignoring!), finishReason: 'stop' });
  assert.equal(both!.tokenIds.length, 5);
  assert.equal(both!.tokenIds.slice(0, 4).includes(1), false);
});

function firstTwo({ tokenIds, logprobs, samplingLogprobs }: SampleResult): Partial<SampleResult> {
  return {
    tokenIds: tokenIds.slice(0, 2),
    logprobs: logprobs.slice(0, 2),
    samplingLogprobs: samplingLogprobs.slice(0, 2),
  };
}

for (const threads of [1, 2]) {
  test(`every token is told as it is sampled, and a hook that throws rejects its call alone, ${threads} threads`, async (t) => {
    const own = await Sampler.open(model.config, { threads, rowsPerThreadMin: 1 });
    t.after(() => own.release());
    const told = mixed.map((): number[] => []);
    const results = await own.generate(model.parameters, mixed, {
      onToken: (index, tokenId) => told[index]!.push(tokenId),
    });
    assert.deepEqual(
      told,
      results.map(({ tokenIds }) => tokenIds),
    );
    const broken = own.generate(model.parameters, mixed, {
      onToken: () => {
        throw new Error('the client went away');
      },
    });
    const [, neighbours] = await Promise.all([assert.rejects(broken, /went away/), generate(mixed, own)]);
    assert.deepEqual(neighbours, reference);
  });

  test(`an aborted call frees its rows, and closing a sampler rejects what runs and what waits, ${threads} threads`, async () => {
    const own = await Sampler.open(model.config, { threads, rowsPerThreadMin: 1 });
    const long = Array.from({ length: 1500 }, (_, seed) => ({
      ...wordRequest(model, 'ant', seed),
      maxTokens: 50,
      ignoreEnd: true,
    }));
    const controller = new AbortController();
    const aborted = own.generate(model.parameters, long, {
      signal: controller.signal,
      onToken: () => controller.abort(new Error('enough')),
    });
    await assert.rejects(aborted, /enough/);
    await generate(mixed.slice(0, 2), own);
    assert.equal(own.counters.rowsWaiting, 0);
    const pending = [own.generate(model.parameters, long), own.generate(model.parameters, long)];
    const refused = pending.map((call) => assert.rejects(call, { code: 'InferenceUnavailable' }));
    await setTimeout(5);
    await own.release();
    await Promise.all(refused);
    await assert.rejects(generate(mixed, own), { code: 'InferenceUnavailable' });
  });
}

test('versions take turns: a short call of one ends while long rows of another run', async () => {
  const tiny = await Sampler.open(tinyConfig, { threads: 1 });
  const [first, second] = [randomParameters(tinyConfig, 1), randomParameters(tinyConfig, 2)];
  const request = (seed: number, maxTokens: number): SequenceRequest => ({
    promptTokenIds: [2, 3],
    maxTokens,
    temperature: 1,
    seed,
    stopTokenIds: [],
  });
  const ended: string[] = [];
  const note = (name: string) => (): unknown => ended.push(name);
  const long = tiny
    .generate(
      first,
      Array.from({ length: 20 }, (_, i) => request(i, 30)),
    )
    .then(note('long'));
  await setTimeout(1);
  const short = tiny.generate(second, [request(0, 2)]).then(note('short'));
  await Promise.all([long, short]);
  assert.deepEqual(ended, ['short', 'long']);
  await tiny.release();
});

test('a prompt is computed once for all rows that share it, in one call, in several, and when they must wait', async () => {
  for (const threads of [1, 2]) {
    const own = await Sampler.open(tinyConfig, { threads, rowsPerThreadMin: 1 });
    const parameters = randomParameters(tinyConfig, 3);
    const promptTokenIds = Array.from({ length: 20 }, (_, t) => Math.floor(11 * uniform('prompt', t)));
    const group = Array.from({ length: 16 }, (_, seed): SequenceRequest => ({
      promptTokenIds,
      maxTokens: 5,
      temperature: 1,
      seed,
      stopTokenIds: [],
    }));
    const together = await own.generate(parameters, group);
    assert.deepEqual(counts(own), [16 * 20, 20]);
    assert.deepEqual((await Promise.all(group.map((each) => own.generate(parameters, [each])))).flat(), together);
    for (const [i, each] of group.entries()) assert.deepEqual(await own.generate(parameters, [each]), [together[i]]);
    assert.deepEqual(counts(own), [3 * 16 * 20, 20]);
    await own.generate(randomParameters(tinyConfig, 4), group);
    assert.deepEqual(counts(own), [4 * 16 * 20, 40]);
    await own.release();
  }
  const waiting = await Sampler.open(model.config, { threads: 1 });
  await generate(
    Array.from({ length: 2500 }, (_, seed) => ({ ...wordRequest(model, 'cat', seed), maxTokens: 2 })),
    waiting,
  );
  const [total, computed] = counts(waiting);
  assert.equal(total! / 2500, computed);
  await waiting.release();
});

test('the next turn of a conversation computes what is new, with the bits of a prompt computed whole', async (t) => {
  const config = { ...tinyConfig, positionsMax: 256 };
  const parameters = randomParameters(config, 8);
  const [own, fresh] = [await Sampler.open(config, { threads: 1 }), await Sampler.open(config, { threads: 1 })];
  t.after(() => Promise.all([own.release(), fresh.release()]));
  const ids = (length: number, key: string): number[] =>
    Array.from({ length }, (_, i) => Math.floor(11 * uniform('turn', key, i)));
  const request = (promptTokenIds: number[]): SequenceRequest[] =>
    [1, 2, 3].map((seed) => ({ promptTokenIds, maxTokens: 12, temperature: 1, seed, stopTokenIds: [] }));
  const first = ids(100, 'a');
  const prompts = [
    { promptTokenIds: first, computed: 100 },
    { promptTokenIds: [...first, ...ids(40, 'b')], computed: 40 },
    { promptTokenIds: [...first, ...ids(40, 'b'), ...ids(1, 'c')], computed: 2 },
    { promptTokenIds: [...first.slice(0, 80), ...ids(50, 'd')], computed: 50 },
    { promptTokenIds: first.slice(0, 70), computed: 2 },
    { promptTokenIds: [...first.slice(0, 30), ...ids(50, 'e')], computed: 80 },
  ];
  let before = 0;
  for (const { promptTokenIds, computed } of prompts) {
    const requests = request(promptTokenIds);
    const results = await own.generate(parameters, requests);
    // More than the first tokens of both are shared by chance at times.
    const added = own.counters.promptTokensComputed - before;
    assert.ok(added <= computed && added > computed - 8, `${added} of ${computed}`);
    before += added;
    assert.deepEqual(results, await fresh.generate(parameters.clone(), requests));
  }
});

function counts({ counters }: Sampler): number[] {
  return [counters.promptTokensTotal, counters.promptTokensComputed];
}

test('weights that were trained in place are not answered from prompts of the old ones', async () => {
  for (const threads of [1, 2]) {
    const own = await Sampler.open(tinyConfig, { threads, rowsPerThreadMin: 1 });
    const parameters = randomParameters(tinyConfig, 5);
    const requests = Array.from({ length: 8 }, (_, seed): SequenceRequest => ({
      promptTokenIds: [1, 2, 3],
      maxTokens: 6,
      temperature: 1,
      seed,
      stopTokenIds: [],
    }));
    const before = await own.generate(parameters, requests);
    parameters.flat.set(randomParameters(tinyConfig, 6).flat);
    parameters.changed();
    const trained = await own.generate(parameters, requests);
    assert.notDeepEqual(trained, before);
    assert.deepEqual(trained, await own.generate(randomParameters(tinyConfig, 6), requests));
    await own.release();
  }
});

test('what no row can be asked for is refused with its name, what was expected and what came', async () => {
  const request = wordRequest(model, 'cat', 0);
  const refuses = (change: Partial<SequenceRequest>, message: RegExp): Promise<void> =>
    assert.rejects(generate([{ ...request, ...change }]), { code: 'InferenceRejected', message });
  await refuses({ topP: 0 }, /top_p must be above 0 and at most 1, got 0/);
  await refuses({ topP: 1.1 }, /top_p/);
  await refuses({ topK: -2 }, /top_k/);
  await refuses({ topK: 1.5 }, /top_k/);
  await refuses({ minP: NaN }, /min_p/);
  await refuses({ repetitionPenalty: 0 }, /repetition_penalty must be a number above 0, got 0/);
  await refuses({ presencePenalty: 3 }, /presence_penalty/);
  await refuses({ frequencyPenalty: -3 }, /frequency_penalty/);
  await refuses({ minTokens: 11 }, /min_tokens must be an integer from 0 to max_tokens, 10, got 11/);
  await refuses({ logitBias: new Map([[30, 1]]) }, /30 is outside the vocabulary of 30/);
  await refuses({ logitBias: new Map([[3, 101]]) }, /logit_bias of token 3/);
  await refuses({ allowedTokenIds: [] }, /allowed_token_ids is empty/);
  await refuses({ allowedTokenIds: [-1] }, /outside the vocabulary/);
  await refuses({ allowedTokenIds: [1], minTokens: 1 }, /Every token that may be drawn is a stop token/);
});
