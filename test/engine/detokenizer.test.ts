import assert from 'node:assert/strict';
import { join } from 'node:path';
import { test } from 'node:test';
import { fileURLToPath } from 'node:url';
import fc from 'fast-check';
import { Detokenizer } from '../../engine/model/tokenizer/detokenizer.ts';
import { loadTokenizer } from '../../engine/model/tokenizer/load-tokenizer.ts';
import { createPreset } from '../../engine/model/presets.ts';
import type { ChatTokenizer } from '../../engine/model/tokenizer/tokenizer.ts';

const tokenizers: Readonly<Record<string, [tokenizer: ChatTokenizer, size: number]>> = {
  'byte-level': [await golden('byte-level'), 429],
  'byte-fallback': [await golden('byte-fallback'), 370],
  'reverse-text': [createPreset('preset:reverse-text-0.2m', { seed: 0 }).tokenizer, 30],
};

for (const [name, [tokenizer, size]] of Object.entries(tokenizers)) {
  for (const skipSpecialTokens of [true, false]) {
    const what = skipSpecialTokens ? 'without special tokens' : 'with special tokens';

    test(`${name}, ${what}: the pieces of any ids add up to the text of all of them`, () => {
      const ids = fc.array(fc.integer({ min: 0, max: size - 1 }), { maxLength: 60 });
      fc.assert(
        fc.property(ids, (tokenIds) => {
          const pieces = piecesOf(tokenizer, tokenIds, skipSpecialTokens);
          assert.equal(pieces.join(''), tokenizer.decode(tokenIds, { skipSpecialTokens }));
        }),
        { numRuns: 1500 },
      );
    });
  }

  test(`${name}: text arrives whole characters at a time`, () => {
    const text = fc.string({ unit: 'grapheme', maxLength: 30 });
    fc.assert(
      fc.property(text, (written) => {
        const tokenIds = tokenizer.encode(written);
        const whole = tokenizer.decode(tokenIds);
        fc.pre(!whole.includes('\u{FFFD}'));
        const pieces = piecesOf(tokenizer, tokenIds, true);
        assert.equal(pieces.join(''), whole);
        for (const piece of pieces) assert.ok(!/[\p{Surrogate}\u{FFFD}]/u.test(piece), JSON.stringify(piece));
        assert.equal(pieces.at(-1), '', 'nothing is held back at the end');
      }),
      { numRuns: 500 },
    );
  });
}

test('runs of torn bytes, and a character in the middle of them', () => {
  const [tokenizer] = tokenizers['byte-fallback']!;
  const byte = (value: number): number => 3 + value;
  const runs = [0x80, 0xc3, 0xe4, 0xf0].map((value) => Array.from({ length: 50 }, () => byte(value)));
  const character = [0xf0, 0x9f, 0x99, 0x82].map(byte);
  for (const run of runs) {
    for (let at = 0; at < 40; at += 3) {
      const tokenIds = [...run.slice(0, at), ...character, ...run];
      assert.equal(piecesOf(tokenizer, tokenIds, true).join(''), tokenizer.decode(tokenIds));
    }
  }
});

test('a token is decoded a bounded number of times, however long the text', () => {
  const [tokenizer] = tokenizers['byte-level']!;
  let decoded = 0;
  const counting = {
    isSpecial: (id: number) => tokenizer.isSpecial(id),
    decode: (ids: readonly number[], options: object) => {
      decoded += ids.length;
      return tokenizer.decode(ids, options);
    },
  } as unknown as ChatTokenizer;
  const tokenIds = tokenizer.encode('The cat sat on the mat. 🙂 '.repeat(100));
  piecesOf(counting, tokenIds, true);
  assert.ok(decoded < 20 * tokenIds.length, `${decoded} for ${tokenIds.length}`);
});

function piecesOf(tokenizer: ChatTokenizer, tokenIds: readonly number[], skipSpecialTokens: boolean): string[] {
  const detokenizer = new Detokenizer(tokenizer, { skipSpecialTokens });
  const pieces = tokenIds.map((id) => detokenizer.push(id));
  return [...pieces, detokenizer.finish()];
}

async function golden(name: string): Promise<ChatTokenizer> {
  return loadTokenizer(join(fileURLToPath(new URL('./golden/tokenizers', import.meta.url)), name));
}
