/** ratchet eval show, compare and tui as they are typed: verifiers' own folders, runs, and what is refused. */
import assert from 'node:assert/strict';
import { cp, mkdir, mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { after, before, describe, test } from 'node:test';
import { fileURLToPath, pathToFileURL } from 'node:url';
import { openCommands, type Printed } from './typed.ts';

const type = openCommands();
const data = fileURLToPath(new URL('../data/evals/verifiers-0.3.1/', import.meta.url));
const small = 'outputs/evals/toy_single--org--words-1b';
const large = 'outputs/evals/toy_single--org--words-3b';
let folder = '';

before(async () => {
  folder = await mkdtemp(path.join(tmpdir(), 'ratchet-evals-'));
  await cp(data, path.join(folder, 'outputs/evals'), { recursive: true });
  const write = async (file: string, text: string): Promise<void> => {
    await mkdir(path.dirname(path.join(folder, file)), { recursive: true });
    await writeFile(path.join(folder, file), text);
  };
  for (const [step, reward] of Object.entries({ 0: 0.25, '0.greedy': 0.5, 4: 0.5, '4.greedy': 0.75 })) {
    const place = `outputs/both/evals/spell--both/step_${step}`;
    const row = { example_id: 0, prompt: [{ role: 'user', content: 'spell' }], completion: [], reward };
    await write(`${place}/results.jsonl`, `${JSON.stringify(row)}\n`);
    await write(`${place}/metadata.json`, JSON.stringify({ env_id: 'spell', model: 'both', rollouts_per_example: 1 }));
  }
  await write('outputs/both/run.json', '{}');
  await write('outputs/words/run.json', '{}');
  for (const [step, reward] of Object.entries({ 0: 0.25, 10: 0.5, 20: 0.75 })) {
    const place = `outputs/words/evals/spell--words/step_${step}`;
    const row = { example_id: 0, prompt: [{ role: 'user', content: 'spell' }], completion: [], reward };
    await write(`${place}/results.jsonl`, `${JSON.stringify(row)}\n${JSON.stringify({ ...row, example_id: 1 })}\n`);
    await write(`${place}/metadata.json`, JSON.stringify({ env_id: 'spell', model: 'words', rollouts_per_example: 1 }));
  }
  await write('outputs/evals/toy_single--m/empty/results.jsonl', '');
  await write('outputs/evals/toy_single--m/empty/metadata.json', '{"env_id":"toy_single"}');
  await write('half/results.jsonl', '{}\n');
  await write('other/notes.txt', '');
  await mkdir(path.join(folder, 'words')); // a folder of a run's name is not the run
});
after(() => rm(folder, { recursive: true, force: true }));

function ratchet(...args: string[]): Promise<Printed> {
  return type(folder, ['eval', ...args]);
}

describe('ratchet eval show', () => {
  test("says what an evaluation of verifiers' own came to", async () => {
    const { out, err } = await ratchet('show', small);
    assert.equal(err, '');
    assert.match(out, /^toy_single · org\/words-1b · d44fc336\n/);
    assert.match(out, /rollouts +12, of 4 examples\n/);
    assert.match(out, /reward +0\.546 .* \(metadata\.json: 0\.501, which counts 1 failed\)/);
    assert.match(out, /pass@k +any {2}1: 0\.500 {2}2: 0\.833/);
    assert.match(out, /failures +1 × ModelError/);
    assert.match(out, /> Spell word0 backwards\.\n +< 逆: <answer>0drow<\/answer>\n +> ?|= 0drow/);
  });

  test('takes the newest evaluation of a run, or that of a step, as JSON too', async () => {
    const means = async (...names: string[]): Promise<unknown> => {
      const told = JSON.parse((await ratchet('show', '--json', ...names)).out) as {
        step: number;
        reward: { mean: number };
      }[];
      return told.map(({ step, reward }) => [step, reward.mean]);
    };
    assert.deepEqual(await means('words'), [[20, 0.75]]);
    assert.deepEqual(await means('words@0', 'outputs/words@10'), [
      [0, 0.25],
      [10, 0.5],
    ]);
  });

  test('leaves out an evaluation that has no rows yet, and says so', async () => {
    const { code, out, err } = await ratchet('show', small, 'outputs/evals/toy_single--m');
    assert.equal(code, 0);
    assert.match(out, /^toy_single · org\/words-1b/);
    assert.match(err, /toy_single--m\/empty: expected rows in results\.jsonl; it is empty/);
  });

  test('refuses what is no evaluation, and says what was expected and what is there', async () => {
    const refusals: Readonly<Record<string, RegExp>> = {
      other: /^other holds no evaluation\. Expected results\.jsonl and metadata\.json .*; there is notes\.txt\.\n$/,
      half: /half has results\.jsonl without metadata\.json/,
      'outputs/evals/toy_single--m': /toy_single--m\/empty: expected rows in results\.jsonl; it is empty/,
      'other/notes.txt': /notes\.txt is a file\. Expected the folder of an evaluation/,
      'not/there': /not\/there is not there\. Expected a folder/,
      'words@7': /Expected an evaluation of step 7 of run words; in .* steps 0, 10, 20 were evaluated/,
    };
    for (const [name, says] of Object.entries(refusals)) {
      const { code, out, err } = await ratchet('show', name);
      assert.ok(code === 1 || code === 2, name);
      assert.equal(out, '');
      assert.match(err, says);
    }
    assert.match((await ratchet('show', small, '--env', 'spell')).err, /--env spell: .* was evaluated on toy_single/);
  });
});

describe('ratchet eval compare', () => {
  test('says which settings differ, and what changed example by example', async () => {
    const { out } = await ratchet('compare', small, large, '--examples', '1');
    assert.match(out, /settings that differ\n[\s\S]*model +org\/words-1b +org\/words-3b/);
    assert.match(out, /B against A: \+0\.125 reward per example \(0\.543 → 0\.668\), 95 % between/);
    assert.match(
      out,
      /most better\n.*\n +#1 +\+0\.333 +0 1 0 +1 1 0 +Spell word1 backwards\.\n\n {2}most worse\n.*\n +#2/,
    );
    assert.doesNotMatch(out, /#3/);
  });

  test('of a version that was also asked greedily it takes the usual evaluation; the greedy one is named by its folder', async () => {
    const { out } = await ratchet('compare', 'both@0', 'both');
    assert.match(out, /^A .* step_0 .*\nB .* step_4 /);
    assert.match(out, /0\.250 +0\.500/);
    const greedy = pathToFileURL(path.join(folder, 'outputs/both/evals/spell--both/step_4.greedy')).href;
    assert.match((await ratchet('compare', 'both@0', `${greedy}/`)).out, /0\.250 +0\.750/);
  });

  test('compares versions of a run, and says the same each time', async () => {
    const told = await ratchet('compare', 'words@0', 'words@10', 'words', '--json');
    assert.deepEqual(told, await ratchet('compare', 'words@0', 'words@10', 'words', '--json'));
    const { environments } = JSON.parse(told.out) as {
      environments: { comparisons: { a: number; b: number; difference: { mean: number; low: number } }[] }[];
    };
    assert.deepEqual(
      environments[0]!.comparisons.map(({ a, b, difference }) => [a, b, difference.mean, difference.low]),
      [
        [0, 1, 0.25, 0.25],
        [0, 2, 0.5, 0.5],
      ],
    );
  });

  test('leaves out other prompts under the same id', async () => {
    const { out } = await ratchet('compare', small, 'words');
    assert.match(out, /no example in common/);
    assert.match(out, /left out: 2 only in A, 2 with another prompt under the same id \(#0, #1\)/);
  });

  test('refuses a folder with several evaluations of one environment, and lists them', async () => {
    const { code, err } = await ratchet('compare', 'outputs/evals', large);
    assert.equal(code, 2);
    assert.match(
      err,
      /outputs\/evals holds 3 evaluations of toy_single\. Expected one to compare; name it:\n {2}outputs/,
    );
  });
});

test('ratchet eval run says of a folder that holds no model what it lacks, and of a misspelt environment what is meant', async () => {
  const refusals: readonly (readonly [readonly string[], RegExp])[] = [
    [
      ['reverse-text', '-m', './other'],
      /^-m \.\/other: expected a folder with a model .*there is no config\.json in it\.\n$/,
    ],
    [['reverse-text', '-m', './nowhere'], /there is no \/.*\/nowhere\.\n$/],
    [['revers-text', '-m', 'm', '-b', 'http://127.0.0.1:9'], /which is not here\. Did you mean "reverse-text"\?\n$/],
  ];
  for (const [args, says] of refusals) {
    const { code, err } = await ratchet('run', ...args);
    assert.equal(code, 2);
    assert.match(err, says);
  }
});

test('ratchet eval tui without a terminal is refused, with what does without one', async () => {
  const { code, out, err } = await ratchet('tui');
  assert.deepEqual([code, out], [2, '']);
  assert.match(err, /needs a terminal\. Without one: npx ratchet-rl eval show outputs\/evals/);
});
