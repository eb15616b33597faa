/** Messages whose content is parts, as environments of others write them. */
import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { boundedMessages, messageForApi, otherPart, partsOf, partText, readMessage, requireText } from '../../../core/rl/rollout/message-parts.ts'; // prettier-ignore
import { messagePartCharsMax, storedPartCharsMax } from '../../../core/limits.ts';
import { messagesOf, promptIdentity } from '../../../core/eval/result-rows.ts';
import { chatMessage } from '../../../backends/environments/verifiers/conversation.ts';

const png = 'data:image/png;base64,iVBORw0KGgo=';
const user = (...content: Record<string, unknown>[]) => ({ role: 'user' as const, content });

describe('a message of parts', () => {
  test('of text alone is text, and goes to an API as text', () => {
    const message = readMessage(user({ type: 'text', text: 'a' }, { type: 'text', text: 'b', image_url: null }));
    assert.deepEqual([message, partsOf(message), messageForApi(message)], [{ role: 'user', content: 'ab' }, undefined, { role: 'user', content: 'ab' }]); // prettier-ignore
    assert.deepEqual(readMessage({ role: 'user', content: null }), { role: 'user', content: '' });
  });

  test('goes to an API as it was, without columns that a dataset filled with null', () => {
    const rows = user(
      { type: 'text', text: 'See', image_url: null },
      { type: 'image_url', text: null, image_url: { url: png, detail: 'high' } },
    );
    assert.deepEqual(messageForApi(readMessage(rows)), user({ type: 'text', text: 'See' }, { type: 'image_url', image_url: { url: png, detail: 'high' } })); // prettier-ignore
  });

  test('keeps its parts when it is copied; what is stored of it is text', () => {
    const message = { ...readMessage(user({ type: 'image_url', image_url: { url: png } })), name: 'x' };
    assert.equal(partsOf(message)?.length, 1);
    assert.match(
      JSON.stringify(message),
      /^\{"role":"user","content":"\[image image\/png, 8 bytes, [0-9a-f]{8}\]","name":"x"\}$/,
    );
    assert.equal(partsOf(JSON.parse(JSON.stringify(message)) as typeof message), undefined);
  });

  test('of tools and of assistants keeps what stands beside it', () => {
    const wire = {
      ...user({ type: 'image_url', image_url: { url: png } }),
      role: 'tool',
      tool_call_id: 'c1',
      name: 'look',
    };
    const message = chatMessage(wire);
    assert.deepEqual([message.role, message.tool_call_id, message.name, partsOf(message)?.length], ['tool', 'c1', 'look', 1]); // prettier-ignore
  });

  test('is told apart from another picture by its words', () => {
    const other = png.replace('iVB', 'jVB');
    const [a, b] = [png, other].map((url) => readMessage(user({ type: 'image_url', image_url: { url } })).content);
    assert.notEqual(a, b);
    const row = (url: string) => ({ prompt: [user({ type: 'text', text: 'Which?' }, { type: 'image_url', image_url: { url } })] }); // prettier-ignore
    assert.notEqual(promptIdentity(row(png)), promptIdentity(row(other)));
    assert.equal(promptIdentity(row(png)), promptIdentity(row(png)));
  });
});

test('parts of every kind have words', () => {
  for (const [part, words] of [
    [{ type: 'text', text: 'a' }, /^a$/],
    [{ type: 'image_url', image_url: { url: png } }, /^\[image image\/png, 8 bytes, [0-9a-f]{8}\]$/],
    [{ type: 'image_url', image_url: png }, /^\[image image\/png, 8 bytes, /],
    [{ type: 'input_image', image_url: png }, /^\[image image\/png, 8 bytes, /],
    [{ type: 'image_url', image_url: { url: 'data:;base64,AAAA' } }, /^\[image 3 bytes, /],
    [
      { type: 'image_url', image_url: { url: 'data:image/jpeg;charset=utf-8;base64,AAA=' } },
      /^\[image image\/jpeg, 2 bytes, /,
    ],
    [
      { type: 'image_url', image_url: { url: 'https://example.org/a.png' } },
      /^\[image https:\/\/example\.org\/a\.png\]$/,
    ],
    [{ type: 'image_url', image_url: {} }, /^\[image_url\]$/],
    [{ type: 'input_audio', input_audio: { data: 'AAAA', format: 'wav' } }, /^\[input_audio\]$/],
    [{ type: 'video_url', video_url: { url: 'https://example.org/v' } }, /^\[video_url\]$/],
    [{ type: 'file', file: { file_id: 'f' } }, /^\[file\]$/],
    [{}, /^\[part\]$/],
  ] as const) {
    assert.match(partText(part), words, JSON.stringify(part));
  }
  assert.equal(messagesOf([user({ type: 'text', text: 'see ' }, { type: 'image_url', image_url: {} })])[0]?.text, 'see [image_url]'); // prettier-ignore
  assert(partText({ type: 'image_url', image_url: { url: `https://example.org/${'a'.repeat(1_000)}` } }).length < 220);
});

test('a model of text refuses the first part that is none, by its type', () => {
  const picture = readMessage(user({ type: 'text', text: 'a' }, { type: 'image_url', image_url: { url: png } }));
  assert.equal(otherPart([readMessage(user({ type: 'text', text: 'a' })), picture]), 'image_url');
  assert.equal(otherPart([{ role: 'user', content: 'text' }]), undefined);
  requireText([{ role: 'user', content: 'text' }]);
  assert.throws(() => requireText([picture]), /a part of the type "image_url", and this model is asked by tokens of text\. Evaluate/); // prettier-ignore
});

test('a part that is too large, or none, is refused with what to do', () => {
  const large = user({
    type: 'image_url',
    image_url: { url: `data:image/png;base64,${'A'.repeat(messagePartCharsMax)}` },
  });
  assert.throws(() => readMessage(large), /"image_url" with \d+ characters; at most \d+ are sent\. Make it smaller, or name it by an https address/); // prettier-ignore
  assert.throws(() => readMessage(user({ image: 'x' })), /a part without a type/);
  assert.throws(() => readMessage({ role: 'user', content: ['x'] as never }), /a part without a type/);
});

test('results have small pictures as they are and large ones in words', () => {
  const picture = (length: number) => ({ type: 'image_url', image_url: { url: `data:image/png;base64,${'A'.repeat(length)}` } }); // prettier-ignore
  const [small, large] = [picture(100), picture(storedPartCharsMax)];
  const [row] = boundedMessages([user(small, large, { type: 'text', text: 'b'.repeat(storedPartCharsMax + 1) })]);
  assert.deepEqual(row?.content[0], small);
  assert.match(String(row?.content[1]?.['text']), /^\[image image\/png, /);
  assert.equal(row?.content[2]?.['type'], 'text');
  assert.equal(boundedMessages('text'), 'text');
  assert.equal(boundedMessages(null), null);
});
