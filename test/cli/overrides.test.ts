import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import fc from 'fast-check';
import { readOverrides } from '../../cli/typed/overrides.ts';
import { RatchetError } from '../../core/errors.ts';

describe('settings on the command line', () => {
  const cases: readonly (readonly [line: string, expected: Record<string, string>])[] = [
    ['', {}],
    ['--max-steps 5', { 'max-steps': '5' }],
    ['--max-steps=5', { 'max-steps': '5' }],
    ['--sampling.temperature 0.7 --seed=1', { 'sampling.temperature': '0.7', seed: '1' }],
    ['--eval.skip_first_step', { 'eval.skip_first_step': 'true' }],
    ['--eval.skip_first_step --seed 1', { 'eval.skip_first_step': 'true', seed: '1' }],
    ['--eval.num_examples -1', { 'eval.num_examples': '-1' }],
    ['--name=', { name: '' }],
    ['--seed 1 --seed 2', { seed: '2' }],
    ['--env.0.args={min_length=3}', { 'env.0.args': '{min_length=3}' }],
  ];
  for (const [line, expected] of cases) {
    test(line === '' ? 'none are none' : line, () => {
      assert.deepEqual(readOverrides(line === '' ? [] : line.split(' ')), expected);
    });
  }

  test('a key called __proto__ is kept, so that it is refused like any unknown key', () => {
    assert.deepEqual(Object.entries(readOverrides(['--__proto__', '1'])), [['__proto__', '1']]);
  });

  test('a value may hold anything after the first equals sign, lines included', () =>
    fc.assert(
      fc.property(fc.string(), (value) => {
        assert.deepEqual(readOverrides([`--a.b=${value}`]), { 'a.b': value });
      }),
    ));

  for (const stray of [['5'], ['--seed', '1', '2'], ['-s', '1'], ['--'], ['--=5']]) {
    test(`${stray.join(' ')} is refused, quoting what is not understood`, () => {
      assert.throws(
        () => readOverrides(stray),
        (error) =>
          error instanceof RatchetError &&
          error.code === 'ConfigInvalid' &&
          error.message.includes(JSON.stringify(stray.length === 3 ? '2' : stray[0])),
      );
    });
  }
});
