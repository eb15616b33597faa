import assert from 'node:assert/strict';
import { test, type TestContext } from 'node:test';
import type { Client } from '@temporalio/client';
import { exposition } from '../../backends/metrics/exposition.ts';
import { connectionWith } from '../stand-ins/listed-workflows.ts';
import { FleetWatch } from '../../workers/metrics/fleet-watch.ts';
import { MetricsFollower } from '../../workers/metrics/metrics-follower.ts';
import { workerIdentity } from '../../workers/roles/worker-identity.ts';
import { eventually } from './fixtures/processes.ts';

/** temporal.api.enums.v1.PendingActivityState */
const [scheduled, started] = [1, 2];

interface Pending {
  readonly type: string;
  readonly state: number;
  readonly worker?: string;
}

/** A namespace with these pollers of each queue, seconds ago, and these open workflows. */
function namespace(pollers: Record<string, [string, number][]>, open: Record<string, Pending[] | Error>): Client {
  const now = Date.now() / 1000;
  return {
    options: { namespace: 'default' },
    workflowService: {
      describeTaskQueue: ({ taskQueue }: { taskQueue: { name: string } }) =>
        Promise.resolve({
          pollers: (pollers[taskQueue.name] ?? []).map(([identity, ago]) => ({
            identity,
            lastAccessTime: { seconds: now - ago },
          })),
        }),
    },
    connection: connectionWith({
      list: (query) => (query.includes("!='Running'") ? [] : Object.keys(open).map((workflowId) => ({ workflowId }))),
      describe(workflowId) {
        const pending = open[workflowId]!;
        if (pending instanceof Error) throw pending;
        const pendingActivities = pending.map(({ type, state, worker }) => ({
          activityType: { name: type },
          state,
          lastWorkerIdentity: worker ?? '',
        }));
        return { workflowId, raw: { pendingActivities } };
      },
    }),
  } as unknown as Client;
}

async function figuresOf(t: TestContext, client: Client): Promise<string[]> {
  const ending = new AbortController();
  const log: string[] = [];
  const watch = new FleetWatch({ client: () => client, log: (line) => void log.push(line) });
  const running = watch.run(ending.signal);
  t.after(() => ending.abort());
  await eventually('it has looked', () => watch.samples().length > 0 || log.length > 0);
  ending.abort();
  await running;
  return log.length > 0 ? log : exposition(watch.samples()).split('\n');
}

test('workers are counted once that poll or hold work, and work by whether it waits', async (t) => {
  const [one, busy, gone, gpu] = [
    workerIdentity('rollout', 'abcdef01'),
    workerIdentity('rollout', 'abcdef01'),
    workerIdentity('rollout', 'abcdef01'),
    workerIdentity('train', 'abcdef01'),
  ] as [string, string, string, string];
  const lines = await figuresOf(
    t,
    namespace(
      {
        'ratchet-rollout': [
          [one, 1],
          [busy, 100],
          [gone, 200],
          ['somebody else', 1],
        ],
      },
      {
        run: [
          { type: 'leaseTrainer', state: started, worker: gpu },
          { type: 'commitStep', state: scheduled },
        ],
        other: [{ type: 'leaseTrainer', state: scheduled, worker: gpu }],
        'run/rounds': [
          { type: 'playGroups', state: started, worker: busy },
          { type: 'playGroups', state: started, worker: one },
          { type: 'playGroups', state: scheduled },
        ],
        gone: Object.assign(new Error('not found'), { name: 'WorkflowNotFoundError' }),
      },
    ),
  );
  for (const line of [
    'ratchet_workers{role="orchestrator"} 0',
    'ratchet_workers{role="rollout"} 2',
    'ratchet_workers{role="train"} 1',
    'ratchet_tasks{role="rollout",state="waiting"} 1',
    'ratchet_tasks{role="rollout",state="running"} 2',
    'ratchet_tasks{role="train",state="waiting"} 1',
    'ratchet_tasks{role="train",state="running"} 1',
  ])
    assert.ok(lines.includes(line), `${line}\nis not in\n${lines.join('\n')}`);
});

test('without an answer of Temporal there are no figures, and the reason is logged', async (t) => {
  assert.deepEqual(await figuresOf(t, namespace({}, { run: new Error('Temporal is away') })), [
    'workers and their work could not be counted: Temporal is away',
  ]);
});

test('a run whose store or history cannot be read is told as such, and the process is ready all the same', async (t) => {
  const ending = new AbortController();
  t.after(() => ending.abort());
  const log: string[] = [];
  const follower = new MetricsFollower({
    client: () => namespace({}, { lost: new Error('the bucket is away') }),
    log: (line) => void log.push(line),
    signal: ending.signal,
  });
  assert.equal(follower.whyNotReady, 'Temporal did not list its runs within 30 seconds');
  const running = follower.run();
  await eventually('it has looked', () => follower.whyNotReady === null);
  assert.match(exposition(follower.samples()), /^ratchet_store_failing\{run="lost"\} 1$/m);
  assert.match(log.join(), /lost cannot be followed/);
  ending.abort();
  await running;
});
