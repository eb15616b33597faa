import assert from 'node:assert/strict';
import { readdirSync, readFileSync } from 'node:fs';
import { test } from 'node:test';
import { GepaSpec } from '../../config/searches/gepa-spec.ts';
import { parseGepaFile } from '../../config/searches/parse-gepa-file.ts';

const folder = new URL('../data/configs/gepa/', import.meta.url);

for (const name of readdirSync(folder).filter((name) => name.endsWith('.toml'))) {
  test(`verifiers' sample gepa/${name} loads, and its spec survives JSON`, () => {
    const parsed = parseGepaFile(readFileSync(new URL(name, folder), 'utf8'), { file: name });
    assert(parsed.ok, JSON.stringify(parsed));
    assert.deepEqual(GepaSpec.parse(JSON.parse(JSON.stringify(parsed.spec))), parsed.spec);
  });
}

test('[env] is one environment, [[env]] several, and defaults are those of vf-gepa', () => {
  const one = parseGepaFile('[env]\nenv_id = "owner/wiki-search"\nenv_args = { max_turns = 3 }', { file: 'g.toml' });
  assert(one.ok);
  assert.deepEqual(one.spec.environments, [
    { id: 'owner/wiki-search', name: 'wiki-search', args: { max_turns: 3 }, extraKwargs: {}, variables: [] },
  ]);
  const { maxCalls, minibatchSize, numTrain, numVal, maxConcurrent, seed, savesResults, perfectScore } = one.spec;
  assert.deepEqual(
    [maxCalls, minibatchSize, numTrain, numVal, maxConcurrent, seed, savesResults, perfectScore],
    [500, 3, 100, 50, 32, 0, true, null],
  );
  const two = parseGepaFile('[[env]]\nenv_id = "a"\n[[env]]\nid = "b"', { file: 'g.toml' });
  assert(two.ok);
  assert.deepEqual(
    two.spec.environments.map(({ name }) => name),
    ['a', 'b'],
  );
});

test('an environment sees the variables that it lists, by name', () => {
  const parsed = parseGepaFile('[env]\nenv_id = "a"\nenv_vars = ["JUDGE_KEY"]', { file: 'g.toml' });
  assert(parsed.ok);
  assert.deepEqual(parsed.spec.environments[0]!.variables, ['JUDGE_KEY']);
  assert(!parseGepaFile('[env]\nenv_id = "a"\nenv_vars = ["AWS_SECRET"]', { file: 'g.toml' }).ok);
});

test('[execution] still counts, with a warning that says where its fields belong now', () => {
  const parsed = parseGepaFile(
    '[env]\nenv_id = "a"\n[execution]\nmax_concurrent = 8\nseed = 7\nsampling_args = { max_tokens = 9 }',
    { file: 'g.toml' },
  );
  assert(parsed.ok);
  assert.deepEqual([parsed.spec.maxConcurrent, parsed.spec.seed, parsed.spec.sampling], [8, 7, { max_tokens: 9 }]);
  assert.match(parsed.warnings[0]!, /^\[execution\] is deprecated/);
});

test('everything that is wrong with a gepa file is said at once', () => {
  const parsed = parseGepaFile(
    'reflexion_model = "a"\n[[env]]\nenv_args = { x = 1 }\n[gepa]\nmax_calls = 0\nseed = 1\n[execution]\nseed = 2\n',
    { file: 'g.toml' },
  );
  assert(!parsed.ok);
  const said = parsed.problems.map(({ line, path, suggestion }) => [line, path, suggestion]);
  assert.deepEqual(said, [
    [1, 'reflexion_model', 'did you mean "reflection_model"?'],
    [2, 'env[0].env_id', undefined],
    [5, 'gepa.max_calls', undefined],
    [8, 'execution.seed', undefined],
  ]);
});

const limited = (more: string, top = '') =>
  parseGepaFile(`${top}[env]\nenv_id = "a"\n${more}`, { file: 'g.toml', overrides: {} });

test('[budget] limits a search with its reflections, at the prices of both models', () => {
  const parsed = limited('[sampling]\nmax_tokens = 9\n[budget]\ntokens = 5000\nmoney = 2\n', 'reflection_model = "large"\nprices = { input = 1, output = 2 }\nreflection_prices = { input = 10, output = 20 }\n'); // prettier-ignore
  assert(parsed.ok, JSON.stringify(parsed));
  const { budget, prices, reflectionPrices } = parsed.spec;
  assert.deepEqual(budget, { tokens: 5000, money: 2, sandboxS: null, toolCalls: null, wallS: null });
  assert.deepEqual(
    [prices, reflectionPrices],
    [
      { input: 1, output: 2 },
      { input: 10, output: 20 },
    ],
  );
  const without = limited('');
  assert(without.ok);
  assert.equal('budget' in without.spec, false);
});

test('a budget needs a bound of answers, and money the price of each model', () => {
  const related = limited('[budget]\nmoney = 2\n', 'reflection_model = "large"\n');
  assert(!related.ok);
  const said = related.problems.map(({ path, expected }) => `${path}: ${expected}`).join('\n');
  assert.match(said, /^sampling\.max_tokens: most tokens of an answer beside \[budget\]/m);
  assert.match(said, /^prices: prices = \{ input = …, output = … \} beside budget\.money/m);
  assert.match(said, /^reflection_prices: what large costs beside budget\.money/m);
});
