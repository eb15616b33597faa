/** Workers on the page are described by what they do, in words. */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import type {
  LeaseActivities,
  OrchestratorActivities,
  RolloutActivities,
  TrainActivities,
  UploadActivities,
} from '../../activities/index.ts';
import { activityWords, whatItDoes } from '../../ui/page/activity-words.ts';

type Activity = keyof (OrchestratorActivities &
  RolloutActivities &
  LeaseActivities &
  TrainActivities &
  UploadActivities);

test('every activity has words of its own, and an unknown one keeps its name', () => {
  const words: Readonly<Record<Activity, string>> = activityWords;
  assert.equal(new Set(Object.values(words)).size, Object.keys(words).length);
  for (const [activity, text] of Object.entries(words)) {
    assert.equal(whatItDoes(activity), text);
    assert.match(text, /^[a-z]+(?: [A-Za-z]+)+$/);
  }
  assert.equal(whatItDoes('somethingOfLater'), 'somethingOfLater');
});
