/** Rows in which an activity's end is not what it seems. */
import assert from 'node:assert/strict';
import { setTimeout as delay } from 'node:timers/promises';
import { heartbeatTimeoutMs } from './fake-run.ts';
import type { Rows, Struck } from './row.ts';

const nothingMore = (): Promise<void> => Promise.resolve();

const inside = 'its failpoint is inside of an activity, which is not done there; see the next column with its end';
const ofItsOwn =
  'of a workflow of its own, with the usual heartbeat timeout: who is silent for so long is the zombie below';
const local = 'it is heard of while its worker lives: nobody else is asked for it';

export const activityFaults = {
  'activity fails': { stage: 'fake', action: 'fail', strike: nothingMore },
  'activity done twice': {
    stage: 'fake',
    action: 'repeat',
    strike: nothingMore,
    cannot: { 'broadcast-lease': inside, generate: inside, generated: inside, train: inside },
  },
  'completion twice: done again elsewhere, then the first answer comes': {
    stage: 'fake',
    action: 'hold',
    strike: answerLate,
    cannot: {
      open: local,
      lease: local,
      plan: local,
      commit: local,
      'continue-as-new': local,
      eval: ofItsOwn,
      branch: ofItsOwn,
      'broadcast-lease': inside,
      generate: inside,
      generated: inside,
      train: inside,
    },
  },
} satisfies Rows;

/** Done but not said: without a heartbeat the server asks again, and hears two answers. */
async function answerLate({ stage, run }: Struck): Promise<void> {
  await delay(2 * heartbeatTimeoutMs);
  const handle = stage.client.workflow.getHandle(run.name);
  const { raw } = await handle.describe();
  const pending = raw.pendingActivities ?? [];
  // The history has retried activities that are over.
  const { events } = await handle.fetchHistory();
  const over = events?.flatMap((event) => event.activityTaskStartedEventAttributes ?? []) ?? [];
  const attempts = [...pending, ...over].map(({ attempt }) => attempt ?? 1);
  assert.ok(Math.max(...attempts) > 1, `the server asked for another attempt: ${attempts.join(', ')}`);
}
