/** A chat template is foreign code. Whatever it does is counted before it runs, and ends at the same count on every machine. */
import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { describe, test } from 'node:test';
import { templateBytesMax, templateWorkMax } from '../../engine/limits.ts';
import { compileTemplate, renderBounded } from '../../engine/model/template/bounded-template.ts';
import { hostileTemplates } from './hostile-templates.ts';
import { renderAll } from './render-hostile.ts';

/** Uses this fraction of the bounds: with all of them the templates take minutes, as in the slow test. */
const part = 8;

/** Messages that name the operation that would have been too much. */
const refusals = /more than \d+ (?:steps|bytes|deep)|range\(\) of|without a text|at most 1000000 letters|call stack/;

/** The operation in each refusal, to show that it was counted itself and not what precedes or follows it. */
const constructs: readonly (readonly [string, RegExp])[] = [
  ['loops over what was made once', /a loop over 100000 items/],
  ['a text that is split', /split\(\)/],
  ['a method', /split\(\)/],
  ['a text that is replaced', /replace\(\)/],
  ['nothing that is replaced', /replace\(\)/],
  ['a filter that replaces', /the filter "replace"/],
  ['a filter block', /the filter "replace"/],
  ['letters that are joined', /the filter "join"/],
  ['lines that are indented', /the filter "indent"/],
  ['an indent', /the filter "indent"/],
  ['slices', /a slice/],
  ['shared lists as JSON', /the filter "tojson"/],
  ['shared lists that are shown', /writing it/],
  ['shared lists beside', /the operator "~"/],
  ['shared lists that are compared', /the operator "=="/],
  ['what is the same', /the operator "=="/],
  ['many ranges', /range\(\)/],
];

describe('a template', () => {
  test('that would take too long, or too much memory, is refused with the operation that would', () => {
    const ended = renderAll([templateWorkMax / part, templateBytesMax / part], 300);
    assert.deepEqual([...ended.keys()], Object.keys(hostileTemplates));
    for (const [name, how] of ended) {
      assert.match(how.ended, refusals, name);
      const construct = constructs.find(([of]) => name.startsWith(of))?.[1];
      if (construct) assert.match(how.ended, construct, name);
      assert.ok(how.seconds < 20, `${name} took ${how.seconds} s of CPU`);
    }
  });

  test('from a model is far below the bounds, even with tools and more than 128k tokens', () => {
    const property = { type: 'string', description: 'a parameter '.repeat(5), enum: ['a', 'b'] };
    const properties = Object.fromEntries(Array.from({ length: 10 }, (_, i) => [`p${i}`, property]));
    const parameters = { type: 'object', properties, required: ['p0'] };
    const tools = Array.from({ length: 40 }, (_, i) => ({
      type: 'function',
      function: { name: `tool_${i}`, description: 'what it does '.repeat(20), parameters },
    }));
    const call = {
      type: 'function',
      function: { name: 'tool_1', arguments: { p0: 'x'.repeat(50), p1: { a: [1, 2] } } },
    };
    const turn = [
      { role: 'user', content: 'a question '.repeat(20) },
      { role: 'assistant', content: `<think>\n${'thought '.repeat(30)}\n</think>\n\nanswer`, tool_calls: [call] },
      { role: 'tool', content: JSON.stringify({ result: 'y'.repeat(100) }) },
      { role: 'assistant', content: 'the answer is '.repeat(10) },
    ];
    const messages = [{ role: 'system', content: 'You are. '.repeat(200) }, ...Array.from({ length: 1_000 }, () => turn).flat()]; // prettier-ignore
    for (const name of [
      '../engine/golden/chat/hermes',
      '../engine/golden/chat/llama3',
      '../data/golden-runs/qwen3',
      '../faults/marked-template',
    ]) {
      const template = compileTemplate(readFileSync(new URL(`${name}.jinja`, import.meta.url), 'utf8'));
      const taken = name.endsWith('llama3') ? messages.filter(({ role }) => role !== 'tool') : messages;
      const variables = { messages: taken, tools, documents: null, add_generation_prompt: true, bos_token: '<s>', eos_token: '</s>' }; // prettier-ignore
      // Four letters a token, approximately: 160,000 tokens and more.
      const text = renderBounded(template, variables, { workMax: templateWorkMax / 5, bytesMax: templateBytesMax / 4 });
      assert.ok(text.length > 640_000, `${name}: ${text.length}`);
    }
  });
});
