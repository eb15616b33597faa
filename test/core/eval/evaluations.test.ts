import assert from 'node:assert/strict';
import { test } from 'node:test';
import fc from 'fast-check';
import { cutEvaluation, positionsOf } from '../../../core/eval/chunks.ts';
import { exampleOrder } from '../../../core/eval/example-order.ts';
import { serversOfModel } from '../../../core/eval/model-servers.ts';
import { addTallies, emptyTally, tallyOf } from '../../../core/eval/tally.ts';
import { jsonOrNull } from '../../../core/json-or-null.ts';
import { goodRowsByExample } from '../../../core/eval/verifiers-results.ts';
import type { RolloutRow } from '../../../core/rl/rollout/rollout.ts';
import { accessDefaults } from '../../../core/eval/model-access.ts';
import type { ModelAccessSpec } from '../../../config/models/model-access.ts';

test('shuffled examples stand in the order of Dataset.shuffle', () => {
  // np.random.default_rng(seed).permutation(n), NumPy 2.4
  const made = (n: number, seed: number) => Array.from({ length: Math.min(n, 8) }, (_, i) => exampleOrder(n, seed)(i));
  assert.deepEqual(made(10, 0), [4, 6, 2, 7, 3, 5, 9, 0]);
  assert.deepEqual(made(10, 7), [8, 0, 7, 1, 3, 6, 2, 4]);
  assert.deepEqual(made(1000, 0), [459, 206, 222, 162, 711, 814, 350, 890]);
  assert.deepEqual(made(5, 12_345_678_901), [3, 0, 4, 1, 2]);
});

test('chunks hold every example once, are few, and are the same when more examples are asked for', () => {
  const counts = { examples: fc.integer({ min: 1, max: 5_000 }), rolloutsPerExample: fc.integer({ min: 1, max: 64 }) };
  fc.assert(
    fc.property(
      fc.record({
        ...counts,
        maxConcurrent: fc.constantFrom(-1, 1, 32, 1_000),
        workers: fc.integer({ min: 1, max: 40 }),
      }),
      (of) => {
        const cut = cutEvaluation(of);
        assert.ok(cut.chunks <= 200 && cut.atOnce >= 1 && cut.atOnce <= cut.inFlight);
        const all = Array.from({ length: cut.chunks }, (_, chunk) => positionsOf(chunk, { ...of, ...cut }));
        assert.equal(all[0]!.from, 0);
        assert.equal(all.at(-1)!.to, of.examples);
        for (let i = 1; i < all.length; i++) assert.equal(all[i]!.from, all[i - 1]!.to);
        const grown = cutEvaluation({ ...of, examples: of.examples * 2, chunkExamples: cut.chunkExamples });
        assert.equal(grown.chunkExamples, cut.chunkExamples);
      },
    ),
  );
});

test('sums over chunks are those over all, in whatever order chunks end', () => {
  const row = fc.record({
    example_id: fc.nat(5),
    reward: fc.option(fc.constantFrom(0, 0.25, 1)),
    metrics: fc.record({ exact: fc.constantFrom(0, 1) }),
    token_usage: fc.record({ input_tokens: fc.nat(50) }),
  });
  const groups = fc.array(fc.array(row, { minLength: 2, maxLength: 2 }), { maxLength: 12 });
  fc.assert(
    fc.property(groups, fc.nat(12), (all, at) => {
      const rows = all as unknown as RolloutRow[][];
      const [first, rest] = [tallyOf(rows.slice(0, at), 2), tallyOf(rows.slice(at), 2)];
      assert.deepEqual(addTallies(first, rest), addTallies(emptyTally, tallyOf(rows, 2)));
      assert.deepEqual({ ...addTallies(rest, first), causes: {} }, { ...addTallies(first, rest), causes: {} });
    }),
  );
});

test('of what vf-eval wrote, failed rollouts and torn lines are left out', () => {
  const rows = [
    { example_id: 0, reward: 1, error: null },
    { example_id: 0, reward: 0, error: { error: 'X' } },
    { example_id: 1, reward: 0 },
  ];
  const text = `${rows.map((row) => JSON.stringify(row)).join('\n')}\n{"example_id": 2, "rew`;
  assert.deepEqual(
    [...goodRowsByExample(text, jsonOrNull)].map(([id, own]) => [id, own.length]),
    [
      [0, 1],
      [1, 1],
    ],
  );
});

const access = (over: Partial<ModelAccessSpec>): ModelAccessSpec => ({
  endpointId: null,
  model: 'm',
  endpointsPath: accessDefaults.endpointsPath,
  provider: null,
  apiBaseUrl: null,
  apiKeyVar: null,
  clientType: null,
  headers: {},
  headersFromState: {},
  ...over,
});
const replica = (url: string) => ({
  model: 'real',
  baseUrl: url,
  apiKeyVar: 'A_KEY',
  clientType: null,
  headers: { a: '1' },
});
const registry = {
  schemaVersion: 1 as const,
  endpoints: [{ id: 'fast', replicas: [replica('http://one/v1'), replica('http://two/v1')] }],
};
const unset = () => false;

test('an alias stands for its servers; a provider, a URL or a key on the command line holds over it', () => {
  const found = serversOfModel(access({ model: 'fast' }), registry, unset);
  assert.ok(found.ok);
  assert.deepEqual(
    [found.model, found.servers.map(({ baseUrl }) => baseUrl)],
    ['real', ['http://one/v1', 'http://two/v1']],
  );
  const moved = serversOfModel(access({ model: 'fast', provider: 'openrouter', apiKeyVar: 'B_KEY' }), registry, unset);
  assert.ok(moved.ok);
  assert.deepEqual(moved.servers, [
    { model: 'real', baseUrl: 'https://openrouter.ai/api/v1', apiKeyVar: 'B_KEY', headers: { a: '1' } },
  ]);
});

test('without a word about it the model is asked at Prime Inference where its key is set, else both ways are named', () => {
  const found = serversOfModel(access({}), registry, (name) => name === 'PRIME_API_KEY');
  assert.ok(found.ok && found.servers[0]!.apiKeyVar === 'PRIME_API_KEY');
  const refused = serversOfModel(access({}), registry, unset);
  assert.ok(!refused.ok);
  assert.match(refused.problem, /it is no alias \(.*has fast\), and PRIME_API_KEY.* is not set/);
});

test('a server of this machine wants no key, a known API its own', () => {
  const keyOf = (over: Partial<ModelAccessSpec>) => {
    const found = serversOfModel(access(over), null, unset);
    return found.ok ? found.servers[0]!.apiKeyVar : found.problem;
  };
  assert.equal(keyOf({ apiBaseUrl: 'http://localhost:8000/v1' }), null);
  assert.equal(keyOf({ provider: 'vllm' }), null);
  assert.equal(keyOf({ apiBaseUrl: 'https://api.openai.com/v1' }), 'OPENAI_API_KEY');
  assert.equal(keyOf({ apiBaseUrl: 'http://localhost:8000', apiKeyVar: 'MINE' }), 'MINE');
});

test('an API that is not spoken here is refused by name', () => {
  const refused = serversOfModel(access({ provider: 'openai', clientType: 'openai_responses' }), null, unset);
  assert.ok(!refused.ok && /openai_responses is not spoken here/.test(refused.problem));
});
