import assert from 'node:assert/strict';
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { test } from 'node:test';
import { createAskTeacher } from '../../activities/ask-teacher.ts';
import { openDatasets } from '../../backends/environments/open-datasets.ts';
import { demonstrationOf } from '../../backends/environments/what-is-lacking.ts';
import { openScorer } from '../../play/teacher/teacher.ts';
import { parseRunConfig } from '../../config/parse-run-config.ts';
import type { RunSpec } from '../../config/run-spec.ts';
import { createPreset, saveModelFolder } from '../../engine/index.ts';
import { teacherRowsAtOnce } from '../../core/limits.ts';
import { putJson } from '../../store/objects.ts';
import { encodeTaught } from '../../runs/rollouts/batch-parts.ts';
import type { ScoredGroup } from '../../core/rl/rollout/rollout.ts';
import { BatchWriter, openBatch, putPacked } from '../../runs/rollouts/batches.ts';
import { readRows } from '../../runs/run-access.ts';
import { layout } from '../../runs/layout.ts';
import { hasCode } from '../store/store.contract.ts';
import { randomBatch } from '../engine/models.ts';
import {
  act,
  commitFirst,
  makeRun,
  openRoles,
  openTokenizer,
  sampleRound,
  type TestRun,
  WordsInference,
} from './runs.ts';

test('a folder with another tokenizer does not score; where the policy’s is not on this machine it is taken on trust', async (t) => {
  const folder = await mkdtemp(path.join(tmpdir(), 'teacher-'));
  t.after(() => rm(folder, { recursive: true, force: true }));
  await saveModelFolder(createPreset('preset:chars-0.4m', { seed: 1 }), folder);
  const text = `model = "preset:reverse-text-0.2m"\nloss = "opd"\nrollouts_per_example = 1\n[[env]]\nid = "reverse-text"\n[teacher]\nmodel = "${folder}"\n`;
  const parsed = parseRunConfig(text, { file: 'run.toml' });
  assert(parsed.ok, JSON.stringify(parsed));
  const open = (more: Partial<RunSpec>) =>
    openScorer({ inference: () => new WordsInference() }, { ...parsed.spec, ...more });
  await assert.rejects(open({}), hasCode('ConfigInvalid', 'another tokenizer than the policy', 'loss = "sft"'));
  assert.match((await open({ model: 'preset:chars-0.4m' })).name, /^teacher:weights:[0-9a-f]{16}$/);
  assert.match((await open({ model: path.join(folder, 'elsewhere') })).name, /^teacher:weights:/);
});

test('a teacher is asked for rows in parts: a retry asks only for what is missing, and the batch has what it said', async (t) => {
  const { run, store } = await makeRun(t, {
    loss: 'opd',
    'teacher.model': 'teacher',
    'teacher.url': 'http://127.0.0.1:9/v1',
  });
  const rows = randomBatch({ vocabularySize: 50 } as never, 2 * teacherRowsAtOnce + 6, 3);
  const writer = new BatchWriter(run, 1, { partBytesMax: 2_000 });
  for (const [rollout, row] of rows.entries()) await writer.add(row, rollout);
  const packed = await putPacked(run, 1, { rows: await writer.end({ of: rows.length }), metrics: {} });
  const asked: number[] = [];
  let failsAt = 2;
  const promptLogprobs = ({ prompts }: { readonly prompts: readonly (readonly number[])[] }) => {
    asked.push(prompts.length);
    if (asked.length === failsAt) return Promise.reject(new Error('away'));
    return Promise.resolve(prompts.map((prompt) => prompt.map((id) => -id / 10)));
  };
  const ask = createAskTeacher({
    inference: () => new WordsInference(),
    tokenizer: openTokenizer,
    teacher: () => ({ scorer: { promptLogprobs }, name: 'a teacher' }) as never,
  });
  await assert.rejects(act(ask, { run, step: 1, packed }), /away/);
  failsAt = 0;
  const taught = await act(ask, { run, step: 1, packed });
  assert.deepEqual(asked, [teacherRowsAtOnce, teacherRowsAtOnce, teacherRowsAtOnce, 6]);
  assert.deepEqual({ ...(await act(ask, { run, step: 1, packed })), seconds: 0 }, { ...taught, seconds: 0 });

  const batch = await openBatch(run, { packed, taught });
  const expected = rows.map((row) => row.tokenIds.map((id, i) => (row.lossMask[i] === 1 ? -id / 10 || 0 : 0)));
  const found = await batch.read([...batch.rows.keys()]);
  assert.deepEqual(
    found.map(({ teacherLogprobs }) => teacherLogprobs),
    expected,
  );
  const [key] = (await store.list(layout.allBatches('main'))).filter((name) => layout.isTaughtPart(name));
  await store.put(key!, encodeTaught([Float32Array.of(-1)]));
  const damaged = await openBatch(run, { packed, taught });
  await assert.rejects(damaged.read([0]), hasCode('CheckpointDamaged', key!, 'expected sha256'));
});

test('of a batch that learns from rewards too a teacher is asked about its own rows alone', async (t) => {
  const made = await makeRun(t, { loss: 'opd', 'teacher.model': 'teacher', 'teacher.url': 'http://127.0.0.1:9/v1' });
  const spec: RunSpec = { ...made.spec, distillation: made.spec.loss };
  const run = { ...made.run, spec: await putJson(made.store, 'specs/both.json', spec) };
  const rows = randomBatch({ vocabularySize: 50 } as never, 6, 3).map((row, i) =>
    i % 2 === 0 ? row : { ...row, objective: 'ref_kl' as const },
  );
  const writer = new BatchWriter(run, 1);
  for (const [rollout, row] of rows.entries()) await writer.add(row, rollout);
  const packed = await putPacked(run, 1, { rows: await writer.end({ of: rows.length }), metrics: {} });
  const asked: (readonly number[])[] = [];
  const promptLogprobs = ({ prompts }: { readonly prompts: readonly (readonly number[])[] }) => {
    asked.push(...prompts);
    return Promise.resolve(prompts.map((prompt) => prompt.map((id) => -id / 10)));
  };
  const ask = createAskTeacher({
    inference: () => new WordsInference(),
    tokenizer: openTokenizer,
    teacher: () => ({ scorer: { promptLogprobs }, name: 'a teacher' }) as never,
  });
  const taught = await act(ask, { run, step: 1, packed });
  const own = rows.filter(({ objective }) => objective !== undefined);
  assert.deepEqual(
    asked,
    own.map(({ tokenIds }) => tokenIds),
  );
  const batch = await openBatch(run, { packed, taught });
  const found = await batch.read([...batch.rows.keys()]);
  for (const { objective, teacherLogprobs } of found)
    assert.equal(
      teacherLogprobs!.some((value) => value !== 0),
      objective !== undefined,
    );
});

test('a policy that teaches itself scores each row after the demonstration of its example', async (t) => {
  const test = await makeRun(t, { loss: 'opd', 'teacher.demonstration': 'answer' });
  const roles = openRoles();
  const { policy, curriculum } = (await commitFirst(test, roles)).state;
  const { round, scored } = await sampleRound(test, roles, { step: 1, policy, curriculum });
  const trained = [{ scored, policyStep: 0, ordinals: `${round.first}-${round.last}` }];
  const { run } = test;
  const { packed } = await roles.packBatch({ run, step: 1, trained, scored: [scored] });
  const asked: (readonly number[])[] = [];
  const inference = Object.assign(new WordsInference(), {
    promptLogprobs({ prompts }: { readonly prompts: readonly (readonly number[])[] }) {
      asked.push(...prompts);
      return Promise.resolve(prompts.map((prompt) => prompt.map((_, place) => -place)));
    },
  });
  const { tokenizer } = createPreset('preset:chars-0.4m', { seed: 0 });
  const ask = createAskTeacher({ inference: () => inference, tokenizer: () => Promise.resolve(tokenizer) });
  const taught = await act(ask, { run, step: 1, packed, trained, policy });
  const plain = await openBatch(run, { packed });
  const rows = await plain.read([...plain.rows.keys()]);
  const groups = await readRows<ScoredGroup>(run, scored);
  const hints = groups.flatMap(({ example, rollouts }) => {
    const content = `Here is an example of an expert response:\n<demonstration>\n${example!.answer}\n</demonstration>`;
    const hint = tokenizer.encode(
      tokenizer.renderChatText([{ role: 'system', content }], { addGenerationPrompt: false }),
    );
    assert.ok(hint.length > 0);
    return rollouts.map(() => hint);
  });
  const expected = rows.map(({ tokenIds }, r) => [...hints[r]!, ...tokenIds]);
  assert.deepEqual(asked, expected);
  const batch = await openBatch(run, { packed, taught });
  const read = await batch.read([...batch.rows.keys()]);
  assert.deepEqual(
    read.map(({ teacherLogprobs }) => teacherLogprobs),
    rows.map(({ lossMask }, r) => lossMask.map((mask, place) => (mask === 1 ? -(hints[r]!.length + place) : 0))),
  );
  const deaf = createAskTeacher({ inference: () => inference, tokenizer: openTokenizer });
  await assert.rejects(act(deaf, { run: { ...run, lineage: 'other' }, step: 1, packed, trained, policy }), {
    message: /leaves out a system message/,
  });
});

test('a demonstration that is no text of an example is refused before anything is sampled, or with the first group', async (t) => {
  const asking = (key: string): Promise<TestRun> => makeRun(t, { loss: 'opd', 'teacher.demonstration': key });
  const { spec } = await asking('solution');
  await assert.rejects(
    openDatasets(spec),
    hasCode('ConfigInvalid', 'teacher.demonstration', 'those of reverse-text have answer', '"solution"'),
  );
  const group = { ordinal: 0, environment: 'py', exampleId: 7, epoch: 0, policyStep: 0 };
  const common = { group: 0, exampleId: 7, index: 0, turns: [], metrics: {} };
  const record = { info: { task: { solution: 'so' } }, answer: 'tac' };
  const played: ScoredGroup = { ...group, rollouts: [{ ...common, outcome: 'ok', reward: 1, record }] };
  assert.equal(demonstrationOf(spec, played), 'so', 'an environment in Python says it in its rows');
  assert.throws(
    () => demonstrationOf(parsedKey(spec, 'hint'), played),
    hasCode('Unsupported', 'Example 7 of py has no text called "hint"', 'it has solution, answer'),
  );
  const failed: ScoredGroup = { ...group, rollouts: [{ ...common, outcome: 'timeout', reward: null }] };
  assert.equal(demonstrationOf(spec, failed), undefined);
});

function parsedKey(spec: RunSpec, key: string): RunSpec {
  const { template } = spec.teacher!.demonstration!;
  return { ...spec, teacher: { ...spec.teacher!, demonstration: { key, template } } };
}
