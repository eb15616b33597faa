import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { parseRunConfig } from '../../config/parse-run-config.ts';
import { accept, only } from './read-run.ts';

const minimal = 'model = "preset:reverse-text-0.2m"\n[[env]]\nid = "reverse-text"\n';

describe('variables for judges and tools', () => {
  test('an environment sees those that its table names, and an evaluation of it sees them too', () => {
    const { spec } = accept(`${minimal}env_vars = ["OPENAI_API_KEY", "TAVILY_API_KEY"]\n[eval]\ninterval = 5\n`);
    const variables = { names: ['OPENAI_API_KEY', 'TAVILY_API_KEY'], files: [] };
    assert.deepEqual([spec.environments[0]?.variables, spec.eval?.environments[0]?.variables], [variables, variables]);
  });

  test('nothing is written where nothing is named', () => {
    assert.equal('variables' in accept(minimal).spec.environments[0]!, false);
  });

  test('Ratchet’s own credentials, and what is no name, are refused', () => {
    for (const name of ['AWS_SECRET_ACCESS_KEY', 'TEMPORAL_API_KEY', 'WANDB_API_KEY', 'A=b', 'two words']) {
      const { expected, path } = only(`${minimal}env_vars = ["${name}"]\n`);
      assert.match(expected, /names of environment variables such as \["OPENAI_API_KEY"\]/, name);
      assert.match(path, /env\[0\]\.env_vars/);
    }
  });

  test('a key in the place of its name is refused, and not repeated', () => {
    const key = `sk-${'a1b2c3d4'.repeat(4)}`;
    const parsed = parseRunConfig(`${minimal}env_vars = ["${key}"]\n`, { file: 'run.toml' });
    assert(!parsed.ok);
    assert.equal(JSON.stringify(parsed.problems).includes(key), false);
  });

  test('files of secrets are those of every environment, in both spellings of Hosted Training', () => {
    const hosted = 'model = "m"\nenv_file = ["a.env"]\nenv_files = ["b.env"]\n[[env]]\nid = "owner/gsm8k"\n';
    assert.deepEqual(accept(hosted, 'hosted').spec.environments[0]?.variables, {
      names: [],
      files: ['a.env', 'b.env'],
    });
    assert.deepEqual(accept(`env_files = ["c.env"]\n${minimal}`, 'ratchet').spec.environments[0]?.variables, {
      names: [],
      files: ['c.env'],
    });
    assert.match(only(`env_file = ["c.env"]\n${minimal}`, 'ratchet').suggestion ?? '', /env_files/);
  });
});

const none = {
  maxTurns: null,
  maxInputTokens: null,
  maxOutputTokens: null,
  maxTotalTokens: null,
  timeoutS: null,
  onTimeout: null,
  maxRetries: null,
};

describe('limits of an environment’s rollouts', () => {
  test('are those of its table, in training and in evaluations without a table of their own', () => {
    const { spec } = accept(`${minimal}max_turns = 4\ntimeout = 90\nmax_retries = 0\n[eval]\ninterval = 5\n`);
    const limits = { ...none, maxTurns: 4, timeoutS: 90, maxRetries: 0 };
    assert.equal(spec.onTimeout, 'drop');
    const own = accept(`${minimal}on_timeout = "truncate"\n`).spec;
    assert.deepEqual([own.onTimeout, own.environments[0]?.limits], ['drop', { ...none, onTimeout: 'truncate' }]);
    assert.deepEqual([spec.environments[0]?.limits, spec.eval?.environments[0]?.limits], [limits, limits]);
    assert.equal('limits' in accept(minimal).spec.environments[0]!, false);
  });

  test('mean the same in Hosted Training, where timeouts and retries are tables', () => {
    const { spec } = accept(
      'model = "m"\n[[env]]\nid = "owner/a"\nmax_turns = 3\nmax_total_tokens = 4096\ntimeout = { rollout = 60, scoring = 5 }\nretries = { max_retries = 1 }\nharness = { id = "null" }\npool = { num_workers = 4 }\n',
      'hosted',
    );
    const [environment] = spec.environments;
    assert.deepEqual(environment?.limits, {
      ...none,
      maxTurns: 3,
      maxTotalTokens: 4096,
      timeoutS: 60,
      onTimeout: 'truncate',
      maxRetries: 1,
    });
    assert.deepEqual(environment?.agent, { timeout: { scoring: 5 }, harness: { id: 'null' } });
    const whole = 'model = "m"\n[[env]]\nid = "owner/a"\ntimeout = { episode = 60 }\n';
    assert.deepEqual(accept(whole, 'hosted').spec.environments[0]?.limits, { ...none, timeoutS: 60 });
    const rules = 'model = "m"\n[[env]]\nid = "owner/a"\nretries = { rules = [{ max_retries = 2 }] }\n';
    assert.match(only(rules, 'hosted').expected, /max_retries alone/);
  });

  test('mean the same in prime-rl, where an agent has them', () => {
    const text = `max_steps = 5
[model]
name = "m"
[trainer]
[inference]
[orchestrator]
batch_size = 32
group_size = 8
[[orchestrator.train.source]]
env = { taskset = { id = "owner/a", level = 2 }, agent = { max_turns = 6, harness = { id = "null" }, timeout = { rollout = 30 } }, retries = { max_retries = 2 } }
`;
    const [environment] = accept(text, 'prime-rl').spec.environments;
    assert.deepEqual(environment?.limits, { ...none, maxTurns: 6, timeoutS: 30, maxRetries: 2 });
    assert.deepEqual([environment?.args, environment?.agent], [{ level: 2 }, { harness: { id: 'null' } }]);
  });

  test('what prime-rl says of an environment’s own is verifiers’; of its agents one is the policy', () => {
    const withEnv = (env: string): string => `max_steps = 5
[orchestrator]
group_size = 8
[[orchestrator.train.source]]
env = { taskset = { id = "owner/a" }, ${env} }
`;
    const client = 'client = { base_url = "http://a:1/v1" }';
    const [seated] = accept(
      withEnv(`rounds = 3, player0 = { harness = { id = "null" } }, player1 = { model = "b", ${client} }`),
      'prime-rl',
    ).spec.environments;
    assert.deepEqual(seated?.episode, {
      rounds: 3,
      player0: { harness: { id: 'null' } },
      player1: { model: 'b', client: { base_url: 'http://a:1/v1' } },
    });
    const two = only(withEnv('player0 = { runtime = {} }, player1 = { runtime = {} }'), 'prime-rl');
    assert.equal(two.path, 'orchestrator.train.source[0].env.player1');
    assert.match(two.expected, /a model and a client = .* without algo = \{ type = "rae" \} .* is the policy, player0/);
    const byRole = withEnv('player0 = { runtime = {} }, player1 = { runtime = {} }').replace(
      'group_size = 8',
      'algo = { type = "rae" }',
    );
    const { spec } = accept(byRole, 'prime-rl');
    assert.deepEqual([spec.advantage, spec.rolloutsPerExample], [{ type: 'rae', decay: 0.95 }, 1]);
    assert.deepEqual(Object.keys(spec.environments[0]!.episode ?? {}), ['player0', 'player1']);
    assert.match(only(withEnv('player = { model = "b" }'), 'prime-rl').expected, /^a client beside it/);
  });

  test('may have groups of another size, and then a batch is whole groups up to so many rollouts', () => {
    assert.match(only(`${minimal}group_size = 4\n`, 'ratchet').suggestion ?? '', /rollouts_per_example/);
    const two = (size: number) =>
      `model = "m"\nrollouts_per_example = 8\nbatch_size = 32\n[[env]]\nid = "owner/a"\ngroup_size = ${size}\n[[env]]\nid = "owner/b"\n`;
    assert.equal(accept(two(8), 'hosted').spec.rolloutsPerExample, 8);
    const { spec, warnings } = accept(two(3), 'hosted');
    assert.deepEqual(
      [spec.rolloutsPerExample, ...spec.environments.map((one) => one.rolloutsPerExample)],
      [8, 3, undefined],
    );
    assert.match(warnings.join(), /env\[0\].group_size: groups differ in their size/);
    const own = `${minimal}rollouts_per_example = 1\n`;
    assert.match(only(own, 'ratchet').expected, /an integer ≥ 2: what a rollout gets is its reward compared/);
  });
});

describe('the sampling of one environment', () => {
  test('is over the run’s, key by key', () => {
    const { spec } = accept(
      `${minimal}sampling = { max_tokens = 24, top_p = 0.9 }\n[sampling]\nmax_tokens = 12\nstop = ["END"]\n`,
    );
    const { maxTokens, topP, stop } = spec.environments[0]!.sampling!;
    assert.deepEqual([maxTokens, topP, stop, spec.sampling.maxTokens], [24, 0.9, ['END'], 12]);
  });

  test('may have its own temperature, where the trainer can train rows of several', () => {
    const own = `${minimal}sampling = { temperature = 0.7 }\n`;
    const { sampling, environments } = accept(own).spec;
    assert.deepEqual([sampling.temperature, environments[0]!.sampling!.temperature], [1, 0.7]);
    const { path, expected } = only(`${own}[trainer]\nkind = "module"\npath = "mine.ts"\n`);
    assert.match(path, /env\[0\]\.sampling\.temperature/);
    assert.match(expected, /1, as \[sampling\] says: a trainer of your own is told one temperature/);
  });
});

describe('a temperature that has a course', () => {
  const course = '[sampling.temp_scheduler]\nstart_temperature = 1.2\nend_temperature = 0.6\n';

  test('is linear over all steps unless the file says otherwise', () => {
    assert.deepEqual(accept(minimal + course).spec.temperatureSchedule, {
      type: 'linear',
      startTemperature: 1.2,
      endTemperature: 0.6,
      totalSteps: null,
    });
    const { type, totalSteps } = accept(`${minimal}${course}type = "cosine"\ntotal_steps = 9\n`).spec
      .temperatureSchedule!;
    assert.deepEqual([type, totalSteps], ['cosine', 9]);
  });

  for (const [what, text, path, says] of [
    [
      'a number beside it',
      `[sampling]\ntemperature = 0.7\n${course}`,
      'sampling.temperature',
      /one number or has a course/,
    ],
    [
      'an environment’s own',
      `sampling = { temperature = 0.7 }\n${course}`,
      'env[0].sampling.temperature',
      /of every environment/,
    ],
    [
      'a trainer of one’s own',
      `${course}[trainer]\nkind = "module"\npath = "mine.ts"\n`,
      'sampling.temp_scheduler',
      /is told one/,
    ],
    [
      'a teacher',
      `${course}[teacher]\nmodel = "/m"\n[trainer.loss]\nteacher_tau = 1\n`,
      'sampling.temp_scheduler',
      /teacher’s/,
    ],
  ] as const) {
    test(`is refused with ${what}`, () => {
      const problem = only(minimal + text);
      assert.equal(problem.path, path);
      assert.match(problem.expected, says);
    });
  }
});

test('how many rollouts are played at once, and how many examples begun in a minute, are the run’s', () => {
  const { spec } = accept(`max_concurrent = 64\ntasks_per_minute = 30\n${minimal}`);
  assert.deepEqual([spec.maxConcurrent, spec.tasksPerMinute], [64, 30]);
  assert.match(only(`${minimal}max_concurrent = 8\n`, 'ratchet').suggestion ?? '', /max_concurrent at the top/);
});
