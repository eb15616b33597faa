import { templateBytesMax, templateWorkMax } from '../../engine/limits.ts';
import { compileTemplate, renderBounded } from '../../engine/model/template/bounded-template.ts';
import { ChatTemplates, type TemplateMessage } from '../../engine/model/template/chat-template.ts';
import { hostileTemplates } from '../engine/hostile-templates.ts';
import type { BadCase } from './part.ts';

/** Divides the bounds, with which a hostile template would take seconds. */
const part = 8;

const question: TemplateMessage = { role: 'user', content: 'a question' };
const call = { id: 'a', type: 'function', function: { name: 'add', arguments: '{"a": 1}' } };

/** Templates that are no Jinja, or use what is not there. */
const wrongTemplates: readonly (readonly [template: string, names: readonly string[]])[] = [
  ['{% for m in messages %}', ['for']],
  ['{% if x %}', ['if']],
  ['{% if x %}{% else %}', ['if', 'else']],
  ['{% endfor %}', ['endfor']],
  ['{% endif %}', ['endif']],
  ['{% else %}', ['else']],
  ['{% for %}{% endfor %}', ['for', 'loop']],
  ['{% for m of messages %}{% endfor %}', ['for', 'in', 'of']],
  ['{% for m in %}{% endfor %}', ['for', 'in']],
  ['{% macro f( %}{% endmacro %}', ['macro', 'parenthes', '(', ')']],
  ['{% macro f() %}', ['macro']],
  ['{% set %}', ['set']],
  ['{% set x %}', ['set', 'x']],
  ['{% set x = %}', ['set', '=']],
  ['{% call f() %}', ['call']],
  ['{% filter upper %}', ['filter']],
  ['{% raw %}{{ x', []],
  ['{{ x', []],
  ['{{ x }', []],
  ['{% if x', ['if']],
  ['{# never ends', ['#', 'comment']],
  ['{{ (1 }}', [')', '(', 'parenthes']],
  ['{{ [1 }}', [']', '[']],
  ['{{ {"a" 1} }}', [':', 'key', 'colon']],
  ['{{ "a }}', ['"', 'quote', 'string', 'text']],
  ['{{ 1 + }}', ['+']],
  ['{{ + }}', ['+']],
  ['{{ a b }}', ['a', 'b']],
  ['{{ a..b }}', ['.']],
  ['{{ a.1 }}', ['.']],
  ['{{ | upper }}', ['|']],
  ['{{ x | }}', ['|']],
  ['{{ x | frobnicate }}', ['frobnicate']],
  ['{{ "a" | frobnicate }}', ['frobnicate']],
  ['{{ "a" | frobnicate(1, x=2) }}', ['frobnicate']],
  ['{{ [1] | frobnicate }}', ['frobnicate']],
  ['{{ {"a": 1} | frobnicate }}', ['frobnicate']],
  ['{{ 1 | frobnicate }}', ['frobnicate']],
  ['{{ true | frobnicate }}', ['frobnicate']],
  ['{{ none | frobnicate }}', ['frobnicate']],
  ['{% filter frobnicate %}a{% endfilter %}', ['frobnicate']],
  ['{{ 1 is frobnicated }}', ['frobnicated']],
  ['{{ messages is not frobnicated }}', ['frobnicated']],
  ['{{ frobnicate() }}', ['frobnicate']],
  ['{{ messages.frobnicate() }}', ['frobnicate']],
  ['{{ "a".frobnicate() }}', ['frobnicate']],
  ['{{ messages[0].content.frobnicate("x") }}', ['frobnicate']],
  ['{{ none.a }}', ['a', 'none', 'null']],
  ['{{ none["a"].b }}', ['b', 'a', 'none']],
  ['{{ nothing.a.b }}', ['nothing', 'a', 'b']],
  ['{{ messages[9].content.x }}', ['content', 'messages', 'x']],
  ['{{ nothing() }}', ['nothing']],
  ['{{ 1() }}', ['call', '1']],
  ['{{ messages() }}', ['messages', 'call']],
  ['{% include "x.jinja" %}', ['include']],
  ['{% include "/etc/passwd" %}', ['include']],
  ['{% import "x" as y %}', ['import']],
  ['{% from "x" import y %}', ['from']],
  ['{% extends "base" %}', ['extends']],
  ['{% block a %}{% endblock %}', ['block']],
  ['{% autoescape true %}{% endautoescape %}', ['autoescape']],
  ['{% trans %}{% endtrans %}', ['trans']],
  ['{% do x.append(1) %}', ['do']],
  ['{% with x = 1 %}{% endwith %}', ['with']],
  ['{% debug %}', ['debug']],
  ['{% frobnicate %}', ['frobnicate']],
  ['{% \u001b[2J\u202e %}', []],
  ['{{ x | \u202eevil }}', []],
  ['{{ "a" + 1 + none + [] }}', []],
  ['{{ 1 / 0 }}', []],
  ['{{ "a" - 1 }}', ['-']],
  ['{{ [] * {} }}', ['*']],
  ['{{ 1 < "a" }}', ['<']],
  ['{{ 1 in 2 }}', ['in']],
  ['{{ range() }}', ['range']],
  ['{{ range("a") }}', ['range']],
  ['{{ range(1, 2, 0) }}', ['range']],
  ['{{ raise_exception("no system role") }}', ['no system role']],
  ['{{ raise_exception() }}', []],
  ['{{ raise_exception(messages) }}', []],
  ['{{ raise_exception("\u001b[2J\u202eevil") }}', ['evil']],
  ['{{ strftime_now() }}', ['strftime_now']],
  ['{{ strftime_now(1) }}', ['strftime_now']],
  ['{{ strftime_now("%Q") }}', ['%Q', 'strftime_now']],
  ['{% for a, b, c in [1, 2] %}{% endfor %}', []],
  ['{% set a, b = [1] %}', []],
  ['{% set a.b = 1 %}', []],
  ['{% set messages[0] = 1 %}', []],
  ['{% break %}', ['break']],
  ['{% continue %}', ['continue']],
  ['{% for m in 5 %}{% endfor %}', []],
  ['{% for m in "text" %}{% endfor %}{{ x.y.z }}', []],
  ['{% for m in messages recursive %}{{ loop(messages) }}{% endfor %}', ['recursive', 'loop']],
  ['{{ super() }}', ['super']],
  ['{{ self.x() }}', ['self', 'x']],
  ['{{ cycler("a").next() }}', ['cycler']],
  ['{{ joiner()() }}', ['joiner']],
  ['{{ lipsum() }}', ['lipsum']],
  ['{{ constructor }}{{ constructor() }}', ['constructor']],
  ['{{ __proto__.x }}{{ [].__proto__.constructor("a")() }}', []],
  ['{{ "".constructor.constructor("return process")() }}', []],
  ['{{ messages.__class__.__mro__[1].__subclasses__() }}', []],
  ['{{ "a" | tojson(indent="x") }}', []],
  ['{{ "a" | tojson(separators=(1, 2)) }}', []],
  ['{{ messages | sort(attribute=5) }}', []],
  ['{{ messages | map("frobnicate") | list }}', ['frobnicate', 'map']],
  ['{{ messages | selectattr("role", "frobnicate") | list }}', ['frobnicate']],
  ['{{ messages | map() }}', ['map']],
  ['{{ messages | join(1) }}', []],
  ['{{ "a" | int(none) }}{{ "a" | float("b") }}', []],
  ['{{ "a" | replace("a") }}', ['replace']],
  ['{{ "a".replace() }}', ['replace']],
  ['{{ "a".split(1) }}', ['split']],
  ['{{ "a" | default }}', []],
  ['{{ -"a" }}', ['-']],
  ['{{ not }}', ['not']],
  ['{{ a if }}', ['if']],
  ['{{ a if b else }}', ['else']],
  ['{%- -%}', []],
  ['{{}}', []],
  ['{%%}', []],
  ['{{ 1e999 }}{{ 99999999999999999999999 }}', []],
  ['\u0000\ud800{{ "\ud800" }}', []],
  ['', []],
];
/** A template as models have it, and conversations that are none. */
const usual =
  "{% if messages[0]['role'] == 'system' %}{{ messages[0]['content'] }}{% endif %}{% for message in messages %}{% if message['role'] not in ['system', 'user', 'assistant', 'tool'] %}{{ raise_exception('Unknown role: ' ~ message['role']) }}{% endif %}{{ message['role'] ~ ': ' ~ message['content'] | trim }}{% if message.tool_calls %}{% for call in message.tool_calls %}{{ call.function.name }}{{ call.function.arguments | tojson }}{% endfor %}{% endif %}{% endfor %}";

const wrongConversations: readonly (readonly [what: string, messages: readonly unknown[]])[] = [
  ['nothing', []],
  ['another role', [{ role: 'frobnicator', content: 'a' }]],
  ['a role that steers', [{ role: '\u001b[2J\u202e', content: 'a' }]],
  ['a role that is long', [{ role: 'x'.repeat(1_000_000), content: 'a' }]],
  ['no role', [{ content: 'a' }]],
  ['a role that is null', [{ role: null, content: 'a' }]],
  ['no content', [{ role: 'user' }]],
  ['content that is null', [{ role: 'user', content: null }]],
  ['content that is a number', [{ role: 'user', content: 7 }]],
  ['content that is a list', [{ role: 'user', content: [{ type: 'text', text: 'a' }] }]],
  ['content that is deep', [{ role: 'user', content: deepList(5_000) }]],
  ['calls that are no list', [{ role: 'assistant', content: '', tool_calls: 5 }]],
  ['calls that are null', [{ role: 'assistant', content: '', tool_calls: null }]],
  ['a call that is null', [{ role: 'assistant', content: '', tool_calls: [null] }]],
  ['a call without a function', [{ role: 'assistant', content: '', tool_calls: [{}] }]],
  ['a call whose function is null', [{ role: 'assistant', content: '', tool_calls: [{ function: null }] }]],
  ...['{', '[]', '7', 'null', '"a"', 'NaN', '{"a":'.repeat(50_000)].map(
    (text) =>
      [
        `arguments that are ${text.slice(0, 8)}`,
        [{ role: 'assistant', content: '', tool_calls: [{ ...call, function: { name: 'add', arguments: text } }] }],
      ] as const,
  ),
  ['arguments without a name', [{ role: 'assistant', content: '', tool_calls: [{ function: { arguments: '{' } }] }]],
  ['a message that is null', [null]],
  ['a message that is a text', ['a']],
];

/** tokenizer_config.json as a stranger's model may have it. */
const wrongConfigs: readonly (readonly [what: string, config: Readonly<Record<string, unknown>>])[] = [
  ...[
    7,
    true,
    [],
    {},
    [null],
    [7],
    ['a'],
    [{}],
    [{ name: 'default' }],
    [{ name: 7, template: 'a' }],
    [{ name: 'a', template: null }],
  ].map((value) => [`chat_template = ${JSON.stringify(value)}`, { chat_template: value }] as const),
  ...['bos_token', 'eos_token', 'unk_token', 'pad_token'].flatMap((name) =>
    [7, true, [], {}, { content: 7 }, { content: null }].map(
      (value) => [`${name} = ${JSON.stringify(value)}`, { chat_template: '{{ bos_token }}', [name]: value }] as const,
    ),
  ),
  ['additional_special_tokens = 7', { chat_template: 'a', additional_special_tokens: 7 }],
  ['additional_special_tokens = [7]', { chat_template: 'a', additional_special_tokens: [7] }],
  [
    '__proto__',
    JSON.parse('{"__proto__": {"chat_template": "a"}, "chat_template": "{{ bos_token }}"}') as Record<string, unknown>,
  ],
];

function deepList(depth: number): unknown {
  let value: unknown = 'a';
  for (let i = 0; i < depth; i++) value = [value];
  return value;
}

function render(
  template: string,
  messages: readonly unknown[],
  config: Readonly<Record<string, unknown>> = {},
): string {
  const templates = new ChatTemplates(config, { chatTemplate: template }, '2026-11-28T00:00');
  const text = templates.render(messages as readonly TemplateMessage[], {
    addGenerationPrompt: true,
    tools: [{ type: 'function', function: { name: 'add', parameters: {} } }],
  });
  return `${text.length} letters`;
}

function renderConfig(config: Readonly<Record<string, unknown>>): string {
  const templates = new ChatTemplates(config, {});
  return `${templates.render([question], { addGenerationPrompt: true }).length} letters`;
}

/** A refusal that names the operation which would have been too much. */
const bounded =
  /more than \d+ (?:steps|bytes|deep)|range\(\) of|without a text|blanks in a row|at most 1000000 letters|too deep in one another/;

export function templateCases(): readonly BadCase[] {
  const hostile = Object.entries(hostileTemplates).map(([what, template]): BadCase => ({
    what,
    wanted: [bounded],
    mustRefuse: true,
    boundMs: 60_000,
    run: () => {
      const bounds = { workMax: templateWorkMax / part, bytesMax: templateBytesMax / part };
      const messages = [{ role: 'user', content: 'x'.repeat(1000) }];
      return `${renderBounded(compileTemplate(template), { messages }, bounds).length} letters`;
    },
  }));
  const wrong = wrongTemplates.flatMap(([template, names]) =>
    [
      [question],
      [question, { role: 'assistant', content: 'a', tool_calls: [call] }, { role: 'tool', content: '1' }],
    ].map((messages, i): BadCase => ({
      what: `${JSON.stringify(template)}, ${i === 0 ? 'a question' : 'a call'}`,
      names,
      run: () => render(template, messages),
    })),
  );
  const conversations = wrongConversations.map(([what, messages]): BadCase => ({
    what: `a conversation with ${what}`,
    run: () => render(usual, messages),
  }));
  const configs = wrongConfigs.map(([what, config]): BadCase => ({
    what: `tokenizer_config.json with ${what}`,
    run: () => renderConfig(config),
  }));
  return [...hostile, ...wrong, ...conversations, ...configs];
}
