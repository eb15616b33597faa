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

/** A GPU worker's place in a pool that answers as is said, and the standings that it was told. */
function membershipIn(
  answer: () => Promise<void>,
  whoHas: () => Promise<KnownTrainer | null> = () => Promise.resolve({ heldBy: null }),
) {
  const told: TrainerStanding[] = [];
  const said: string[] = [];
  const workflow = {
    getHandle: () => ({
      describe: () => Promise.resolve({ status: { name: 'RUNNING' } }),
      query: whoHas,
    }),
    signalWithStart: (_: string, { signalArgs }: { readonly signalArgs: readonly [TrainerStanding] }) => {
      told.push(signalArgs[0]);
      return answer();
    },
  };
  const client = { workflow } as unknown as Client;
  const lease = new ProcessLease('here');
  const say = (line: string): void => void said.push(line);
  const membership = new PoolMembership({ client: () => client, joined: { pool: 'gpus', labels: {} }, lease, say });
  return { membership, told, said, lease };
}

test('a GPU worker that ends tells its pool once, and looks no more', async () => {
  const { membership, told, said, lease } = membershipIn(() => Promise.resolve());
  const staying = membership.stay(1);
  await Promise.all([membership.leave(), membership.leave()]);
  await staying;
  assert.deepEqual(told, [{ trainer: lease.holder, labels: {}, heldBy: null, leaves: true }]);
  assert.deepEqual(said, []);
});

test('a look that is under way at the end does not join the pool again', async () => {
  let tell: (known: null) => void = () => undefined;
  const asked = new Promise<null>((resolve) => (tell = resolve));
  const { membership, told } = membershipIn(
    () => Promise.resolve(),
    () => asked,
  );
  const staying = membership.stay(1);
  await membership.leave();
  tell(null); // as a pool does that has heard of the end
  await staying;
  assert.deepEqual(told.map(({ leaves }) => leaves), [true]); // prettier-ignore
});

test('a pool that cannot be told of the end is named, and one that is silent holds nobody up', async () => {
  const failing = membershipIn(() => Promise.reject(new Error('no server')));
  await failing.membership.leave();
  assert.match(failing.said.join('\n'), /the pool gpus was not told that this worker ends: .*no server/);

  const silent = membershipIn(() => new Promise(() => undefined));
  const alive = setInterval(() => undefined, 1_000); // as everything else of a worker
  await silent.membership.leave();
  clearInterval(alive);
  assert.deepEqual([silent.told.length, silent.said], [1, []]);
});
