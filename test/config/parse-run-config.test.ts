import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { describe, test } from 'node:test';
import fc from 'fast-check';
import { environmentFinder } from '../../backends/environments/find.ts';
import { formatProblems, parseRunConfig, runNameFromFile } from '../../config/parse-run-config.ts';
import { RunSpec } from '../../config/run-spec.ts';
import { accept, only, refuse } from './read-run.ts';

const minimal = 'model = "preset:x"\n[[env]]\nid = "reverse-text"\n';

describe('a config that is right', () => {
  test('the shipped recipe is read without a warning', () => {
    const file = new URL('../../configs/rl/reverse-text.toml', import.meta.url);
    const { spec, warnings } = accept(readFileSync(file, 'utf8'), { file: file.pathname });
    assert.deepEqual(warnings, []);
    assert.equal(spec.name, 'reverse-text');
    assert.equal(spec.batchSize, 640);
    assert.deepEqual(spec.schedule, { type: 'linear', warmupSteps: 5, minRatio: 0.3 });
    assert.deepEqual(spec.sft, {
      data: null,
      steps: 500,
      batchSize: 64,
      learningRate: 3e-3,
      warmupSteps: 20,
      minRatio: 0.1,
    });
    assert.equal(spec.eval?.environments[0]?.numExamples, 512);
    assert.deepEqual(spec.kl, { beta: 0, targetKl: null, refSyncSteps: null });
  });

  test("Hosted Training's own sample is read", () => {
    const { spec, warnings } = accept(`model = "Qwen/Qwen3-30B-A3B-Instruct-2507"
max_steps = 500
batch_size = 256
rollouts_per_example = 8

[sampling]
max_tokens = 512

[[env]]
id = "primeintellect/alphabet-sort"
args = { min_turns = 3, max_turns = 5, power_per_turn = false }

[wandb]
project = "alphabet-sort"
name = "qwen3-30b-i-alphabet-sort"
`);
    assert.equal(spec.model, 'Qwen/Qwen3-30B-A3B-Instruct-2507');
    assert.deepEqual(spec.environments, [
      {
        id: 'primeintellect/alphabet-sort',
        name: 'alphabet-sort',
        args: { min_turns: 3, max_turns: 5, power_per_turn: false },
        weight: 1,
        pools: null,
      },
    ]);
    assert.equal(warnings.length, 1);
    assert.deepEqual([spec.lora?.r, spec.lora?.alpha, spec.loss.maskHigh], [16, 32, 0.2]);
  });

  test('what is left out has the documented defaults, and a filter that is off keeps everything', () => {
    const { spec } = accept(minimal);
    assert.deepEqual([spec.maxSteps, spec.batchSize, spec.rolloutsPerExample], [100, 128, 8]);
    assert.deepEqual([spec.learningRate, spec.sampling.temperature, spec.maxAsyncLevel], [1e-4, 1, 1]);
    assert.deepEqual([spec.eval, spec.sft, spec.wandb], [null, null, null]);
    assert.equal(spec.store.uri, 'file:outputs');
    assert.ok(spec.filter.minReward < -1e300 && spec.filter.maxReward > 1e300);
    assert.deepEqual(RunSpec.parse(JSON.parse(JSON.stringify(spec))), spec);
  });

  test('a difficulty filter with enabled = false keeps everything whatever its bounds', () => {
    const { spec } = accept(`${minimal}[difficulty_filter]\nenabled = false\nmin_reward = 0.4\n`);
    assert.ok(spec.filter.minReward < -1e300);
    assert.equal(accept(`${minimal}[difficulty_filter]\nmin_reward = 0.4\n`).spec.filter.minReward, 0.4);
  });

  test('evaluations without environments of their own use those of the training', () => {
    const { spec } = accept(`${minimal}args = { a = 1 }\n[eval]\nnum_examples = 3\neval_base_model = false\n`);
    assert.equal(spec.eval?.skipFirstStep, true);
    assert.deepEqual(spec.eval?.environments, [
      {
        id: 'reverse-text',
        name: 'reverse-text',
        args: { a: 1 },
        numExamples: 3,
        rolloutsPerExample: 1,
        skipFirst: 0,
        interval: null,
        sampling: null,
      },
    ]);
  });

  test('an environment may be evaluated in its own way: as often, on other examples, with other sampling', () => {
    const own = '[[eval.env]]\nid = "x"\nskip_first = 10\ninterval = 7\nsampling = { temperature = 0, top_k = 5 }\n';
    const text = `${minimal}[eval]\nwhen = "defer"\non_regression = "stop"\n[eval.sampling]\nmax_tokens = 9\n${own}`;
    const { eval: evaluation, sampling } = accept(text).spec;
    assert.deepEqual([evaluation?.when, evaluation?.onRegression], ['defer', 'stop']);
    const [entry] = evaluation!.environments;
    assert.deepEqual([entry?.skipFirst, entry?.interval], [10, 7]);
    assert.deepEqual(entry?.sampling, { ...sampling, maxTokens: 9, temperature: 0, topK: 5 });
    const { path } = only(`${minimal}[eval]\n[[eval.env]]\nid = "x"\nsampling = { temprature = 1 }\n`);
    assert.equal(path, 'eval.env[0].sampling.temprature');
  });

  test('two entries of one environment get names of their own', () => {
    const { spec } = accept(`${minimal}[[env]]\nid = "owner/reverse_text@1.0"\n[[env]]\nid = "x"\nname = "mine"\n`);
    assert.deepEqual(
      spec.environments.map(({ name }) => name),
      ['reverse-text', 'reverse-text-2', 'mine'],
    );
  });

  test('keep_cloud is keep_last, and -1 keeps every checkpoint', () => {
    assert.equal(accept(`${minimal}[checkpoints]\nkeep_cloud = 7\n`).spec.checkpoints.keepLast, 7);
    const all = accept(`${minimal}[checkpoints]\ninterval = 4\nkeep_cloud = -1\n`).spec.checkpoints;
    assert.deepEqual(all, { interval: 4, keepLast: 1, keepInterval: 4 });
  });

  test('a keep_interval that rarely meets a checkpoint is pointed out', () => {
    const { warnings } = accept(`${minimal}[checkpoints]\ninterval = 20\nkeep_interval = 50\n`);
    assert.match(warnings.join(), /keep_interval \(50\) is not a multiple of checkpoints.interval \(20\)/);
  });
});

describe('the name of a run', () => {
  test('--name wins over the file, the file over its own name on disk', () => {
    assert.equal(accept(minimal, { file: 'configs/rl/My Run.toml' }).spec.name, 'my-run');
    assert.equal(accept(`name = "inside"\n${minimal}`).spec.name, 'inside');
    assert.equal(accept(`name = "inside"\n${minimal}`, { runName: 'given' }).spec.name, 'given');
  });

  test('any file name gives a valid name', () => {
    assert.equal(runNameFromFile('C:\\runs\\Über Run!.v2.toml'), 'ber-run-.v2');
    assert.equal(runNameFromFile('...'), 'run');
    fc.assert(fc.property(fc.string(), (file) => RunSpec.shape.name.safeParse(runNameFromFile(file)).success));
  });

  test('an invalid --name is refused with one that would do', () => {
    const problem = only(minimal, { runName: 'A B' });
    assert.deepEqual([problem.file, problem.path, problem.suggestion], ['command line', 'name', 'for example "a-b"']);
  });
});

describe('a config that is wrong', () => {
  test('all problems are said at once, each with its line', () => {
    const problems = refuse(
      `model = 5
max_step = 3
batch_size = 100
[sampling]
temprature = 1
temperature = "0.7"
[[env]]
id = "reverse-txt"
weight = 0
[difficulty_filter]
min_reward = 0.9
max_reward = 0.1
[sft]
steps = 0
`,
      { findEnvironment: environmentFinder({ projectFolder: tmpdir(), builtIns: ['reverse-text'] }) },
    );
    assert.deepEqual(
      problems.map(({ line, path, suggestion }) => [line, path, suggestion]),
      [
        [1, 'model', undefined],
        [2, 'max_step', 'did you mean "max_steps"?'],
        [3, 'batch_size', 'use 96 or 104'],
        [5, 'sampling.temprature', 'did you mean "temperature"?'],
        [6, 'sampling.temperature', 'write 0.7 without quotes'],
        [8, 'env[0].id', 'did you mean "reverse-text"?'],
        [9, 'env[0].weight', undefined],
        [11, 'difficulty_filter.min_reward', 'swap the two, or no group is ever kept'],
        [14, 'sft.steps', undefined],
      ],
    );
  });

  test('no group is asked for more rewards than it has rollouts', () => {
    const asking = (least: number) => `min_group_size = ${least}\nrollouts_per_example = 4\n${minimal}`;
    assert.equal(accept(asking(4)).spec.minGroupSize, 4);
    const { path, received, suggestion } = only(asking(5));
    assert.deepEqual([path, received, suggestion], ['min_group_size', '5', 'use 4 to drop such groups']);
  });

  test('the cap on what is in flight is named to who writes it as prime-rl does', () => {
    const { suggestion } = only(`max_inflight_rollouts = 64\n${minimal}`, 'ratchet');
    assert.match(suggestion ?? '', /max_concurrent/);
  });

  test('the text names place, expectation, what came and what to do', () => {
    const text = formatProblems(refuse(`${minimal}[sampling]\ntemperature = -1\n`));
    assert.equal(
      text,
      '1 problem in run.toml\n\nrun.toml:5:1  sampling.temperature\n    expected  a number > 0\n    received  -1',
    );
  });

  test('a key in the wrong table is told where it belongs', () => {
    assert.equal(
      only(`max_tokens = 5\n${minimal}`).suggestion,
      '"max_tokens" belongs in [sampling] or in [teacher.sampling], or in 8 other tables',
    );
    assert.equal(
      only(`${minimal}[sampling]\nbatch_size = 8\n`).suggestion,
      '"batch_size" belongs at the top, before the first table or in [sft], or in 1 other table',
    );
    assert.equal(
      only(`${minimal}temperatur = 1\n`).suggestion,
      'did you mean "temperature"? It belongs in [sampling] or in [teacher.sampling], or in 3 other tables',
    );
  });

  test("another trainer's word for a key is translated", () => {
    assert.equal(only(`lr = 1e-4\n${minimal}`).suggestion, 'here it is called "learning_rate"');
  });

  test('a key that nothing resembles lists those there are', () => {
    const { expected, suggestion } = only(`${minimal}[sampling]\nzzzzzzzzzz = 1\n`);
    assert.match(expected, /^a key of \[sampling\]: max_tokens, context_tokens, temperature/);
    assert.equal(suggestion, undefined);
  });

  test('a field of Hosted Training that cannot be honoured is not called unknown', () => {
    assert.match(only(`checkpoint_id = "x"\n${minimal}`).suggestion ?? '', /^known, not supported yet: warm start/);
    assert.match(only(`loss = "sft"\n${minimal}`).expected, /^a \[teacher\] beside it/);
    assert.match(only(`max_async_level = 65\n${minimal}`).expected, /64/);
  });

  test('[env] with one bracket is told to have two', () => {
    assert.match(only('model = "x"\n[env]\nid = "a"\n').suggestion ?? '', /write \[\[env\]\] with two brackets/);
  });

  test('an empty file misses its model and an environment', () => {
    assert.deepEqual(
      refuse('').map(({ path, received, line }) => [path, received, line]),
      [
        ['model', 'nothing', null],
        ['env', 'nothing', null],
      ],
    );
  });

  test('a missing field of a table is placed at that table', () => {
    const { line, path } = only('model = "x"\n\n[[env]]\nweight = 1\n');
    assert.deepEqual([line, path], [3, 'env[0].id']);
  });

  test('a syntax error has its line and column', () => {
    const { line, column, expected } = only('model = "x"\nmax_steps = = 3\n');
    assert.deepEqual([line, column, expected], [2, 13, 'valid TOML']);
  });

  test('fields that contradict each other are found at the one that was written', () => {
    assert.deepEqual(
      [only(`rollouts_per_example = 7\n${minimal}`)].map(({ path, line }) => [path, line]),
      [['batch_size', 1]],
    );
    assert.equal(only(`${minimal}[checkpoints]\nkeep_last = 1\nkeep_cloud = 2\n`).line, 6);
    assert.equal(
      only(`${minimal}[eval]\nskip_first_step = true\neval_base_model = true\n`).path,
      'eval.skip_first_step',
    );
    assert.match(
      accept(`max_steps = 4\n${minimal}[trainer]\nwarmup_steps = 5\n`).warnings.join(),
      /warmup_steps \(5\) is more/,
    );
    assert.equal(accept(`max_steps = 5\n${minimal}[trainer]\nwarmup_steps = 5\n`).spec.schedule.warmupSteps, 5);
    assert.equal(only(`${minimal}name = "a"\n[[env]]\nid = "b"\nname = "a"\n`).path, 'env[1].name');
  });

  test('an infinite or not-a-number hyperparameter is refused', () => {
    const { expected, received } = only(`learning_rate = inf\n${minimal}`);
    assert.deepEqual([expected, received], ['a finite number > 0', 'Infinity']);
    assert.equal(only(`learning_rate = nan\n${minimal}`).received, 'NaN');
  });

  test('a date in args is refused at its own place', () => {
    assert.deepEqual(
      [only(`${minimal}args = { since = 2024-01-01 }\n`)].map((p) => [p.path, p.received, p.column]),
      [['env[0].args.since', 'a date', 10]],
    );
  });
});

describe('secrets', () => {
  const canaries = {
    'a key that looks like one': 'sk-canary0123456789abcdef',
    'a Hugging Face token': 'hf_canary0123456789',
    'an AWS key id': 'AKIACANARY0123456789',
    'a password in a URL': 'https://user:canary@example.com/v1',
  };
  for (const [what, secret] of Object.entries(canaries)) {
    test(`${what} is refused wherever it stands, and never repeated`, () => {
      for (const text of [
        `${minimal}args = { header = "${secret}" }\n`,
        `model = "${secret}"\n[[env]]\nid = "a"\n`,
        `${minimal}[inference]\nkind = "${secret}"\n`,
        `"${secret}" = 1\n${minimal}`,
      ]) {
        const said = formatProblems(refuse(text));
        assert.match(said, /rotate it/);
        assert.ok(!said.includes(secret), said);
      }
      const said = formatProblems(refuse(minimal, { overrides: { [`env.args.x`]: secret, 'model.x': secret } }));
      assert.ok(said.includes('rotate it') && !said.includes(secret), said);
    });
  }

  test('any text under a name like api_key is a secret, the name of a variable under api_key_var is not', () => {
    assert.match(only(`${minimal}args = { api_key = "short" }\n`).suggestion ?? '', /environment variable/);
    accept(`${minimal}args = { api_key_var = "OPENAI_API_KEY", max_tokens = 5, tokenizer = "x" }\n`);
  });

  test('the name of a column under question_key is none, anything else there is', () => {
    accept(`${minimal}args = { question_key = "prompt", answer_key = "ground_truth" }\n`);
    only(`${minimal}args = { question_key = "p4Qz81" }\n`);
    only(`${minimal}args = { client_key = "short" }\n`);
  });
});

describe('overrides from the command line', () => {
  test('dotted keys, dashes and underscores, TOML values and plain text', () => {
    const { spec } = accept(minimal, {
      overrides: {
        'sampling.temperature': '0.7',
        '--max-steps': '5',
        model: 'preset:reverse-text-0.2m',
        'env.0.args.max_length': '6',
        'env.weight': '2',
        'eval.num-examples': '-1',
        name: '7',
        'buffer.online_difficulty_filtering': 'true',
      },
    });
    assert.equal(spec.sampling.temperature, 0.7);
    assert.equal(spec.maxSteps, 5);
    assert.equal(spec.model, 'preset:reverse-text-0.2m');
    assert.deepEqual(spec.environments[0], {
      id: 'reverse-text',
      name: 'reverse-text',
      args: { max_length: 6 },
      weight: 2,
      pools: null,
    });
    assert.equal(spec.eval?.environments[0]?.numExamples, -1);
    assert.equal(spec.name, '7');
    assert.equal(spec.filter.onlineDifficultyFiltering, true);
  });

  test('a bad override is said to come from the command line, not from the file', () => {
    const { file, line, path, suggestion } = only(minimal, { overrides: { 'sampling.temprature': '1' } });
    assert.deepEqual(
      [file, line, path, suggestion],
      ['command line', null, 'sampling.temprature', 'did you mean "temperature"?'],
    );
    assert.equal(only(minimal, { overrides: { 'max-steps': 'many' } }).received, '"many"');
    assert.equal(only(minimal, { overrides: { 'batch-size': '100' } }).file, 'command line');
  });

  test('an override repairs what is wrong in the file', () => {
    assert.equal(accept(`max_steps = "x"\n${minimal}`, { overrides: { 'max-steps': '3' } }).spec.maxSteps, 3);
  });

  test('an override through a value or past the end of a list is refused', () => {
    assert.match(only(minimal, { overrides: { 'model.name': 'x' } }).expected, /a table/);
    assert.match(only(minimal, { overrides: { 'env.1.id': 'x' } }).expected, /a list with more than 1 items/);
    const two = `${minimal}[[env]]\nid = "b"\n`;
    assert.match(only(two, { overrides: { 'env.weight': '2' } }).expected, /a position from 0 to 1/);
  });

  test('an override cannot smuggle in other keys', () => {
    const { received } = only(minimal, { overrides: { 'max-steps': '1\nbatch_size = 8' } });
    assert.equal(received, String.raw`"1\nbatch_size = 8"`);
    assert.equal(only(minimal, { overrides: { '__proto__.x': '1' } }).received, 'an unknown key');
    assert.equal(({} as Record<string, unknown>)['x'], undefined);
  });
});

test('no text and no override makes the reader throw', () => {
  const recipe = readFileSync(new URL('../../configs/rl/reverse-text.toml', import.meta.url), 'utf8').split('\n');
  const line = fc.oneof(
    fc.constantFrom(...recipe),
    fc.constantFrom('env = 1', 'sampling = []', '[eval]', '[[eval.env]]', 'x = nan'),
  );
  const key = fc.constantFrom(
    'env',
    'env.0',
    'env.id',
    'sampling',
    'eval.env.0.id',
    'sft.steps',
    '',
    '.',
    'model.0',
    'constructor',
  );
  const text = fc.array(line, { maxLength: 30 }).map((lines) => lines.join('\n'));
  fc.assert(
    fc.property(fc.oneof(text, fc.string()), fc.dictionary(key, fc.string()), (text, overrides) => {
      const parsed = parseRunConfig(text, { file: 'f.toml', overrides });
      if (!parsed.ok) assert.ok(parsed.problems.length > 0 && formatProblems(parsed.problems).length > 0);
    }),
    { numRuns: 2000 },
  );
});
