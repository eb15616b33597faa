import assert from 'node:assert/strict';
import { test } from 'node:test';
import type { WorkflowHandle } from '@temporalio/client';
import { watchEvaluation } from '../../cli/eval/watch-evaluation.ts';
import type { EvaluationStatus } from '../../core/eval/evaluation.ts';
import type { evaluate } from '../../workflows/evaluate.ts';

test('what is to be known of an environment is said once, also of an evaluation that ends before it is looked at', async () => {
  const warning = 'odd: info of its dataset has values that JSON has not';
  const status: EvaluationStatus = {
    environment: 'odd',
    model: 'm',
    phase: 'evaluating',
    examples: 1,
    rollouts: { done: 0, of: 1, failed: 0 },
    avgReward: null,
    passAtK: {},
    waitingOn: [],
    folder: '/nowhere',
    warnings: [warning],
    parts: [],
  };
  for (const isSeen of [true, false]) {
    const said: string[] = [];
    let looks = 0;
    const handle = {
      workflowId: 'eval.odd.m.1',
      client: {
        withDeadline: (_: number, ask: () => Promise<unknown>) => ask(),
        withAbortSignal: (_: AbortSignal, ask: () => Promise<unknown>) => ask(),
        options: { loadedDataConverter: {} },
      },
      describe: () => Promise.reject(new Error('the server is silent')),
      query: () => (looks++ === 0 && !isSeen ? Promise.reject(new Error('not yet')) : Promise.resolve(status)),
      result: () => Promise.resolve({ results: [] }),
    };
    const reporter = { say: (line: string) => void said.push(line), emit: () => undefined, print: () => undefined };
    const exitCode = await watchEvaluation(handle as unknown as WorkflowHandle<typeof evaluate>, {
      reporter,
      hasOwnStack: true,
      endsWithUs: false,
      abbreviated: true,
      toPlayAgain: 'the same command',
      interrupted: new AbortController().signal,
      gone: new AbortController().signal,
    });
    assert.equal(exitCode, 0);
    assert.equal(looks, 2);
    assert.deepEqual(
      said.filter((line) => line.startsWith('warning')),
      [`warning: ${warning}`],
    );
  }
});
