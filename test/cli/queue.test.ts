import assert from 'node:assert/strict';
import { test } from 'node:test';
import { linesOf } from '../../cli/commands/run/queue.ts';
import { Pool, withPoolSettings } from '../../core/fleet/pool.ts';
import { type FoundPool, poolDefaults, type RunStanding } from '../../core/fleet/pool-types.ts';
import { argumentsOfPool, readJoinedPool } from '../../workers/roles/joined-pool.ts';

const began = Date.parse('2026-11-30T12:00:00Z');

function standing(run: string, more: Partial<RunStanding>): RunStanding {
  return { run, told: 1, team: 'a', priority: 0, labels: {}, startAt: null, turn: 0, state: 'waits', trainer: null, lost: null, ...more }; // prettier-ignore
}

function seen(pool: Pool, now: number, of: Partial<Exclude<FoundPool, { trouble: string }>> = {}): FoundPool {
  return { ...pool.status(now), gone: [], workers: [], played: [], ...of };
}

test('an empty pool is one line', () => {
  const pool = new Pool('gpus', {}, began);
  assert.deepEqual(linesOf(seen(pool, began)), [
    'pool gpus: 0 trainers, 0 held; 0 rollout workers, 0 at work; 0 runs wait; turns of 600 s',
  ]);
});

test('a pool is shown with its trainers, its waiting runs and the shares of its teams', () => {
  const settings = withPoolSettings(poolDefaults, { 'a.quota': 1 });
  assert.ok(typeof settings !== 'string');
  const pool = new Pool('gpus', { settings }, began);
  pool.trainer({ trainer: 'gpu-1', labels: { gpu: 'h100' }, heldBy: null, leaves: false }, began);
  pool.run(standing('first', {}), began);
  pool.decide(began);
  pool.run(standing('second', { priority: 3, team: 'b\u001b[31m' }), began + 60_000);
  pool.decide(began + 60_000);
  assert.deepEqual(linesOf(seen(pool, began + 60_000)), [
    'pool gpus: 1 trainer, 1 held; 0 rollout workers, 0 at work; 1 run waits; turns of 600 s',
    '  gpu-1  gpu=h100  first since 2026-11-30T12:00:00  asked for: second has a higher priority (3 above 0)',
    '  1. second  team b\ufffd[31m  priority 3  since 2026-11-30T12:01:00  the trainer gpu-1 comes to it at the end of a step of first',
    '  team a       holds 1 of 1  waits 0  weight 1  100 % of the time held',
    '  team b\ufffd[31m  holds 0       waits 1  weight 1  0 % of the time held',
  ]);
});

test('a trainer that polls no more is gone and not free, and rollout workers are counted', () => {
  const pool = new Pool('gpus', {}, began);
  for (const trainer of ['gpu-1', 'gpu-2']) pool.trainer({ trainer, labels: {}, heldBy: null, leaves: false }, began);
  const workers = [{ worker: '1@a', plays: ['first'] }, { worker: '2@a', plays: [] }]; // prettier-ignore
  assert.deepEqual(linesOf(seen(pool, began, { gone: ['gpu-2'], workers })), [
    'pool gpus: 2 trainers, 0 held, 1 gone; 2 rollout workers, 1 at work; 0 runs wait; turns of 600 s',
    '  gpu-1    free',
    '  gpu-2    gone',
  ]);
  const waits = {
    workflow: 'eval.b',
    kind: 'search',
    since: began,
    waitsFor: 'a rollout worker that has room',
  } as const;
  const plays = { workflow: 'eval.a', kind: 'evaluation', since: began, waitsFor: null } as const;
  assert.deepEqual(linesOf(seen(pool, began, { played: [plays, waits] })).slice(-2), [
    '  eval.a  evaluation  since 2026-11-30T12:00:00  plays',
    '  eval.b  search      since 2026-11-30T12:00:00  waits: a rollout worker that has room',
  ]);
});

test('a pool that does not answer is named, with the reason', () => {
  assert.deepEqual(linesOf({ pool: 'gpus', trouble: 'no poller' }), [
    'pool gpus: no orchestrator answers for it (no poller)',
  ]);
});

test('a worker reads its pool and labels, and refuses others with what it expected', () => {
  const joined = readJoinedPool('gpus', ['gpu=h100', 'zone=b']);
  assert.deepEqual(joined, { pool: 'gpus', labels: { gpu: 'h100', zone: 'b' } });
  assert.deepEqual(argumentsOfPool(joined), ['--pool', 'gpus', '--label', 'gpu=h100', '--label', 'zone=b']);
  assert.equal(readJoinedPool(undefined), undefined);
  assert.throws(() => readJoinedPool(undefined, ['gpu=h100']), /expected --pool NAME beside it/);
  assert.throws(() => readJoinedPool('gpus', ['h100']), /expected NAME=VALUE, such as gpu=h100; got "h100"/);
  assert.throws(() => readJoinedPool('a@b'), /--pool: expected/);
});
