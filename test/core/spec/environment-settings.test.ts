import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { formatProblems, parseRunConfig, type Problem } from '../../../core/spec/parse-run-config.ts';

const minimal = 'model = "preset:reverse-text-0.2m"\n[[env]]\nid = "reverse-text"\n';

function accept(text: string, dialect?: string) {
  const parsed = parseRunConfig(text, { file: 'run.toml', ...(dialect === undefined ? {} : { dialect }) });
  assert.ok(parsed.ok, parsed.ok ? '' : formatProblems(parsed.problems));
  return parsed;
}

/** The one problem a file has. */
function only(text: string, dialect?: string): Problem {
  const parsed = parseRunConfig(text, { file: 'run.toml', ...(dialect === undefined ? {} : { dialect }) });
  assert.ok(!parsed.ok, 'was accepted');
  assert.equal(parsed.problems.length, 1, formatProblems(parsed.problems));
  return parsed.problems[0]!;
}

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
