import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import fc from 'fast-check';
import { environmentName } from '../../core/names.ts';
import { permutation, randomStream, uniform } from '../../core/random.ts';
import { editDistance, nearestName } from '../../core/suggest.ts';

describe('did you mean', () => {
  const names = ['temperature', 'max_tokens', 'learning_rate', 'seed'];

  test('a slip of the fingers finds what was meant, dashes and capitals included', () => {
    assert.equal(nearestName('temprature', names), 'temperature');
    assert.equal(nearestName('Max-Tokens', names), 'max_tokens');
    assert.equal(nearestName('laerning_rate', names), 'learning_rate');
    assert.equal(nearestName('sede', names), 'seed');
  });

  test('a word that resembles nothing gets no suggestion', () => {
    assert.equal(nearestName('optimizer', names), undefined);
    assert.equal(nearestName('xy', names), undefined);
    assert.equal(nearestName('anything', []), undefined);
  });

  test('the distance is 0 for equal words only, symmetric, and at most the longer length', () => {
    const word = fc.string({ maxLength: 8 });
    fc.assert(
      fc.property(word, word, (a, b) => {
        const distance = editDistance(a, b);
        assert.equal(distance === 0, a === b);
        assert.equal(distance, editDistance(b, a));
        assert.ok(distance <= Math.max(a.length, b.length));
      }),
    );
  });
});

describe('random numbers by key', () => {
  const key = fc.array(fc.oneof(fc.string(), fc.integer()), { minLength: 1, maxLength: 4 });

  test('the same key gives the same number in [0, 1), and a permutation holds every position once', () => {
    fc.assert(
      fc.property(key, fc.nat(60), (words, count) => {
        const number = uniform(...words);
        assert.ok(number >= 0 && number < 1 && number === uniform(...words));
        assert.equal(randomStream(...words)(), randomStream(...words)());
        const sorted = permutation(count, ...words).toSorted((a, b) => a - b);
        assert.deepEqual(sorted, [...Array.from({ length: count }).keys()]);
      }),
    );
  });

  test('neighbouring keys give unrelated numbers: 10,000 of them average a half', () => {
    const mean = Array.from({ length: 10_000 }, (_, i) => uniform(7, 'rollout', i)).reduce((a, b) => a + b, 0) / 10_000;
    assert.ok(Math.abs(mean - 0.5) < 0.01, String(mean));
  });
});

test('an environment id stands for the folder of its name, without owner and version', () => {
  assert.equal(environmentName('primeintellect/reverse_text@0.1.4'), 'reverse-text');
  assert.equal(environmentName('reverse-text'), 'reverse-text');
  assert.equal(environmentName('../reverse-text'), '../reverse-text');
});
