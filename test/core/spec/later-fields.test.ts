import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { stringify } from 'smol-toml';
import { z } from 'zod';
import { laterFields } from '../../../core/spec/dialects/later.ts';
import { parseRunConfig } from '../../../core/spec/parse-run-config.ts';
import type { KeyPath } from '../../../core/spec/positions.ts';
import { setAt, type Table } from '../../../core/spec/tables.ts';

describe('fields whose feature is still to come', () => {
  for (const [field, { schema, feature }] of Object.entries(laterFields)) {
    test(`${field} is kept in the spec and listed as not yet honoured`, () => {
      const value = valueOf(schema);
      assert.notEqual(value, undefined, 'this test knows no value of that kind');
      const table: Table = {
        model: 'preset:reverse-text-0.2m',
        env: [{ id: 'reverse-text' }],
        eval: { env: [{ id: 'reverse-text' }] },
      };
      setAt(table, placeOf(field), value);
      const parsed = parseRunConfig(stringify(table), { file: 'run.toml', dialect: 'ratchet' });
      assert(parsed.ok, JSON.stringify(parsed));
      const path = field.replaceAll('[]', '[0]');
      assert.deepEqual(parsed.spec.later, { [path]: value });
      const [listed] = parsed.notYet;
      assert.deepEqual([parsed.notYet.length, listed?.path, listed?.feature], [1, path, feature]);
      assert(listed?.line, 'with its line');
    });
  }

  test('what is honoured is not listed', () => {
    const text = 'model = "preset:reverse-text-0.2m"\n[[env]]\nid = "reverse-text"\n';
    const parsed = parseRunConfig(text, { file: 'run.toml' });
    assert(parsed.ok);
    assert.deepEqual([parsed.spec.later, parsed.notYet], [{}, []]);
  });
});

function placeOf(field: string): KeyPath {
  return field
    .split('.')
    .flatMap((part): (string | number)[] => (part.endsWith('[]') ? [part.slice(0, -2), 0] : [part]));
}

/** Something the schema takes; undefined where none of these will do. */
function valueOf(schema: z.ZodType): unknown {
  const element = schema instanceof z.ZodArray ? valueOf(schema.element as z.ZodType) : undefined;
  const options = schema instanceof z.ZodEnum ? schema.options : [];
  const candidates = [1, 0.5, true, 'x', ...options, { a: 1 }, [element], { type: 'x' }, [{ type: 'x' }], ['x'], [1]];
  return candidates.find((candidate) => schema.safeParse(candidate).success);
}
