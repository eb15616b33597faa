/** A chunk that a full worker gives back: nothing of it counts as lost, and its next worker knows that it was given back. */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { MockActivityEnvironment } from '@temporalio/testing';
import { GenerationAttempt, type GenerationProgress } from '../../activities/around/generation-attempt.ts';

/** What an attempt leaves in its heartbeat. */
async function inAttempt<T>(
  attempt: number,
  before: GenerationProgress | undefined,
  work: (one: GenerationAttempt) => T,
): Promise<{ readonly result: T; readonly said: GenerationProgress }> {
  const environment = new MockActivityEnvironment({ attempt });
  return environment.run(() => {
    const one = new GenerationAttempt(before, attempt);
    const result = work(one);
    return Promise.resolve({ result, said: one.progress() });
  });
}

const place = { group: 1, index: 0, exampleId: 0 };
const nothing = { rollouts: 0, tokens: 0 };
const goOn = (one: GenerationAttempt) => {
  one.goOnFrom(nothing);
  return one.lost();
};

test('an attempt that gave a chunk back loses nothing, and the next one knows of it', async () => {
  const first = await inAttempt(1, undefined, (one) => one.passOn());
  assert.equal(first.result.type, 'PassedOn');
  const second = await inAttempt(2, first.said, (one) => [one.wasPassedOn, goOn(one)]);
  assert.deepEqual(second.result, [true, {}]);
  assert.equal(second.said.passedOn, undefined);
});

test('a death before it was given back is counted once by whoever goes on', async () => {
  const died = await inAttempt(1, undefined, (one) => {
    goOn(one);
    one.begin(place);
    one.sampled(place, 7);
  });
  const passed = await inAttempt(2, died.said, (one) => one.passOn());
  assert.equal(passed.result.type, 'PassedOn');
  const last = await inAttempt(3, passed.said, goOn);
  const { recoveries, rollouts, tokens } = last.result.lost!;
  assert.deepEqual({ recoveries, rollouts, tokens }, { recoveries: 1, rollouts: 1, tokens: 7 });
});

test('a chunk that was begun since was not given back', async () => {
  const first = await inAttempt(1, undefined, (one) => one.passOn());
  const second = await inAttempt(2, first.said, (one) => one.passOn());
  const died = await inAttempt(3, second.said, (one) => {
    goOn(one);
    one.begin(place);
  });
  const last = await inAttempt(4, died.said, (one) => [one.wasPassedOn, goOn(one).lost?.recoveries]);
  assert.deepEqual(last.result, [false, 1]);
});
