/** Token ranges of an environment's messages in a prompt, for runs that learn them. */
import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { test } from 'node:test';
import { samplePolicy } from '../../play/policy/sample-policy.ts';
import type { ChatMessage, Turn } from '../../core/rl/rollout/rollout.ts';
import { ChatTokenizer } from '../../engine/model/tokenizer/tokenizer.ts';
import { accept } from '../config/read-run.ts';

const chatml =
  "{%- for m in messages -%}{{- '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' -}}{%- endfor -%}{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}{%- endif -%}";

function tokenizerOf(name: string, chatTemplate: string): ChatTokenizer {
  const read = (file: string): string =>
    readFileSync(new URL(`../engine/golden/tokenizers/${name}/${file}`, import.meta.url), 'utf8');
  return new ChatTokenizer(
    { tokenizer: read('tokenizer.json'), config: read('tokenizer_config.json'), chatTemplate },
    name,
  );
}

const { sampling } = accept('model = "preset:reverse-text-0.2m"\nmax_steps = 1\n[[env]]\nid = "owner/a"\n').spec;

/** The turns of a conversation in which the model says "so" each time. */
async function play(
  tokenizer: ChatTokenizer,
  said: readonly (readonly ChatMessage[])[],
  roles: readonly string[],
): Promise<Turn[]> {
  const tokenIds = tokenizer.encode('so<|im_end|>');
  const policy = samplePolicy(
    {
      inference: {
        sample: () => Promise.resolve({ tokenIds, logprobs: tokenIds.map(() => -1), finishReason: 'stop' }),
      },
      tokenizer,
      served: { name: 'v0', folder: '', version: { step: 0, digest: '' } } as never,
      sampling,
      learnedRoles: new Set(roles),
    },
    () => 0,
  );
  const messages: ChatMessage[] = [];
  for (const heard of said) {
    messages.push(...heard);
    await policy.sample([...messages]);
    messages.push({ role: 'assistant', content: 'so' });
  }
  return [...policy.turns];
}

const textsOf = (
  tokenizer: ChatTokenizer,
  { promptTokenIds, heardAt = [] }: Turn,
): (readonly [string, string | null])[] =>
  heardAt.map(({ role, tokens }) => [
    role,
    tokens && tokenizer.decode(promptTokenIds.slice(...tokens), { skipSpecialTokens: false }),
  ]);

const conversation: readonly (readonly ChatMessage[])[] = [
  [
    { role: 'system', content: 'be short' },
    { role: 'user', content: 'what is it' },
  ],
  [
    { role: 'tool', content: 'it is 5' },
    { role: 'user', content: 'user' },
  ],
  [{ role: 'user', content: 'höher, bitte 🙂' }],
];

for (const name of ['byte-level', 'byte-fallback']) {
  test(`contents of messages after the first turn, of the roles that are asked for: ${name}`, async () => {
    const tokenizer = tokenizerOf(name, chatml);
    const [first, second, third] = await play(tokenizer, conversation, ['user', 'tool']);
    assert.equal(first!.heardAt, undefined, 'a first prompt is not heard');
    assert.deepEqual(textsOf(tokenizer, second!), [
      ['tool', 'it is 5'],
      ['user', 'user'],
    ]);
    assert.deepEqual(textsOf(tokenizer, third!), [['user', 'höher, bitte 🙂']]);
    const [, tools, none] = await play(tokenizer, conversation, ['tool']);
    assert.deepEqual(textsOf(tokenizer, tools!), [['tool', 'it is 5']]);
    assert.equal(none!.heardAt, undefined);
    const unasked = await play(tokenizer, conversation, []);
    assert.ok(unasked.every(({ heardAt }) => heardAt === undefined));
  });
}

test('a token belongs to what its first character is of', async () => {
  const tokenizer = tokenizerOf('byte-level', chatml);
  const [, turn] = await play(tokenizer, [conversation[0]!, [{ role: 'tool', content: '\n\nlate' }]], ['tool']);
  const [from, to] = turn!.heardAt![0]!.tokens!;
  const own = tokenizer.decode(turn!.promptTokenIds.slice(from, to), { skipSpecialTokens: false });
  const before = tokenizer.decode(turn!.promptTokenIds.slice(0, from), { skipSpecialTokens: false });
  const whole = tokenizer.decode(turn!.promptTokenIds, { skipSpecialTokens: false });
  assert.ok(whole.startsWith(before + own) && '\n\nlate'.endsWith(own) && own.endsWith('late'));
  assert.ok(before.endsWith('<|im_start|>tool\n') || /tool\n+$/.test(before), before);
});

test('what a template writes in other words has no place', async () => {
  const trimmed = tokenizerOf('byte-level', chatml.replace('m.content', '(m.content | trim)'));
  const said = [conversation[0]!, [{ role: 'tool', content: ' padded ' }]] as const;
  const [, inner] = await play(trimmed, said, ['tool']);
  assert.deepEqual(textsOf(trimmed, inner!), [['tool', 'padded']]);
  const shouted = tokenizerOf('byte-level', chatml.replace('m.content', '(m.content | upper)'));
  const [, other] = await play(shouted, said, ['tool']);
  assert.deepEqual(textsOf(shouted, other!), [['tool', null]]);
});
