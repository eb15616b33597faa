import assert from 'node:assert/strict';
import { test } from 'node:test';
import { MockActivityEnvironment } from '@temporalio/testing';
import { TrainerDrain } from '../../activities/around/trainer-drain.ts';

const call = (drain: TrainerDrain, activityType: string, work: () => Promise<unknown>): Promise<unknown> =>
  new MockActivityEnvironment({ activityType }).run(() =>
    drain.execute({ args: [{ run: { name: 'words' } }], headers: {} }, work),
  );

/** Work that ends on request. */
function held(): { readonly work: () => Promise<void>; readonly end: () => void } {
  let end = (): void => undefined;
  const over = new Promise<void>((resolve) => (end = resolve));
  return { work: () => over, end: () => end() };
}

test('a GPU worker that is to end finishes its step and the upload of it, and begins no other', async () => {
  const drain = new TrainerDrain({ quietMs: 60_000 });
  const [step, upload] = [held(), held()];
  const stepping = call(drain, 'trainBatch', step.work);
  const left = drain.drain(60_000);
  step.end();
  await stepping;
  const uploading = call(drain, 'publishVersion', upload.work);
  await assert.rejects(
    call(drain, 'trainBatch', () => Promise.resolve('begun')),
    { code: 'TrainerDetached', message: /ends, and begins no trainBatch/ },
  );
  upload.end();
  await uploading;
  assert.deepEqual(await left, []);
});

test('when nothing more is asked for it ends after a while; what outlasts its grace is named', async () => {
  assert.deepEqual(await new TrainerDrain({ quietMs: 5 }).drain(60_000), []);
  const drain = new TrainerDrain({ quietMs: 5 });
  const step = held();
  const stepping = call(drain, 'trainBatch', step.work);
  await new Promise((resolve) => setImmediate(resolve));
  assert.deepEqual(await drain.drain(20), ['trainBatch of words']);
  step.end();
  await stepping;
});

const owner = 'file:///outputs/words';

test('a newest version without a checkpoint: one more step is let through, and another is not', async () => {
  const drain = new TrainerDrain({ quietMs: 5 });
  drain.trained({ owner, snapshot: false, seconds: 10 });
  const left = drain.drain(60_000);
  const step = await call(drain, 'trainBatch', () => {
    drain.trained({ owner, snapshot: true, seconds: 10 });
    return Promise.resolve('trained');
  });
  assert.equal(step, 'trained');
  const another = call(drain, 'trainBatch', () => Promise.resolve('begun'));
  await assert.rejects(another, { code: 'TrainerDetached' });
  assert.deepEqual(await left, []);
});

test('no step begins that the grace does not suffice for, or that is of no run which holds the process', async () => {
  const short = new TrainerDrain({ quietMs: 5 });
  short.trained({ owner, snapshot: false, seconds: 10 });
  const [late, free] = [short.drain(14_000), new TrainerDrain({ quietMs: 5 })];
  await assert.rejects(
    call(short, 'trainBatch', () => Promise.resolve('begun')),
    { code: 'TrainerDetached' },
  );
  assert.deepEqual(await late, []);
  free.trained({ owner, snapshot: false, seconds: 1_000 });
  assert.deepEqual(await free.drain(3_600_000, { isHeld: false }), []);
});

test('a step is waited for no longer than the steps took that would be trained again', async () => {
  const drain = new TrainerDrain({ quietMs: 1 });
  drain.trained({ owner: 'file:///outputs/before', snapshot: false, seconds: 1_000 });
  drain.trained({ owner, snapshot: false, seconds: 0.02 });
  assert.deepEqual(await drain.drain(3_600_000), []);
});
