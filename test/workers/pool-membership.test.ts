import assert from 'node:assert/strict';
import { test } from 'node:test';
import type { Client } from '@temporalio/client';
import { ProcessLease } from '../../activities/around/process-lease.ts';
import { type KnownTrainer, poolDefaults, type TrainerStanding } from '../../core/fleet/pool-types.ts';
import { PoolMembership } from '../../workers/roles/pool-membership.ts';
import { until } from '../eventually.ts';

test('a GPU worker tells a pool that was begun anew the settings that it had heard of', async () => {
  const kept = { settings: { ...poolDefaults, slice: 60 }, setAt: 7 };
  let known: KnownTrainer | null = null;
  let looks = 0;
  const told: TrainerStanding[] = [];
  const workflow = {
    getHandle: () => ({
      describe: () => Promise.resolve({ status: { name: 'RUNNING' } }),
      query: () => Promise.resolve((looks++, known)),
    }),
    signalWithStart: (_: string, { signalArgs }: { readonly signalArgs: readonly [TrainerStanding] }) => {
      told.push(signalArgs[0]);
      return Promise.resolve();
    },
  };
  const client = { workflow } as unknown as Client;
  const lease = new ProcessLease('here');
  const membership = new PoolMembership({ client: () => client, joined: { pool: 'gpus', labels: { gpu: 'l4' } }, lease, say: () => undefined }); // prettier-ignore
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
