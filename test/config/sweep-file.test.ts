/** Files of `ratchet sweep`: what they mean, and what is refused at the door, with the key, what was expected and what came. */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { parseSweepFile, type SweepSpec } from '../../config/sweeps/parse-sweep-file.ts';
import type { Problem } from '../../config/toml/problems.ts';

const head = '[sweep]\nrun = "words.toml"\nmetric = "train/reward"\n';

function read(text: string): SweepSpec {
  const parsed = parseSweepFile(text, { file: 'runs/lr.toml' });
  assert(parsed.ok, parsed.ok ? '' : JSON.stringify(parsed.problems));
  return parsed.spec;
}

/** `key: expected …, got …`, one of each problem. */
function refusals(text: string): string[] {
  const parsed = parseSweepFile(text, { file: 'lr.toml' });
  assert(!parsed.ok, 'it is taken');
  return parsed.problems.map(({ path, expected, received }: Problem) => `${path}: ${expected}; got ${received}`);
}

test('a table of settings is every combination, by their names in the run file', () => {
  const spec = read(`${head}seeds = [2, 1, 2]
    [sweep.settings]
    learning_rate = [1e-3, 3e-3]
    "sampling.temperature" = [0.7]
    [sweep.settings.trainer]
    schedule = ["linear", "cosine"]`);
  assert.deepEqual(spec.rows, [
    { learning_rate: 0.001, 'sampling.temperature': 0.7, 'trainer.schedule': 'linear' },
    { learning_rate: 0.001, 'sampling.temperature': 0.7, 'trainer.schedule': 'cosine' },
    { learning_rate: 0.003, 'sampling.temperature': 0.7, 'trainer.schedule': 'linear' },
    { learning_rate: 0.003, 'sampling.temperature': 0.7, 'trainer.schedule': 'cosine' },
  ]);
  const { rows: _, ...rest } = spec;
  assert.deepEqual(rest, {
    name: 'lr',
    run: 'words.toml',
    metric: { name: 'train/reward', goal: 'max', lastSteps: 1 },
    atOnce: 1,
    seeds: [2, 1],
    halving: null,
  });
});

test('rows may be written one by one, with lists as values', () => {
  const { rows, halving } = read(`${head}
    [[sweep.rows]]
    learning_rate = 1e-3
    [[sweep.rows]]
    stop = ["a", "b"]
    sampling.temperature = 1
    [sweep.halving]
    rungs = 3`);
  assert.deepEqual(rows, [{ learning_rate: 0.001 }, { stop: ['a', 'b'], 'sampling.temperature': 1 }]);
  assert.deepEqual(halving, { eta: 3, rungs: 3, minSteps: null });
});

test('a halving that says nothing keeps a third at three rungs; one with a first rung has as many as fit', () => {
  const halvingOf = (text: string) => read(`${head}${settings}[sweep.halving]\n${text}`).halving;
  assert.deepEqual(halvingOf(''), { eta: 3, rungs: 3, minSteps: null });
  assert.deepEqual(halvingOf('eta = 2'), { eta: 2, rungs: 3, minSteps: null });
  assert.deepEqual(halvingOf('min_steps = 10'), { eta: 3, rungs: null, minSteps: 10 });
  assert.deepEqual(halvingOf('min_steps = 10\nrungs = 2'), { eta: 3, rungs: 2, minSteps: 10 });
});

const settings = '[sweep.settings]\nlearning_rate = [1e-3]\n';
const value = 'a text, a number, true or false, or a list of these';

const refused: readonly [what: string, text: string, expected: readonly string[]][] = [
  ['an empty file', '', ['sweep: a table: [sweep]; got nothing']],
  ['what is no TOML', '[sweep\n', [': valid TOML; got illegal character in key']],
  [
    'keys outside of their table',
    'run = "words.toml"\n',
    ['sweep: a table: [sweep]; got nothing', 'run: a key of the top level; got an unknown key'],
  ],
  [
    'a run file, which has no sweep',
    'model = "preset:reverse-text-0.2m"\nmax_steps = 9\n[[env]]\nid = "reverse-text"\n',
    ['sweep: a file of a sweep: a table [sweep], whose `run` names a run file; got a run file'],
  ],
  [
    'a sweep without run and metric',
    `[sweep]\n${settings}`,
    ['sweep.run: a text that is not empty; got nothing', 'sweep.metric: a text that is not empty; got nothing'],
  ],
  ['no settings', head, ['sweep: one of [sweep.settings] and [[sweep.rows]]; got neither']],
  [
    'settings and rows',
    `${head}[[sweep.rows]]\na = 1\n${settings}`,
    ['sweep: one of [sweep.settings] and [[sweep.rows]]; got both'],
  ],
  ['no row', `${head}rows = []\n`, ['sweep.rows: at least one row; got none']],
  [
    'a row that is no list',
    `${head}[sweep.rows]\na = 1\n`,
    ['sweep.rows: a list of tables: [[sweep.rows]]; got a table'],
  ],
  [
    'one value in place of a list',
    `${head}[sweep.settings]\nlearning_rate = 1e-3\n`,
    ['sweep.settings.learning_rate: a list of values, such as [0.001, 0.003]; got 0.001'],
  ],
  [
    'a list of nothing',
    `${head}[sweep.settings]\nlearning_rate = []\n`,
    ['sweep.settings.learning_rate: a list of values, such as [0.001, 0.003]; got a list of 0'],
  ],
  [
    'a number that is none, which no run file could have',
    `${head}[sweep.settings]\nlearning_rate = [1e-3, nan]\n`,
    [`sweep.settings.learning_rate: ${value}; got NaN`],
  ],
  ['a date', `${head}[[sweep.rows]]\na = 2026-12-01\n`, [`sweep.rows[0].a: ${value}; got a date`]],
  [
    'tables as values',
    `${head}[sweep.settings]\nenv = [{ id = "a" }]\n`,
    [`sweep.settings.env: ${value}; got a table`],
  ],
  [
    'a setting in two spellings',
    `${head}[sweep.settings]\nlearning-rate = [1e-3]\nlearning_rate = [1e-2]\n`,
    ['sweep.settings.learning_rate: each setting once; got learning_rate'],
  ],
  [
    'settings that are the sweep’s own',
    `${head}[sweep.settings]\nmax-steps = [1]\nseed = [2]\nname = ["x"]\n`,
    [
      'sweep.settings.max-steps: rows of equal length: max_steps belongs to the run file, and rungs to [sweep.halving]; got max-steps',
      'sweep.settings.seed: seeds = [1, 2] in [sweep]: each row is trained with each; got seed',
      'sweep.settings.name: name in [sweep]: runs are named after it; got name',
    ],
  ],
  [
    'more combinations than there is memory for, before they are made',
    `${head}[sweep.settings]\n${Array.from({ length: 12 }, (_, i) => `a${i} = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10]`).join('\n')}\n`,
    ['sweep.settings: at most 500 runs; got 1000000000000 combinations'],
  ],
  [
    'more runs than a workflow has children for',
    `${head}seeds = [1, 2, 3]\n[sweep.settings]\na = [${Array.from({ length: 200 }, (_, i) => i).join()}]\n`,
    ['sweep.settings: at most 500 runs; got 200 rows × 3 seeds'],
  ],
  [
    'a halving that drops nothing',
    `${head}${settings}[sweep.halving]\neta = 1\nrungs = 1\nmin_steps = 0\n`,
    [
      'sweep.halving.eta: an integer ≥ 2; got 1',
      'sweep.halving.rungs: an integer ≥ 2; got 1',
      'sweep.halving.min_steps: an integer ≥ 1; got 0',
    ],
  ],
  [
    'figures out of their bounds',
    `${head}goal = "most"\nat_once = 0\nlast_steps = 0\nseeds = []\n${settings}`,
    [
      'sweep.goal: one of "max", "min"; got "most"',
      'sweep.at_once: an integer from 1 to 64; got 0',
      'sweep.last_steps: an integer ≥ 1; got 0',
      'sweep.seeds: a list of whole numbers ≥ 0, such as [1, 2]; got a list of 0',
    ],
  ],
  [
    'seeds that are none',
    `${head}seeds = [-1, 1.5, "a"]\n${settings}`,
    ['-1', '1.5', '"a"'].map((got, i) => `sweep.seeds[${i}]: a whole number ≥ 0; got ${got}`),
  ],
  [
    'a name that no run could have',
    `[sweep]\nname = "A B"\nrun = "words.toml"\nmetric = "m"\n${settings}`,
    ['sweep.name: a name of a-z, 0-9 and . _ -, beginning with a letter or digit, at most 48 characters; got "A B"'],
  ],
];

for (const [what, text, expected] of refused)
  test(`refused with its place and what was expected: ${what}`, () => assert.deepEqual(refusals(text), expected));

test('a misspelt key is answered with the one that was meant', () => {
  const parsed = parseSweepFile(`${head}etta = 3\n${settings}[sweep.halving]\nrung = 3\n`, { file: 'lr.toml' });
  assert(!parsed.ok);
  assert.deepEqual(
    parsed.problems.map(({ line, suggestion }) => [line, suggestion]),
    [
      [4, 'did you mean "eta"? It belongs in [sweep.halving]'],
      [8, 'did you mean "rungs"?'],
    ],
  );
});
