/** What an upgrade moves to other workflow code while it is at work: pools, runs of pools, sweeps, evaluations. */
import assert from 'node:assert/strict';
import { after, describe, test } from 'node:test';
import type { Client, WorkflowExecutionDescription } from '@temporalio/client';
import { askOpenPool, tellPool } from '../../activities/around/tell-pool.ts';
import type { PoolStatus, TrainerStanding } from '../../core/fleet/pool-types.ts';
import { memoKeys, poolWorkflowId, sweepWorkflowId, taskQueues, trainerStandingSignalName } from '../../core/names.ts';
import type { SweepInput, SweepResult, SweepStatus } from '../../core/sweep/sweep.ts';
import { sweepRuns } from '../../core/sweep/table.ts';
import { takeOverBeside, takeOverRun } from '../../workers/stack/take-over.ts';
import type { trainRun } from '../../workflows/train-run.ts';
import { evaluationOf } from './fake-evaluation.ts';
import { FakeRun, type Fakes, Gate, holdingStep, specWith } from './fake-run.ts';
import { testPools } from './fake-training.ts';
import { soon, until } from './look.ts';
import { answersFor, begin, type BegunRun, closeServer, freshName, openServer } from './server.ts';

after(closeServer);

/** Only these executions are of other code. */
function writtenByOther(...runIds: readonly string[]) {
  return ({ runId }: WorkflowExecutionDescription): string => (runIds.includes(runId) ? 'other' : 'ours');
}

async function executionOf(client: Client, workflowId: string): Promise<string> {
  return (await client.workflow.getHandle(workflowId).describe()).runId;
}

/** Moves what is beside runs, of these executions. */
async function moveBeside(client: Client, ...runIds: readonly string[]) {
  const [said, failures]: [string[], string[]] = [[], []];
  await takeOverBeside({
    client,
    version: 'ours',
    writtenBy: writtenByOther(...runIds),
    said: (what) => void said.push(what),
    failed: (workflowId, reason) => void failures.push(`${workflowId}: ${(reason as Error).message}`),
  });
  return { said, failures };
}

async function moveRun({ client, name }: BegunRun): Promise<void> {
  const runId = await executionOf(client, name);
  const moved = await takeOverRun({ client, version: 'ours', writtenBy: writtenByOther(runId) }, name);
  assert.equal(moved, name);
}

/** Pools of this file's own server. */
let pools = 0;

class TestPool {
  readonly name = testPools[pools++]!;

  get queue() {
    return { queue: { pool: this.name, team: 'default', priority: 0, startAt: null, labels: {} } };
  }

  async trainer(trainer: string, more: Partial<TrainerStanding> = {}): Promise<void> {
    const { client } = await openServer();
    const standing = { trainer, labels: {}, heldBy: null, leaves: false, ...more };
    await tellPool(client, this.name, trainerStandingSignalName, standing);
  }

  async status(): Promise<PoolStatus | null> {
    const { client } = await openServer();
    return askOpenPool<PoolStatus, []>(client, this.name, 'status').catch(() => null); // it has not begun to listen
  }

  async isSo(what: string, seen: (status: PoolStatus) => boolean): Promise<void> {
    await until(what, async () => {
      const status = await this.status();
      return status !== null && seen(status);
    });
  }
}

const holds = (name: string) => (status: PoolStatus) => status.trainers.some(({ run }) => run === name);
const waits = (name: string) => (status: PoolStatus) => status.waiting.some(({ run }) => run === name);

describe('moved to other workflow code', { concurrency: 3 }, () => {
  test('a pool has its settings at once, and its runs and trainers tell the rest: a run that holds a trainer keeps it', async () => {
    const pool = new TestPool();
    await pool.trainer('gpu-1');
    const { client } = await openServer();
    const id = poolWorkflowId(pool.name);
    await client.workflow.getHandle(id).executeUpdate('set', { args: [{ 'a.quota': 3, slice: 77 }] });
    const gate = new Gate();
    const first = await begin({ settings: { maxSteps: 2, ...pool.queue }, fakes: holdingStep(gate, 1) });
    await gate.reached;
    const second = await begin({ settings: { maxSteps: 1, ...pool.queue } });
    await pool.isSo('the second run waits', waits(second.name));

    const before = await executionOf(client, id);
    assert.deepEqual(await moveBeside(client, before), { said: [`the pool ${pool.name} continues`], failures: [] });
    const { memo } = await client.workflow.getHandle(id).describe();
    assert.equal(memo?.[memoKeys.takenOverFrom], before);
    const settings = { slice: 77, aging: 3600, teams: { a: { quota: 3, weight: 1 } } };
    await pool.isSo('the settings', (status) => status.settings.slice === 77);
    assert.deepEqual((await pool.status())!.settings, settings);
    await pool.isSo('the second run waits again', waits(second.name));
    await pool.trainer('gpu-1', { heldBy: first.name }); // as a GPU worker does that the pool does not know
    await pool.isSo('the first run holds its trainer', holds(first.name));
    gate.open();
    await Promise.all([first.result(), second.result()]);
    assert.equal(first.inputs('leaseTrainer').length, 1);
    assert.deepEqual(await moveBeside(client, before), { said: [], failures: [] });
  });

  test('a run that holds a trainer of a pool gets it again, and ends with the weights that it has undisturbed', async () => {
    const settings = { maxSteps: 3 };
    const alone = await begin({ settings });
    await alone.result();
    const pool = new TestPool();
    await pool.trainer('gpu-1');
    const gate = new Gate();
    const run = await begin({ settings: { ...settings, ...pool.queue }, fakes: holdingStep(gate, 2) });
    await gate.reached;
    await pool.isSo('it holds the trainer', holds(run.name));
    await moveRun(run);
    gate.open();
    const { step, ledger } = await soon('the end', newest(run).result());
    assert.deepEqual([step, ledger.isSound], [3, true]);
    const digests = (one: BegunRun) => one.fake.commits().map(({ policy }) => policy.digest);
    assert.deepEqual(digests(run), digests(alone));
    await pool.isSo('the run has left', ({ trainers, waiting }) => waiting.length === 0 && trainers.every((one) => one.run === null)); // prettier-ignore
  });

  test('a run that has waited in a pool waits again, and leaves the pool when it ends', async () => {
    const pool = new TestPool();
    await pool.trainer('gpu-1');
    const gate = new Gate();
    const first = await begin({ settings: { maxSteps: 1, ...pool.queue }, fakes: holdingStep(gate, 1) });
    await gate.reached;
    const second = await begin({ settings: { maxSteps: 1, ...pool.queue } });
    await pool.isSo('it waits', waits(second.name));
    await moveRun(second);
    await until('it has been opened again', () => second.inputs('openRun').length === 2);
    gate.open();
    await first.result();
    await soon('the end', newest(second).result());
    await pool.isSo('both have left', ({ trainers, waiting }) => waiting.length === 0 && trainers.every((one) => one.run === null)); // prettier-ignore
    assert.equal(second.fake.commits().length, 2);
  });

  test('a sweep leaves its runs at work, and decides as it would have', async () => {
    const gate = new Gate();
    const sweep = await beginSweep({ 0: holdingStep(gate) });
    await gate.reached;
    const before = await executionOf(sweep.client, sweep.id);
    const { said } = await moveBeside(sweep.client, before);
    assert.deepEqual(said, [`${sweep.id} continues with what it has finished,`]);
    await until('it looks for the run', async () => (await sweep.status())?.runs[1]!.state === 'at its rung');
    gate.open();
    assert.equal((await sweep.result()).best, 1);
    assert.deepEqual(sweep.trained(), [[1], [1, 2, 3, 4]]);
  });

  test('a run of a sweep is waited for by the sweep, and trains no step twice', async () => {
    const gate = new Gate();
    const sweep = await beginSweep({ 1: holdingStep(gate, 2) });
    await gate.reached;
    const [, run = ''] = sweep.names;
    const runId = await executionOf(sweep.client, run);
    assert.equal(
      await takeOverRun({ client: sweep.client, version: 'ours', writtenBy: writtenByOther(runId) }, run),
      run,
    );
    gate.open();
    const { best } = await sweep.result();
    assert.equal(best, 1);
    const [first, second] = sweep.trained();
    assert.deepEqual([first, [...new Set(second)]], [[1], [1, 2, 3, 4]]);
    assert.deepEqual(second!.filter((step) => step !== 2), [1, 3, 4]); // prettier-ignore
  });

  for (const type of ['trainRun', 'pool', 'evaluate']) {
    test(`two orchestrators that begin one workflow anew at once begin one: ${type}`, async () => {
      const { client } = await openServer();
      const workflowId = type === 'pool' ? poolWorkflowId(freshName()) : freshName();
      const { firstExecutionRunId: first } = await client.workflow.start(type, { workflowId, taskQueue: 'nobody', args: ['its.toml'] }); // prettier-ignore
      const statuses = async (): Promise<string[]> => {
        const found: string[] = [];
        const query = `WorkflowId='${workflowId}'`;
        for await (const { status } of client.workflow.list({ query })) found.push(status.name);
        return found.toSorted();
      };
      await until('it is listed', async () => (await statuses()).length === 1);
      const both = startingTogether(client, 2);
      const move = async () => {
        if (type !== 'trainRun') return moveBeside(both, first);
        return takeOverRun({ client: both, version: 'ours', writtenBy: writtenByOther(first) }, workflowId);
      };
      await Promise.all([move(), move()]);
      const newest = await client.workflow.getHandle(workflowId).describe();
      assert.deepEqual([newest.status.name, newest.memo], ['RUNNING', { [memoKeys.takenOverFrom]: first }]);
      await until('both are listed', async () => {
        const listed = await statuses();
        return listed.includes('TERMINATED') && listed.includes('RUNNING');
      });
      assert.deepEqual(await statuses(), ['RUNNING', 'TERMINATED']);
      await client.workflow.getHandle(workflowId).terminate();
    });
  }

  test('evaluations of a file are begun again once those of the execution before have ended, also if that is cut off', async () => {
    const gate = new Gate();
    const name = freshName();
    const inputs = ['a', 'b', 'c'].map((one) => evaluationOf(name, one));
    const run = await begin({
      fake: new FakeRun(specWith(name, {})),
      type: 'evaluate',
      args: [{ inputs, title: 'three', names: ['a', 'b', 'c'], atOnce: 2 }],
      fakes: {
        evaluateChunk: async (_, { usual }) => {
          await gate.pass();
          return usual();
        },
      },
    });
    await gate.reached;
    const parts = ['a', 'b'].map((one) => `${name}.${one}`);
    await until('both are listed', async () => (await listed(run.client, parts)) === 2);
    const ofOther = await Promise.all([name, ...parts].map((id) => executionOf(run.client, id)));
    const [parent, ...ofParts] = ofOther;
    // The command dies when it has begun the evaluation anew.
    const cutOff = await moveBeside(unableToEnd(run.client), ...ofOther);
    assert.deepEqual(cutOff.said, [`${name} continues with what it has finished,`]);
    assert.deepEqual(cutOff.failures.toSorted(), parts.map((part) => `${part}: cut off`)); // prettier-ignore
    assert.notEqual(await executionOf(run.client, name), parent);
    assert.deepEqual(await moveBeside(run.client, ...ofParts), { said: [], failures: [] });
    gate.open();
    const { results } = await soon('the results', newest(run).result() as unknown as Promise<{ results: readonly { environment: string }[] }>); // prettier-ignore
    assert.deepEqual(results.map(({ environment }) => environment), ['a', 'b', 'c']); // prettier-ignore
  });
});

/** The run's newest execution. */
function newest({ client, name }: BegunRun) {
  return client.workflow.getHandle<typeof trainRun>(name);
}

async function listed(client: Client, ids: readonly string[]): Promise<number> {
  let found = 0;
  const query = "WorkflowType='evaluate' AND ExecutionStatus='Running'";
  for await (const { workflowId } of client.workflow.list({ query })) if (ids.includes(workflowId)) found += 1;
  return found;
}

/** A client over which nothing ends. */
function unableToEnd(client: Client): Client {
  return clientWith(client, 'getHandle', (...named) => {
    const handle = client.workflow.getHandle(...named);
    return { ...handle, terminate: () => Promise.reject(new Error('cut off')) };
  });
}

/** A client of several callers that starts nothing before so many of them ask for it: each has seen the same by then. */
function startingTogether(client: Client, callers: number): Client {
  let begin: () => void;
  const all = new Promise<void>((resolve) => (begin = resolve));
  let asked = 0;
  return clientWith(client, 'start', async (...start) => {
    asked += 1;
    if (asked === callers) begin();
    await all;
    return client.workflow.start(...start);
  });
}

/** The same client with another way of doing one thing. */
function clientWith<Name extends 'getHandle' | 'start'>(
  client: Client,
  name: Name,
  other: Client['workflow'][Name],
): Client {
  const workflow = new Proxy(client.workflow, {
    get: (target, key) => (key === name ? other : (Reflect.get(target, key, target) as unknown)),
  });
  return new Proxy(client, {
    get: (target, key) => (key === 'workflow' ? workflow : (Reflect.get(target, key, target) as unknown)),
  });
}

/** Two runs of 4 steps, of which the second is the better one. */
async function beginSweep(fakesOf: Readonly<Record<number, Fakes>>) {
  const name = freshName();
  const rows = [{ learning_rate: 0.001 }, { learning_rate: 0.002 }];
  const runs = sweepRuns(name, rows, []);
  const input: SweepInput = {
    name,
    store: 'file:///nowhere/',
    config: 'words.toml',
    rows,
    runs,
    metric: { name: 'train/reward', goal: 'max', lastSteps: 1 },
    maxSteps: 4,
    halving: { eta: 2, rungs: 3, minSteps: null },
    atOnce: 2,
  };
  const fakes = new Map(runs.map((run) => [run.name, new FakeRun(specWith(run.name, { maxSteps: input.maxSteps }))]));
  for (const run of runs) await answersFor(fakes.get(run.name)!, fakesOf[run.row]);
  const measureSweepRun: Fakes['measureSweepRun'] = ({ run, step }) => {
    const made = fakes.get(run.name)!.head()?.commit.step ?? null;
    const { row } = runs.find((one) => one.name === run.name)!;
    return { step: made, value: made === null || made < step ? null : row * step };
  };
  const { client } = await answersFor(new FakeRun(specWith(name, {})), { measureSweepRun });
  const id = sweepWorkflowId(name);
  await client.workflow.start('sweep', { workflowId: id, taskQueue: taskQueues.orchestrator, args: [input] });
  const handle = client.workflow.getHandle(id);
  return {
    id,
    client,
    names: runs.map((run) => run.name),
    status: () => handle.query<SweepStatus>('status').catch(() => null), // it has not begun to listen
    result: () => soon('the end of a sweep', handle.result() as Promise<SweepResult>),
    trained: () => [...fakes.values()].map((fake) => fake.inputs('trainBatch').map(({ step }) => step)),
  };
}
