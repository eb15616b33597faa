import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { describe, test } from 'node:test';
import fc from 'fast-check';
import { trajectoryRows } from '../../core/rl/rollout/trajectories.ts';
import type { ChatMessage, Turn } from '../../core/rl/rollout/rollout.ts';
import { ConversationPrompts } from '../../engine/model/template/conversation-prompts.ts';
import { ChatTokenizer } from '../../engine/model/tokenizer/tokenizer.ts';

const messages = `{%- for m in messages -%}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{%- endfor -%}{%- if add_generation_prompt -%}{{ '<|im_start|>assistant\n' }}{%- endif -%}`;
/** Like Qwen's template: only the last answer keeps its reasoning. */
const withoutReasoning = messages.replace(
  'm.content +',
  `(m.content.split('</think>')[-1] if m.role == 'assistant' else m.content) +`,
);
/** No special token between what is said and what follows. */
const plain = `{%- for m in messages -%}{{ m.role + ': ' + m.content + '\n' }}{%- endfor -%}{%- if add_generation_prompt -%}{{ 'assistant: ' }}{%- endif -%}`;
const bracketed = `{%- for m in messages -%}{%- if m.role == 'assistant' -%}{{ m.content + '</s>' }}{%- else -%}{{ '<s>[INST] ' + m.content + ' [/INST]' }}{%- endif -%}{%- endfor -%}`;

const byteLevel = (template: string) => tokenizerOf('byte-level', template);
const byteFallback = (template: string) => tokenizerOf('byte-fallback', template);

describe('prompts of a conversation', () => {
  test('what was sampled stays as it was sampled, also where its text would be tokenized otherwise', () => {
    const tokenizer = byteLevel(messages);
    const prompts = new ConversationPrompts(tokenizer);
    const first = prompts.render([user('say hello')]);
    const letters = 'hello'.split('').flatMap((letter) => tokenizer.encode(letter));
    assert.notDeepEqual(letters, tokenizer.encode('hello'), 'this text has a shorter spelling');
    const sampled = [...letters, ...tokenizer.encode('<|im_end|>')];
    prompts.said(first, sampled);
    const next = prompts.render([user('say hello'), assistant('hello'), user('again')]);
    assert.deepEqual(next.tokenIds, [
      ...first.tokenIds,
      ...sampled,
      ...tokenizer.encode('\n<|im_start|>user\nagain<|im_end|>\n<|im_start|>assistant\n'),
    ]);
  });

  test('an answer that was cut at its limit is continued from as well', () => {
    const tokenizer = byteLevel(messages);
    const prompts = new ConversationPrompts(tokenizer);
    const first = prompts.render([user('count')]);
    const sampled = tokenizer.encode('1 2');
    prompts.said(first, sampled);
    const next = prompts.render([user('count'), assistant('1 2'), user('on')]);
    assert.deepEqual(next.tokenIds.slice(0, first.tokenIds.length + sampled.length), [...first.tokenIds, ...sampled]);
    assert.equal(tokenizer.decode(next.tokenIds, { skipSpecialTokens: false }), next.text);
  });

  test('where the template takes the reasoning out, the prompt is rendered anew', () => {
    const tokenizer = byteLevel(withoutReasoning);
    const prompts = new ConversationPrompts(tokenizer);
    const first = prompts.render([user('1+1?')]);
    prompts.said(first, tokenizer.encode('<think>hm</think>2<|im_end|>'));
    const conversation = [user('1+1?'), assistant('<think>hm</think>2'), user('sure?')];
    const next = prompts.render(conversation);
    assert.doesNotMatch(next.text, /hm/);
    assert.deepEqual(next.tokenIds, tokenizer.encode(next.text));
  });

  test('a seam inside a token is never made: where the tokenizer would join both sides the prompt is rendered anew', () => {
    const tokenizer = byteLevel(`{%- for m in messages -%}{{ m.content }}{%- endfor -%}`);
    const joined = ['h', 'ello'] as const;
    const whole = tokenizer.encode('q hello');
    const prompts = new ConversationPrompts(tokenizer);
    const first = prompts.render([user('q ')]);
    prompts.said(first, tokenizer.encode(joined[0]));
    const next = prompts.render([user('q '), assistant(joined[0]), user(joined[1])]);
    const [known, both] = [tokenizer.encode('h'), tokenizer.encode('hello')];
    const isSeam = known[0] !== both[0];
    assert.ok(isSeam, 'the tokenizer joins them');
    assert.deepEqual(next.tokenIds, whole);
  });

  test('a tokenizer that marks the beginnings of words continues from what it decoded', () => {
    const tokenizer = byteFallback(bracketed);
    const prompts = new ConversationPrompts(tokenizer);
    const first = prompts.render([user('hello')]);
    const sampled = tokenizer.encode('world</s>');
    prompts.said(first, sampled);
    const said = tokenizer.decode(sampled);
    const next = prompts.render([user('hello'), assistant(said), user('more')]);
    assert.deepEqual(next.tokenIds, [...first.tokenIds, ...sampled, ...tokenizer.encode('<s>[INST] more [/INST]')]);
  });

  test('two conversations beside one another each continue from their own turns', () => {
    const tokenizer = byteLevel(messages);
    const prompts = new ConversationPrompts(tokenizer);
    const [one, other] = ['one', 'other'].map((text) => prompts.render([user(text)]));
    const spelled = 'yes'.split('').flatMap((letter) => tokenizer.encode(letter));
    prompts.said(one!, spelled);
    prompts.said(other!, tokenizer.encode('no'));
    const next = prompts.render([user('one'), assistant('yes'), user('continue')]);
    assert.deepEqual(next.tokenIds.slice(0, one!.tokenIds.length + 3), [...one!.tokenIds, ...spelled]);
  });

  test('a long conversation is not tokenized from its beginning in every turn', () => {
    const tokenizer = byteLevel(messages);
    let characters = 0;
    const encode = tokenizer.encode.bind(tokenizer);
    tokenizer.encode = (text, options) => {
      characters += text.length;
      return encode(text, options);
    };
    const prompts = new ConversationPrompts(tokenizer);
    const conversation: ChatMessage[] = [user('begin')];
    const sampled = encode(`${'word '.repeat(20)}<|im_end|>`);
    let length = 0;
    for (let turn = 0; turn < 60; turn++) {
      const prompt = prompts.render(conversation);
      prompts.said(prompt, sampled);
      conversation.push(assistant('word '.repeat(20)), user('continue'));
      length = prompt.text.length;
    }
    assert.ok(length > 5_000);
    assert.ok(characters < 2 * length, `${characters} characters were tokenized for a conversation of ${length}`);
  });
});

describe('whatever is said, with any template', () => {
  const words = fc.stringMatching(/^[ a-z0-9.,!\n]{0,12}$/);
  const tokenizers = {
    'messages between special tokens': byteLevel(messages),
    'reasoning taken out': byteLevel(withoutReasoning),
    'no special tokens': byteLevel(plain),
    'beginnings of words': byteFallback(bracketed),
  };
  for (const [name, tokenizer] of Object.entries(tokenizers)) {
    test(`rows are what the server saw and sampled, token by token: ${name}`, () => {
      const piece = fc.constantFrom(...tokenizer.encode('the quick brown fox, 12 jumps! <think>a</think> ok.\n'));
      const end = fc.constantFrom(...['<|im_end|>', '</s>', ''].map((text) => tokenizer.encode(text)));
      const turn = fc.tuple(fc.array(piece, { minLength: 1, maxLength: 12 }), end, words);
      fc.assert(
        fc.property(words, fc.array(turn, { minLength: 1, maxLength: 5 }), (question, said) => {
          const turns = play(tokenizer, question, said);
          const rows = trajectoryRows(turns, 'interleaved');
          let at = { row: -1, length: Infinity };
          for (const { promptTokenIds, tokenIds } of turns) {
            const saw = [...promptTokenIds, ...tokenIds];
            // A turn continues the row of the previous turn, or begins the next one.
            const isSame = promptTokenIds.length >= at.length && startsWith(rows[at.row]!.tokenIds, saw);
            at = { row: isSame ? at.row : at.row + 1, length: saw.length };
            const { tokenIds: row, lossMask } = rows[at.row]!;
            assert.deepEqual(row.slice(0, saw.length), saw);
            assert.deepEqual(
              lossMask.slice(promptTokenIds.length, saw.length),
              tokenIds.map(() => 1),
            );
          }
          assert.equal(at.row, rows.length - 1);
          const counted = (strategy: 'interleaved' | 'branching') =>
            trajectoryRows(turns, strategy)
              .flatMap(({ tokenIds, lossMask }) => tokenIds.filter((_, i) => lossMask[i] === 1))
              .sort((a, b) => a - b);
          const sampled = turns.flatMap(({ tokenIds }) => tokenIds).sort((a, b) => a - b);
          assert.deepEqual(counted('interleaved'), sampled);
          assert.deepEqual(counted('branching'), sampled);
        }),
        { numRuns: 150 },
      );
    });
  }

  test('a conversation that the template leaves as it is becomes one row', () => {
    const tokenizer = tokenizers['messages between special tokens'];
    const said = fc.array(
      fc.tuple(fc.array(fc.constantFrom(...tokenizer.encode('abc de fg')), { minLength: 1 }), words),
      {
        minLength: 1,
        maxLength: 5,
      },
    );
    fc.assert(
      fc.property(words, said, (question, turns) => {
        const end = tokenizer.encode('<|im_end|>');
        const played = play(
          tokenizer,
          question,
          turns.map(([tokens, heard]) => [tokens, end, heard]),
        );
        assert.equal(trajectoryRows(played, 'interleaved').length, 1);
        assert.equal(trajectoryRows(played, 'branching').length, played.length);
      }),
    );
  });
});

/** Simulates a conversation with these sampled tokens, and an answer to each. */
function play(
  tokenizer: ChatTokenizer,
  question: string,
  said: readonly (readonly [tokens: number[], end: number[], heard: string])[],
): Turn[] {
  const prompts = new ConversationPrompts(tokenizer);
  const conversation: ChatMessage[] = [user(question)];
  return said.map(([tokens, end, heard]) => {
    const prompt = prompts.render(conversation);
    const tokenIds = [...tokens, ...end];
    prompts.said(prompt, tokenIds);
    const text = tokenizer.decode(tokenIds);
    conversation.push(assistant(text), user(heard));
    const logprobs = tokenIds.map(() => -1);
    return { promptTokenIds: prompt.tokenIds, tokenIds, logprobs, text, finishReason: 'stop', policyStep: 0 };
  });
}

function startsWith(tokens: readonly number[], prefix: readonly number[]): boolean {
  return prefix.every((token, i) => token === tokens[i]);
}

function user(content: string): ChatMessage {
  return { role: 'user', content };
}

function assistant(content: string): ChatMessage {
  return { role: 'assistant', content };
}

function tokenizerOf(name: string, chatTemplate: string): ChatTokenizer {
  const read = (file: string): string =>
    readFileSync(new URL(`./golden/tokenizers/${name}/${file}`, import.meta.url), 'utf8');
  return new ChatTokenizer(
    { tokenizer: read('tokenizer.json'), config: read('tokenizer_config.json'), chatTemplate },
    name,
  );
}
