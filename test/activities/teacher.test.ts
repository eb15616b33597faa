import assert from 'node:assert/strict';
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { test } from 'node:test';
import { createAskTeacher } from '../../activities/ask-teacher.ts';
import { openScorer } from '../../backends/rollouts/teacher.ts';
import { parseRunConfig } from '../../config/parse-run-config.ts';
import type { RunSpec } from '../../config/run-spec.ts';
import { createPreset, saveModelFolder } from '../../engine/index.ts';
import { teacherRowsAtOnce } from '../../core/limits.ts';
import { encodeTaught } from '../../runs/batch-parts.ts';
import { BatchWriter, openBatch, putPacked } from '../../runs/batches.ts';
import { layout } from '../../runs/layout.ts';
import { hasCode } from '../backends/store.contract.ts';
import { randomBatch } from '../engine/models.ts';
import { act, makeRun, WordsInference } from './runs.ts';

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
