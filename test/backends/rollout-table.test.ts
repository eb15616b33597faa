import assert from 'node:assert/strict';
import { mkdtemp, readdir, readFile, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { test } from 'node:test';
import { asyncBufferFromFile, parquetMetadataAsync, parquetReadObjects } from 'hyparquet';
import { type RolloutTableRow, writeTable } from '../../play/table.ts';
import { tableOf } from '../../cli/commands/stored/export.ts';
import { scoredGroups } from '../../runs/run-records.ts';
import type { GroupAdvantages } from '../../core/rl/learning/pack.ts';
import { trainedAdvantages } from '../../runs/rollouts/trained-advantages.ts';
import { advance, commitFirst, makeRun, openRoles } from '../activities/runs.ts';

test('every rollout is a row of the exported table, in JSON lines and in Parquet alike', async (t) => {
  const folder = await mkdtemp(path.join(tmpdir(), 'ratchet-export-'));
  t.after(() => rm(folder, { recursive: true, force: true }));
  const { run, ...rest } = await makeRun(t);
  const roles = openRoles();
  let at = await commitFirst({ run, ...rest }, roles);
  for (let i = 0; i < 2; i++) at = await advance({ run, ...rest }, roles, at);
  const stored = [...(await scoredGroups(run, 1)), ...(await scoredGroups(run, 2))];
  const rollouts = stored.flatMap((group) => group.rollouts.map((rollout) => ({ group, rollout })));
  assert(rollouts.length > 4);

  const [jsonl, parquet] = [path.join(folder, 'r.jsonl'), path.join(folder, 'r.parquet')];
  const steps = [1, 2];
  assert.equal(await writeTable(jsonl, 'jsonl', tableOf(run, steps)), rollouts.length);
  assert.equal(await writeTable(parquet, 'parquet', tableOf(run, steps)), rollouts.length);
  assert.deepEqual((await readdir(folder)).sort(), ['r.jsonl', 'r.parquet'], 'no unfinished file is left');

  const lines = (await readFile(jsonl, 'utf8')).trimEnd().split('\n');
  const rows = lines.map((line) => JSON.parse(line) as Record<keyof RolloutTableRow, unknown>);
  for (const [i, { group, rollout }] of rollouts.entries()) {
    const row = rows[i]!;
    assert.deepEqual(
      [row.run, row.step, row.group, row.index, row.outcome, row.reward],
      [run.name, i < rollouts.length / 2 ? 1 : 2, group.ordinal, rollout.index, rollout.outcome, rollout.reward],
    );
    assert.deepEqual(row.prompt, group.example!.prompt);
    assert.deepEqual(row.completion, [{ role: 'assistant', content: rollout.turns[0]!.text }]);
    assert.deepEqual(row.metrics, rollout.metrics);
  }
  for (const step of steps) {
    const trained = (await trainedAdvantages(run, step)) as ReadonlyMap<number, GroupAdvantages>;
    const own = rows.filter((row) => row.end_step === step && row.end === 'trained');
    assert.ok(own.length > 0);
    for (const { group, index, advantage } of own)
      assert.equal(advantage, trained.get(group as number)!.advantages.get(index as number));
  }

  const file = await asyncBufferFromFile(parquet);
  assert.equal(Number((await parquetMetadataAsync(file)).num_rows), rollouts.length);
  const read = await parquetReadObjects({ file });
  const asJson = (row: Record<string, unknown>): object => ({
    ...row,
    prompt: JSON.parse(row['prompt'] as string) as unknown,
    completion: JSON.parse(row['completion'] as string) as unknown,
    metrics: JSON.parse(row['metrics'] as string) as unknown,
  });
  assert.deepEqual(read.map(asJson), rows);
});

test('a file that cannot be written is an error, and leaves nothing', async (t) => {
  const folder = await mkdtemp(path.join(tmpdir(), 'ratchet-export-'));
  t.after(() => rm(folder, { recursive: true, force: true }));
  const place = { name: 'words', store: 'file:///nowhere/', lineage: 'main' };
  for (const format of ['jsonl', 'parquet'] as const) {
    const table = writeTable(path.join(folder, 'no', 'r'), format, tableOf(place, []));
    await assert.rejects(table, { code: 'ENOENT' });
  }
});
