import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import fc from 'fast-check';
import {
  boxed,
  lastNumber,
  numberAfterHashes,
  numbersIn,
  withoutThinking,
  xmlParser,
} from '../../backends/environments/kit.ts';

describe('parsers of what a model said', () => {
  test('reasoning is left out, also when it was never closed or never opened', () => {
    assert.equal(withoutThinking('<think>2 + 2\n= 4</think>\n4'), '4');
    assert.equal(withoutThinking('it is 4</think>4'), '4');
    assert.equal(withoutThinking('4 <think>or 5'), '4');
    assert.equal(withoutThinking('<think>4'), '');
    assert.equal(withoutThinking('4'), '4');
  });

  test('of each tag the last one counts, and a tag inside the reasoning does not', () => {
    const parser = xmlParser(['plan', 'guess']);
    assert.deepEqual(
      parser.parse('<think><guess>a</guess></think><plan>p</plan> <guess> b\n</guess><guess>c</guess>'),
      {
        plan: 'p',
        guess: 'c',
      },
    );
    assert.deepEqual(parser.parse('<guess>open'), { plan: undefined, guess: undefined });
  });

  test('the format is worth 1 when every tag is there once and nothing else, less for each fault', () => {
    const parser = xmlParser(['plan', 'guess']);
    assert.equal(parser.formatReward(parser.format({ plan: 'p', guess: 'g' })), 1);
    assert.equal(parser.formatReward('<think>hm</think><plan>p</plan><guess>g</guess>'), 1);
    const worths = ['well, <plan>p</plan><guess>g</guess>', '<plan>p</plan>', 'p g'].map((text) =>
      parser.formatReward(text),
    );
    assert.deepEqual(worths, [2 / 3, 1 / 3, 0]);
    assert.ok(parser.formatReward('<guess>g</guess><plan>p</plan>') < 1, 'the order counts');
    assert.throws(() => xmlParser(['a|b']), /cannot be the name of a tag/);
  });

  test('what is written into tags is read out of them', () => {
    const value = fc.string().filter((text) => !/[<>]/.test(text));
    fc.assert(
      fc.property(value, value, (a, b) => {
        const parser = xmlParser(['a', 'b']);
        assert.deepEqual(parser.parse(parser.format({ a, b })), { a: a.trim(), b: b.trim() });
      }),
    );
  });

  test('a boxed answer is the last one that is closed, with its own braces', () => {
    assert.equal(boxed(String.raw`so \boxed{1} or \boxed{\frac{1}{2}}.`), String.raw`\frac{1}{2}`);
    assert.equal(boxed(String.raw`\boxed{7} and \boxed{8`), '7');
    assert.equal(boxed('7'), undefined);
  });

  test('numbers are read as people write them', () => {
    assert.deepEqual(numbersIn('$1,234.50 for -3 of 12, or 10-4 = 6.'), [1234.5, -3, 12, 10, 4, 6]);
    assert.equal(lastNumber('<think>5</think>It is 4.'), 4);
    assert.equal(lastNumber('none'), undefined);
    assert.equal(numberAfterHashes('12+30=42\n#### 42'), 42);
    assert.equal(numberAfterHashes('#### 1\nno: #### $1,000 in all'), 1000);
    assert.equal(numberAfterHashes('42'), undefined);
    assert.equal(numberAfterHashes('####\n5'), undefined);
  });

  test('no text makes a parser throw', () => {
    fc.assert(
      fc.property(fc.string(), (text) => {
        for (const parse of [withoutThinking, boxed, numbersIn, numberAfterHashes]) parse(text);
        xmlParser(['a']).parse(text);
        xmlParser(['a']).formatReward(text);
      }),
    );
  });
});
