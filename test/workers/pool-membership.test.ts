import assert from 'node:assert/strict';
import { test } from 'node:test';
import { setTimeout as delay } from 'node:timers/promises';
import type { Client } from '@temporalio/client';
import { ProcessLease } from '../../activities/around/process-lease.ts';
import { type KnownTrainer, poolDefaults, type TrainerStanding } from '../../core/fleet/pool-types.ts';
import { PoolMembership } from '../../workers/roles/pool-membership.ts';
import { until } from '../eventually.ts';

/** A membership in a pool that answers so. */
function joined(answer: () => KnownTrainer | null) {
  const told: TrainerStanding[] = [];
  const workflow = {
    getHandle: () => ({
      describe: () => Promise.resolve({ status: { name: 'RUNNING' } }),
      query: () => Promise.resolve(answer()),
    }),
    signalWithStart: (_: string, { signalArgs }: { readonly signalArgs: readonly [TrainerStanding] }) => {
      told.push(signalArgs[0]);
      return Promise.resolve();
    },
  };
  const client = { workflow } as unknown as Client;
  const lease = new ProcessLease('here');
  const place = { pool: 'gpus', labels: { gpu: 'l4' } };
  const membership = new PoolMembership({ client: () => client, joined: place, lease, say: () => undefined });
  return { membership, told, lease };
}

test('trainers of a large pool ask it less often, so that it answers as many a second as with a hundred', async () => {
  let looks = 0;
  const known: KnownTrainer = { heldBy: null, trainers: 100_000_000 };
  const { membership } = joined(() => (looks++, known));
  const staying = membership.stay(1);
  await until('it has looked', () => Promise.resolve(looks > 0));
  await delay(50);
  assert.equal(looks, 1, 'the next look is due after a million times the interval');
  await membership.leave();
  await staying;
});

test('a GPU worker tells a pool that was begun anew the settings that it had heard of', async () => {
  const kept = { settings: { ...poolDefaults, slice: 60 }, setAt: 7 };
  let known: KnownTrainer | null = null;
  let looks = 0;
  const { membership, told, lease } = joined(() => (looks++, known));
  const staying = membership.stay(1);
  const standing = { trainer: lease.holder, labels: { gpu: 'l4' }, heldBy: null, leaves: false };
  await until('it has joined', () => Promise.resolve(told.length > 0));
  assert.deepEqual(told[0], standing);
  known = { heldBy: null, kept };
  const seen = looks;
  await until('it has looked again', () => Promise.resolve(looks > seen + 1));
  known = null;
  const before = told.length;
  await until('it joins again', () => Promise.resolve(told.length > before));
  assert.deepEqual(told.at(-1), { ...standing, kept });
  await membership.leave();
  await staying;
});
