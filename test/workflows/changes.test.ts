/** Who changed what in a run: from Temporal's histories into the run's folder, where it stays. */
import assert from 'node:assert/strict';
import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import { hostname, tmpdir } from 'node:os';
import path from 'node:path';
import { after, describe, test, type TestContext } from 'node:test';
import { pathToFileURL } from 'node:url';
import { Client } from '@temporalio/client';
import { createRecordChange, recordAround } from '../../activities/record-change.ts';
import { RatchetError } from '../../core/errors.ts';
import { changeLine, type RunChange } from '../../core/rl/changes.ts';
import { readChanges } from '../../runs/changes.ts';
import { whyOpen } from '../../cli/stored/outlived-run.ts';
import { personOfLogin } from '../../core/roles.ts';
import { updateRun } from '../../workers/temporal/update-run.ts';
import { rolesHere } from '../../workers/temporal/who-may.ts';
import { historyOfChanges } from '../../workers/temporal/history-of-changes.ts';
import { Gate, holdingStep } from './fake-run.ts';
import { failureOf, timesContinued, until } from './look.ts';
import { begin, type Begun, type BegunRun, closeServer, freshName, openServer, shortHistoryQueue } from './server.ts';
import { configText } from '../activities/runs.ts';
import { createOrchestratorActivities } from '../../activities/of-orchestrator.ts';

after(closeServer);

interface Recorded {
  readonly run: BegunRun;
  readonly changes: () => Promise<RunChange[]>;
  /** Keeps who began this execution, as opening the run does. */
  readonly around: (execution: string) => Promise<string | null>;
  /** Sends an update as somebody's client. */
  readonly as: (identity: string, update: string, value?: unknown) => Promise<string>;
}

async function beginRecorded(t: TestContext, of: Begun): Promise<Recorded> {
  const folder = await mkdtemp(path.join(tmpdir(), 'ratchet-changes-'));
  t.after(() => rm(folder, { recursive: true }));
  const { client } = await openServer();
  const history = historyOfChanges(() => client);
  const record = createRecordChange(history);
  const at = (name: string) => ({ name, store: `${pathToFileURL(folder).href}/` });
  const run = await begin({
    ...of,
    fakes: { ...of.fakes, recordChange: (input) => record({ ...input, of: { ...place, kind: 'run' } }) },
  });
  const place = at(run.name);
  return {
    run,
    changes: async () => [...(await readChanges({ ...place, kind: 'run' })).changes],
    around: (execution) => recordAround({ ...place, kind: 'run' }, history, { workflow: run.name, execution }),
    as: (identity, update, value) =>
      new Client({ connection: client.connection, identity }).workflow
        .getHandle(run.name)
        .executeUpdate<string, [unknown]>(update, { args: [value] }),
  };
}

/** As the SDK names a client that says nothing of itself. */
const nameOfTests = `${process.pid}@${hostname()}`;
const ann = 'ratchet ann@laptop 4711';
const ben = 'ratchet ben@desk 12';

describe('the changes of a run', { concurrency: 8 }, () => {
  test('each that was done is kept with who asked for it, across continue-as-new; one that was refused is not', async (t) => {
    const gate = new Gate();
    const { run, changes, as } = await beginRecorded(t, {
      taskQueue: shortHistoryQueue,
      settings: { maxSteps: 8 },
      fakes: holdingStep(gate),
    });
    await gate.reached;
    await as(ann, 'pause', 'lunch');
    assert.match(await failureOf(as(ben, 'set', { 'sampling.temperature': -1 })), /^Refused: /);
    await as(ben, 'resume');
    await as(ben, 'set', { learning_rate: 0.002 });
    gate.open();
    await run.atStep(5);
    await as(ann, 'pause', 'tea');
    await as(ann, 'resume');
    await run.result();
    assert.ok((await timesContinued(run)) > 0);
    const kept = await changes();
    assert.deepEqual(
      kept.map((change) => [change.identity, changeLine(change)]),
      [
        [ann, 'ann@laptop asked: pause lunch'],
        [ben, 'ben@desk asked: resume'],
        [ben, 'ben@desk asked: set learning_rate=0.002'],
        [ann, 'ann@laptop asked: pause tea'],
        [ann, 'ann@laptop asked: resume'],
      ],
    );
    assert.ok(new Set(kept.map(({ execution }) => execution)).size > 1);
    assert.ok(kept.every(({ time, principal }) => Date.parse(time) > 0 && principal === null));
  });

  test('a run tells its changes among its events', async (t) => {
    const gate = new Gate();
    const { run, as } = await beginRecorded(t, { settings: { maxSteps: 1 }, fakes: holdingStep(gate) });
    await gate.reached;
    await as(ann, 'set', { learning_rate: 0.002 });
    await until('the change', async () => (await run.told('change')).length === 1);
    assert.deepEqual(await run.told('change'), ['ann@laptop asked: set learning_rate=0.002']);
    gate.open();
    await run.result();
  });

  test('a record that cannot be written holds up neither the answer nor the run, which says so', async () => {
    const gate = new Gate();
    const run = await begin({
      settings: { maxSteps: 1 },
      fakes: {
        ...holdingStep(gate),
        recordChange: () => {
          throw new RatchetError('CheckpointDamaged', 'the folder is a file.');
        },
      },
    });
    await gate.reached;
    await run.tell('pause', 'lunch');
    await run.tell('resume');
    gate.open();
    await run.result();
    assert.deepEqual(
      (await run.told('warning')).filter((text) => text.includes('record of changes')).toSorted(),
      ['pause', 'resume'].map((what) => `${what} was done, and is not in the record of changes: the folder is a file.`),
    );
  });

  test('who started a run, and who ended it by force, is kept when it is opened again', async (t) => {
    const gate = new Gate();
    const { run, changes, around } = await beginRecorded(t, { settings: { maxSteps: 1 }, fakes: holdingStep(gate) });
    await gate.reached;
    const { client } = await openServer();
    assert.equal(await around(run.handle.firstExecutionRunId), nameOfTests);
    const eve = new Client({ connection: client.connection, identity: 'ratchet eve@spot 3' });
    await eve.workflow.getHandle(run.name).terminate('the machine is needed');
    const again = await eve.workflow.start('trainRun', {
      workflowId: run.name,
      taskQueue: 'nobody-there',
      args: [{ config: 'again.toml' }],
    });
    const seen = (): Promise<boolean> =>
      around(again.firstExecutionRunId).then(async () => (await changes()).length === 3);
    await until('the list of workflows', seen);
    assert.equal(await around(again.firstExecutionRunId), nameOfTests, 'it stays with whoever started it first');
    assert.deepEqual(
      (await changes()).map((change) => [change.execution, changeLine(change)]),
      [
        [run.handle.firstExecutionRunId, `${nameOfTests} asked: start`],
        [run.handle.firstExecutionRunId, 'eve@spot asked: terminate the machine is needed'],
        [again.firstExecutionRunId, 'eve@spot asked: start'],
      ],
    );
    await again.terminate();
    gate.open();
  });

  test('with a file of roles its owner steers it, and another is refused before the run hears of it', async (t) => {
    const gate = new Gate();
    const projectFolder = await mkdtemp(path.join(tmpdir(), 'ratchet-roles-'));
    t.after(() => rm(projectFolder, { recursive: true }));
    await writeFile(
      path.join(projectFolder, 'roles.toml'),
      '[users.ann]\nrole = "operator"\n[users.ben]\nrole = "operator"\n[users.eve]\nrole = "admin"\n',
    );
    const owner = { who: 'ann@laptop', team: null };
    const { run, changes } = await beginRecorded(t, {
      settings: { maxSteps: 1 },
      fakes: { ...holdingStep(gate), openRun: async (_, { usual }) => ({ ...(await usual()), owner }) },
    });
    await gate.reached;
    assert.deepEqual((await run.status()).owner, owner);
    const roles = (await rolesHere(projectFolder))!;
    const pauseAs = (login: string) =>
      updateRun(run.handle, run.name, {
        update: 'pause',
        args: ['lunch'],
        as: personOfLogin(roles, login),
        projectFolder,
      });
    await assert.rejects(pauseAs('ben@desk'), {
      name: 'NotAllowed',
      message: `ben is an operator (roles.toml): ${run.name} belongs to ann, so pause asks for the role operator of its owner or team (ann), or the role admin (eve).`,
    });
    assert.equal((await run.status()).pausedBecause, null);
    assert.match(await pauseAs('ann@laptop'), /^running → paused: lunch/);
    assert.match(await pauseAs('eve@desk'), /^It was paused already/);
    await run.tell('resume');
    gate.open();
    await run.result();
    assert.deepEqual(
      (await changes()).map(({ what }) => what),
      ['pause', 'pause', 'resume'],
    );
  });

  test('gc takes a run for over when its workflow is, not when it is paused', async (t) => {
    const gate = new Gate();
    const { run, changes } = await beginRecorded(t, { settings: { maxSteps: 1 }, fakes: holdingStep(gate) });
    await gate.reached;
    await run.tell('pause', 'for a month');
    await until('the record', async () => (await changes()).length === 1);
    const { environment } = await openServer();
    const before = process.env['TEMPORAL_ADDRESS'];
    process.env['TEMPORAL_ADDRESS'] = environment.address;
    t.after(() =>
      before === undefined ? delete process.env['TEMPORAL_ADDRESS'] : (process.env['TEMPORAL_ADDRESS'] = before),
    );
    assert.equal(await whyOpen(run.name), 'its workflow is open');
    assert.equal(await whyOpen('run-that-the-server-forgot'), null);
    await run.tell('resume');
    gate.open();
    await run.result();
    assert.equal(await whyOpen(run.name), null);
  });

  test('opening a run says who owns it: whoever started it first', async (t) => {
    const projectFolder = await mkdtemp(path.join(tmpdir(), 'ratchet-project-'));
    t.after(() => rm(projectFolder, { recursive: true }));
    const { client } = await openServer();
    const { openRun } = createOrchestratorActivities({
      projectFolder,
      codeVersion: 'test',
      inference: () => {
        throw new Error('no server is asked');
      },
      whatSearchAttributesLack: () => Promise.resolve('no search attributes'),
      isWorkflowRunning: () => Promise.resolve(false),
      findTrainers: () => Promise.resolve({ trainers: [], lastSeen: null }),
      countRolloutWorkers: () => Promise.resolve(0),
      shareInPool: () => undefined,
      otherVersions: () => Promise.resolve([]),
      history: historyOfChanges(() => client),
    });
    const workflowId = freshName();
    await writeFile(path.join(projectFolder, 'words.toml'), configText);
    const startAs = async (identity: string) => {
      const as = new Client({ connection: client.connection, identity });
      const args = [{ config: 'words.toml' }];
      const handle = await as.workflow.start('trainRun', { workflowId, taskQueue: 'nobody-there', args });
      const { owner } = await openRun('words.toml', workflowId, handle.firstExecutionRunId);
      await handle.terminate();
      return owner;
    };
    assert.deepEqual(await startAs(ann), { who: 'ann@laptop', team: null });
    assert.deepEqual(await startAs(ben), { who: 'ann@laptop', team: null });
  });
});
