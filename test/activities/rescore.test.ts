/** Other rewards for what is stored: of a run with two environments, and of an evaluation. */
import assert from 'node:assert/strict';
import { readdir, readFile } from 'node:fs/promises';
import path from 'node:path';
import { describe, test, type TestContext } from 'node:test';
import { MockActivityEnvironment } from '@temporalio/testing';
import {
  createEnvironments,
  type Environment,
  type Environments,
  openEnvironment,
} from '../../backends/environments/index.ts';
import { openJudge } from '../../backends/environments/judge.ts';
import type { RunSpec } from '../../config/run-spec.ts';
import type { ObjectRef } from '../../core/rl/run-state.ts';
import { sha256 } from '../../store/file-store.ts';
import { encodeJson } from '../../store/objects.ts';
import { layout } from '../../runs/layout.ts';
import { forkRun } from '../../runs/lineages/fork-run.ts';
import { chunksOfKeys, scoredKeysOf } from '../../runs/rescores/scored-keys.ts';
import { findEvaluations } from '../../runs/evaluations/folders.ts';
import { readEvaluation } from '../../cli/eval/read.ts';
import { evaluateAll, evaluationFolder, evaluationId, inputFor, rowsIn, serve } from './evaluation-runs.ts';
import { closeRescoreOf, openRescore, rescoreAll, rescoreChunk, rescoreOfRun, rubricFile } from './rescores.ts';
import {
  advance,
  commitFirst,
  makeRun,
  openRoles,
  sampleRound,
  scoredRollouts,
  type TestRun,
  WordsInference,
} from './runs.ts';

const entries = [
  '{ id = "reverse-text", name = "well", args = { max_length = 5 }, weight = 0.7 }',
  '{ id = "reverse-text", name = "slow", args = { max_length = 6 }, weight = 0.3 }',
];
const datasets = [
  { name: 'well', weight: 0.7, datasetLength: 9 },
  { name: 'slow', weight: 0.3, datasetLength: 4 },
];

/** Three steps of a run with two environments. */
async function trained(t: TestContext, environments?: Environments, steps = 3): Promise<TestRun & { asked: number }> {
  const made = await makeRun(t, { env: `[${entries.join(', ')}]` });
  const inference = new WordsInference();
  const roles = openRoles(inference, environments ? { environments } : {});
  let at = await commitFirst(made, roles);
  for (let step = 1; step <= steps; step++) at = await advance(made, roles, at, { datasets });
  return { ...made, asked: inference.asked.length };
}

const kit = JSON.stringify(new URL('../../backends/environments/kit.ts', import.meta.url).href);
const byLength = `import { rubric as of } from ${kit};
export const rubric = of([{ name: 'length', weight: 1, score: ({ completion }) => completion.length }]);`;

async function filesOf(folder: string): Promise<Map<string, string>> {
  const names = await readdir(folder, { recursive: true, withFileTypes: true });
  const files = names.filter((entry) => entry.isFile()).map((entry) => path.join(entry.parentPath, entry.name));
  return new Map(await Promise.all(files.map(async (file) => [file, await readFile(file, 'base64')] as const)));
}

/** Everything that a rescore says, without times and folders. */
async function saysOf(folder: string): Promise<readonly string[]> {
  const texts = await filesOf(folder);
  return [...texts]
    .filter(([file]) => /results\.jsonl$|chunk_\d+\.json$/.test(file))
    .map(([file, text]) => `${path.basename(path.dirname(path.dirname(file)))} ${path.basename(file)} ${text}`)
    .toSorted();
}

/** What a step's rollouts are in, as parts of a round are named. */
async function roundOf({ run, store }: TestRun, step: number) {
  const refs: ObjectRef[] = [];
  for (const key of await scoredKeysOf(run, { first: step, last: step })) {
    const bytes = (await store.read(key))!;
    refs.push({ key, sha256: sha256(bytes), bytes: bytes.byteLength });
  }
  return { parts: refs.map((scored) => ({ scored }) as Awaited<ReturnType<typeof sampleRound>>['parts'][number]) };
}

const sumOf = (text: string): number => Buffer.from(text).reduce((sum, byte) => sum + byte, 0);

test('objects are divided into neighbours, by how many groups their rounds have', () => {
  const key = (first: number, part: number) => `rollouts/step_1/groups_${first}-${first + 99}/chunk_1_of_1_from_${first + part}.scored.jsonl.gz`; // prettier-ignore
  const keys = Array.from({ length: 1_000 }, (_, i) => key(1 + 100 * Math.floor(i / 10), i % 10));
  const chunks = chunksOfKeys(keys);
  assert.deepEqual(chunks.flat(), keys);
  assert.equal(chunks.length, 40);
  const many = Array.from({ length: 3_000 }, (_, i) => key(1 + 1_000 * i, 0));
  assert.ok(chunksOfKeys(many).length <= 200);
  assert.deepEqual(chunksOfKeys([]), []);
});

describe('a run that is rescored', () => {
  test('by its own rubric has the rewards it had; nothing of it is written over, and nothing is sampled', async (t) => {
    const run = await trained(t);
    const before = await filesOf(run.folder);
    const result = await rescoreAll(rescoreOfRun(run));
    const { rollouts, rescored, changed, environments } = result;
    assert.deepEqual([rollouts, rescored, changed], [24, 24, 0]);
    assert.deepEqual(environments.map(({ environment }) => environment).toSorted(), ['slow', 'well']);
    for (const one of environments) {
      assert.equal(one.before, one.after);
      assert.ok(one.rankAgreement === null || one.rankAgreement === 1);
    }
    const after = await filesOf(run.folder);
    for (const [file, bytes] of before) assert.equal(after.get(file), bytes, file);
    for (const file of after.keys()) assert.ok(before.has(file) || file.includes('/rescores/'), file);
  });

  test('by a rubric of the user has its rewards, with rows that an evaluation has', async (t) => {
    const run = await trained(t);
    const rubric = await rubricFile(run.folder, 'by-length.ts', byLength);
    const result = await rescoreAll(rescoreOfRun(run, { rubric }));
    assert.ok(result.changed > 0);
    assert.equal(result.rubric, 'by-length.ts');
    for (const { folder, largest, after, environment, rollouts } of result.environments) {
      const rows = await rowsIn(folder);
      assert.equal(rows.length, rollouts);
      const lengths = rows.map((row) => (row['completion'] as { content: string }[]).at(-1)!.content.length);
      assert.deepEqual(
        rows.map(({ reward }) => reward),
        lengths,
      );
      assert.equal(after, lengths.reduce((sum, one) => sum + one, 0) / lengths.length);
      const sizes = largest.map((one) => Math.abs(one.after! - one.before!));
      assert.deepEqual(
        sizes,
        sizes.toSorted((a, b) => b - a),
      );
      assert.ok(largest.length <= 10 && largest.every((one) => one.environment === environment && one.step !== null));
    }
    const { evaluations } = await findEvaluations(path.join(run.folder, 'rescores'));
    assert.deepEqual(
      evaluations.map(({ environment }) => environment),
      ['reverse-text', 'reverse-text'],
    );
    const { figures } = await readEvaluation(evaluations[0]!);
    assert.ok(figures.reward !== null);
  });

  test('of some steps only has the rollouts of these', async (t) => {
    const run = await trained(t);
    const { name, store } = run.run;
    const steps = { first: 2, last: 2 };
    const result = await rescoreAll(rescoreOfRun(run, { subject: { kind: 'run', name, store, steps } }));
    assert.equal(result.rollouts, 8);
    const none = { first: 8, last: 9 };
    await assert.rejects(
      rescoreAll(rescoreOfRun(run, { subject: { kind: 'run', name, store, steps: none } })),
      /has no stored rollouts of steps 8 to 9/,
    );
  });

  test('killed in mid-chunk, or played twice at once by two workers, says the same as undisturbed', async (t) => {
    const run = await trained(t);
    const rubric = await rubricFile(run.folder, 'by-length.ts', byLength);
    const undisturbed = await rescoreAll(rescoreOfRun(run, { rubric }));
    const again = rescoreOfRun(run, { rubric }, 1);
    const handle = await openRescore(again);
    const activity = new MockActivityEnvironment();
    const killed = rescoreChunk(handle, 0, { activity });
    activity.cancel();
    await killed.catch(() => undefined);
    for (let chunk = 0; chunk < handle.chunks; chunk++)
      await Promise.all([rescoreChunk(handle, chunk), rescoreChunk(handle, chunk, { request: 'w/2' })]);
    const disturbed = await closeRescoreOf(handle, { calls: 0, tokens: 0 });
    const figures = ({ environments }: typeof disturbed) => environments.map((one) => ({ ...one, folder: '' }));
    assert.deepEqual(figures(disturbed), figures(undisturbed));
    const [one, other] = [undisturbed.folder, disturbed.folder];
    const rows = async (folder: string) => (await saysOf(folder)).filter((text) => text.includes('results.jsonl'));
    assert.deepEqual(await rows(one), await rows(other));
  });

  test('asks only judges that failed, which then count, and leaves all others as they are', async (t) => {
    let isDown = true;
    const environments = createEnvironments(async (entry): Promise<Environment> => {
      const words = await openEnvironment(entry);
      const functions = words.rubric.functions.map((one) => ({
        ...one,
        score: (input: Parameters<typeof one.score>[0]) => {
          if (isDown && sumOf(input.completion) % 2 === 0) throw new Error('the judge is away');
          return one.score(input);
        },
      }));
      return { ...words, rubric: { functions } };
    });
    const run = await trained(t, environments, 1);
    isDown = false;
    const { environments: found, ...result } = await rescoreAll(rescoreOfRun(run, { failedOnly: true }), {
      environments,
    });
    const failed = found.reduce((sum, one) => sum + one.failedBefore, 0);
    assert.ok(failed > 0 && failed < result.rollouts);
    assert.deepEqual([result.rescored, result.changed], [failed, failed]);
    assert.equal(
      found.reduce((sum, one) => sum + one.failedAfter, 0),
      0,
    );
  });

  test('is refused by the name of an environment that scores in place', async (t) => {
    const environments = createEnvironments(async (entry): Promise<Environment> => {
      const words = await openEnvironment(entry);
      return entry.args['max_length'] === 6 ? { ...words, scoring: 'in_place' } : words;
    });
    const run = await trained(t, environments, 1);
    await assert.rejects(
      rescoreAll(rescoreOfRun(run), { environments }),
      /^Unsupported: .*scores in place.*--rubric FILE/,
    );
    const rubric = await rubricFile(run.folder, 'by-length.ts', byLength);
    assert.ok((await rescoreAll(rescoreOfRun(run, { rubric }), { environments })).changed > 0);
  });

  test('is refused where the rubric fails on every rollout, with what it said', async (t) => {
    const run = await trained(t, undefined, 1);
    const rubric = await rubricFile(
      run.folder,
      'broken.ts',
      byLength.replace('completion.length', 'completion.size()'),
    );
    await assert.rejects(
      rescoreAll(rescoreOfRun(run, { rubric })),
      /failed on each of \d+ rollouts.*completion\.size is not a function/s,
    );
    const empty = await rubricFile(run.folder, 'empty.ts', 'export const reward = 1;');
    await assert.rejects(rescoreAll(rescoreOfRun(run, { rubric: empty })), /exports neither a rubric/);
  });
});

describe('a fork with the rewards of a rescore', () => {
  async function rescored(t: TestContext) {
    const made = await makeRun(t);
    await made.store.put(layout.run(), encodeJson({ name: made.run.name, spec: made.spec }));
    const roles = openRoles();
    let at = await commitFirst(made, roles);
    for (let step = 1; step <= 3; step++) at = await advance(made, roles, at);
    const rubric = await rubricFile(made.folder, 'by-length.ts', byLength);
    const { id } = await rescoreAll(rescoreOfRun(made, { rubric }));
    const source = { config: '', overrides: {} };
    const fork = (name: string, over: Partial<RunSpec> = {}, rewards: string | undefined = id) =>
      forkRun({ from: made.run, step: 2, spec: { ...made.spec, name, ...over }, source, rewards });
    return { made, fork };
  }

  test('trains the stored rollouts of the next step with them, and samples nothing for it', async (t) => {
    const { made, fork } = await rescored(t);
    const { commit } = await fork('again');
    const inference = new WordsInference();
    const run = { ...made.run, name: 'again', spec: commit.spec };
    const { policy, curriculum } = commit.state;
    const { parts } = await sampleRound({ ...made, run }, openRoles(inference), { step: 3, policy, curriculum });
    assert.equal(inference.asked.length, 0);
    const found = await scoredRollouts(run, { parts });
    const before = await scoredRollouts(made.run, await roundOf(made, 3));
    assert.equal(found.length, 8);
    assert.deepEqual(
      found.map(({ turns }) => turns),
      before.map(({ turns }) => turns),
    );
    assert.deepEqual(
      found.map(({ reward }) => reward),
      found.map(({ turns }) => turns.at(-1)!.text.length),
    );
    await fork('again');
    await assert.rejects(fork('again', {}, 'ffffffff'), /has no rescore ffffffff that has ended/);
  });

  test('takes them from the lineage that made the next step, where the run was rewound to a later one', async (t) => {
    const made = await makeRun(t);
    await made.store.put(layout.run(), encodeJson({ name: made.run.name, spec: made.spec }));
    const roles = openRoles();
    let at = await commitFirst(made, roles);
    for (let step = 1; step <= 5; step++) at = await advance(made, roles, at);
    const { lineage, head } = await roles.beginLineage({ run: made.run, step: 4, request: 'a rewind' });
    const rewound = { ...made, run: { ...made.run, lineage } };
    await advance(rewound, roles, { state: { ...head.commit.state, lineage }, parent: head.sha256 });
    const rubric = await rubricFile(made.folder, 'by-length.ts', byLength);
    const { id, rollouts } = await rescoreAll(rescoreOfRun(rewound, { rubric }));
    assert.equal(rollouts, 40, 'those that were left behind are not rescored');
    for (const step of [2, 4]) {
      const name = `from-${step}`;
      const { commit } = await forkRun({ from: rewound.run, step, spec: { ...made.spec, name }, source: { config: '', overrides: {} }, rewards: id }); // prettier-ignore
      const inference = new WordsInference();
      const run = { ...made.run, name, spec: commit.spec };
      const { policy, curriculum } = commit.state;
      const { parts } = await sampleRound({ ...made, run }, openRoles(inference), { step: step + 1, policy, curriculum }); // prettier-ignore
      assert.equal(inference.asked.length, 0);
      const found = await scoredRollouts(run, { parts });
      const before = await scoredRollouts(made.run, await roundOf(rewound, step + 1));
      assert.deepEqual(found.map(({ turns }) => turns), before.map(({ turns }) => turns)); // prettier-ignore
      assert.deepEqual(found.map(({ reward }) => reward), found.map(({ turns }) => turns.at(-1)!.text.length)); // prettier-ignore
    }
  });

  test('is refused where its settings would sample others, or a fork of that name has none', async (t) => {
    const { fork } = await rescored(t);
    await assert.rejects(fork('seeded', { seed: 99 }), /sampled with other settings than the fork's: seed/);
    const { made, fork: plain } = await rescored(t);
    const source = { config: '', overrides: {} };
    await forkRun({ from: made.run, step: 2, spec: { ...made.spec, name: 'plain' }, source });
    await assert.rejects(plain('plain'), /holds this fork already, with other rewards/);
  });
});

describe('an evaluation that is rescored', () => {
  test('has other rewards below it, and is as it was', async (t) => {
    const [folder, server] = [await evaluationFolder(t), await serve(t, { varies: 'session' })];
    const input = inputFor(folder, server);
    await evaluateAll(input);
    const asked = server.answered.length;
    const own = path.join(folder, evaluationId);
    const before = await filesOf(own);
    const rubric = await rubricFile(folder, 'by-length.ts', byLength);
    const of = {
      subject: { kind: 'evaluation' as const, place: input.results },
      environments: [input.environment],
      failedOnly: false,
    };
    const results = (id: string) => ({ ...input.results, prefix: `rescores/${id}/` });
    const same = await rescoreAll({ ...of, rubric: null, results: results('same') });
    assert.deepEqual([same.rollouts, same.rescored, same.changed], [18, 18, 0]);
    assert.deepEqual(await rowsIn(same.environments[0]!.folder), await rowsIn(own));
    const other = await rescoreAll({ ...of, rubric, results: results('other') });
    assert.ok(other.changed > 0);
    for (const [file, bytes] of before) assert.equal((await readFile(file)).toString('base64'), bytes, file);
    assert.equal(server.answered.length, asked);
    const { evaluations } = await findEvaluations(folder);
    assert.equal(evaluations.length, 3, 'it, and both rescores');
  });

  test('by a judge asks no more than its limit allows, and continues where it was', async (t) => {
    const [folder, server] = [await evaluationFolder(t), await serve(t, { varies: 'session' })];
    const input = inputFor(folder, server, { maxConcurrent: -1 });
    await evaluateAll(input);
    const judge = await serve(t, { answer: ({ content }) => `${content.length}` });
    const environments = createEnvironments(async (entry): Promise<Environment> => {
      const words = await openEnvironment(entry);
      const asking = openJudge({
        base_url: `${judge.url}/v1`,
        model: 'judge',
        max_retries: 0,
        requests_per_minute: 1e6,
      });
      let asked = 0;
      const score = async () => Number(await asking.ask(`How good is number ${(asked += 1)}?`));
      return { ...words, rubric: { functions: [{ name: 'judge', weight: 1, score }] } };
    });
    const of = { kind: 'evaluation' as const, place: input.results };
    const results = { ...input.results, prefix: 'rescores/judged/' };
    const handle = await openRescore({ subject: of, environments: [input.environment], rubric: null, failedOnly: false, results }, { environments }); // prettier-ignore
    assert.equal(handle.chunks, 1);
    const first = await rescoreChunk(handle, 0, { environments, allowed: { calls: 10 } });
    assert.deepEqual([first.isOver, first.use.calls, judge.answered.length], [true, 10, 10]);
    const retried = await rescoreChunk(handle, 0, { environments, allowed: { calls: 10 } });
    assert.equal(retried.isOver, true);
    assert.ok(
      judge.answered.length <= 12,
      'what an earlier attempt spent counts; what a group had asked alone is asked again',
    );
    const second = await rescoreChunk(handle, 0, { environments, request: 'w/2' });
    assert.deepEqual([second.isOver, second.rollouts], [false, 18]);
    const adopted = await rescoreChunk(handle, 0, { environments });
    assert.equal(adopted.isOver, false);
  });
});
