import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import fc from 'fast-check';
import { parse, stringify } from 'smol-toml';
import { findPositions, formatPath } from '../../config/toml/positions.ts';
import type { KeyPath } from '../../config/toml/positions.ts';

const text = `# a comment = not a key
model = "a # b" # model = 2
"quoted key" = 1
'lit.eral' = 1
a.b . "c.d" = 1
text = """
  trap = 1
  [not.a.table]
  \\""" still ""quoted"""""
raw = '''
x = 1
C:\\'''

list = [
  1, # one ]
  [2, { deep = 3 }],
]
inline = { one = 1, two.three = "}", four = { five = 5 } }
date = 1979-05-27 07:32:00
[sampling]
  temperature = 1.0
[[env]]
id = "a"
args.x = 1
[env.extra]
y = 1
[[env]]
id = "b"
[[env.sub]]
k = 1
[[env.sub]]
k = 2
[ "odd name" . deep ]
z = 1
`;

/** The paths of values that the parser finds in a text and the finder does not. */
function withoutPosition(toml: string): string[] {
  const positions = findPositions(toml);
  const visit = (value: unknown, path: KeyPath): string[] => {
    const here = path.length > 0 && positions.at(path) === undefined ? [formatPath(path)] : [];
    if (typeof value !== 'object' || value === null || value instanceof Date) return here;
    const entries: [string | number, unknown][] = Array.isArray(value) ? [...value.entries()] : Object.entries(value);
    return [...here, ...entries.flatMap(([key, item]) => visit(item, [...path, key]))];
  };
  return visit(parse(toml), []);
}

describe('positions in a TOML file', () => {
  const positions = findPositions(text);
  const lineOf = (...path: KeyPath) => positions.at(path)?.line;
  const lineWith = (start: string, nth = 1) => {
    let seen = 0;
    return text.split('\n').findIndex((line) => line.startsWith(start) && ++seen === nth) + 1;
  };

  test('keys are found whether bare, quoted or dotted', () => {
    assert.equal(lineOf('model'), 2);
    assert.equal(lineOf('quoted key'), 3);
    assert.equal(lineOf('lit.eral'), 4);
    assert.equal(lineOf('a', 'b', 'c.d'), 5);
    assert.equal(lineOf('a'), 5);
  });

  test('what stands inside strings and comments is not taken for keys', () => {
    assert.equal(lineOf('trap'), undefined);
    assert.equal(lineOf('not'), undefined);
    assert.equal(lineOf('x'), undefined);
    assert.equal(lineOf('list'), lineWith('list'));
  });

  test('list items and inline tables have positions of their own', () => {
    assert.deepEqual(positions.at(['list', 0]), { line: lineWith('  1,'), column: 3 });
    assert.deepEqual(positions.at(['list', 1, 1, 'deep']), { line: lineWith('  [2,'), column: 9 });
    assert.deepEqual(positions.at(['inline', 'two', 'three']), { line: lineWith('inline'), column: 21 });
    assert.equal(lineOf('inline', 'four', 'five'), lineWith('inline'));
  });

  test('tables and arrays of tables are told apart by their position', () => {
    assert.deepEqual(positions.at(['sampling', 'temperature']), { line: lineWith('  temperature'), column: 3 });
    assert.equal(lineOf('env', 0, 'args', 'x'), lineWith('args.x'));
    assert.equal(lineOf('env', 0, 'extra', 'y'), lineWith('y ='));
    assert.equal(lineOf('env', 1), lineWith('[[env]]', 2));
    assert.equal(lineOf('env', 1, 'id'), lineWith('id', 2));
    assert.equal(lineOf('env', 1, 'sub', 1, 'k'), lineWith('k = 2'));
    assert.equal(lineOf('odd name', 'deep', 'z'), lineWith('z ='));
  });

  test('every value that the parser finds has a position', () => {
    assert.deepEqual(withoutPosition(text), []);
  });

  test('that holds for whatever TOML there is, with any keys and any nesting', () => {
    const { tree } = fc.letrec<{ tree: unknown }>((tie) => ({
      tree: fc.oneof(
        { maxDepth: 3 },
        fc.string({ unit: 'binary' }),
        fc.integer(),
        fc.boolean(),
        fc.array(tie('tree'), { maxLength: 3 }),
        fc.dictionary(fc.string({ minLength: 1 }), tie('tree'), { maxKeys: 4, noNullPrototype: true }),
      ),
    }));
    const key = fc.string().filter((key) => key !== '__proto__');
    fc.assert(
      fc.property(fc.dictionary(key, tree, { maxKeys: 5, noNullPrototype: true }), (table) => {
        assert.deepEqual(withoutPosition(stringify(table)), []);
      }),
      { numRuns: 500 },
    );
  });

  test('Windows line ends and a byte order mark do not shift lines', () => {
    const shifted = findPositions('\uFEFFa = 1\r\n[t]\r\nb = 2\r\n');
    assert.equal(shifted.at(['t', 'b'])?.line, 3);
    assert.equal(shifted.at(['a'])?.line, 1);
  });

  test('a path is written as people write it', () => {
    assert.equal(formatPath(['env', 0, 'args', 'max_turns']), 'env[0].args.max_turns');
    assert.equal(formatPath(['odd name', 'x']), '"odd name".x');
  });
});
