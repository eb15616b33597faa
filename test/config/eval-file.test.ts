import assert from 'node:assert/strict';
import { readdirSync, readFileSync } from 'node:fs';
import { test } from 'node:test';
import { EvalRunSpec } from '../../config/evaluations/eval-file.ts';
import { parseEvalFile } from '../../config/evaluations/parse-eval-file.ts';
import type { Problem } from '../../config/toml/problems.ts';

const folder = new URL('../data/configs/eval/', import.meta.url);

function read(text: string): EvalRunSpec['evaluations'] {
  const parsed = parseEvalFile(text, { file: 'eval.toml' });
  assert(parsed.ok, parsed.ok ? '' : JSON.stringify(parsed.problems));
  return parsed.spec.evaluations;
}

function problemsOf(text: string): Problem[] {
  const parsed = parseEvalFile(text, { file: 'eval.toml' });
  assert(!parsed.ok);
  return parsed.problems;
}

for (const name of readdirSync(folder).filter((name) => name.endsWith('.toml'))) {
  test(`verifiers' sample ${name} loads, and its spec survives JSON`, () => {
    const parsed = parseEvalFile(readFileSync(new URL(name, folder), 'utf8'), { file: name });
    assert(parsed.ok, JSON.stringify(parsed));
    assert.deepEqual(EvalRunSpec.parse(JSON.parse(JSON.stringify(parsed.spec))), parsed.spec);
  });
}

test('what stands at the top holds for every evaluation that says nothing else', () => {
  const [first, second] = read(`
    model = "a/b"
    num_examples = 20
    max_tokens = 64
    temperature = 0.5
    [[eval]]
    id = "owner/one"
    [[eval]]
    env_id = "two"
    num_examples = -1
    sampling_args = { max_tokens = 128 }
    env_args = { level = 2 }
  `);
  assert.deepEqual([first!.numExamples, second!.numExamples], [20, -1]);
  assert.deepEqual(first!.sampling, { max_tokens: 64, temperature: 0.5 });
  assert.deepEqual(second!.sampling, { max_tokens: 128, temperature: 0.5 });
  assert.deepEqual([first!.environment.name, second!.environment.args], ['one', { level: 2 }]);
});

test('what nobody says is left to the environment’s package, or is as in verifiers', () => {
  const [only] = read('[[eval]]\nid = "gsm8k"');
  assert.deepEqual(
    [only!.numExamples, only!.rolloutsPerExample, only!.maxConcurrent, only!.maxRetries],
    [null, null, 32, 3],
  );
  assert.equal(only!.model.model, 'openai/gpt-4.1-mini');
  assert.deepEqual(only!.model.headersFromState, { 'X-Session-ID': 'trajectory_id' });
});

test('an alias of an evaluation takes the place of the model of all, and the other way round', () => {
  const [alias] = read('model = "a/b"\n[[eval]]\nid = "x"\nendpoint_id = "fast"');
  assert.deepEqual([alias!.model.model, alias!.model.endpointId], [null, 'fast']);
  const [model] = read('endpoint_id = "fast"\n[[eval]]\nid = "x"\nmodel = "a/b"');
  assert.deepEqual([model!.model.model, model!.model.endpointId], ['a/b', null]);
});

test('an environment sees the variables that its evaluation and the command line list, by name', () => {
  const text = '[[eval]]\nid = "x"\nenv_vars = ["JUDGE_KEY"]';
  const parsed = parseEvalFile(text, { file: 'eval.toml', settings: { env_vars: ['HF_TOKEN'] } });
  assert(parsed.ok);
  assert.deepEqual(parsed.spec.evaluations[0]!.environment.variables, ['JUDGE_KEY', 'HF_TOKEN']);
  assert.match(problemsOf('[[eval]]\nid = "x"\nenv_vars = ["TEMPORAL_API_KEY"]')[0]!.path, /env_vars/);
});

test('headers are a table, lines, or both: a line wins', () => {
  const [only] = read(`[[eval]]
    id = "x"
    headers = { A = "1", B = "2" }
    header = ["B: 3", "C: a: b"]
    header_from_state = "X-Id: trajectory_id"`);
  assert.deepEqual(only!.model.headers, { A: '1', B: '3', C: 'a: b' });
  assert.deepEqual(only!.model.headersFromState, { 'X-Id': 'trajectory_id' });
});

test('switches of the chat template are written where servers read them', () => {
  const [only] = read('[[eval]]\nid = "x"\nsampling = { reasoning_effort = "low", extra_body = { top_k = 5 } }');
  const extra_body = { top_k: 5, chat_template_kwargs: { reasoning_effort: 'low' } };
  assert.deepEqual(only!.sampling, { reasoning_effort: 'low', extra_body });
});

test('an ablation is one evaluation for each combination, arguments included', () => {
  const all = read(`
    num_examples = 50
    [[ablation]]
    env_id = "my-env"
    args = { split = "test" }
    sampling = { top_p = 0.9 }
    [ablation.sweep]
    temperature = [0.0, 0.5, 1.0]
    model = ["a", "b"]
    [ablation.sweep.args]
    difficulty = ["easy", "hard"]
  `);
  assert.equal(all.length, 12);
  assert(all.every(({ numExamples }) => numExamples === 50));
  assert.deepEqual(all[1]!.environment.args, { split: 'test', difficulty: 'hard' });
  const combinations = all.map(({ sampling, model, environment }) => [
    sampling['temperature'],
    model.model,
    environment.args['difficulty'],
  ]);
  assert.equal(new Set(combinations.map((each) => JSON.stringify(each))).size, 12);
  assert.deepEqual(combinations[0], [0, 'a', 'easy']);
  assert(all.every(({ sampling }) => sampling['top_p'] === 0.9));
  assert.equal(new Set(all.map(({ environment }) => environment.name)).size, 12, 'each has a name of its own');
});

test('environments and aliases may be swept as well', () => {
  const all = read('model = "m"\n[[ablation]]\n[ablation.sweep]\nid = ["a", "b"]\nendpoint_id = ["one", "two"]');
  const found = all.map(({ environment, model }) => `${environment.id} ${model.endpointId} ${model.model}`);
  assert.deepEqual(found, ['a one null', 'a two null', 'b one null', 'b two null']);
});

test('everything that is wrong is said at once, with its place and what to write instead', () => {
  const problems = problemsOf(`modle = "openai/gpt-5"
api_key_var = "sk-abcdefghijklmnop1234"

[[eval]]
id = "gsm8k"
env_id = "gsm8k"
rollouts_per_example = "3"
headers = { Authorization = "Bearer abcdef" }

[[eval]]
num_examples = 0
args = { a = 1 }
env_args = { a = 2 }

[[ablation]]
id = "x"
args = { split = "test" }
[ablation.sweep]
temperature = [0.0, "hot"]
[ablation.sweep.args]
split = ["a", "b"]

[[ablation]]
id = "y"
`);
  const said = problems.map(({ line, path, suggestion }) => [line, path, suggestion?.split(',')[0]]);
  assert.deepEqual(said, [
    [1, 'modle', 'did you mean "model"?'],
    [2, 'api_key_var', 'rotate it'],
    [6, 'eval[0].env_id', undefined],
    [7, 'eval[0].rollouts_per_example', 'write 3 without quotes'],
    [8, 'eval[0].headers.Authorization', 'rotate it'],
    [10, 'eval[1].id', undefined],
    [11, 'eval[1].num_examples', undefined],
    [12, 'eval[1].args', undefined],
    [19, 'ablation[0].sweep.temperature[1]', undefined],
    [21, 'ablation[0].sweep.args.split', undefined],
    [23, 'ablation[1].sweep', undefined],
  ]);
  assert(!JSON.stringify(problems).includes('abcdef'), 'no secret is repeated');
});

test('[eval] with one bracket is told to have two', () => {
  assert.match(problemsOf('[eval]\nid = "x"')[0]!.suggestion!, /\[\[eval\]\] with two brackets/);
});

test('a file without evaluations is refused', () => {
  assert.equal(problemsOf('model = "a"')[0]!.expected, 'at least one [[eval]] or [[ablation]]');
});

test('a sweep over more combinations than anybody means is refused before it is written out', () => {
  const lists = Array.from({ length: 9 }, (_, i) => `k${i} = [${Array.from({ length: 10 }, (_, j) => j).join(',')}]`);
  const [problem] = problemsOf(`[[ablation]]\nid = "x"\n[ablation.sweep.args]\n${lists.join('\n')}`);
  assert.equal(problem!.received, '1000000000 combinations');
});

test('keys without effect, and request fields that look misspelt, are warnings', () => {
  const parsed = parseEvalFile('verbose = true\nsave_every = 10\n[[eval]]\nid = "x"\nsampling = { temprature = 0.7 }', {
    file: 'eval.toml',
  });
  assert(parsed.ok);
  assert.deepEqual(parsed.warnings, [
    'verbose has no effect here: what is logged does not depend on it',
    'save_every has no effect here: every rollout is stored as soon as it is finished',
    'eval[0].sampling.temprature goes into requests as it is; did you mean "temperature"?',
  ]);
});

test('what is wrong on the command line is said with what was expected and what was typed', () => {
  const settings = { num_examples: 2.5, max_concurrent: 0, api_base_url: '127.0.0.1:8000', temperature: -1 };
  const parsed = parseEvalFile('[[eval]]\nid = "gsm8k"\n', { file: 'command line', settings });
  assert.deepEqual(
    (parsed.ok ? [] : parsed.problems)
      .map(({ path, expected, received }) => [path, expected, received])
      .sort(([a], [b]) => a!.localeCompare(b!)),
    [
      ['api_base_url', 'a URL such as "https://api.openai.com/v1"', '"127.0.0.1:8000"'],
      ['max_concurrent', 'an integer ≥ 1, or -1 for no bound', '0'],
      ['num_examples', 'an integer ≥ 1, or -1 for all examples', '2.5'],
      ['temperature', 'a number ≥ 0', '-1'],
    ],
  );
});
