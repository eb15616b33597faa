/** Following a run, with a run that only answers queries. */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { WorkflowFailedError, type WorkflowHandle } from '@temporalio/client';
import { RetryState, TerminatedFailure } from '@temporalio/common';
import { startClock } from '../../cli/output/clock.ts';
import { lineOf as eventLine } from '../../cli/commands/run/events.ts';
import { followRun, isTakenOver, lineOf, waitingLine, waitingOf } from '../../cli/follow/follow-run.ts';
import type { RunEvent } from '../../workflows/control/messages.ts';

/** Follows a run that has 40 events at the first look. */
async function followed(options: Partial<Parameters<typeof followRun>[0]>) {
  const events = Array.from({ length: 40 }, (_, i): RunEvent => ({
    sequence: i + 1,
    time: '',
    kind: 'step',
    step: i + 1,
    text: `step ${i + 1}`,
    values: {},
  }));
  const answering = {
    client: { withDeadline: (_: number, ask: () => Promise<unknown>) => ask() },
    query: (name: string) => Promise.resolve(name === 'events' ? events : null),
  } as unknown as WorkflowHandle;
  const [told, said]: [number[], string[]] = [[], []];
  const left = new AbortController();
  await followRun({
    handle: answering,
    signal: left.signal,
    say: (line) => void said.push(line),
    event({ sequence }) {
      told.push(sequence);
      left.abort();
    },
    waiting: () => undefined,
    isAttached: true,
    ...options,
  });
  return { told, said };
}

test('who attaches to a running run is told its last five events, whether or not anything keeps the earlier ones', async () => {
  for (const keeps of [true, false]) {
    const kept: number[] = [];
    const earlier = (events: readonly RunEvent[]): void => void kept.push(...events.map(({ sequence }) => sequence));
    const { told, said } = await followed(keeps ? { earlier } : {});
    assert.deepEqual(told, [36, 37, 38, 39, 40]);
    assert.deepEqual(said, ['the last 5 of 40 events so far:']);
    assert.equal(kept.length, keeps ? 35 : 0);
  }
});

test('who began a run is told all of its events, also when it answers late', async () => {
  const { told, said } = await followed({ isAttached: false });
  assert.deepEqual([told.length, told[0], said], [40, 1, []]);
});

test('the reason of a pause is told in full once, and shortly again and again, with what ends it', () => {
  const pausedBecause = `breaker: 16 of 16 rollouts failed\n${'    at play (environment.ts:1:1)\n'.repeat(20)}`;
  const line = waitingLine('words', { pausedBecause, step: 3, on: [] });
  assert.match(line, /^still paused, until npx ratchet-rl resume words: breaker: 16 of 16 rollouts failed⏎ .*…$/);
  assert.ok(line.length < 160);
});

test('a trainer that waits for a server elsewhere is told with its reason, also where an attempt before failed', () => {
  const waitsFor = 'The Tinker server at http://127.0.0.1:8901 does not answer';
  for (const attempt of [1, 2]) {
    const pending = [{ name: 'trainBatch', attempt, nextAt: null, lastFailure: null, done: null, waitsFor }];
    const waiting = waitingOf('answer', null, pending);
    assert.equal(waitingLine('words', waiting), `waiting on: trainBatch waits: ${waitsFor}`);
  }
});

test('what an environment or a server said cannot steer the terminal through a line of ours', () => {
  const written: string[] = [];
  startClock((text) => void written.push(text)).say('the run stopped: \u001b[2Jboom\u0007\nsecond line');
  assert.match(written.join(''), /^ {1,3}\d+:\d\d {2}the run stopped: �\[2Jboom�\n {7}second line\n$/);
});

test("who watches a run whose workflow is reset continues watching the execution that took the other's place", async () => {
  const terminated = new WorkflowFailedError(
    'failed',
    new TerminatedFailure('<unknown-user>'),
    RetryState.NON_RETRYABLE_FAILURE,
  );
  const nowIs = (name: string) =>
    ({
      workflowId: 'words',
      client: { getHandle: () => ({ describe: () => Promise.resolve({ status: { name }, memo: {} }) }) },
    }) as unknown as WorkflowHandle;
  assert.equal(await isTakenOver(nowIs('RUNNING'), terminated), true);
  assert.equal(await isTakenOver(nowIs('TERMINATED'), terminated), false);
});

test('what a model says never splits the line of an event, nor steers the terminal', () => {
  const text = 'eval v3: "A\r\nB\nC\rD\u2028E\u001b[2JF\u0085G\vH" → "I"';
  const event: RunEvent = { sequence: 7, time: '2026-11-28T10:00:00.000Z', kind: 'eval', step: 3, text, values: {} };
  const shown = 'eval v3: "A⏎B⏎C�D�E�[2JF�G�H" → "I"';
  assert.equal(lineOf(event), shown);
  assert.equal(eventLine(event), `    7  2026-11-28 10:00:00  eval        ${shown}`);
  assert.equal(lineOf({ ...event, kind: 'warning', text: 'a\nb' }), 'warning: a⏎b');
});
