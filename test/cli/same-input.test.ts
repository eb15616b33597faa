import assert from 'node:assert/strict';
import { test } from 'node:test';
import { differencesOfInputs } from '../../cli/eval/same-input.ts';
import type { EvaluationInput } from '../../core/eval/evaluation.ts';

const input = (environment: string, numExamples: number, temperature = 1): EvaluationInput =>
  ({
    environment: { id: environment, name: environment, args: {} },
    model: { kind: 'endpoint', model: 'm', servers: [], sampling: { temperature } },
    numExamples,
    rolloutsPerExample: 1,
  }) as unknown as EvaluationInput;

test('a running evaluation is attached to if all settings are the same', () => {
  assert.deepEqual(differencesOfInputs(input('a', 8), input('a', 8)), []);
  const two = { inputs: [input('a', 8), input('b', 8)], title: '2 evaluations of one.toml' };
  assert.deepEqual(differencesOfInputs(two, { ...two, title: '2 evaluations of ./one.toml' }), []);
});

test('differences between evaluations with the same name are listed for each', () => {
  assert.deepEqual(differencesOfInputs(input('a', 8), input('a', 16)), ['num_examples was 8, is 16']);
  const before = { inputs: [input('a', 8), input('b', 8)], title: '' };
  assert.deepEqual(differencesOfInputs(before, { inputs: [input('a', 8), input('b', 4)], title: '' }), [
    'b · m: num_examples was 8, is 4',
  ]);
  const [line, ...more] = differencesOfInputs(before, { inputs: [input('a', 8, 0.5), input('b', 8)], title: '' });
  assert.deepEqual(more, []);
  assert.match(line ?? '', /^a · m: sampling_args was .*1.*, is .*0\.5/);
  assert.deepEqual(differencesOfInputs(before, { inputs: [input('c', 8)], title: '' }), [
    'what is evaluated was a · m, b · m, is c · m',
  ]);
});
