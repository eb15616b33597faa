/** What a commit measures, and its projection in `metrics.jsonl`. */
import assert from 'node:assert/strict';
import { appendFile, cp, mkdir, readFile, writeFile } from 'node:fs/promises';
import path from 'node:path';
import { describe, test, type TestContext } from 'node:test';
import { recordCommit, recordMissing } from '../../runs/record-metrics.ts';
import { appendMetrics, type MetricsRow } from '../../runs/metrics.ts';
import { decodeRows } from '../../backends/store/objects.ts';
import { layout } from '../../runs/layout.ts';
import type { StepCommit } from '../../core/rl/run-state.ts';
import { advance, commitFirst, makeRun, openRoles, type TestRun } from './runs.ts';

async function started(t: TestContext) {
  const test = await makeRun(t);
  const roles = openRoles();
  return { test, roles, first: await commitFirst(test, roles) };
}

const commitOf = async ({ folder }: TestRun, step: number) =>
  JSON.parse(await readFile(path.join(folder, layout.commit('main', step)), 'utf8')) as StepCommit;

test('a commit says that its orchestrator was started after the one before', async (t) => {
  const { test, roles, first } = await started(t);
  const one = await advance(test, roles, first);
  const long = { ...(await commitOf(test, 1)), committedAt: '2020-01-01T00:00:00.000Z' };
  await writeFile(path.join(test.folder, layout.commit('main', 1)), `${JSON.stringify(long)}\n`);
  const other = openRoles(); // a process that was not there then
  await advance(test, other, await advance(test, other, one));
  const restarts = [1, 2, 3].map(async (step) => (await commitOf(test, step)).metrics['recovery/restarts']);
  assert.deepEqual(await Promise.all(restarts), [undefined, 1, undefined]);
});

describe('the metrics file', () => {
  const rows = async ({ folder }: TestRun) =>
    (await readFile(path.join(folder, 'metrics.jsonl'), 'utf8')).split('\n').filter((line) => line !== '');

  test('a committed step is one row, however often it is recorded', async (t) => {
    const { test, roles, first } = await started(t);
    await advance(test, roles, await advance(test, roles, first));
    for (const step of [1, 2]) await recordCommit(test.run, await commitOf(test, step));
    assert.deepEqual(
      decodeRows<StepCommit>(Buffer.from((await rows(test)).join('\n')), 'metrics.jsonl').map(({ step }) => step),
      [1, 2],
    );
  });

  test('rows that are missing, as of a step whose process died after its commit, are written when the run is opened', async (t) => {
    const { test: before, roles, first } = await started(t);
    await advance(before, roles, await advance(before, roles, await advance(before, roles, first)));
    await roles.beginLineage({ run: before.run, step: 2, request: 'x' });
    const test = await makeRun(t); // elsewhere, since this process knows what it has written
    await cp(before.folder, test.folder, { recursive: true });
    const second = (await rows(before)).filter((line) => (JSON.parse(line) as MetricsRow).step === 2);
    await writeFile(path.join(test.folder, 'metrics.jsonl'), second.map((line) => `${line}\n`).join(''));
    const whole = async () => {
      const lines = decodeRows<MetricsRow>(Buffer.from((await rows(test)).join('\n')), 'metrics.jsonl');
      return lines.map(({ lineage, step }) => `${lineage} ${step}`).sort();
    };
    assert.deepEqual(await whole(), ['main 2']);
    await recordMissing(test.run);
    assert.deepEqual(await whole(), ['main 1', 'main 2', 'main 3'], 'v0 has no metrics, and l2 no step of its own');
    await recordMissing(test.run);
    assert.equal((await rows(test)).length, 3, 'once');
    const committed = await commitOf(test, 3);
    const row = (await rows(test)).map((line) => JSON.parse(line) as MetricsRow).find(({ step }) => step === 3);
    assert.deepEqual(row, { step: 3, lineage: 'main', time: committed.committedAt, ...committed.metrics });
  });

  test('half a line, left by a killed writer or a full disk, spoils no other and its step is written again', async (t) => {
    const { test } = await started(t);
    await mkdir(test.folder, { recursive: true });
    await appendFile(path.join(test.folder, 'metrics.jsonl'), '{"step":1,"lineage":"main"}\n{"step":2,"lin');
    for (const step of [1, 2, 3]) await appendMetrics(test.store, { step, lineage: 'main', 'train/reward': 0.5 });
    const lines = await rows(test);
    assert.equal(lines.length, 4);
    assert.deepEqual(
      lines.flatMap((line) => {
        try {
          return [(JSON.parse(line) as { step: number }).step];
        } catch {
          return [];
        }
      }),
      [1, 2, 3],
    );
  });
});
