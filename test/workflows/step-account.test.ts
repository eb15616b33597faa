import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { nothingLost } from '../../core/rl/lost-work.ts';
import { StepAccount } from '../../workflows/step/step-account.ts';

describe('what a step lost', () => {
  test('nothing lost leaves no trace in the metrics', () => {
    assert.deepEqual(new StepAccount().take(), {});
  });

  test('a GPU worker that took two things along is one recovery, with what restoring took', () => {
    const account = new StepAccount();
    account.workerLost(1, 6);
    account.workerLost(1, 8);
    account.restored(3);
    assert.deepEqual(account.take(), { 'recovery/count': 1, 'lost/seconds': 11 });
    account.workerLost(2, 5);
    assert.deepEqual(account.take(), { 'recovery/count': 1, 'lost/seconds': 5 });
    account.restored(2);
    assert.deepEqual(account.take(), { 'recovery/count': 1, 'lost/seconds': 2 }, 'for another step: another one');
  });

  test('a trainer process that died is one recovery, however it came back', () => {
    const account = new StepAccount();
    account.attemptsLost({ ...nothingLost, recoveries: 1, seconds: 4 });
    account.restored(2);
    assert.deepEqual(account.take(), { 'recovery/count': 1, 'lost/seconds': 6 });
  });

  test('what was not committed yet continues with a run that continues as new', () => {
    const account = new StepAccount();
    account.add({ recoveries: 1, rollouts: 12, tokens: 34, seconds: 5 });
    account.stoodStill(60);
    const next = new StepAccount(account.carry());
    next.startedAgain();
    assert.deepEqual(next.take(), {
      'recovery/count': 2,
      'lost/rollouts': 12,
      'lost/tokens': 34,
      'lost/seconds': 5,
      'time/paused': 60,
    });
    assert.deepEqual(next.take(), {}, 'once');
  });

  test('a run that is started again, and its trainer that restores for it, are one recovery', () => {
    const account = new StepAccount();
    account.startedAgain();
    account.restored(3);
    assert.deepEqual(account.take(), { 'recovery/count': 1, 'lost/seconds': 3 });
  });
});
