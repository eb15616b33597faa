import assert from 'node:assert/strict';
import { execFile } from 'node:child_process';
import { EventEmitter } from 'node:events';
import { test } from 'node:test';
import { fileURLToPath } from 'node:url';
import type { Worker } from '@temporalio/worker';
import { codeOf, type OpenedWorker, runTogether } from '../../workers/roles/run-worker.ts';

const fixture = fileURLToPath(new URL('fixtures/worker-that-ends.ts', import.meta.url));

test('the process of a worker that failed, or that stopped by itself, ends with an error, whatever still keeps it', async () => {
  const [failed, stopped, told] = await Promise.all([endOf('fails'), endOf('stops'), endOf('waits', 'SIGTERM')]);
  assert.equal(failed.code, 1);
  assert.match(failed.said, /^the worker failed: Error: Unauthenticated\n/);
  assert.equal(stopped.code, 1);
  assert.match(stopped.said, /^the worker stopped, although it was not told to\n/);
  assert.deepEqual(told, { code: 0, said: '' });
});

test('a worker that does not come to its end when it is told to has failed; it is told once', async () => {
  const signals = new EventEmitter();
  const said: string[] = [];
  let isOver: (error: Error) => void = () => undefined;
  let shutdowns = 0;
  const worker: OpenedWorker = {
    run: () => new Promise((_, reject) => (isOver = reject)),
    shutdown: () => void (shutdowns += 1),
    isWorking: () => true,
  };
  const code = codeOf(worker, (line) => void said.push(line), { told: signals as NodeJS.Process });
  for (let i = 0; i < 3; i++) signals.emit('SIGTERM');
  isOver(new Error('Worker still in use'));
  assert.equal(await code, 1);
  assert.match(said.join('\n'), /^the worker did not come to its end: Error: Worker still in use/);
  assert.equal(shutdowns, 1);
  assert.equal(signals.listenerCount('SIGTERM'), 0);
});

test('of several workers that belong together the first that fails ends all; one that the SDK gave up is not waited for', async () => {
  const forever = new Promise<void>(() => undefined);
  const steady = { getState: () => 'RUNNING', run: () => forever } as unknown as Worker;
  const failing = { getState: () => 'FAILED', run: () => Promise.reject(new Error('first')) } as unknown as Worker;
  const stuck = { getState: () => 'FAILED', run: () => forever } as unknown as Worker;
  await assert.rejects(runTogether([steady, failing]).run(), /first/);
  await assert.rejects(runTogether([steady, stuck], { lookMs: 5 }).run(), /polls for no work any more/);
  assert.equal(runTogether([steady]).isWorking(), true);
  assert.equal(runTogether([steady, stuck]).isWorking(), false);
});

test('a worker whose work has ended has not failed, where the SDK cannot free it at once', async () => {
  const run = (): Promise<void> => Promise.reject(new Error('Worker still in use: Expected 1 reference, but got 2'));
  const inState = (state: string): Worker => ({ getState: () => state, run }) as unknown as Worker;
  await runTogether([inState('STOPPED')]).run();
  await assert.rejects(runTogether([inState('FAILED')]).run(), /Worker still in use/);
});

/** The exit code of the fixture and what it said; `signal` once it is ready. */
function endOf(how: string, signal?: NodeJS.Signals): Promise<{ code: number; said: string }> {
  return new Promise((resolve) => {
    const child = execFile(process.execPath, ['--import', 'tsx', fixture, how], (error, _, said) =>
      resolve({ code: typeof error?.code === 'number' ? error.code : error ? -1 : 0, said }),
    );
    if (signal) child.stdout?.once('data', () => setTimeout(() => child.kill(signal), 50));
  });
}
