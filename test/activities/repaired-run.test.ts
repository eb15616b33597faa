/** A record that its readers refuse is named by fsck, and after a repair the run continues from its position. */
import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import { mkdir, mkdtemp, readFile, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { test, type TestContext } from 'node:test';
import { createOpenRun } from '../../activities/open-run.ts';
import { claimTrainer } from '../../activities/trainer-claims.ts';
import { putJson } from '../../store/objects.ts';
import { storedStandings } from '../../cli/stored/stored-runs.ts';
import { examineStore } from '../../runs/lineages/examine-store.ts';
import { layout } from '../../runs/layout.ts';
import { readMetrics, unreadableRows } from '../../runs/metrics/metrics.ts';
import type { RunRecord } from '../../runs/forms/record-settings.ts';
import { repairRecord } from '../../runs/lineages/repair-store.ts';
import { requireStore, storeOf } from '../../runs/run-access.ts';
import { advance, commitFirst, configText, openRoles, runIn } from './runs.ts';

const evaluation = 'evals/reverse-text--words/step_2/';

/** A run of three steps with every kind of record beside its commits. */
async function threeSteps(t: TestContext) {
  const projectFolder = await mkdtemp(path.join(tmpdir(), 'ratchet-project-'));
  t.after(() => rm(projectFolder, { recursive: true, force: true }));
  await writeFile(path.join(projectFolder, 'words.toml'), configText);
  const openRun = createOpenRun({
    projectFolder,
    whatSearchAttributesLack: () => Promise.resolve(null),
    isWorkflowRunning: () => Promise.resolve(false),
  });
  let opened = 0;
  const open = () => openRun('words.toml', `words-${(opened += 1)}`, 'first');
  const { handle } = await open();
  const made = await runIn(path.join(projectFolder, 'outputs'), {}, 'words');
  await made.store.removeAll('specs/test.json');
  const there = { ...made, run: { ...made.run, spec: handle.spec } };
  const roles = openRoles();
  let last = await commitFirst(there, roles);
  while (last.state.step < 3) last = await advance(there, roles, last);
  const { store } = there;
  await claimTrainer(handle, { epoch: 1, holder: 'gpu-1' });
  await putJson(store, layout.canary('main', 2), { digest: 'd', tokenIds: [1, 2], positions: [1], logprobs: [-1] });
  await putJson(store, layout.quarantinedServers('main', 2), ['http://server']);
  await putJson(store, layout.sinks(), { tensorboard: { next: 1, rows: 1, place: null, failing: null, isDone: true } });
  await store.append(layout.metricsOrder(), '"main/1/train"\n');
  await store.append(`${evaluation}results.jsonl`, '{"example_id":3,"reward":1}\n');
  await putJson(store, `${evaluation}metadata.json`, { env_id: 'reverse-text', num_examples: 1 });
  await putJson(store, `${evaluation}evaluation/attempt_1.json`, {
    schemaVersion: 1,
    input: {},
    examples: 1,
    attempt: 1,
  });
  await putJson(store, `${evaluation}evaluation/summary_1.json`, {
    environment: 'reverse-text',
    place: {},
    examples: 1,
    attempt: 1,
  });
  const repair = async () => {
    for (const { key, repair: how } of (await examineStore(there.run)).faults)
      if (how !== null) await repairRecord(there.run, key, how);
  };
  return { ...there, open, repair };
}

test('what is null or {} is named, and set aside or made again: then everything can be read, and the run is opened', async (t) => {
  const { run, store, folder, open, repair } = await threeSteps(t);
  assert.deepEqual((await examineStore(run)).faults, []);
  const rows = await readMetrics(store);
  const keys = [
    'run.json',
    run.spec.key,
    layout.source(run.spec.key),
    'claims/claim_1.json',
    'claims/trainer/epoch_1.json',
    layout.canary('main', 2),
    layout.quarantinedServers('main', 2),
    'metrics.jsonl',
    'sinks/state.json',
    'sinks/order.jsonl',
    `${evaluation}results.jsonl`,
    `${evaluation}metadata.json`,
    `${evaluation}evaluation/attempt_1.json`,
    `${evaluation}evaluation/summary_1.json`,
  ];
  const settings = await Promise.all(keys.slice(0, 2).map((key) => readFile(path.join(folder, key), 'utf8')));
  for (const text of ['null\n', '{}\n']) {
    for (const key of keys) {
      if (key === 'sinks/state.json' && text === '{}\n') continue; // of a run that has no sinks
      await writeFile(path.join(folder, key), text);
      const { faults } = await examineStore(run);
      assert.deepEqual(
        faults.map((fault) => fault.key),
        [key],
      );
      assert.match(faults[0]!.meaning, /--repair/, key);
      await repair();
      assert.deepEqual((await examineStore(run)).faults, [], `${key} ${text}`);
      assert.equal((await open()).head!.commit.step, 3, key);
      assert((await store.list(layout.allQuarantined() + key)).length > 0, key);
    }
  }
  assert.deepEqual(await readMetrics(store), rows);
  assert.deepEqual(
    await Promise.all(keys.slice(0, 2).map((key) => readFile(path.join(folder, key), 'utf8'))),
    settings,
  );
});

test('a run that is open while its run.json is made again, minutes after it was begun, sees that it is the same', async (t) => {
  const { run, store, folder, open, repair } = await threeSteps(t);
  const opened = { ...run, begunAt: '2026-01-02T03:04' };
  const file = path.join(folder, 'run.json');
  const record = JSON.parse(await readFile(file, 'utf8')) as RunRecord;
  await writeFile(file, JSON.stringify({ ...record, begunAt: opened.begunAt }));
  await assert.rejects(
    requireStore({ ...run, begunAt: '2025-01-02T03:04' }, { isNow: true }),
    /another run of this name/,
  );
  await requireStore(opened, { isNow: true });
  await writeFile(file, '{}');
  await assert.rejects(requireStore(opened, { isNow: true }), { code: 'StoreNotSeen' });
  await repair();
  await requireStore(opened, { isNow: true });
  await storeOf(opened).put('after', Buffer.from('1'));
  assert.equal(String(await store.read('after')), '1');
  const { begunAt } = (await open()).handle;
  assert.notEqual(begunAt, opened.begunAt);
  await assert.rejects(
    requireStore({ ...run, begunAt: '2999-01-01T00:00' }, { isNow: true }),
    /another run of this name/,
  );
});

test('run.json that is a folder or a FIFO keeps fsck from nothing else; the run is listed as one that cannot be read', async (t) => {
  const { run, folder, open, repair } = await threeSteps(t);
  for (const put of [(file: string) => mkdir(file), async (file: string) => execFileSync('mkfifo', [file])]) {
    const [file, other] = ['run.json', layout.canary('main', 2)].map((key) => path.join(folder, key)) as [
      string,
      string,
    ];
    await rm(file);
    await put(file);
    await writeFile(other, '{}');
    const { faults } = await examineStore(run);
    assert.deepEqual(faults.map(({ key }) => key).sort(), [layout.canary('main', 2), 'run.json']);
    const [standing] = await storedStandings(run.store);
    assert.deepEqual([standing?.run, standing?.state], ['words', 'cannot be read']);
    assert.match(standing?.note ?? '', /run\.json/);
    await repair();
    assert.deepEqual((await examineStore(run)).faults, []);
    assert.equal((await open()).head!.commit.step, 3);
  }
});

test('settings of which nothing tells any more are to be restored from a copy, and nothing is written in their place', async (t) => {
  const { run, folder, repair } = await threeSteps(t);
  for (const key of ['run.json', run.spec.key]) await writeFile(path.join(folder, key), '{}');
  const { faults } = await examineStore(run);
  assert.deepEqual(
    faults.filter(({ meaning }) => meaning.includes('restore the file from a copy')).map(({ repair: how }) => how),
    [null, null],
  );
  await repair();
  assert.equal(await readFile(path.join(folder, 'run.json'), 'utf8'), '{}');
});

test('metrics of which no row can be read are told from those that are not there yet', async (t) => {
  const { store, folder } = await threeSteps(t);
  assert.equal(await unreadableRows(store), 0);
  const file = path.join(folder, 'metrics.jsonl');
  const whole = await readFile(file, 'utf8');
  await writeFile(file, `${whole}{"step":`);
  assert.equal(await unreadableRows(store), 0, 'one that is being written');
  await writeFile(file, `{}\n${whole}`);
  assert.equal(await unreadableRows(store), 1);
  await writeFile(file, 'null');
  assert.equal(await unreadableRows(store), 1);
});
