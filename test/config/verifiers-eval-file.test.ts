/** Files of evaluations as verifiers 0.4 and prime-rl's `eval` have them, and what is none of a run. Files of our own after the shape of public ones. */
import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { kindOf, parseConfigFile } from '../../config/parse-config-file.ts';

const env = 'env.taskset.id = "gsm8k"\nenv.agent.harness.id = "null"\nenv.agent.runtime.type = "subprocess"\n';

/** Each file: its text, and the environment, examples, rollouts and rollouts at once of its evaluations. */
const files: Readonly<
  Record<string, readonly [text: string, means: readonly (readonly [string, number | null, number, number])[]]>
> = {
  'a taskset alone: all tasks, once': [env, [['gsm8k', -1, 1, 32]]],
  'a limit of tasks': [`model = "m"\nselect.limit = 20\n${env}`, [['gsm8k', 20, 1, 32]]],
  'its short names': [`m = "m"\nr = 3\nc = 8\nselect.n = 5\n${env}`, [['gsm8k', 5, 3, 8]]],
  num_rollouts: [`num_rollouts = 4\nmax_concurrent = 64\n${env}`, [['gsm8k', -1, 4, 64]]],
  group_size: [`group_size = 2\n${env}`, [['gsm8k', -1, 2, 32]]],
  'a client and its sampling': [
    `model = "Qwen/Qwen3-0.6B"\n${env}[client]\nbase_url = "http://localhost:8000/v1"\n[sampling]\nmax_completion_tokens = 512\ntemperature = 0.5\n`,
    [['gsm8k', -1, 1, 32]],
  ],
  'a draw of tasks': [
    `[select]\nshuffle = true\nseed = 3\nlimit = 7\n[env]\ntaskset = { id = "gsm8k", split = "test" }\n`,
    [['gsm8k', 7, 1, 32]],
  ],
  'its screen and its platform': [
    `push = false\nverbose = true\nrich = {}\n${env}[run]\nname = "r"\n`,
    [['gsm8k', -1, 1, 32]],
  ],
  'a source of prime-rl’s eval': [
    `model = "Qwen/Qwen3-1.7B"\nselect.limit = 20\ngroup_size = 3\n[client]\nbase_url = "http://localhost:8000/v1"\n[sampling]\nmax_completion_tokens = 1024\n[[source]]\nname = "words"\n${env}`,
    [['gsm8k', 20, 3, 32]],
  ],
  'several sources, each with its own': [
    `model = "m"\ngroup_size = 8\n[concurrency]\nmin_inflight = 8\nmax_inflight = 16\n[[source]]\nname = "a"\n${env}[[source]]\nname = "b"\nenv.taskset.id = "aime25"\nenv.agent.harness.id = "null"\ngroup_size = 2\nselect.limit = 3\n`,
    [
      ['gsm8k', -1, 8, 16],
      ['aime25', 3, 2, 16],
    ],
  ],
};

describe('evaluations of verifiers 0.4 and of prime-rl are read as evaluations', () => {
  for (const [what, [text, means]] of Object.entries(files)) {
    test(what, () => {
      const parsed = parseConfigFile(text, { file: 'eval.toml' });
      assert.ok(parsed.ok, JSON.stringify(parsed));
      assert.equal(parsed.kind, 'eval');
      const found = parsed.spec.evaluations.map(({ environment, numExamples, rolloutsPerExample, maxConcurrent }) => [
        environment.id,
        numExamples,
        rolloutsPerExample,
        maxConcurrent,
      ]);
      assert.deepEqual(found, means);
    });
  }

  test('what they say of the model, its sampling and the agent is kept', () => {
    const parsed = parseConfigFile(files['a client and its sampling']![0], { file: 'eval.toml' });
    assert.ok(parsed.ok && parsed.kind === 'eval');
    const { environment, sampling } = parsed.spec.evaluations[0]!;
    assert.deepEqual(sampling, { max_tokens: 512, temperature: 0.5 });
    assert.deepEqual(environment.harness, { id: 'null', runtime: { type: 'subprocess' } });
    assert.deepEqual(environment.taskset, { id: 'gsm8k' });
    assert.match(JSON.stringify(parsed.spec.evaluations[0]!.model), /http:\/\/localhost:8000\/v1/);
  });

  test('what has no effect is said, what has no word here is refused', () => {
    const parsed = parseConfigFile(files['its screen and its platform']![0], { file: 'eval.toml' });
    assert.ok(parsed.ok && parsed.kind === 'eval');
    assert.match(
      parsed.warnings.join('\n'),
      /push has no effect here[^]*rich has no effect here|rich has no effect here[^]*push has no effect here/,
    );
    const skipped = parseConfigFile(`${env}[select]\nskip = 5\n`, { file: 'eval.toml' });
    assert.ok(!skipped.ok && skipped.problems.some(({ path }) => path.includes('select')));
  });

  test('a run stays a run, whatever it evaluates', () => {
    for (const text of [
      'max_steps = 5\n[orchestrator]\ngroup_size = 4\n[orchestrator.eval.env.retries]\nmax_retries = 1\n[[orchestrator.train.source]]\nenv.taskset.id = "x"\n',
      'model = "m"\nmax_steps = 1\n[[env]]\nid = "x"\n[eval]\ninterval = 5\n',
      'model = "m"\nmax_steps = 1\n[env]\nid = "x"\n[env.taskset]\nid = "y"\n',
    ])
      assert.equal(kindOf(text, 'a.toml').kind, 'run', text);
  });
});

test('[eval] beside [model] is no part of prime-rl’s orchestrator: it is said how an evaluation is written', () => {
  const text =
    '[eval]\nenvironment = "someone/net-logs"\nnum_examples = 200\n[model]\nid = "Qwen/Qwen3-4B-Instruct-2507"\n[output]\nformat = "jsonl"\n';
  const parsed = parseConfigFile(text, { file: 'eval.toml' });
  assert.ok(!parsed.ok);
  assert.deepEqual([parsed.kind, parsed.why], ['eval', '[eval] environment']);
  const said = parsed.problems
    .map(({ path, expected, suggestion }) => `${path}: ${expected} ${suggestion ?? ''}`)
    .join('\n');
  assert.doesNotMatch(said, /orchestrator/);
  assert.match(said, /eval: a list of tables: \[\[eval\]\]/);
  assert.match(said, /model: a text/);
});
