/** The walk of `ratchet upgrade` over a server of a few lines: what is moved, in which order, and what stays. */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { type Client, WorkflowNotFoundError } from '@temporalio/client';
import { defaultDataConverter, defaultPayloadConverter } from '@temporalio/common';
import { msToTs } from '@temporalio/common/lib/time.js';
import proto from '@temporalio/proto';
import { connectionWith } from '../stand-ins/listed-workflows.ts';
import { walkFleet } from '../../workers/stack/walk-fleet.ts';

const { PendingWorkflowTaskState, VersioningBehavior, WorkflowTaskFailedCause } = proto.temporal.api.enums.v1;

interface Execution {
  readonly type: string;
  readonly runId: string;
  /** Which code wrote its history, to which it is pinned. */
  readonly version: string;
  /** A workflow task that nobody takes, or that fails again and again. */
  readonly task?: 'ignored' | 'fails';
  /** The server refuses to begin it anew, or to end it. */
  readonly isStubborn?: boolean;
  readonly isOfOtherKey?: boolean;
}

/** A Temporal server with these executions, whose orchestrators are those of `polling`. Notes what is done to them. */
function serverWith(
  open: Readonly<Record<string, Execution>>,
  { polling = ['new'], newTask }: { readonly polling?: readonly string[]; readonly newTask?: 'fails' } = {},
) {
  const executions = new Map(Object.entries(open));
  const [done, lists]: [string[], string[]] = [[], []];
  const found = (workflowId: string, runId?: string): Execution => {
    const execution = executions.get(workflowId);
    if (execution === undefined || (runId !== undefined && runId !== execution.runId))
      throw new WorkflowNotFoundError('none', workflowId, runId);
    return execution;
  };
  const connection = connectionWith({
    list(query) {
      const [, type] = /^WorkflowType='(\w+)'/.exec(query) ?? [];
      if (type !== undefined) lists.push(type);
      const named = [...executions].filter(([, one]) => one.type === type);
      return named.map(([workflowId, one]) => ({ workflowId, runId: one.runId, type: one.type }));
    },
    describe(workflowId, runId) {
      const { isOfOtherKey = false, ...execution } = found(workflowId, runId);
      return { ...descriptionOf(workflowId, execution), isOfOtherKey };
    },
  });
  const workflow = {
    getHandle: (workflowId: string, runId?: string) => ({
      workflowId,
      client,
      describe: async () => descriptionOf(workflowId, found(workflowId, runId)),
      async terminate() {
        if (found(workflowId, runId).isStubborn) throw new Error('it does not end');
        executions.delete(workflowId);
        done.push(`end ${workflowId}`);
      },
    }),
    async start(type: string, { workflowId }: { readonly workflowId: string }) {
      if (found(workflowId).isStubborn) throw new Error('it does not begin');
      executions.set(workflowId, {
        type,
        runId: `${workflowId}-again`,
        version: 'new',
        ...(newTask === undefined ? {} : { task: newTask }),
      });
      done.push(`move ${workflowId}`);
    },
  };
  const workflowService = {
    getWorkflowExecutionHistory: async () => {
      const input = { payloads: [defaultPayloadConverter.toPayload('run.toml')] };
      return { history: { events: [{ workflowExecutionStartedEventAttributes: { input } }] } };
    },
    getWorkflowExecutionHistoryReverse: async ({ execution }: { readonly execution: { workflowId: string } }) => {
      if (found(execution.workflowId).task !== 'fails') return { history: { events: [] } };
      const cause = WorkflowTaskFailedCause.WORKFLOW_TASK_FAILED_CAUSE_NON_DETERMINISTIC_ERROR;
      return {
        history: { events: [{ workflowTaskFailedEventAttributes: { cause, failure: { message: 'TMPRL1100' } } }] },
      };
    },
    describeTaskQueue: async () => ({
      pollers: polling.map((buildId) => ({
        identity: buildId,
        lastAccessTime: msToTs(Date.now()),
        deploymentOptions: { buildId },
      })),
    }),
  };
  const options = { namespace: 'default', loadedDataConverter: defaultDataConverter };
  const client = { connection, workflow, workflowService, options } as unknown as Client;
  return { client, done, lists };
}

function descriptionOf(workflowId: string, { type, runId, version, task }: Execution) {
  const versioningInfo = {
    behavior: VersioningBehavior.VERSIONING_BEHAVIOR_PINNED,
    deploymentVersion: { buildId: version },
  };
  const pendingWorkflowTask = {
    state: PendingWorkflowTaskState.PENDING_WORKFLOW_TASK_STATE_SCHEDULED,
    scheduledTime: msToTs(Date.now() - 60_000),
  };
  return {
    type,
    workflowId,
    runId,
    status: { name: 'RUNNING' },
    memo: {},
    taskQueue: 'ratchet',
    typedSearchAttributes: { get: () => undefined, getAll: () => [] },
    staticSummary: () => Promise.resolve(undefined),
    raw: { workflowExecutionInfo: { versioningInfo }, ...(task === undefined ? {} : { pendingWorkflowTask }) },
  };
}

const run = (version: string, more: Partial<Execution> = {}): Execution => ({
  type: 'trainRun',
  runId: 'first',
  version,
  ...more,
});
const flow = (version: string, more: Partial<Execution> = {}): Execution => ({
  type: 'playRounds',
  runId: 'first',
  version,
  ...more,
});

async function walk(client: Client, only: string | null = null) {
  const said: string[] = [];
  const notMoved = await walkFleet({
    client,
    version: 'new',
    isUnversioned: false,
    only,
    isNow: true,
    say: (line) => void said.push(line),
  });
  return { notMoved, said };
}

test('a fleet is moved with what generates its rounds, which is listed for each look and not for each run', async () => {
  const names = Array.from({ length: 30 }, (_, i) => `run-${i + 1}`);
  const { client, done, lists } = serverWith({
    ...Object.fromEntries(names.map((name) => [name, run('old')])),
    ...Object.fromEntries(names.map((name) => [`${name}.rollouts.0123456789ab`, flow('old')])),
    gpus: { ...run('old'), type: 'pool' },
  });
  assert.deepEqual((await walk(client)).notMoved, []);
  const each = (what: string, suffix = '') => names.map((name) => `${what} ${name}${suffix}`);
  assert.deepEqual(done, [...each('move'), ...each('end', '.rollouts.0123456789ab'), 'move gpus']);
  const flowLists = lists.filter((type) => type === 'playRounds').length;
  assert.ok(flowLists <= 4, `${flowLists} lists of what generates rounds, for ${names.length} runs`);
});

test('what a killed command left of one run ends when it is typed again; other runs and newer rounds stay', async () => {
  const { client, done } = serverWith({
    one: run('new'),
    'one.rollouts.0123456789ab': flow('old'),
    'one.rollouts.ba9876543210': flow('new'),
    'one.two': run('old'),
    'one.two.rollouts.0123456789ab': flow('old'),
  });
  assert.deepEqual((await walk(client, 'one')).notMoved, []);
  assert.deepEqual(done, ['end one.rollouts.0123456789ab']);
});

test('what cannot be moved or ended is named; the rest moves, and a run that stays keeps what generates its rounds', async () => {
  const { client, done } = serverWith({
    stays: run('old', { isStubborn: true }),
    'stays.rollouts.0123456789ab': flow('old'),
    'gone.rollouts.0123456789ab': flow('old', { isStubborn: true }),
    moves: run('old'),
    'moves.rollouts.0123456789ab': flow('old'),
  });
  const { notMoved, said } = await walk(client);
  assert.deepEqual(notMoved, ['stays', 'gone.rollouts.0123456789ab']);
  assert.deepEqual(done, ['move moves', 'end moves.rollouts.0123456789ab']);
  assert.equal(said.filter((line) => line.startsWith('stays: could not be moved, and stays as it is')).length, 1);
});

test('a run of another key is named once and stays, and the rest moves', async () => {
  const { client, done } = serverWith({ secret: run('old', { isOfOtherKey: true }), moves: run('old') });
  const { notMoved, said } = await walk(client);
  assert.deepEqual([notMoved, done], [['secret'], ['move moves']]);
  assert.equal(
    said.filter((line) => /^secret: could not be read, and stays as it is: .*encrypted/.test(line)).length,
    1,
  );
});

test('a run that is under the wanted version and has lost its orchestrator is not begun anew', async () => {
  const { client, done } = serverWith({ here: run('new', { task: 'ignored' }) }, { polling: ['old'] });
  assert.deepEqual((await walk(client)).notMoved, []);
  assert.deepEqual(done, []);
});

test('a run of a version that has no orchestrator moves', async () => {
  const { client, done } = serverWith({ away: run('old', { task: 'ignored' }) });
  assert.deepEqual((await walk(client)).notMoved, []);
  assert.deepEqual(done, ['move away']);
});

test('a run that fails under the wanted version is begun anew once, and then named with its failure', async () => {
  const { client, done } = serverWith({ fails: run('new', { task: 'fails' }) }, { newTask: 'fails' });
  const { notMoved, said } = await walk(client);
  assert.deepEqual([notMoved, done], [['fails'], ['move fails']]);
  assert.match(said.at(-1)!, /^fails: could not be moved, and stays as it is: .*TMPRL1100/);
});
