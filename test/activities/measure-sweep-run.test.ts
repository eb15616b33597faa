/** What a sweep reads of its runs: how far each is, and its metric at a rung. */
import assert from 'node:assert/strict';
import { rm, writeFile } from 'node:fs/promises';
import path from 'node:path';
import { test, type TestContext } from 'node:test';
import { measureSweepRun } from '../../activities/measure-sweep-run.ts';
import { writeChange } from '../../runs/changes.ts';
import { layout } from '../../runs/layout.ts';
import { beginLineage } from '../../runs/lineages/lineages.ts';
import { appendMetrics } from '../../runs/metrics/metrics.ts';
import { act, advance, commitFirst, makeRun, openRoles, type TestRun } from './runs.ts';

async function steps(t: TestContext, count: number): Promise<TestRun> {
  const made = await makeRun(t);
  await made.store.put(
    layout.run(),
    Buffer.from(JSON.stringify({ schemaVersion: 1, name: made.run.name, spec: made.spec })),
  );
  const roles = openRoles();
  let at = await commitFirst(made, roles);
  for (let step = 1; step <= count; step++) at = await advance(made, roles, at);
  return made;
}

function measured(
  { run }: Pick<TestRun, 'run'>,
  name: string,
  step: number,
  { lastSteps = 1, ...more }: { readonly lastSteps?: number; readonly made?: number } = {},
) {
  const { name: of, store } = run;
  return act(measureSweepRun, { run: { name: of, store }, metric: { name, goal: 'max', lastSteps }, step, ...more });
}

test('a run that is not there, or has no version yet, is at no step', async (t) => {
  const made = await makeRun(t);
  assert.deepEqual(await measured(made, 'train/reward', 1), { step: null, value: null });
  await made.store.put(
    layout.run(),
    Buffer.from(JSON.stringify({ schemaVersion: 1, name: made.run.name, spec: made.spec })),
  );
  assert.deepEqual(await measured(made, 'train/reward', 1), { step: null, value: null });
});

test('the metric is that of the rung, also where the run is further, and the mean of some steps where that is asked', async (t) => {
  const made = await steps(t, 3);
  const { store } = made;
  for (const [step, value] of [
    [1, 0.25],
    [2, 0.5],
    [3, 1],
  ] as const)
    await appendMetrics(store, { step, lineage: 'main', 'eval/words/reward/mean': value });
  const at = (step: number, lastSteps = 1) => measured(made, 'eval/words/reward/mean', step, { lastSteps });
  assert.deepEqual(await at(3), { step: 3, value: 1 });
  assert.deepEqual(await at(2), { step: 3, value: 0.5 });
  assert.deepEqual(await at(3, 2), { step: 3, value: 0.75 });
  assert.deepEqual(await at(2, 9), { step: 3, value: 0.375 });
  // A rung that it has not come to has no value yet.
  assert.deepEqual(await at(5), { step: 3, value: null });
  assert.deepEqual(await measured(made, 'no/such', 3), { step: 3, value: null });
});

test('what people changed before the rung is said, unless it changes nothing of what the run learns', async (t) => {
  const made = await steps(t, 3);
  const of = { ...made.run, kind: 'run' } as const;
  let count = 0;
  const set = (asked: string, step: number, what = 'set') =>
    writeChange(of, {
      time: `2026-12-01T00:00:0${count++}`,
      identity: 'ratchet ann@laptop 1',
      principal: null,
      what,
      asked,
      step,
      workflow: made.run.name,
      execution: 'one',
      id: `${what} ${asked}`,
    });
  await set('stop_after=3', 0);
  await set('', 0, 'pause');
  assert.deepEqual(await measured(made, 'no/such', 3), { step: 3, value: null });
  await set('learning_rate=0.0007 queue.priority=3', 1);
  await set('max_grad_norm=1', 2);
  const first = 'learning_rate=0.0007 after step 1';
  assert.deepEqual((await measured(made, 'no/such', 2)).changed, [first]);
  assert.deepEqual((await measured(made, 'no/such', 3)).changed, [first, 'max_grad_norm=1 after step 2']);
  await set('2', 3, 'rewind');
  assert.deepEqual((await measured(made, 'no/such', 3)).changed, [first]);
  await set('1', 2, 'rewind');
  assert.deepEqual(await measured(made, 'no/such', 3), { step: 3, value: null });
});

test('what a rewind left behind does not count', async (t) => {
  const made = await steps(t, 3);
  for (const step of [1, 2, 3])
    await appendMetrics(made.store, { step, lineage: 'main', 'eval/words/reward/mean': step });
  await beginLineage({ run: made.run, step: 1, request: 'a person' });
  assert.deepEqual(await measured(made, 'eval/words/reward/mean', 3), { step: 1, value: null });
  assert.deepEqual(await measured(made, 'eval/words/reward/mean', 1), { step: 1, value: 1 });
});

test('a run that cannot be read is refused with its place, and not taken for one that is behind', async (t) => {
  const made = await steps(t, 2);
  await writeFile(path.join(made.folder, layout.commit('main', 2)), '{"step": 2');
  await assert.rejects(measured(made, 'train/reward', 2), /CheckpointDamaged.*step_2\.json/);
});

test('a worker that does not see what a run has committed is refused, and asked again: the run is not behind', async (t) => {
  const made = await steps(t, 2);
  const at = (least: number) => measured(made, 'no/such', 2, { made: least });
  assert.deepEqual(await at(2), { step: 2, value: null });
  await assert.rejects(at(3), {
    code: 'StoreNotSeen',
    message: /expected the run words, which has committed step 3, found step 2\. Is the store mounted here\?/,
  });
  await rm(made.folder, { recursive: true });
  await assert.rejects(at(0), { message: /which has committed step 0, found no commit\./ });
});
