import assert from 'node:assert/strict';
import { readdirSync, readFileSync } from 'node:fs';
import { test } from 'node:test';
import fc from 'fast-check';
import { parse, stringify } from 'smol-toml';
import { summaryOf } from '../../cli/describe/file-summary.ts';
import { environmentIdsOf, kindOf, parseConfigFile, refuseRunFile } from '../../config/parse-config-file.ts';
import { parseToml } from '../../config/toml/parse-toml.ts';
import { isTable, type Table } from '../../config/toml/tables.ts';

const data = new URL('../data/configs/', import.meta.url);
const samples = ['eval', 'gepa', 'endpoints'].flatMap((kind) =>
  readdirSync(new URL(`${kind}/`, data))
    .filter((name) => name.endsWith('.toml'))
    .map((name) => ({ kind, name, text: readFileSync(new URL(`${kind}/${name}`, data), 'utf8') })),
);

test('what a file is for shows in its shape, and which key shows it is said', () => {
  const cases: readonly [string, string, string][] = [
    ['[[eval]]\nid = "x"', 'eval', '[[eval]]'],
    ['[[ablation]]\nid = "x"', 'eval', '[[ablation]]'],
    ['[eval]\nenv_id = "x"', 'eval', '[eval] env_id'],
    ['[[env]]\nenv_id = "x"\n[gepa]\n', 'gepa', '[gepa]'],
    ['reflection_model = "x"', 'gepa', 'reflection_model'],
    ['model = "m"\n[env]\nenv_id = "x"', 'gepa', '[env] env_id'],
    ['[[endpoint]]\n', 'endpoints', '[[endpoint]]'],
    ['model = "m"\nmax_steps = 1\n[[env]]\nid = "x"\n[eval]\ninterval = 5', 'run', 'no other kind shows'],
    ['model = "m"\nmax_steps = 1\n[[env]]\nenv_id = "x"', 'run', 'no other kind shows'],
    ['model = ', 'run', 'no other kind shows'],
  ];
  for (const [text, kind, why] of cases) assert.deepEqual(kindOf(text, 'a.toml'), { kind, why }, text);
  assert.equal(kindOf('ENDPOINTS = {}', 'endpoints.py').kind, 'endpoints');
});

test('every sample is recognised as what its folder says, and summed up', () => {
  for (const { kind, name, text } of samples) {
    const parsed = parseConfigFile(text, { file: name });
    assert(parsed.ok, name);
    assert.equal(parsed.kind, kind, name);
    assert(summaryOf(parsed).length > 1, name);
    assert.equal(environmentIdsOf(parsed).length > 0, kind !== 'endpoints', name);
  }
});

test('a summary counts evaluations, environments, models, examples and rollouts', () => {
  const parsed = parseConfigFile(
    'num_examples = 20\n[[ablation]]\nid = "owner/x"\n[ablation.sweep]\nmodel = ["a", "b"]\ntemperature = [0, 1]',
    { file: 'e.toml' },
  );
  assert(parsed.ok);
  const [first, second] = summaryOf(parsed);
  assert.equal(first, '4 evaluations of 1 environment with 2 models');
  assert.match(second!, /^ {2}x +a, 20 examples × 3 rollouts = 60 unless its package says otherwise; temperature 0$/);
});

/** Keys by their way, but not those of tables that are free. */
function keysOf(table: Table, path: readonly (string | number)[] = []): (readonly (string | number)[])[] {
  const isFree = (key: string) => /args|kwargs|sampling|headers/.test(key);
  return Object.entries(table).flatMap(([key, value]) => {
    const at = [...path, key];
    if (isFree(key)) return [at];
    if (isTable(value)) return [at, ...keysOf(value, at)];
    const items = Array.isArray(value)
      ? value.flatMap((item, i) => (isTable(item) ? keysOf(item, [...at, i]) : []))
      : [];
    return [at, ...items];
  });
}

function renamed(table: Table, path: readonly (string | number)[], name: string): Table {
  const copy = structuredClone(table);
  let parent: unknown = copy;
  for (const part of path.slice(0, -1)) parent = (parent as Record<string | number, unknown>)[part];
  const within = parent as Table;
  const entries = Object.entries(within).map(([key, value]) => [key === path.at(-1) ? name : key, value] as const);
  for (const key of Object.keys(within)) delete within[key];
  for (const [key, value] of entries) within[key] = value;
  return copy;
}

/** One of each kind: a letter doubled, left out, swapped with the next, another one. */
function typosOf(key: string): string[] {
  const at = Math.floor(key.length / 2);
  const [before, letter, after] = [key.slice(0, at), key[at]!, key.slice(at + 1)];
  return [
    `${before}${letter}${letter}${after}`,
    `${before}${after}`,
    `${before}${after.slice(0, 1)}${letter}${after.slice(1)}`,
    `${before}${letter === 'x' ? 'y' : 'x'}${after}`,
  ].filter((typo) => typo !== key && typo !== '');
}

test('a typo in any key of a sample is an error that suggests the right key', () => {
  const missed: string[] = [];
  for (const { kind, name, text } of samples) {
    const table = parse(text);
    const seen = new Set<string>();
    for (const path of keysOf(table)) {
      const place = path.filter((part) => typeof part === 'string').join('.');
      if (seen.has(place)) continue; // Once for each key of a file.
      seen.add(place);
      // Kept, so that the file's kind can still be detected.
      if (['eval', 'gepa', 'endpoint', 'env', 'ablation'].includes(place)) continue;
      for (const typo of typosOf(String(path.at(-1)))) {
        const wrong = parseConfigFile(stringify(renamed(table, path, typo)), { file: name });
        const isSaid =
          !wrong.ok && wrong.problems.some(({ suggestion }) => suggestion?.includes(`"${String(path.at(-1))}"`));
        if (!isSaid) missed.push(`${kind}/${name}: ${place} as ${typo}`);
      }
    }
  }
  assert.deepEqual(missed, []);
});

const words = [...new Set(samples.flatMap(({ text }) => keysOf(parse(text)).map((path) => String(path.at(-1)))))];

test('no file makes a reader fail in another way than by saying what is wrong', () => {
  const value = fc.letrec<{ any: unknown }>((tie) => ({
    any: fc.oneof(
      { depthSize: 'small' },
      fc.string(),
      fc.integer(),
      fc.double({ noNaN: true }),
      fc.boolean(),
      fc.array(tie('any'), { maxLength: 3 }),
      fc.dictionary(
        fc.oneof(fc.constantFrom(...words, 'sweep', 'ablation', 'sampling', 'id', '__proto__'), fc.string()),
        tie('any'),
        { maxKeys: 5 },
      ),
    ),
  })).any;
  const file = fc.dictionary(fc.constantFrom(...words, 'ablation', 'reflection_model', 'sampling'), value, {
    maxKeys: 6,
  });
  fc.assert(
    fc.property(file, (table) => {
      let text: string;
      try {
        text = stringify(table);
      } catch {
        return; // No TOML says it.
      }
      const parsed = parseConfigFile(text, { file: 'fuzz.toml' });
      if (parsed.ok) summaryOf(parsed);
      else assert(parsed.problems.length > 0);
    }),
    { numRuns: 3000 },
  );
});

test('a run file is refused where another kind is expected, with what to do with it', () => {
  const run = 'model = "m"\nmax_steps = 3\n[[env]]\nid = "words"\n';
  assert.throws(() => refuseRunFile(parseToml(run, 'a.toml'), 'a file of a prompt search'), {
    message:
      'a.toml: expected a file of a prompt search, got a run file, because of max_steps. To train with it: npx ratchet-rl train a.toml',
  });
  for (const other of ['[gepa]\nmax_calls = 9\n', '[[eval]]\nid = "words"\n', '[[env]]\nenv_id = "words"\n'])
    refuseRunFile(parseToml(other, 'a.toml'), 'that');
});
