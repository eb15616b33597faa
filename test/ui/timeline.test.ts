/** Timelines from workers' logs after processes were killed and the run continued. */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { layout } from '../../runs/layout.ts';
import { Timeline } from '../../ui/timeline.ts';
import { makeRun } from '../activities/runs.ts';

const at = (seconds: number, text: string): string =>
  `${new Date(Date.parse('2026-11-26T10:00:00Z') + seconds * 1000).toISOString()} ${text}\n`;

test('what a killed process had begun has ended on the timeline, and what has the same name since is told by itself', async (t) => {
  const { store } = await makeRun(t);
  const rollout = [
    at(0, 'playGroups step 1, chunk 1/1: starts'), // killed
    at(10, 'playGroups step 1, chunk 1/1 (attempt 2): starts'),
    at(12, 'playGroups step 1, chunk 1/1 (attempt 2): done in 2.00 s'),
    at(20, 'playGroups step 1, chunk 1/1: starts'), // another round of the same step
    at(21, 'playGroups step 1, chunk 1/1: done in 1.00 s'),
  ];
  const train = [
    at(0, 'leaseTrainer : starts'), // killed with all the others
    at(1, 'trainBatch step 1: starts'),
    at(30, 'leaseTrainer : starts'),
    at(31, 'trainBatch step 1: starts'),
    at(35, 'trainBatch step 1: done in 4.00 s'),
    at(40, 'leaseTrainer : ended, as it was cancelled'),
  ];
  await store.append(layout.log(1, 'rollout'), rollout.join(''));
  await store.append(layout.log(1, 'train'), train.join(''));
  const timeline = new Timeline(store);
  await timeline.refresh();
  const { from, lanes } = timeline.told(null);
  const told = lanes.map(({ activity, spans }) => [
    activity,
    ...spans.map((span) => `${span.from - from}–${span.to === null ? '' : span.to - from} ${span.end} ${span.attempt}`),
  ]);
  assert.deepEqual(told, [
    ['playGroups', '0–10000 failed 1', '10000–12000 done 2', '20000–21000 done 1'],
    ['trainBatch', '1000–31000 failed 1', '31000–35000 done 1'],
    ['leaseTrainer', '0–30000 failed 1', '30000–40000 cancelled 1'],
  ]);
});
