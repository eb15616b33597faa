/** docs/guide/ndjson.md says what the schemas say. `node --import tsx test/cli/ndjson.test.ts --write` writes it again. */
import assert from 'node:assert/strict';
import { readFile, writeFile } from 'node:fs/promises';
import { test } from 'node:test';
import { fileURLToPath } from 'node:url';
import { z } from 'zod';
import { eventLine, NdjsonLine, waitingJson } from '../../cli/output/ndjson.ts';
import type { RunEvent } from '../../workflows/control/messages.ts';
import { formatMarkdown } from '../docs/format-markdown.ts';

const file = fileURLToPath(new URL('../../docs/guide/ndjson.md', import.meta.url));

interface JsonSchema {
  readonly type?: string;
  readonly description?: string;
  readonly const?: string;
  readonly enum?: readonly string[];
  readonly anyOf?: readonly JsonSchema[];
  readonly properties?: Readonly<Record<string, JsonSchema>>;
}

function typeOf(schema: JsonSchema): string {
  if (schema.const !== undefined) return `\`"${schema.const}"\``;
  if (schema.enum) return schema.enum.map((value) => `\`"${value}"\``).join(', ');
  if (schema.anyOf) return schema.anyOf.map(typeOf).join(' or ');
  return schema.type ?? 'any';
}

/** A heading and a table for each kind of line. */
function tables(): string {
  return NdjsonLine.options
    .map((line) => {
      const name = line.shape.type.value;
      const { description = '', properties = {} } = z.toJSONSchema(line) as JsonSchema;
      const rows = Object.entries(properties).map(
        ([field, schema]) => `| \`${field}\` | ${typeOf(schema)} | ${schema.description ?? ''} |`,
      );
      return [`## ${name}`, '', description, '', '| field | type | |', '| --- | --- | --- |', ...rows, ''].join('\n');
    })
    .join('\n');
}

async function expected(): Promise<string> {
  const head = (await readFile(file, 'utf8')).split(/^## /m, 1)[0]!;
  return formatMarkdown('ndjson.md', head + tables());
}

if (process.argv.includes('--write')) await writeFile(file, await expected());

test('docs/guide/ndjson.md says what the schemas say', async () => {
  assert.equal(await readFile(file, 'utf8'), await expected());
});

test('an event and a wait become lines of the schema; a field that is not documented is refused', () => {
  const event: RunEvent = {
    sequence: 3,
    time: '2026-11-21T12:00:00.000Z',
    kind: 'step',
    step: 1,
    text: 'step 1 of 2',
    values: { reward: 0.5, environment: 'x' },
  };
  assert.deepEqual(NdjsonLine.parse(eventLine('words', event)), { type: 'event', run: 'words', ...event });
  const on = [{ what: 'train', since: event.time, lastFailure: null, nextAt: null }];
  const wait = waitingJson('words', { pausedBecause: null, step: 1, on });
  assert.equal(NdjsonLine.parse(wait).type, 'waiting');
  assert.throws(() => NdjsonLine.parse({ ...wait, surprise: 1 }), /surprise/);
});
