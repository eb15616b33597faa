/** A model's files are somebody else's: what in them would stop this process is refused in moments. */
import assert from 'node:assert/strict';
import { readFile } from 'node:fs/promises';
import { test } from 'node:test';
import { fileURLToPath } from 'node:url';
import { compileTemplate, renderBounded } from '../../engine/model/template/bounded-template.ts';
import { ChatTemplates } from '../../engine/model/template/chat-template.ts';
import { hasUnknownExpression } from '../../engine/model/tokenizer/pre-tokenizing.ts';
import { decodeHeader } from '../../engine/model/safetensors.ts';
import { ChatTokenizer } from '../../engine/model/tokenizer/tokenizer.ts';
import { TookTooLong, withinTime } from '../../engine/model/within-time.ts';

const golden = fileURLToPath(new URL('./golden/tokenizers/byte-level', import.meta.url));

test('work that takes too long is stopped, also within a regular expression; other failures and answers pass', () => {
  assert.throws(() => withinTime(200, () => /^(a+)+$/.test(`${'a'.repeat(60)}!`)), TookTooLong);
  assert.throws(() => withinTime(200, () => withinTime(100, () => /^(a+)+$/.test(`${'a'.repeat(60)}!`))), TookTooLong);
  assert.throws(
    () =>
      withinTime(10_000, () => {
        throw new RangeError('its own');
      }),
    RangeError,
  );
  assert.equal(
    withinTime(10_000, () => withinTime(10_000, () => 7) + 1),
    8,
  );
});

test('an expression is known by its letters, and any other is watched', async () => {
  const tokenizer = JSON.parse(await readFile(`${golden}/tokenizer.json`, 'utf8')) as Record<string, unknown>;
  assert.equal(hasUnknownExpression(tokenizer['pre_tokenizer']), false);
  assert.equal(hasUnknownExpression({ type: 'Split', pattern: { Regex: '(a+)+$' } }), true);
  assert.equal(hasUnknownExpression({ pretokenizers: [{ pattern: { Regex: { toString: '.' } } }] }), true);
  assert.equal(hasUnknownExpression({ type: 'Split', pattern: { String: '(a+)+$' } }), false);
});

test('a tokenizer whose expression is not known gives the tokens it would give unwatched', async () => {
  const [text, config] = await Promise.all(
    ['tokenizer.json', 'tokenizer_config.json'].map((name) => readFile(`${golden}/${name}`, 'utf8')),
  );
  const known = new ChatTokenizer({ tokenizer: text!, config: config! }, 'known');
  // The same with an alternative that never comes.
  const other = text!.replace('"Regex": "', '"Regex": "').replace(String.raw`|\\s+"`, String.raw`|\\s+|\\u{10FFFF}"`);
  assert.notEqual(other, text);
  const watched = new ChatTokenizer({ tokenizer: other, config: config! }, 'watched');
  const said = 'Two words, 12 and\n a half.';
  assert.deepEqual(watched.encode(said), known.encode(said));
  assert.equal(watched.decode(watched.encode(said)), said);
});

const render = (template: string, variables: Record<string, unknown> = {}) =>
  new ChatTemplates({}, { chatTemplate: template }).render([{ role: 'user', content: 'x'.repeat(1000) }], {
    addGenerationPrompt: true,
    templateArguments: variables,
  });

test('a template that would loop, or fill the memory, is refused', () => {
  const loops = '{% for i in range(1000) %}';
  for (const [template, reason] of [
    ['{% for i in range(100000000) %}{% endfor %}', /range\(\) of 100000000 numbers/],
    ['{% for i in range(1, 2, 0) %}{% endfor %}', /range\(\) of Infinity numbers/],
    [`${loops}${loops}${loops}{% set a = i + 1 %}{% endfor %}{% endfor %}{% endfor %}`, /steps/],
    ['{% set ns = namespace(t="aaaa") %}{% for i in range(99) %}{% set ns.t = ns.t ~ ns.t %}{% endfor %}', /steps/],
    ['{% set ns = namespace(n=[1]) %}{% for i in range(99) %}{% set ns.n = ns.n + ns.n %}{% endfor %}', /steps/],
  ] as const) {
    assert.throws(() => renderBounded(compileTemplate(template), {}, { workMax: 300_000 }), reason, template);
  }
});

test('what templates have at hand is there', () => {
  assert.equal(
    render('{{ range(3) | join(",") }} {{ range(4, 0, -2) | join(",") }} {{ range(0) | length }}'),
    '0,1,2 4,2 0',
  );
  assert.equal(render('{{ none is none }}{{ None is none }}{{ true }}{{ False }}'), 'TrueTrueTrueFalse');
  assert.match(render('{{ strftime_now("%d %b %Y") }}'), /^\d\d [A-Z][a-z]{2} \d{4}$/);
  assert.throws(() => render('{{ raise_exception("not so") }}'), /does not take these messages: not so/);
  // A long conversation is far from the bound.
  const messages = Array.from({ length: 4_000 }, () => ({ role: 'user', content: 'word '.repeat(40) }));
  const template = '{% for m in messages %}{% if m.role == "user" %}{{ m.content | trim }}{% endif %}{% endfor %}';
  const text = new ChatTemplates({}, { chatTemplate: template }).render(messages, { addGenerationPrompt: false });
  assert.equal(text.length, 4_000 * 199);
});

test('a header of weights with a million tensors is refused before each of them is looked at', () => {
  const entry = JSON.stringify({ dtype: 'F32', shape: [0], data_offsets: [0, 0] });
  const many = (count: number) => `{${Array.from({ length: count }, (_, i) => `"${i}":${entry}`).join()}}`;
  const header = Buffer.from(many(200_000));
  const before = process.cpuUsage();
  assert.throws(() => decodeHeader(header, header.length + 8, 'x'), /at most 65536 tensors, got 200000/);
  const { user, system } = process.cpuUsage(before);
  assert.ok(user + system < 10e6, `it took ${(user + system) / 1e6} s`);
  const wrong = Buffer.from(many(2_000).replaceAll('"shape":[0]', '"shape":"0"'));
  assert.throws(() => decodeHeader(wrong, wrong.length + 8, 'x'), (error: Error) => error.message.length < 1_000); // prettier-ignore
});
