import assert from 'node:assert/strict';
import { test } from 'node:test';
import { startClock } from '../../cli/output/clock.ts';
import { foldWords } from '../../cli/output/fold-words.ts';

const step =
  'step 100 of 100  reward 0.982  kept 32 of 109 groups (74 all right, 0 all wrong)  generate 0.28s  train 0.24s  step 0.52s';

test('a line that is wider than the terminal is folded between its parts, and what can be copied stays whole', () => {
  assert.deepEqual(foldWords(step, 113), [
    'step 100 of 100  reward 0.982  kept 32 of 109 groups (74 all right, 0 all wrong)  generate 0.28s  train 0.24s',
    'step 0.52s',
  ]);
  assert.deepEqual(foldWords(step, 40), [
    'step 100 of 100  reward 0.982',
    'kept 32 of 109 groups (74 all right, 0',
    'all wrong)  generate 0.28s  train 0.24s',
    'step 0.52s',
  ]);
  const file = `policy  /home/somebody/${'folder/'.repeat(12)}weights/step_12`;
  assert.deepEqual(foldWords(file, 40), ['policy', file.slice(8)]);
  assert.deepEqual(foldWords('short', 40), ['short']);
  assert.deepEqual(foldWords('', 40), ['']);
});

test('rows below the first stand under it, and a pipe gets the line whole', () => {
  const [narrow, piped]: [string[], string[]] = [[], []];
  startClock(
    (text) => void narrow.push(text),
    () => 80,
  ).say(step);
  assert.match(narrow.join(''), /^ 0:00 {2}step 100 .*\n {7}\S/);
  for (const row of narrow.join('').trimEnd().split('\n')) assert.ok(row.length <= 80, row);
  startClock(
    (text) => void piped.push(text),
    () => Infinity,
  ).say(step);
  assert.equal(piped.join(''), ` 0:00  ${step}\n`);
});
