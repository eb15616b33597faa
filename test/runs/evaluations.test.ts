/** Evaluations in folders and in runs' stores: verifiers' own of both APIs, and Ratchet's. */
import assert from 'node:assert/strict';
import { cp, mkdir, mkdtemp, readFile, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { describe, test, type TestContext } from 'node:test';
import { fileURLToPath, pathToFileURL } from 'node:url';
import { layout } from '../../runs/layout.ts';
import { summarize } from '../../core/eval/summary.ts';
import { findEvaluations, defaultFolders } from '../../runs/evaluations/folders.ts';
import { ResultFile } from '../../runs/evaluations/result-file.ts';
import { runEvaluations } from '../../runs/evaluations/run-evaluations.ts';
import { openRunStore } from '../../store/index.ts';
import { packRows } from '../../store/objects.ts';

const data = fileURLToPath(new URL('../data/evals/', import.meta.url));
const single = path.join(data, 'verifiers-0.3.1/toy_single--org--words-1b/d44fc336');

async function folder(t: TestContext): Promise<string> {
  const made = await mkdtemp(path.join(tmpdir(), 'ratchet-evals-'));
  t.after(() => rm(made, { recursive: true }));
  return made;
}

describe("verifiers' own folders", () => {
  test('are found where vf-eval puts them; one that lacks a file is told', async (t) => {
    const project = await folder(t);
    await cp(
      path.join(data, 'verifiers-0.3.1/toy_single--org--words-1b'),
      path.join(project, 'outputs/evals/toy_single--org--words-1b'),
      { recursive: true },
    );
    await cp(
      path.join(data, 'verifiers-0.3.1/toy_tool--org--words-1b'),
      path.join(project, 'environments/toy_tool/outputs/evals/toy_tool--org--words-1b'),
      { recursive: true },
    );
    await mkdir(path.join(project, 'outputs/evals/x--m/torn'), { recursive: true });
    await writeFile(path.join(project, 'outputs/evals/x--m/torn/results.jsonl'), '{}\n');
    const folders = await defaultFolders(project);
    const found = await Promise.all(folders.map((one) => findEvaluations(one, project)));
    assert.deepEqual(
      found.flatMap(({ evaluations }) =>
        evaluations.map(({ where, environment, model }) => [where, environment, model]),
      ),
      [
        ['outputs/evals/toy_single--org--words-1b/d44fc336', 'toy_single', 'org/words-1b'],
        ['environments/toy_tool/outputs/evals/toy_tool--org--words-1b/e39b9c72', 'toy_tool', 'org/words-1b'],
      ],
    );
    assert.deepEqual(found[0]!.incomplete, [
      { where: 'outputs/evals/x--m/torn', why: 'results.jsonl without metadata.json' },
    ]);
  });

  test('come to what their metadata.json says, but for rollouts that failed', async () => {
    for (const { rows, metadata } of (await findEvaluations(path.join(data, 'verifiers-0.3.1'))).evaluations) {
      const file = await new ResultFile(await rows()).read();
      const { reward, failures } = summarize(file.rows);
      const given = file.rows.map(({ givenReward }) => givenReward!);
      assert.equal(given.reduce((sum, value) => sum + value, 0) / given.length, metadata.avgReward);
      if (failures.length === 0) assert.ok(Math.abs(reward!.mean - metadata.avgReward!) < 1e-12);
      else assert.deepEqual([failures[0]!.cause, failures[0]!.count, reward!.count], ['ModelError', 1, 11]);
    }
  });

  test('of the v1 API are read from their episodes', async () => {
    const [found] = (await findEvaluations(path.join(data, 'verifiers-0.4.0'))).evaluations;
    assert.deepEqual([found!.environment, found!.model, found!.id], ['toy_v1', 'org/words-1b', '2b414ca7']);
    const file = await new ResultFile(await found!.rows()).read();
    assert.deepEqual(summarize(file.rows).passAtK, { 1: 0.5, 2: 1 });
    const row = (await file.row(0))!;
    assert.deepEqual(
      row.prompt.map(({ role, text }) => [role, text]),
      [
        ['system', 'Answer within <answer> tags.'],
        ['user', 'Spell word1 backwards.'],
      ],
    );
    assert.deepEqual([row.reward, row.answer, row.metrics], [0, '1drow', { exact: 0, characters: 84 }]);
    assert.match(row.completion[0]!.reasoning, /^The word is word1/);
    assert.match(row.completion[0]!.text, /^逆/);
  });
});

describe('a file of results', () => {
  test('with torn lines has all others, and says how many were torn', async (t) => {
    const file = path.join(await folder(t), 'results.jsonl');
    const lines = (await readFile(path.join(single, 'results.jsonl'), 'utf8')).trimEnd().split('\n');
    await writeFile(file, [lines[0], '{"example_id": 1, "pro', '', '[]', lines[1], lines[2]!.slice(0, 99)].join('\n'));
    const read = await new ResultFile(file).read();
    assert.deepEqual([read.rows.length, read.unreadable], [2, 3]);
    assert.equal((await read.row(1))!.completion[0]!.text, '逆: <answer>0drow</answer>');
  });

  test('is read in pieces: lines longer than one, and a last line without an end, are whole', async (t) => {
    const file = path.join(await folder(t), 'results.jsonl');
    const long = '界'.repeat(3 << 20);
    const rows = [0, 1, 2, 3].map((id) => ({
      example_id: id,
      completion: [{ role: 'assistant', content: id === 2 ? long : 'short' }],
    }));
    await writeFile(file, rows.map((row) => JSON.stringify(row)).join('\n'));
    const read = await new ResultFile(file).read();
    assert.deepEqual([read.rows.map(({ exampleId }) => exampleId), read.unreadable], [['0', '1', '2', '3'], 0]);
    assert.equal((await read.row(2))!.completion[0]!.text, long);
    assert.equal((await read.row(3))!.completion[0]!.text, 'short');
    const found = new Set<number>();
    await read.search('SHORT', found);
    assert.deepEqual([...found], [0, 1, 3]);
  });

  test('that changed meanwhile has no row rather than another', async (t) => {
    const file = path.join(await folder(t), 'results.jsonl');
    await writeFile(file, '{"example_id":1,"completion":[]}\n{"example_id":2,"completion":[]}\n');
    const read = await new ResultFile(file).read();
    await writeFile(file, '{"example_id":1,"completion":[]}\n');
    assert.equal(await read.row(1), null);
  });
});

test("a run's evaluations are found by step in its store, of all its lineages; what was sampled for training where asked", async (t) => {
  const runs = await folder(t);
  const store = openRunStore(pathToFileURL(runs).href, 'words');
  const metadata = Buffer.from(JSON.stringify({ env_id: 'reverse-text', model: 'words', avg_reward: 0.5 }));
  const put = async (prefix: string, isWhole = true): Promise<void> => {
    await store.put(`${prefix}results.jsonl`, Buffer.from('{"example_id":0,"reward":0.5,"completion":[]}\n'));
    if (isWhole) await store.put(`${prefix}metadata.json`, metadata);
  };
  await put('evals/reverse-text--words/step_10/');
  await put('evals/reverse-text--words/step_5/');
  await put('evals/reverse-text--words/step_15/', false);
  await put('lineages/l2/evals/reverse-text--words/step_10/');
  const round = { step: 3, first: 0, last: 3 };
  await store.put(
    `${layout.resultsOfChunk('main', round, { environment: 'reverse-text', run: 'words', chunk: 'chunk_1_of_2' })}metadata.json`,
    metadata,
  );
  const rollout = { group: 0, index: 0, exampleId: 7, turns: [], outcome: 'ok', reward: 0.5, metrics: { right: 0.5 } };
  const example = { id: 7, prompt: [{ role: 'user', content: 'abc' }], answer: 'cba' };
  const lease = { ordinal: 0, environment: 'reverse-text', exampleId: 7, epoch: 0, policyStep: 2 };
  const groups = [
    { ...lease, rollouts: [rollout], example },
    { ...lease, ordinal: 1, environment: 'another', rollouts: [] },
  ];
  await store.put(layout.scored('main', round, 'chunk_1_of_2'), await packRows(groups));
  const { evaluations, incomplete } = await runEvaluations(store, ['main', 'l2']);
  assert.deepEqual(
    evaluations.map(({ step, lineage, environment, model }) => [step, lineage, environment, model]),
    [
      [5, 'main', 'reverse-text', 'words'],
      [10, 'main', 'reverse-text', 'words'],
      [10, 'l2', 'reverse-text', 'words'],
    ],
  );
  assert.equal(incomplete.length, 1);
  const all = (await runEvaluations(store, ['main', 'l2'], { training: true })).evaluations;
  assert.deepEqual(
    all.filter(({ of }) => of === 'training').map(({ step, id }) => [step, id]),
    [[3, 'step_3.groups_0-3.chunk_1_of_2']],
  );
  const rows = await readFile(await all[0]!.rows(), 'utf8');
  const [row, ...others] = rows
    .trim()
    .split('\n')
    .map((line) => JSON.parse(line) as Record<string, unknown>);
  assert.equal(others.length, 0);
  assert.deepEqual(
    [row!['example_id'], row!['prompt'], row!['answer'], row!['reward'], row!['right']],
    [7, example.prompt, 'cba', 0.5, 0.5],
  );
  assert.deepEqual(row!['ratchet'], { step: 3, group: 0, policy_version: 2, index: 0, outcome: 'ok' });
});
