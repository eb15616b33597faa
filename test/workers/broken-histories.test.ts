/** Which workflows are looked at, and when one is begun anew, over a server of a few lines. */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import type { Client } from '@temporalio/client';
import { defaultDataConverter, defaultPayloadConverter } from '@temporalio/common';
import proto from '@temporalio/proto';
import { BrokenHistories } from '../../workers/stack/broken-histories.ts';
import { connectionWith } from '../stand-ins/listed-workflows.ts';
import { whyStuck } from '../../workers/temporal/why-stuck.ts';

const { WorkflowTaskFailedCause } = proto.temporal.api.enums.v1;
const nondeterminism = WorkflowTaskFailedCause.WORKFLOW_TASK_FAILED_CAUSE_NON_DETERMINISTIC_ERROR;
const unspecified = WorkflowTaskFailedCause.WORKFLOW_TASK_FAILED_CAUSE_UNSPECIFIED;
const noSuchTimer = WorkflowTaskFailedCause.WORKFLOW_TASK_FAILED_CAUSE_BAD_CANCEL_TIMER_ATTRIBUTES;

interface Failure {
  readonly cause: number;
  readonly message: string;
  readonly identity?: string;
}

/** A server with these workflows, each with the failure of its newest task. `orchestrators`: versions by identity. */
function serverWith(
  open: ReadonlyMap<string, { readonly type: string; readonly failure?: Failure; readonly version?: string }>,
  orchestrators: Readonly<Record<string, string>> = { here: 'ours' },
) {
  const [asked, begun]: [string[], string[]] = [[], []];
  const executions = new Map<string, number>();
  const runIdOf = (workflowId: string): string => `${workflowId}/${executions.get(workflowId) ?? 0}`;
  const rawOf = (workflowId: string) => {
    const { failure, version = 'ours' } = open.get(workflowId)!;
    return {
      workflowExecutionInfo: { mostRecentWorkerVersionStamp: { buildId: version } },
      pendingWorkflowTask: failure ? { attempt: 5 } : null,
    };
  };
  const connection = connectionWith({
    list: (query) =>
      [...open].flatMap(([workflowId, { type }]) =>
        query.includes(`'${type}'`) ? { type, workflowId, runId: runIdOf(workflowId) } : [],
      ),
    describe(workflowId) {
      asked.push(workflowId);
      if (workflowId === 'unreadable') throw new Error('no answer');
      return { workflowId, runId: runIdOf(workflowId), raw: rawOf(workflowId) };
    },
  });
  const workflow = {
    getHandle: (workflowId: string) => ({
      workflowId,
      client,
      describe: async () => ({
        type: open.get(workflowId)!.type,
        workflowId,
        runId: runIdOf(workflowId),
        status: { name: 'RUNNING' },
        memo: {},
        taskQueue: 'ratchet',
        typedSearchAttributes: { getAll: () => [] },
        staticSummary: () => Promise.resolve(undefined),
        raw: rawOf(workflowId),
      }),
    }),
    async start(_: string, { workflowId }: { readonly workflowId: string }) {
      if (workflowId === 'stubborn') throw new Error('it does not begin');
      executions.set(workflowId, (executions.get(workflowId) ?? 0) + 1);
      begun.push(workflowId);
    },
  };
  const workflowService = {
    getWorkflowExecutionHistory: async () => {
      const input = { payloads: [defaultPayloadConverter.toPayload('run.toml')] };
      return { history: { events: [{ workflowExecutionStartedEventAttributes: { input } }] } };
    },
    getWorkflowExecutionHistoryReverse: async ({ execution }: { readonly execution: { workflowId: string } }) => {
      const { cause, message, identity = 'here' } = open.get(execution.workflowId)!.failure!;
      return { history: { events: [{ workflowTaskFailedEventAttributes: { cause, identity, failure: { message } } }] } }; // prettier-ignore
    },
    describeTaskQueue: async () => ({
      pollers: Object.entries(orchestrators).map(([identity, buildId]) => ({
        identity,
        deploymentOptions: { buildId },
      })),
    }),
  };
  const options = { namespace: 'default', loadedDataConverter: defaultDataConverter };
  const client = { connection, workflow, workflowService, options } as unknown as Client;
  let now = 0;
  const said: string[] = [];
  const histories = new BrokenHistories({
    client: () => client,
    version: 'ours',
    say: (line) => void said.push(line),
    now: () => now,
  });
  return { client, histories, asked, begun, said, wait: (ms: number) => void (now += ms) };
}

const broken: Failure = { cause: nondeterminism, message: '[TMPRL1100] Nondeterminism error: timer 4' };

test('a run is begun anew at the second look that finds it broken, whichever way the SDK or the server says it', async () => {
  const others = [
    { cause: unspecified, message: 'Fatal error in workflow machines: no timer 4' },
    { cause: noSuchTimer, message: 'BadCancelTimerAttributes: invalid history builder state, TimerID: 4' },
  ];
  for (const failure of [broken, ...others]) {
    const { histories, begun } = serverWith(new Map([['a', { type: 'trainRun', failure }]]));
    await histories.look();
    assert.deepEqual(begun, []);
    await histories.look();
    assert.deepEqual(begun, ['a']);
  }
});

test('what fails otherwise, was written by other code, or failed under other code is left', async () => {
  const other = { cause: unspecified, message: 'Potential deadlock detected' };
  const { histories, begun } = serverWith(
    new Map([
      ['busy', { type: 'trainRun', failure: other }],
      ['of-other', { type: 'trainRun', failure: broken, version: 'other' }],
      ['under-other', { type: 'trainRun', failure: { ...broken, identity: 'there' } }],
      ['fine', { type: 'trainRun' }],
    ]),
    { here: 'ours', there: 'other' },
  );
  for (let look = 0; look < 4; look++) await histories.look();
  assert.deepEqual(begun, []);
});

test('what other code wrote, and another program, is left when an evaluation or a pool breaks', async () => {
  const { histories, begun, said } = serverWith(
    new Map([
      ['eval', { type: 'evaluate', failure: broken }],
      ['pool.gpus', { type: 'pool', failure: broken }],
      ['pool.of-other', { type: 'pool', version: 'other' }],
      ['rounds-of-other', { type: 'playRounds', version: 'other' }],
      ['of-another-program', { type: 'evaluate', version: 'theirs@1' }],
    ]),
  );
  await histories.look();
  await histories.look();
  assert.deepEqual(begun.toSorted(), ['eval', 'pool.gpus']);
  assert.equal(said.length, 2, said.join('\n'));
});

test('one that cannot be looked at hides no other', async () => {
  const { histories, begun } = serverWith(
    new Map([
      ['unreadable', { type: 'evaluate' }],
      ['a', { type: 'trainRun', failure: broken }],
    ]),
  );
  for (let look = 0; look < 2; look++) await assert.rejects(histories.look(), /^Error: unreadable: .*$/);
  assert.deepEqual(begun, ['a']);
});

test('status says that it is begun anew, also where the orchestrator that failed was restarted; an upgrade where it is of other code', async () => {
  const said = async (identity: string): Promise<string> => {
    const failure = { ...broken, identity };
    const { client } = serverWith(new Map([['a', { type: 'trainRun', failure }]]), { here: 'ours', there: 'other' });
    return (await whyStuck(client.workflow.getHandle('a'), 'a'))!.text;
  };
  for (const identity of ['here', 'gone']) assert.match(await said(identity), /The orchestrators begin it anew/);
  assert.match(await said('there'), /is of another version.*npx ratchet-rl upgrade a/);
});

test('one that breaks again and again is begun anew less and less often', async () => {
  const { histories, begun, wait } = serverWith(new Map([['a', { type: 'trainRun', failure: broken }]]));
  const beginnings: number[] = [];
  for (let second = 0; second < 600; second += 15) {
    const before = begun.length;
    await histories.look();
    if (begun.length > before) beginnings.push(second);
    wait(15_000);
  }
  assert.deepEqual(beginnings, [15, 45, 105, 225, 465]);
});

test('in a large fleet pools are looked at each time, the others in turn, and orchestrators divide them', async () => {
  const runs = Array.from({ length: 1_000 }, (_, i) => [`run-${i}`, { type: 'trainRun' }] as const);
  const open = new Map<string, { type: string }>([...runs, ['pool.gpus', { type: 'pool' }]]);
  const { histories, asked } = serverWith(open, { here: 'ours', there: 'ours' });
  for (let look = 1; look <= 7; look++) {
    await histories.look();
    assert.equal(asked.length, look * 151);
  }
  assert.equal(new Set(asked).size, 1_001);
  assert.equal(asked.filter((id) => id === 'pool.gpus').length, 7);
});

test('a run that cannot be begun anew is named, and the next is begun', async () => {
  const { histories, begun, said } = serverWith(
    new Map(['stubborn', 'a', 'b'].map((name) => [name, { type: 'trainRun', failure: broken }])),
  );
  await histories.look();
  await histories.look();
  assert.deepEqual(begun, ['a', 'b']);
  assert.deepEqual(said, [
    'stubborn: its history cannot be replayed, and it could not be begun anew: it does not begin',
    'a: its history cannot be replayed; it continues from its newest commit',
    'b: its history cannot be replayed; it continues from its newest commit',
  ]);
});
