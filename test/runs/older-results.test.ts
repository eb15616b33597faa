/** Results folders as each version of verifiers since 2025 wrote them, and those of others: which rollouts are of one example. */
import assert from 'node:assert/strict';
import { mkdir, mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { describe, test, type TestContext } from 'node:test';
import { readEvaluation, type ReadEvaluation } from '../../cli/eval/read.ts';
import { compareEvaluations } from '../../core/eval/comparison.ts';
import { differencesFromMetadata } from '../../core/eval/verifiers-results.ts';
import type { EvaluationInput } from '../../core/eval/evaluation.ts';
import { findEvaluations } from '../../runs/evaluations/folders.ts';

type Row = Record<string, unknown>;

const asks = (text: string) => [{ role: 'user', content: text }];
const says = (text: string) => [{ role: 'assistant', content: text }];

/** An evaluation in a folder of its own, read as `ratchet eval show` reads it. */
async function read(t: TestContext, rows: readonly Row[], metadata: Row): Promise<ReadEvaluation> {
  const project = await mkdtemp(path.join(tmpdir(), 'ratchet-older-results-'));
  t.after(() => rm(project, { recursive: true }));
  const folder = path.join(project, 'words--org--m', 'aaaa1111');
  await mkdir(folder, { recursive: true });
  await writeFile(path.join(folder, 'results.jsonl'), rows.map((row) => `${JSON.stringify(row)}\n`).join(''));
  await writeFile(path.join(folder, 'metadata.json'), JSON.stringify(metadata));
  const { evaluations } = await findEvaluations(project);
  return readEvaluation(evaluations[0]!);
}

/** Format of verifiers 0.1.3 to 0.1.5. */
const metadata013 = {
  env: 'words',
  model: 'org/m',
  num_examples: 2,
  rollouts_per_example: 2,
  sampling_args: { max_tokens: null },
  date: '2025-09-28',
  time: '10:11:12',
  avg_reward: 0.75,
};

const row013 = (id: number, question: number, reward: number): Row => ({
  id,
  prompt: asks(`Question ${question}?`),
  completion: says('a'),
  task: 'default',
  answer: `a${question}`,
  reward,
  right: reward,
});

const ids = ({ file }: ReadEvaluation): string[] => file.rows.map(({ exampleId }) => exampleId);

describe('rows with `id`, of verifiers 0.1.3 to 0.1.5', () => {
  test('that stand example by example are two examples of two rollouts', async (t) => {
    const rows = [row013(0, 0, 1), row013(0, 0, 1), row013(1, 1, 1), row013(1, 1, 0)];
    const { figures, found } = await read(t, rows, metadata013);
    assert.deepEqual([figures.examples, figures.passAtK], [2, { 1: 0.75, 2: 1 }]);
    assert.equal(found.environment, 'words');
    assert.equal(found.metadata.settings['env_id'], 'words');
  });

  test('that were written round after round, with ids counted off as if they were not, are told apart by their prompts', async (t) => {
    const rows = [row013(0, 0, 1), row013(0, 1, 1), row013(1, 0, 1), row013(1, 1, 0)];
    const evaluation = await read(t, rows, metadata013);
    assert.deepEqual(ids(evaluation), ['0', '1', '0', '1']);
    assert.deepEqual([evaluation.figures.examples, evaluation.figures.passAtK], [2, { 1: 0.75, 2: 1 }]);
    assert.deepEqual(evaluation.figures.passAllK, { 1: 0.75, 2: 0.5 });
  });

  test('whose pictures verifiers left out are told apart by their answers', async (t) => {
    const picture = (id: number, answer: string) => ({ ...row013(id, 0, 1), prompt: asks('Colour? [image]'), answer });
    const rows = [picture(0, 'red'), picture(0, 'blue'), picture(1, 'red'), picture(1, 'blue')];
    assert.deepEqual(ids(await read(t, rows, metadata013)), ['0', '1', '0', '1']);
  });

  test('of two examples with the same prompt stay two, where ids and prompts agree', async (t) => {
    const rows = [row013(0, 0, 1), row013(1, 0, 0), row013(2, 1, 0)];
    const { figures } = await read(t, rows, { ...metadata013, num_examples: 3, rollouts_per_example: 1 });
    assert.equal(figures.examples, 3);
  });

  test('have their metrics as columns, their times in milliseconds', async (t) => {
    const timed = { ...row013(0, 0, 1), generation_ms: 1500, scoring_ms: 500, total_ms: 2000 };
    const { figures, file, found } = await read(t, [timed], { ...metadata013, time: undefined, time_ms: 2500 });
    assert.deepEqual(Object.keys(figures.metrics), ['right']);
    const row = await file.row(0);
    assert.deepEqual([row?.seconds, row?.exampleId, found.metadata.seconds], [2, '0', 2.5]);
    assert.deepEqual(row?.columns, {});
  });

  test('pair with those of a newer verifiers, whose ids are positions in the dataset', async (t) => {
    const old = await read(t, [row013(0, 0, 1), row013(0, 1, 0), row013(1, 0, 1), row013(1, 1, 0)], metadata013);
    const newer = await read(
      t,
      [0, 1].map((i) => ({
        example_id: i,
        prompt: asks(`Question ${i}?`),
        completion: says('b'),
        reward: 1,
        metrics: {},
      })),
      { env_id: 'words', model: 'org/m', rollouts_per_example: 1 },
    );
    const { examples, leftOut } = compareEvaluations(old.file.rows, newer.file.rows);
    assert.deepEqual(examples.map(({ exampleId, difference }) => [exampleId, difference]), [['1', 1], ['0', 0]]); // prettier-ignore
    assert.deepEqual([leftOut.onlyInA, leftOut.onlyInB, leftOut.otherPrompt], [0, 0, []]);
  });

  test('are no beginning that an evaluation can go on from', () => {
    const input = { environment: { id: 'words', args: {} }, model: { kind: 'endpoint', model: 'org/m', sampling: {} } };
    const asked = { ...input, rolloutsPerExample: 2, shuffleSeed: null } as unknown as EvaluationInput;
    assert.match(differencesFromMetadata(metadata013, asked, 2, null).join(), /verifiers before 0\.1\.6/);
  });
});

describe('rows without any id', () => {
  test('as verifiers 0.1.2 made them are told apart by their prompts', async (t) => {
    const { id: _, ...first } = row013(0, 0, 1);
    const { id: __, ...second } = row013(0, 1, 0);
    const evaluation = await read(t, [first, second, first, second], {});
    assert.deepEqual([evaluation.figures.examples, evaluation.figures.passAtK], [2, { 1: 0.5, 2: 0.5 }]);
  });

  test('and a text as prompt, as completion APIs have it, are told apart by it', async (t) => {
    const rows = ['a', 'b', 'a', 'b'].map((prompt) => ({ prompt, completion: 'x', reward: 1 }));
    assert.equal((await read(t, rows, { rollouts_per_example: 2 })).figures.examples, 2);
  });

  test('are told apart by the environment of a group that they are of', async (t) => {
    const rows = ['x', 'y', 'x', 'y'].map((task) => ({ task, prompt: asks('Go.'), completion: says('a'), reward: 1 }));
    assert.equal((await read(t, rows, {})).figures.examples, 2);
  });

  test('and without a prompt are refused by name', async (t) => {
    const rows = [{ completion: says('a'), reward: 1 }, row013(0, 0, 1)];
    await assert.rejects(
      read(t, rows, {}),
      /1 of 2 rows in results\.jsonl have neither example_id nor id nor a prompt/,
    );
    await assert.rejects(read(t, [{ reward: 1 }], {}), /1 of 1 rows .* neither example_id nor id nor a prompt/);
  });
});

describe('rows with `example_id`', () => {
  const row = (id: number | string, prompt: string, more: Row = {}): Row => ({
    example_id: id,
    prompt: asks(prompt),
    completion: says('a'),
    reward: 1,
    ...more,
  });

  test('of a group of environments, whose members of verifiers 0.1.6 each counted from 0, are told apart by their environment', async (t) => {
    const rows = ['math', 'code'].flatMap((task) => [0, 1].map((i) => row(i, `${task} ${i}`, { task })));
    const evaluation = await read(t, rows, { env_id: 'both', rollouts_per_example: 1 });
    assert.deepEqual(ids(evaluation), ['math/0', 'math/1', 'code/0', 'code/1']);
  });

  test('that several prompts share, more often than an example has rollouts, are several examples', async (t) => {
    const rows = ['a', 'b', 'a', 'b'].map((prompt) => row(0, prompt));
    assert.equal((await read(t, rows, { rollouts_per_example: 2 })).figures.examples, 2);
    assert.equal((await read(t, rows, {})).figures.examples, 2);
  });

  test('whose environment varies its prompt from rollout to rollout stay one example', async (t) => {
    const rows = [row(0, 'It is ten.'), row(0, 'It is eleven.'), row(1, 'It is ten.'), row(1, 'It is eleven.')];
    assert.deepEqual(ids(await read(t, rows, { rollouts_per_example: 2 })), ['0', '0', '1', '1']);
  });

  test('of verifiers 0.1.6 to 0.1.9 have metrics as columns; of 0.1.10 and later in `metrics`', async (t) => {
    const older = await read(t, [row(0, 'a', { total_ms: 5, right: 0.5 })], { env_id: 'words' });
    const newer = await read(t, [row(0, 'a', { metrics: { right: 0.5 }, right: 0.5, n: 3 })], { env_id: 'words' });
    assert.deepEqual([older, newer].map(({ figures }) => Object.keys(figures.metrics)), [['right'], ['right']]); // prettier-ignore
  });

  test('that are texts are taken as they are', async (t) => {
    assert.deepEqual(ids(await read(t, [row('aime/1', 'a'), row('aime/2', 'b')], {})), ['aime/1', 'aime/2']);
  });
});
