import assert from 'node:assert/strict';
import { test } from 'node:test';
import { setImmediate } from 'node:timers/promises';
import type { WorkflowHandle } from '@temporalio/client';
import { resultOf } from '../../workers/temporal/result-of.ts';

/** Like the client's own: aborts a request under way, and no later one. */
function handleWith(result: () => Promise<string>): WorkflowHandle {
  const client = { withAbortSignal: (_: AbortSignal, ask: () => Promise<string>) => ask() };
  return { client, result } as unknown as WorkflowHandle;
}

test(
  'who leaves between two questions of the client leaves, whether the workflow ends or not',
  { timeout: 5_000 },
  async () => {
    const left = new AbortController();
    const waiting = resultOf(
      handleWith(() => new Promise(() => undefined)),
      left.signal,
    );
    left.abort(new Error('Ctrl-C'));
    await assert.rejects(waiting, /Ctrl-C/);
  },
);

test('a wait of many requests, each of which listens for the end, warns of no leak', async (t) => {
  const warnings: string[] = [];
  const keep = ({ message }: Error): void => void warnings.push(message);
  process.on('warning', keep);
  t.after(() => process.off('warning', keep));
  const client = {
    withAbortSignal: (signal: AbortSignal, ask: () => Promise<string>) => {
      for (let request = 0; request < 20; request++) signal.addEventListener('abort', () => undefined);
      return ask();
    },
  };
  const handle = { client, result: () => Promise.resolve('done') } as unknown as WorkflowHandle;
  assert.equal(await resultOf(handle, new AbortController().signal), 'done');
  await setImmediate();
  assert.deepEqual(warnings, []);
});

test('who stays has the result', async () => {
  const handle = handleWith(() => Promise.resolve('done'));
  assert.equal(await resultOf(handle, new AbortController().signal), 'done');
});
