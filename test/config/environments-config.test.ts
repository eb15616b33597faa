import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { describe, test } from 'node:test';
import { fileURLToPath } from 'node:url';
import { accept, refuse } from './read-run.ts';

const head = 'model = "preset:reverse-text-0.2m"\n';
const one = `${head}[[env]]\nid = "reverse-text"\n`;

const specOf = (text: string) => accept(text).spec;
const problemsOf = (text: string) =>
  refuse(text).map(({ line, path, expected, suggestion }) => [line, path, suggestion ?? expected]);

describe('several environments in a config', () => {
  test('the config that comes with Ratchet has two, each with its weight, evaluations and pools of its own', () => {
    const file = fileURLToPath(new URL('../../configs/rl/two-environments.toml', import.meta.url));
    const { environments, eval: evaluation } = specOf(readFileSync(file, 'utf8'));
    assert.deepEqual(
      environments.map(({ name, weight, pools }) => [name, weight, pools?.easyThreshold, pools?.easyFraction]),
      [
        ['short', 0.6, 0.97, 0.2],
        ['long', 0.4, 0.9, 0.2],
      ],
    );
    assert.deepEqual(
      evaluation?.environments.map(({ name }) => name),
      ['short', 'long'],
    );
  });

  test('without thresholds there are no pools; with one, the examples of its pool are put aside unless a fraction says otherwise', () => {
    assert.equal(specOf(one).environments[0]!.pools, null);
    assert.deepEqual(specOf(`${one}[buffer]\neasy_threshold = 0.9\n`).environments[0]!.pools, {
      easyThreshold: 0.9,
      hardThreshold: null,
      easyFraction: 0,
      hardFraction: 0,
    });
  });

  test('thresholds that cross, fractions out of range or of no pool, and misspelt keys are refused with their line', () => {
    assert.deepEqual(
      problemsOf(`${one}[buffer]\neasy_threshold = 0.2\nhard_threshold = 0.2\n`).map(([line, path]) => [line, path]),
      [[5, 'buffer.easy_threshold']],
    );
    assert.deepEqual(problemsOf(`${one}[buffer]\nhard_fraction = 0.5\n`), [
      [5, 'buffer.hard_fraction', 'a hard_threshold beside it: without one no example is ever hard'],
    ]);
    assert.deepEqual(
      problemsOf(`${one}[buffer]\neasy_threshold = 1\neasy_fraction = 0.001\n`).map(([line, path]) => [line, path]),
      [[6, 'buffer.easy_fraction']],
    );
    assert.deepEqual(problemsOf(`${one}[buffer]\neasy_treshold = 1\n`), [
      [5, 'buffer.easy_treshold', 'did you mean "easy_threshold"?'],
    ]);
    assert.deepEqual(
      problemsOf(`${one}buffer = { easy_threshold = 0.1 }\n[buffer]\nhard_threshold = 0.5\n`).map(([line, path]) => [
        line,
        path,
      ]),
      [[4, 'env[0].buffer.easy_threshold']],
    );
  });

  test('a fraction for all may stand beside a threshold that only one environment has', () => {
    const text = `${one}buffer = { hard_threshold = 0.1 }\n[[env]]\nid = "reverse-text"\n[buffer]\nhard_fraction = 0.5\n`;
    const [first, second] = specOf(text).environments;
    assert.deepEqual([first!.pools?.hardFraction, second!.pools, second!.name], [0.5, null, 'reverse-text-2']);
  });
});
