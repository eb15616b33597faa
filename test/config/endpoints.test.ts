import assert from 'node:assert/strict';
import { readdirSync, readFileSync } from 'node:fs';
import { test } from 'node:test';
import fc from 'fast-check';
import { keyOf } from '../../config/models/model-access.ts';
import type { EndpointsSpec } from '../../config/models/endpoints-spec.ts';
import { endpointsToml, parseEndpoints } from '../../config/models/parse-endpoints.ts';
import type { Problem } from '../../config/toml/problems.ts';
import { PythonProblem, readPythonAssignment } from '../../config/models/python-literal.ts';

const folder = new URL('../data/configs/endpoints/', import.meta.url);

function read(text: string, file: string): EndpointsSpec {
  const parsed = parseEndpoints(text, { file });
  assert(parsed.ok, JSON.stringify(parsed));
  return parsed.spec;
}

function problemsOf(text: string, file = 'endpoints.py'): Problem[] {
  const parsed = parseEndpoints(text, { file });
  assert(!parsed.ok);
  return parsed.problems;
}

for (const name of readdirSync(folder)) {
  test(`verifiers' sample ${name} loads, and is the same again when written as TOML`, () => {
    const spec = read(readFileSync(new URL(name, folder), 'utf8'), name);
    assert(spec.endpoints.length > 30);
    assert.deepEqual(read(endpointsToml(spec), 'again.toml'), spec);
  });
}

test('an alias that is there twice has two replicas', () => {
  const one = (url: string) => `[[endpoint]]\nendpoint_id = "a"\nmodel = "m"\nurl = "${url}"\nkey = "A_KEY"\n`;
  const { endpoints } = read(one('http://one/v1') + one('http://two/v1'), 'e.toml');
  assert.deepEqual(
    endpoints.map(({ id, replicas }) => [id, replicas.map(({ baseUrl }) => baseUrl)]),
    [['a', ['http://one/v1', 'http://two/v1']]],
  );
});

test('long and short names of a field are one field, and must agree', () => {
  const { endpoints } = read(
    '[[endpoint]]\nendpoint_id = "a"\nmodel = "m"\napi_base_url = "http://x/v1"\napi_key_var = "A_KEY"\napi_client_type = "openai_responses"\nextra_headers = { A = "b" }',
    'e.toml',
  );
  assert.deepEqual(endpoints[0]!.replicas[0], {
    model: 'm',
    baseUrl: 'http://x/v1',
    apiKeyVar: 'A_KEY',
    clientType: 'openai_responses',
    headers: { A: 'b' },
  });
  const [problem] = problemsOf(
    '[[endpoint]]\nendpoint_id = "a"\nmodel = "m"\nurl = "http://x/v1"\napi_base_url = "http://y/v1"\nkey = "A_KEY"',
    'e.toml',
  );
  assert.deepEqual([problem!.line, problem!.path], [5, 'endpoint[0].api_base_url']);
});

test('a key that is written out is refused with the advice to rotate it, and never repeated', () => {
  for (const key of [
    'sk-abcdefghijklmnopqrst',
    '8f3kd92ls0dkfj29dkf0',
    'hf_abcdefghijklmnop',
    'A1B2C3D4E5F6G7H8I9J0K1',
  ]) {
    const [problem] = problemsOf(
      `[[endpoint]]\nendpoint_id = "a"\nmodel = "m"\nurl = "http://x/v1"\nkey = "${key}"`,
      'e.toml',
    );
    assert.match(problem!.suggestion!, /^rotate it/);
    assert(!JSON.stringify(problem).includes(key));
  }
});

test('names of variables and placeholders are told from keys', () => {
  for (const name of ['OPENAI_API_KEY', 'PRIME_API_KEY', 'MY_KEY_2', 'openai_key', 'TOKEN']) {
    assert.deepEqual(keyOf(name), { variable: name });
  }
  for (const name of ['EMPTY', 'local', 'none']) assert.deepEqual(keyOf(name), { variable: null });
  for (const key of ['', 'abc def', 'Zm9vYmFyYmF6', 'x9y8z7', 'KEYWITHOUTANYUNDERSCOREANDLONG'])
    assert.equal(keyOf(key), undefined);
});

test('a header with a key in it is refused', () => {
  const [problem] = problemsOf(
    '[[endpoint]]\nendpoint_id = "a"\nmodel = "m"\nurl = "http://x/v1"\nkey = "A_KEY"\nheaders = { "X-Api-Key" = "abc" }',
    'e.toml',
  );
  assert.equal(problem!.path, 'endpoint[0].headers.X-Api-Key');
});

test('a header that cannot be sent is refused', () => {
  for (const header of ['"bad header" = "a"', '"x-ü" = "a"', '"X-Team" = "a\\nb"', '"X-Team" = "日本"']) {
    const [problem] = problemsOf(
      `[[endpoint]]\nendpoint_id = "a"\nmodel = "m"\nurl = "http://x/v1"\nkey = "A_KEY"\nheaders = { ${header} }`,
      'e.toml',
    );
    assert.match(problem!.path, /^endpoint\[0\]\.headers/, header);
  }
});

test('an endpoints.py as the documents have it is read without being run', () => {
  const { endpoints } = read(
    `"""Where models are."""
import os
from typing import (
    Dict,
)

ENDPOINTS: Dict[str, dict] = {  # aliases
    "Qwen/Qwen2.5-7B-Instruct": {
        "model": "Qwen/Qwen2.5-7B-Instruct",
        "url": "http://0.0.0.0:8007/v1",
        "key": "local",
    },
    'gpt': [
        {"model": "gpt-4.1" '-mini', "url": r"https://one/v1", "key": "OPENAI_API_KEY"},
        {"model": "gpt-4.1-mini", "url": ("https://"
            "two/v1"), "key": "OTHER_KEY", "headers": None},
    ],
}
`,
    'endpoints.py',
  );
  assert.deepEqual(endpoints, [
    {
      id: 'Qwen/Qwen2.5-7B-Instruct',
      replicas: [
        {
          model: 'Qwen/Qwen2.5-7B-Instruct',
          baseUrl: 'http://0.0.0.0:8007/v1',
          apiKeyVar: null,
          clientType: null,
          headers: {},
        },
      ],
    },
    {
      id: 'gpt',
      replicas: [
        {
          model: 'gpt-4.1-mini',
          baseUrl: 'https://one/v1',
          apiKeyVar: 'OPENAI_API_KEY',
          clientType: null,
          headers: {},
        },
        { model: 'gpt-4.1-mini', baseUrl: 'https://two/v1', apiKeyVar: 'OTHER_KEY', clientType: null, headers: {} },
      ],
    },
  ]);
});

test('whatever would have to be run is refused with its line and what it is', () => {
  const cases: readonly [string, RegExp][] = [
    ['os.environ["X"]', /os\.environ, which has to be run; write the name of the variable/],
    ['os.getenv("K")', /os\.getenv/],
    ['f"{x}"', /an f-string/],
    ['b"x"', /bytes/],
    ['key()', /a call of key\(…\)/],
    ['KEY', /the name KEY/],
    ['"a" + "b"', /an expression that continues \("\+"\)/],
    ['"a" if x else "b"', /an expression that continues/],
    ['{"a"}', /a set/],
    ['[x for x in y]', /the name x/],
    ['["x" for x in y]', /a comprehension/],
    ['{**other}', /another dictionary taken in/],
    ['lambda: 1', /the name lambda/],
    ['"never ends', /a text that does not end/],
    ['"\\N{BULLET}"', /the escape \\N/],
  ];
  for (const [value, received] of cases) {
    const [problem] = problemsOf(`\nENDPOINTS = {\n "a": {"model": "m", "url": "http://x", "key": ${value}},\n}`);
    assert.equal(problem!.line, 3, value);
    assert.match(problem!.received, received, value);
    assert.match(problem!.expected, /read, never run/);
  }
});

test('an ENDPOINTS that is changed later, made twice, or missing is refused', () => {
  assert.match(problemsOf('ENDPOINTS = {}\nENDPOINTS["a"] = 1')[0]!.received, /changed or used/);
  assert.match(problemsOf('ENDPOINTS = {}\nENDPOINTS = {}')[0]!.received, /a second ENDPOINTS/);
  assert.match(problemsOf('OTHER = {}')[0]!.received, /begins with OTHER/);
  assert.match(problemsOf('# nothing')[0]!.received, /no ENDPOINTS/);
  assert.match(problemsOf('print("x")\nENDPOINTS = {}')[0]!.received, /begins with print/);
  assert.match(problemsOf('ENDPOINTS = ["a"]')[0]!.expected, /a dictionary of aliases/);
});

test('what is wrong with an entry of an endpoints.py is said at its line', () => {
  const problems = problemsOf(
    'ENDPOINTS = {\n  "a": {"model": "m",\n    "url": "x"},\n  "b": {"model": "m", "url": "http://x/v1",\n    "key": "sk-abcdefghijklmnopqrst"},\n}',
  );
  assert.deepEqual(
    problems.map(({ line, path }) => [line, path]),
    [
      [2, 'ENDPOINTS.a.key'],
      [3, 'ENDPOINTS.a.url'],
      [5, 'ENDPOINTS.b.key'],
    ],
  );
});

test('texts, numbers and constants mean what Python means by them', () => {
  const { value } = readPythonAssignment(
    String.raw`X = {"a": 'it\'s \x41\u00e9\t\101', "b": """two
lines""", "c": r"\n", "d": [1, -2.5, 1_000, 0x1f, 1e3, .5, True, False, None], "e": (1, 2,), "f": ("one"), "g": "\q"}`,
    'X',
  );
  assert.deepEqual(value, {
    a: "it's Aé\tA",
    b: 'two\nlines',
    c: String.raw`\n`,
    d: [1, -2.5, 1000, 31, 1000, 0.5, true, false, null],
    e: [1, 2],
    f: 'one',
    g: String.raw`\q`,
  });
});

test('any JSON value, written as Python writes it, is read back', () => {
  const python = (value: unknown): string => {
    if (value === null) return 'None';
    if (typeof value === 'boolean') return value ? 'True' : 'False';
    if (Array.isArray(value)) return `[${value.map(python).join(', ')}]`;
    if (typeof value !== 'object') return JSON.stringify(value);
    const entries = Object.entries(value).map(([key, item]) => `${JSON.stringify(key)}: ${python(item)},`);
    return `{\n${entries.join('\n')}}`;
  };
  fc.assert(
    fc.property(fc.jsonValue({ maxDepth: 4 }), (value) => {
      const json = JSON.parse(JSON.stringify(value)) as unknown;
      assert.deepEqual(readPythonAssignment(`X = ${python(json)}\n`, 'X').value, json);
    }),
  );
});

test('no text makes the reader of Python fail in another way than by a PythonProblem', () => {
  const pieces = fc.constantFrom('ENDPOINTS', ' = ', '{', '}', '[', ']', '(', ')', '"a"', "'b", ':', ',', '\n', '\\', '#', '"""', 'f"', '1', '-', '.', 'import x', '\u0000'); // prettier-ignore
  fc.assert(
    fc.property(fc.array(fc.oneof(pieces, fc.string()), { maxLength: 30 }), (parts) => {
      const text = `ENDPOINTS = ${parts.join('')}`;
      try {
        readPythonAssignment(text, 'ENDPOINTS');
      } catch (error) {
        assert(error instanceof PythonProblem, String(error));
      }
      parseEndpoints(text, { file: 'endpoints.py' });
    }),
    { numRuns: 2000 },
  );
});
