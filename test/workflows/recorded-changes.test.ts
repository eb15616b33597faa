/** Who changed a sweep, a search, an evaluation or a pool: kept in the store, where it outlives their workflows. */
import assert from 'node:assert/strict';
import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import { hostname, tmpdir } from 'node:os';
import path from 'node:path';
import { after, describe, test, type TestContext } from 'node:test';
import { fileURLToPath, pathToFileURL } from 'node:url';
import { Client, WithStartWorkflowOperation } from '@temporalio/client';
import {
  createNameChange,
  createRecordCancel,
  createRecordChange,
  createRecordStart,
  keepPoolChanges,
} from '../../activities/record-change.ts';
import { askOpenPool, tellPool } from '../../activities/around/tell-pool.ts';
import type { RunStanding } from '../../core/fleet/pool-types.ts';
import {
  poolChangesQueryName,
  poolWorkflowId,
  runStandingSignalName,
  sweepWorkflowId,
  taskQueues,
} from '../../core/names.ts';
import { type Changed, changeLine, type RunChange } from '../../core/rl/changes.ts';
import { sweepRuns } from '../../core/sweep/table.ts';
import { readChanges } from '../../runs/changes.ts';
import { historyOfChanges } from '../../workers/temporal/history-of-changes.ts';
import { openCommands } from '../cli/typed.ts';
import { evaluationOf, leasing, searchOf } from './fake-evaluation.ts';
import { FakeRun, type Fakes, Gate, specWith } from './fake-run.ts';
import { failureOf, until } from './look.ts';
import { answersFor, begin, closeServer, freshName, openServer, shortHistoryQueue } from './server.ts';

after(closeServer);
const typed = openCommands();

const ann = 'ratchet ann@laptop 4711';
const ben = 'ratchet ben@desk 12';
const eve = 'ratchet eve 3';
/** As the SDK names a client that says nothing of itself. */
const nameOfTests = `${process.pid}@${hostname()}`;

async function storeOfTest(t: TestContext): Promise<string> {
  const folder = await mkdtemp(path.join(tmpdir(), 'ratchet-changes-'));
  t.after(() => rm(folder, { recursive: true }));
  return `${pathToFileURL(folder).href}/`;
}

/** The activities that keep changes, as they are shipped. */
async function recording(): Promise<Fakes> {
  const { client } = await openServer();
  const history = historyOfChanges(() => client);
  return {
    recordChange: createRecordChange(history),
    nameChange: createNameChange(history),
    recordStart: createRecordStart(history),
    recordCancel: createRecordCancel(history),
    keepPoolChanges,
  };
}

async function as(identity: string): Promise<Client> {
  const { client } = await openServer();
  return new Client({ connection: client.connection, identity });
}

async function tell(identity: string, workflow: string, update: string, value?: unknown): Promise<string> {
  const handle = (await as(identity)).workflow.getHandle(workflow);
  return handle.executeUpdate<string, [unknown]>(update, { args: [value] });
}

/** What `ratchet events NAME --changes --of KIND` prints in the folder of a store, without times. */
async function printed(store: string, words: readonly string[], env: Readonly<Record<string, string>> = {}) {
  const args = ['events', ...words.slice(1), '--changes', '--of', words[0]!];
  const { code, out, err } = await typed(fileURLToPath(store), args, env);
  assert.equal(code, 0, out + err);
  return out.trimEnd().split('\n').map((line) => line.replace(/^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d +/, '')); // prettier-ignore
}

const lines = async (of: Changed): Promise<string[]> => (await readChanges(of)).changes.map(changeLine);

describe('what people changed is kept', () => {
  test('of a sweep: who began it, paused, resumed and cancelled it, and who began it again', async (t) => {
    const store = await storeOfTest(t);
    const name = freshName();
    const settings = [{ learning_rate: 0.001 }, { learning_rate: 0.002 }];
    const runs = sweepRuns(name, settings, []);
    const gate = new Gate();
    const fakes: Fakes = {
      ...(await recording()),
      measureSweepRun: async () => {
        await gate.pass();
        return { step: null, value: null };
      },
    };
    const { client } = await answersFor(new FakeRun(specWith(name, {})), fakes);
    const start = () =>
      client.workflow.start('sweep', {
        workflowId: sweepWorkflowId(name),
        taskQueue: taskQueues.orchestrator,
        args: [
          {
            name,
            store,
            config: 'words.toml',
            rows: settings,
            runs,
            metric: { name: 'train/reward', goal: 'max', lastSteps: 1 },
            maxSteps: 2,
            halving: null,
            atOnce: 1,
          },
        ],
      });
    const handle = await start();
    await gate.reached;
    await tell(ann, sweepWorkflowId(name), 'pause', 'lunch');
    await tell(ben, sweepWorkflowId(name), 'resume');
    const env = { TEMPORAL_ADDRESS: (await openServer()).environment.address };
    assert.deepEqual(await typed(fileURLToPath(store), ['sweep', name, '--resume'], env), {
      code: 2,
      out: '',
      err: `${name}: nothing changed. The sweep is not paused.\n`,
    });
    const of: Changed = { kind: 'sweep', name, store };
    await until('both are kept', async () => (await lines(of)).length === 3);
    await (await as(eve)).workflow.getHandle(handle.workflowId).cancel();
    gate.open();
    assert.match(await failureOf(handle.result()), /^CancelledFailure/);
    const kept = [
      `${nameOfTests} asked: start`,
      'ann@laptop asked: pause lunch',
      'ben@desk asked: resume',
      'eve asked: cancel',
    ];
    assert.deepEqual(await lines(of), kept);
    const again = await start();
    await until('the second start', async () => (await lines(of)).length === 5);
    assert.deepEqual(await printed(store, ['sweep', name, '--store', 'file:.']), [
      ...kept,
      `${nameOfTests} asked: start`,
    ]);
    await again.terminate();
  });

  test('of a search: who stopped it and gave it more calls, though it ends at once', async (t) => {
    const store = await storeOfTest(t);
    const gate = new Gate();
    const place = { store, name: 'search', prefix: '' };
    const run = await begin({
      type: 'optimizePrompt',
      args: [searchOf('place', { results: place })],
      fakes: {
        ...leasing({
          search: async (_, { nth, usual }) => {
            if (nth === 2) await gate.pass();
            return usual();
          },
        }),
        ...(await recording()),
      },
    });
    await gate.reached;
    await tell(ben, run.name, 'raise-budget', 60);
    await assert.rejects(tell(ben, run.name, 'raise-budget', 50), /Update failed/);
    await tell(ann, run.name, 'stop');
    gate.open();
    await run.handle.result();
    const of: Changed = { kind: 'search', place };
    const kept = ['ben@desk asked: raise-budget 60', 'ann@laptop asked: stop'];
    assert.deepEqual(await lines(of), kept);
    assert.deepEqual(await printed(store, ['search', './search']), kept);
  });

  test('of evaluations: who cancelled the workflow of their file is kept with each', async (t) => {
    const store = await storeOfTest(t);
    const gate = new Gate();
    const places = ['one', 'two'].map((name) => ({ store, name, prefix: '' }));
    const inputs = places.map((results) => ({ ...evaluationOf(results.name, 'words'), results }));
    let opened = 0;
    const run = await begin({
      type: 'evaluate',
      args: [{ title: 'two', inputs }],
      fakes: {
        ...(await recording()),
        evaluateChunk: async (_, { usual }) => {
          opened += 1;
          await gate.pass();
          return usual();
        },
      },
    });
    await until('both play', () => opened >= 2);
    await (await as(eve)).workflow.getHandle(run.name).cancel();
    assert.match(await failureOf(run.handle.result()), /^CancelledFailure/);
    gate.open();
    for (const place of places) {
      const of: Changed = { kind: 'evaluation', place };
      await until(`the record of ${place.name}`, async () => (await lines(of)).length > 0);
      assert.deepEqual(await printed(store, ['evaluation', `./${place.name}`]), ['eve asked: cancel']);
    }
  });

  test('of a run that is cancelled, before anybody continues it', async (t) => {
    const store = await storeOfTest(t);
    const gate = new Gate();
    const { recordCancel } = await recording();
    const run = await begin({
      settings: { maxSteps: 1 },
      fakes: {
        recordCancel: (input, call) => recordCancel!({ of: { kind: 'run', name: run.name, store } }, call),
        trainBatch: async (_, { usual }) => {
          await gate.pass();
          return usual();
        },
      },
    });
    await gate.reached;
    await (await as(eve)).workflow.getHandle(run.name).cancel();
    gate.open();
    assert.match(await failureOf(run.handle.result()), /^CancelledFailure/);
    assert.deepEqual(await lines({ kind: 'run', name: run.name, store }), ['eve asked: cancel']);
  });

  test('of a pool: until a run tells where it is stored its workflow has them, then every store of its runs', async (t) => {
    const [first, second] = [await storeOfTest(t), await storeOfTest(t)];
    const pool = freshName();
    const { client } = await answersFor(new FakeRun(specWith(poolWorkflowId(pool), {})), await recording());
    const of = (store: string): Changed => ({ kind: 'pool', name: pool, store });
    const set = async (identity: string, settings: Readonly<Record<string, number | null>>): Promise<string> => {
      const startWorkflowOperation = new WithStartWorkflowOperation('pool', {
        workflowId: poolWorkflowId(pool),
        taskQueue: shortHistoryQueue,
        args: [{ name: pool }],
        workflowIdConflictPolicy: 'USE_EXISTING',
      });
      const args: [typeof settings] = [settings];
      return (await as(identity)).workflow.executeUpdateWithStart('set', { startWorkflowOperation, args });
    };
    let told = 0;
    const tells = async (run: string, store: string): Promise<void> => {
      told += 1;
      const standing: RunStanding = {
        run,
        told,
        team: 'a',
        priority: 0,
        labels: {},
        startAt: null,
        turn: 0,
        state: 'waits',
        trainer: null,
        lost: null,
        store,
      };
      await tellPool(client, pool, runStandingSignalName, standing);
    };
    const asked = async () =>
      (await askOpenPool<readonly RunChange[], []>(client, pool, poolChangesQueryName))!.map(changeLine);

    await set(ann, { slice: 60 });
    await until('its workflow knows', async () => (await asked()).length === 1);
    assert.match(await failureOf(set(ben, { quota: 1 })), /no such setting of a pool/);
    await tells('nobody-1', first);
    await until('the first store has it', async () => (await lines(of(first))).length === 1);
    await set(eve, { 'a.quota': 2 });
    await until('the first store has both', async () => (await lines(of(first))).length === 2);
    await tells('nobody-2', second);
    const both = ['ann@laptop asked: set slice=60', 'eve asked: set a.quota=2'];
    await until('the second store has both', async () => (await lines(of(second))).length === 2);
    assert.deepEqual([await lines(of(first)), await lines(of(second)), await asked()], [both, both, both]);

    const handle = client.workflow.getHandle(poolWorkflowId(pool));
    const { runId } = await handle.describe();
    for (let i = 0; (await handle.describe()).runId === runId; i++) await tells(`nobody-${i}`, second);
    assert.deepEqual(await asked(), both, 'another execution knows them');
    await set(ben, { aging: 0 });
    await until('both stores have all', async () => (await lines(of(first))).length === 3 && (await lines(of(second))).length === 3); // prettier-ignore
    const all = [...both, 'ben@desk asked: set aging=0'];
    const env = { TEMPORAL_ADDRESS: (await openServer()).environment.address };
    const elsewhere = await storeOfTest(t);
    assert.deepEqual(await printed(elsewhere, ['pool', pool], env), all, 'told by its workflow');
    await handle.terminate();
    assert.deepEqual(await printed(second, ['pool', pool, '--store', 'file:.'], env), all, 'told by the store');
    assert.deepEqual(await printed(elsewhere, ['pool', pool], env), [
      `no change of a pool ${pool} is in ./outputs; --store names another place of its runs`,
    ]);
  });

  test('a store of a pool that cannot be written holds up neither the pool nor the other stores', async (t) => {
    const good = await storeOfTest(t);
    const folder = await mkdtemp(path.join(tmpdir(), 'ratchet-changes-'));
    t.after(() => rm(folder, { recursive: true }));
    await writeFile(path.join(folder, 'pools'), 'no folder');
    const bad = `${pathToFileURL(folder).href}/`;
    const change: RunChange = {
      time: '2026-12-01T10:00:00.000Z',
      identity: ann,
      principal: null,
      what: 'set',
      asked: 'slice=60',
      step: null,
      workflow: poolWorkflowId('gpus'),
      execution: 'e1',
      id: 'u1',
    };
    const missed = await keepPoolChanges({ pool: 'gpus', stores: [bad, good], changes: [change] });
    assert.deepEqual(
      missed.map(({ store }) => store),
      [bad],
    );
    assert.deepEqual(await lines({ kind: 'pool', name: 'gpus', store: good }), ['ann@laptop asked: set slice=60']);
  });
});
