/** Rows of results.jsonl as verifiers, Ratchet and others write them. */
import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { factsOf, isRow, messagesOf, promptIdentity, readRow } from '../../../core/eval/result-rows.ts';

describe('a row of results', () => {
  test('of a rollout that failed has no reward, whatever stands there, and says why', () => {
    const row = {
      example_id: 3,
      reward: 0,
      error: { error: 'ModelError', message: 'ModelError', error_chain_repr: "ModelError() -> BadRequestError('400')" },
    };
    const { reward, givenReward, error } = factsOf(row);
    assert.deepEqual([reward, givenReward], [null, 0]);
    assert.deepEqual(error, { cause: 'ModelError', message: "ModelError() -> BadRequestError('400')" });
    assert.deepEqual(factsOf({ ...row, error: 'Timeout(after 3 s)' }).error, {
      cause: 'Timeout',
      message: 'Timeout(after 3 s)',
    });
  });

  test('that lacks columns, or has them of another type, reads as far as it goes', () => {
    const { exampleId, reward, metrics, inputTokens, promptStart } = factsOf({
      example_id: 'a',
      reward: 'high',
      metrics: { exact: 1, note: 'x' },
      token_usage: null,
      prompt: null,
    });
    assert.deepEqual([exampleId, reward, metrics, inputTokens, promptStart], ['a', null, { exact: 1 }, null, '']);
    assert.deepEqual(readRow({ example_id: 1, completion: 'text' }).completion[0]?.text, 'text');
    assert.equal(isRow({ a: 1 }), false);
    assert.equal(isRow([1]), false);
  });

  test('shows calls of tools in all their forms, and reasoning apart from what was said', () => {
    const call = { id: 'c', name: 'add', arguments: '{"a":1}' };
    const messages = messagesOf([
      { role: 'assistant', content: null, reasoning_content: 'hm', tool_calls: [JSON.stringify(call), call] },
      {
        role: 'assistant',
        content: '<think>so\nfar</think>\n\n5',
        tool_calls: [{ type: 'function', function: call }, 'torn {'],
      },
      {
        role: 'user',
        content: [
          { type: 'text', text: 'see ' },
          { type: 'image_url', image_url: {} },
        ],
      },
      { role: 'user', content: 'what does </think> mean?' },
    ]);
    const add = { name: 'add', arguments: '{"a":1}' };
    assert.deepEqual(messages, [
      { role: 'assistant', text: '', reasoning: 'hm', calls: [add, add] },
      { role: 'assistant', text: '5', reasoning: 'so\nfar', calls: [add, { name: '?', arguments: 'torn {' }] },
      { role: 'user', text: 'see [image_url]', reasoning: '', calls: [] },
      { role: 'user', text: 'what does </think> mean?', reasoning: '', calls: [] },
    ]);
  });

  test('has the same prompt as another that says it in another form', () => {
    const plain = { prompt: [{ role: 'user', content: 'a' }] };
    const parts = { prompt: [{ content: [{ type: 'text', text: 'a' }], role: 'user', name: null }] };
    assert.equal(promptIdentity(plain), promptIdentity(parts));
    assert.notEqual(promptIdentity(plain), promptIdentity({ prompt: [{ role: 'system', content: 'a' }] }));
  });
});
