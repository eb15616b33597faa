import assert from 'node:assert/strict';
import { test } from 'node:test';
import { type Client, type WorkflowExecutionDescription, WorkflowNotFoundError } from '@temporalio/client';
import { connectionWith } from '../stand-ins/listed-workflows.ts';
import { endFlows } from '../../workers/stack/take-over.ts';

interface Flow {
  readonly workflowId: string;
  readonly runId: string;
  /** Which code wrote its history; null before its first task. */
  readonly version: string | null;
  /** When it is asked for: it has ended, or the server refuses. */
  readonly is?: 'ended' | 'gone' | 'refused';
}

/** A server with these workflows in its list, which lags behind what they are. */
function serverWith(listed: readonly Flow[]) {
  const [ended, lists]: [string[], string[]] = [[], []];
  const connection = connectionWith({
    list(query) {
      lists.push(query);
      return listed;
    },
  });
  const workflow = {
    getHandle: (workflowId: string, runId?: string) => {
      const flow = listed.find((one) => one.workflowId === workflowId && one.runId === runId);
      return {
        describe: async () => {
          if (flow?.is === 'refused') throw new Error('the server refuses');
          if (flow === undefined || flow.is === 'gone') throw new WorkflowNotFoundError('none', workflowId, runId);
          return { version: flow.version, status: { name: flow.is === 'ended' ? 'COMPLETED' : 'RUNNING' } };
        },
        terminate: async () => void ended.push(`${workflowId}/${runId}`),
      };
    },
  };
  return { client: { connection, workflow, options: { namespace: 'default' } } as unknown as Client, ended, lists };
}

async function end(
  client: Client,
  isWanted?: (execution: { readonly workflowId: string }) => boolean,
): Promise<string[]> {
  const failures: string[] = [];
  await endFlows(client, {
    version: 'new',
    writtenBy: (found: WorkflowExecutionDescription) => (found as unknown as Flow).version,
    failed: (workflowId, reason) => void failures.push(`${workflowId}: ${(reason as Error).message}`),
    ...(isWanted === undefined ? {} : { isWanted }),
  });
  return failures;
}

test('what generates rounds under other code ends, by the execution that was listed; what is ours or has ended stays', async () => {
  const { client, ended, lists } = serverWith([
    { workflowId: 'a.rollouts.1', runId: 'old', version: 'old' },
    { workflowId: 'b.rollouts.1', runId: 'own', version: 'new' },
    { workflowId: 'c.rollouts.1', runId: 'fresh', version: null },
    { workflowId: 'd.rollouts.1', runId: 'over', version: 'old', is: 'ended' },
    { workflowId: 'e.rollouts.1', runId: 'deleted', version: 'old', is: 'gone' },
  ]);
  assert.deepEqual(await end(client), []);
  assert.deepEqual(ended, ['a.rollouts.1/old']);
  assert.equal(lists.length, 1);
});

test('one that cannot be ended is reported, and the others end', async () => {
  const { client, ended } = serverWith([
    { workflowId: 'a.rollouts.1', runId: 'x', version: 'old', is: 'refused' },
    { workflowId: 'b.rollouts.1', runId: 'y', version: 'old' },
  ]);
  assert.deepEqual(await end(client), ['a.rollouts.1: the server refuses']);
  assert.deepEqual(ended, ['b.rollouts.1/y']);
});

test('only those that are wanted are asked for', async () => {
  const { client, ended } = serverWith([
    { workflowId: 'a.rollouts.1', runId: 'x', version: 'old', is: 'refused' },
    { workflowId: 'b.rollouts.1', runId: 'y', version: 'old' },
  ]);
  assert.deepEqual(await end(client, ({ workflowId }) => workflowId.startsWith('b.')), []);
  assert.deepEqual(ended, ['b.rollouts.1/y']);
});
