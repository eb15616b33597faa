/** A chat template is foreign code. Whatever it does is counted before it runs, and ends at the same count on every machine. */
import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { describe, test } from 'node:test';
import { templateBytesMax, templateWorkMax } from '../../engine/limits.ts';
import { compileTemplate, renderBounded } from '../../engine/model/bounded-template.ts';
import { hostileTemplates } from './hostile-templates.ts';
import { renderAll } from './render-hostile.ts';

/** Uses this fraction of the bounds: with all of them the templates take minutes, as in the slow test. */
const part = 8;

/** Messages that name the operation that would have been too much. */
const refusals =
  /more than \d+ (?:steps|bytes|deep)|range\(\) of|without a text|blanks in a row|at most 1000000 letters|too deep in one another/;

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
  ['a macro that is made', /a macro/],
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
      assert.equal(text, template.render(variables), name);
    }
  });

  test('gives the same text with and without bounds, whatever it uses', () => {
    const variables = {
      messages: [
        { role: 'user', content: ' A b\nc ' },
        { role: 'tool', content: 'd', n: 2 },
      ],
      text: 'one two  three',
      map: { b: [1, 2.5, true, null], a: { c: 'x' } },
    };
    for (const template of [
      '{{ text.split() | join("-") }}{{ text.split(" ", 1) }}{{ text.split("o")[0] }}{{ text[1:5:2] }}{{ text[-1] }}',
      '{{ text | replace("o", "0") }}{{ text.replace("o", "0", 1) }}{{ text | replace("o", "0", count=1) }}',
      '{{ map | tojson }}{{ map | tojson(indent=2) }}{{ map | tojson(sort_keys=true, separators=(",", ":")) }}{{ map | string if false }}',
      '{% for k, v in map.items() %}{{ k }}={{ v }};{% endfor %}{% for k, v in map | dictsort %}{{ k }}{{ loop.index }}{% endfor %}',
      '{% for m in messages if m.role == "user" %}{{ m.content | trim | upper }}{% else %}none{% endfor %}',
      '{% for m in messages %}{% if loop.first %}{% continue %}{% endif %}{{ m.n }}{% break %}{% endfor %}',
      '{{ messages | map(attribute="role") | join(", ") }}{{ messages | selectattr("role", "equalto", "tool") | list | length }}',
      '{{ messages | rejectattr("n") | first }}{{ messages | sort(attribute="content") | map(attribute="role") | list }}',
      '{% macro f(a, b="z") %}<{{ a }}{{ b }}{{ kwargs.c }}{{ varargs }}>{% endmacro %}{{ f(1) }}{{ f(1, 2, 3, c=4) }}{{ f(*[1, 2], **{"c": 5}) }}',
      '{% macro f() %}[{{ caller(3) }}]{% endmacro %}{% call(n) f() %}{{ n + 1 }}{% endcall %}',
      '{% filter upper %}{{ text }}{% endfilter %}{% set x %}{{ text }}!{% endset %}{{ x }}{% set a, b = [1, 2] %}{{ a }}{{ b }}',
      '{% set ns = namespace(a=1) %}{% for m in messages %}{% set ns.a = ns.a + 1 %}{% endfor %}{{ ns.a }}{{ namespace({"q": 1}).q }}',
      '{{ 1 + 2 * 3 - 4 / 2 }}{{ 7 // 2 }}{{ 7 % 4 }}{{ 2 ** 3 }}{{ "a" ~ 1 ~ [1] }}{{ "a" + 1 }}{{ [1] + [2] }}{{ 1 == 1.0 }}{{ "a" in "abc" }}{{ 2 not in [1] }}{{ "b" in map }}',
      '{{ nothing | default("d") }}{{ "" | default("e", true) }}{{ nothing is defined }}{{ text is string }}{{ map is mapping }}{{ not true }}{{ -1 }}',
      '{{ "a\\nb" | indent(2) }}{{ "a\\nb" | indent(2, true) }}{{ "3" | int + 1 }}{{ "x" | int(5) }}{{ [3, 1, 1] | unique | sort | reverse | list }}',
      '{{ text.startswith("one") }}{{ text.endswith(("x", "three")) }}{{ text.title() }}{{ map.get("q", 1) }}{{ map["b"][0] }}{{ messages[-1]["role"] }}',
      '{{ raise_exception("so") if false else "fine" }}{{ (1, 2) }}{{ {"a": 1}.a }}{{ text | length }}{{ [1, 2] | last }}{# no #}',
    ]) {
      const compiled = compileTemplate(template);
      const plain = attempt(() => compiled.render(variables));
      assert.equal(
        attempt(() => renderBounded(compiled, variables)),
        plain,
        template,
      );
    }
  });
});

function attempt(work: () => string): string {
  try {
    return work();
  } catch (error) {
    return `threw ${(error as Error).message}`;
  }
}
