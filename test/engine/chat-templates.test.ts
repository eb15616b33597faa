/** Chat templates of trl and axolotl, and what jinja2 gives for them: recorded by test/data/chat-templates/record.py. */
import assert from 'node:assert/strict';
import { createHash } from 'node:crypto';
import { readFileSync } from 'node:fs';
import { test } from 'node:test';
import { compileTemplate, renderBounded } from '../../engine/model/template/bounded-template.ts';

const read = (name: string): unknown =>
  JSON.parse(readFileSync(new URL(`../data/chat-templates/${name}.json`, import.meta.url), 'utf8'));

const conversations = read('conversations') as readonly ({ readonly name: string } & Record<string, unknown>)[];
const { time, templates } = read('recorded') as {
  /** Of the recording, for strftime_now. */
  readonly time: string;
  readonly templates: Readonly<
    Record<string, { readonly template: string; readonly texts: readonly (string | null)[] }>
  >;
};
const { values, expressions } = read('expressions') as {
  readonly values: Record<string, unknown>;
  readonly expressions: readonly (readonly [string, string | null])[];
};
const around = { tools: null, documents: null, bos_token: '<s>', eos_token: '</s>', pad_token: '<pad>' };

test('templates of trl and axolotl give the texts of jinja2', () => {
  const differing: string[] = [];
  for (const [name, { template, texts }] of Object.entries(templates)) {
    for (const [i, { name: conversation, ...given }] of conversations.entries()) {
      const came = attempt(() => renderBounded(compileTemplate(template), { ...around, ...given }, { time }));
      const hash = came.text === null ? null : createHash('sha256').update(came.text).digest('hex').slice(0, 16);
      if (hash !== texts[i]) differing.push(`${name}: ${conversation}: ${came.reason ?? 'another text'}`);
    }
  }
  assert.equal(JSON.stringify(differing, null, 1), '[]');
});

test('expressions give the texts of jinja2', () => {
  const differing = expressions.flatMap(([template, text]) => {
    const came = attempt(() => renderBounded(compileTemplate(template), values));
    return came.text === text ? [] : [{ template, text, came }];
  });
  assert.equal(JSON.stringify(differing, null, 1), '[]');
});

function attempt(work: () => string): { readonly text: string | null; readonly reason?: string } {
  try {
    return { text: work() };
  } catch (error) {
    return { text: null, reason: (error as Error).message };
  }
}
