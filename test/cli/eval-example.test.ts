/** The example of an evaluation says who said what. */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { exampleLines } from '../../cli/eval/show.ts';
import { readRow } from '../../core/eval/result-rows.ts';

test('a tool’s answer is marked apart from the model’s', () => {
  const row = readRow({
    example_id: 7,
    prompt: [{ role: 'user', content: 'How many are left?' }],
    completion: [
      {
        role: 'assistant',
        content: null,
        tool_calls: [{ id: 'a', type: 'function', function: { name: 'stock', arguments: '{"item":"tea"}' } }],
      },
      { role: 'tool', tool_call_id: 'a', content: '42 boxes' },
      { role: 'user', content: 'And now?' },
      { role: 'assistant', content: '42' },
    ],
    answer: '42',
    reward: 1,
  });
  const lines = exampleLines(row).map((line) => line.trim());
  assert.deepEqual(lines.slice(1), [
    '> How many are left?',
    '< stock({"item":"tea"})',
    '~ tool: 42 boxes',
    '> And now?',
    '< 42',
    '= 42',
  ]);
});
