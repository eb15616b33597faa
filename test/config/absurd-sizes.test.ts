/** Numbers that would only show by a machine's memory. */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { batchRolloutsMax } from '../../core/limits.ts';
import { parseEvalFile } from '../../config/evaluations/parse-eval-file.ts';
import { parseRunConfig } from '../../config/parse-run-config.ts';
import { boundRelations } from '../../config/settings/relations/bounds.ts';
import { RatchetConfig } from '../../config/settings/index.ts';

const run = (more: string) => `model = "preset:reverse-text-0.2m"\n${more}\n[[env]]\nid = "reverse-text"\n`;

function problemsOf(text: string) {
  const parsed = parseRunConfig(text, { file: 'run.toml' });
  return parsed.ok ? [] : parsed.problems;
}

test('a batch of a billion rollouts is refused in its line, with the limit and what to do', () => {
  const [problem, ...others] = problemsOf(run('batch_size = 1000000000'));
  assert.deepEqual(others, []);
  const { line, path, received, expected, suggestion } = problem!;
  assert.deepEqual({ line, path, received }, { line: 2, path: 'batch_size', received: '1000000000' });
  assert.match(expected, /^at most 262144: all rollouts of a step/);
  assert.match(suggestion!, /a smaller batch and more steps/);
  assert.deepEqual(problemsOf(run(`batch_size = ${batchRolloutsMax}`)), []);
});

test('so is every other number that says how much there is of something', () => {
  const most = {
    batch_size: 1e12,
    rollouts_per_example: 1e12,
    oversampling_factor: 1e12,
    max_steps: 1e12,
    max_off_policy_steps: 1e12,
    max_concurrent: 1e12,
    seq_len: 1e12,
    max_prompt_len: 1e12,
    sampling: { max_tokens: 1e12 },
    lora: { r: 1e12 },
    sft: { steps: 1e12, batch_size: 1e12 },
    eval: { rollouts_per_example: 1e12, env: [{ id: 'wordle', max_turns: 1e12, rollouts_per_example: 1e12 }] },
    trainer: { num_iterations: 1e12, micro_batch_size: 1e12, threads: 1e12 },
    inference: { max_concurrent: 1e12 },
    env: [{ id: 'wordle' }, { id: 'wordle', name: 'second', max_turns: 1e12, sampling: { max_tokens: 1e12 } }],
  };
  const config = RatchetConfig.parse({ model: 'preset:reverse-text-0.2m', ...most });
  const found = [...boundRelations(config)].map(({ paths }) => paths[0]!.join('.'));
  const numbers = (value: unknown, at: string): string[] =>
    typeof value === 'object' && value !== null
      ? Object.entries(value).flatMap(([name, each]) => numbers(each, at === '' ? name : `${at}.${name}`))
      : typeof value === 'number'
        ? [at]
        : [];
  assert.deepEqual(found.toSorted(), numbers(most, '').toSorted());
});

test('and in a file of evaluations', () => {
  const parsed = parseEvalFile(
    '[[eval]]\nid = "wordle"\nrollouts_per_example = 1000000000\nmax_tokens = 1000000000\n',
    {
      file: 'f',
    },
  );
  assert.ok(!parsed.ok);
  assert.deepEqual(
    parsed.problems.map(({ line, expected }) => [line, expected]),
    [
      [3, 'an integer from 1 to 16384'],
      [4, 'an integer from 1 to 16777216'],
    ],
  );
});
