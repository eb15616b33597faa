import assert from 'node:assert/strict';
import { readdir, readFile } from 'node:fs/promises';
import path from 'node:path';
import { describe, test, type TestContext } from 'node:test';
import { setTimeout as delay } from 'node:timers/promises';
import { MockActivityEnvironment } from '@temporalio/testing';
import type { PlayedChunk } from '../../activities/index.ts';
import { readJson, readRows } from '../../runs/run-access.ts';
import { createEnvironments, openEnvironment, type Environments } from '../../backends/environments/index.ts';
import { FileStore } from '../../store/file-store.ts';
import { putRows } from '../../store/objects.ts';
import { RatchetError } from '../../core/errors.ts';
import type { FailedOutcome, Rollout, ScoredGroup } from '../../core/rl/rollout/rollout.ts';
import type { LeasedGroups, PolicyVersion, SamplingRound } from '../../core/rl/run-state.ts';
import { initialCurriculum } from '../../core/rl/sampling/curriculum.ts';
import {
  act,
  commitFirst,
  datasets,
  makeRun,
  openRoles,
  type Roles,
  scoredRollouts,
  type TestRun,
  WordsInference,
} from './runs.ts';

/** A run with v0 and a round of four groups leased for step 1. */
async function leased(t: TestContext, inference = new WordsInference(), environments?: Environments) {
  const run = await makeRun(t);
  const roles = openRoles(inference, environments ? { environments } : {});
  const { state } = await commitFirst(run, roles);
  const lease = { run: run.run, step: 1, count: 4, curriculum: initialCurriculum, datasets, policy: state.policy };
  const { round } = await roles.leaseGroups(lease);
  return { test: run, roles, inference, lease, round, policy: state.policy };
}
const whole = { index: 0, count: 1 };
const generate = ({ run }: TestRun, roles: Roles, round: SamplingRound, chunk = whole) =>
  act(roles.playGroups, { run, round, chunk });
const places = (rollouts: readonly Rollout[]) => rollouts.map(({ group, index }) => `${group}/${index}`);
const allPlaces = [1, 2, 3, 4].flatMap((group) => [0, 1, 2, 3].map((index) => `${group}/${index}`));

describe('leasing groups', () => {
  test('leased twice, the same groups are there, under the same reference', async (t) => {
    const { roles, lease, round } = await leased(t);
    const again = await roles.leaseGroups(lease);
    assert.deepEqual(again.round, round);
    assert.equal(again.curriculum.nextOrdinal, 5);
  });

  test('the first round has a chunk for each worker, though a run learns how many there are from a lease', async (t) => {
    const { lease } = await leased(t);
    const groupsOf = async (step: number, workers: number, count: number) => {
      const { chunks } = await openRoles(new WordsInference(), { workers }).leaseGroups({ ...lease, step, count });
      return chunks.map(({ groups }) => groups);
    };
    assert.deepEqual(await groupsOf(2, 3, 8), [3, 3, 2]);
    assert.deepEqual(await groupsOf(3, 4, 2), [1, 1]);
  });

  test('a lease that is stored is adopted with the older policy its groups began with', async (t) => {
    const { test, roles, lease, round, policy } = await leased(t);
    const newer: PolicyVersion = { ...policy, step: 3, digest: 'newer' };
    const again = await roles.leaseGroups({ ...lease, policy: newer });
    assert.deepEqual(again.round, round);
    assert.equal(again.round.policyStep, 0);
    const stored = await readJson<LeasedGroups>(test.run, again.round.leases);
    assert.equal(stored.policy.digest, policy.digest);
    assert(stored.leases.every(({ policyStep }) => policyStep === 0));
  });

  test('the next round continues where the last one ended', async (t) => {
    const { roles, lease } = await leased(t);
    const { curriculum } = await roles.leaseGroups(lease);
    const next = await roles.leaseGroups({ ...lease, curriculum, count: 2 });
    assert.deepEqual([next.round.first, next.round.last], [5, 6]);
  });
});

describe('generating rollouts', () => {
  test('a chunk holds every rollout of its groups in order, and the chunks together all groups', async (t) => {
    const { test, roles, round, inference } = await leased(t);
    const rollouts: Rollout[] = [];
    for (const index of [0, 1, 2]) {
      const played = await generate(test, roles, round, { index, count: 3 });
      assert.equal(played.adopted, 0);
      rollouts.push(...(await scoredRollouts(test.run, played)));
    }
    assert.deepEqual(places(rollouts), allPlaces);
    assert.equal(inference.asked.length, 16);
    assert.equal(new Set(inference.asked.map(({ seed }) => seed)).size, 16);
  });

  test('a finished chunk is adopted: the model is not asked again', async (t) => {
    const { test, roles, round, inference } = await leased(t);
    const once = await generate(test, roles, round);
    const again = await generate(test, openRoles(inference), round);
    assert.deepEqual(again.parts, once.parts);
    assert.deepEqual([again.adopted, again.rollouts], [16, 16]);
    assert.equal(inference.asked.length, 16);
  });

  test('a retry asks only for the rollouts that are missing, and gives what an undisturbed chunk gives', async (t) => {
    const { test, roles, round, inference } = await leased(t);
    inference.failAt = 6;
    inference.failure = new RatchetError('InferenceUnavailable', 'the server died');
    await assert.rejects(generate(test, roles, round), /the server died/);
    assert.equal(inference.asked.length, 16);
    const retried = await generate(test, roles, round);
    assert.equal(inference.asked.length, 17);
    assert.deepEqual([retried.rollouts, retried.adopted], [16, 15]);

    const other = await leased(t);
    const undisturbed = await generate(other.test, other.roles, other.round);
    assert.equal(retried.parts[0]!.scored.sha256, undisturbed.parts[0]!.scored.sha256);
  });

  test('what finished is stored while the rest still runs, so a killed worker loses half a second', async (t) => {
    const inference = new WordsInference();
    const { test, roles, round } = await leased(t, inference);
    const stuck = new AbortController();
    inference.beforeAnswer = (call) =>
      call > 10 ? delay(60_000, undefined, { signal: stuck.signal }) : Promise.resolve();
    const killed = generate(test, roles, round).catch((error: unknown) => error);
    await delay(1_200);
    const fresh = new WordsInference();
    const retried = await generate(test, openRoles(fresh), round); // the killed one never answers
    assert.deepEqual([retried.adopted, fresh.asked.length], [10, 6]);
    assert.deepEqual(places(await scoredRollouts(test.run, retried)), allPlaces);

    inference.beforeAnswer = () => Promise.resolve();
    stuck.abort(); // it was only frozen, and wakes up: the chunk that is stored stands
    await killed;
    assert.deepEqual(places(await scoredRollouts(test.run, retried)), allPlaces);
    assert.deepEqual((await generate(test, roles, round)).parts, retried.parts);
  });

  test('of two attempts that overlap, both return the chunk of the first', async (t) => {
    const [slow, fast] = [new WordsInference(), new WordsInference()];
    const { test, roles, round } = await leased(t, slow);
    slow.beforeAnswer = () => delay(1_200);
    const overlapping = generate(test, roles, round);
    fast.sample = async (request) => ({
      ...(await WordsInference.prototype.sample.call(fast, request)),
      logprobs: [-1, -1],
    });
    const first = await generate(test, openRoles(fast), round);
    assert.deepEqual((await overlapping).parts[0]!.scored, first.parts[0]!.scored);
    assert.equal((await scoredRollouts(test.run, first)).length, 16);
  });

  test('a store that is full for a while costs no finished rollout', async (t) => {
    const inference = new WordsInference();
    const { test, roles, round } = await leased(t, inference);
    inference.beforeAnswer = (call) => delay(call > 10 ? 1_800 : 0);
    let fullWrites = 0;
    const putIfAbsent: FileStore['putIfAbsent'] = Reflect.get(FileStore.prototype, 'putIfAbsent');
    t.mock.method(FileStore.prototype, 'putIfAbsent', function (this: FileStore, key: string, bytes: Uint8Array) {
      if (key.includes('/part_') && fullWrites++ < 2) {
        return Promise.reject(new RatchetError('StoreFull', 'No space left'));
      }
      return putIfAbsent.call(this, key, bytes);
    });
    const generated = await generate(test, roles, round);
    assert.deepEqual([generated.rollouts, inference.asked.length, fullWrites >= 2], [16, 16, true]);
    const folder = path.join(test.folder, 'rollouts/step_1/groups_1-4/chunk_1_of_1');
    const parts = await Promise.all((await readdir(folder)).map((name) => readFile(path.join(folder, name), 'utf8')));
    assert.equal(parts.join('').trim().split('\n').length, 16);
  });

  /** The words environment, which breaks when `breaks` says so; counts how often a fresh one was asked for. */
  function breaking(breaks: (life: number, exampleId: number) => boolean) {
    let lives = 0;
    const environments = createEnvironments(async (entry) => {
      const whole = await openEnvironment(entry);
      const life = ++lives;
      return {
        ...whole,
        rollout: (example, policy) =>
          breaks(life, example.id)
            ? Promise.reject(new Error('sandbox is gone, key sk-0123456789abcdef'))
            : whole.rollout(example, policy),
      };
    });
    return { environments, lives: () => lives };
  }

  test('an environment that breaks is tried again in a fresh one, opened once for all its rollouts', async (t) => {
    const { environments, lives } = breaking((life) => life === 1);
    const { test, roles, round } = await leased(t, new WordsInference(), environments);
    const rollouts = await scoredRollouts(test.run, await generate(test, roles, round));
    assert(rollouts.every(({ outcome }) => outcome === 'ok'));
    assert.equal(lives(), 2);
  });

  test('an example whose environment stays broken spoils its rollouts and no others, and no secret is kept', async (t) => {
    let broken = -1;
    const { environments, lives } = breaking((_, exampleId) => exampleId === broken);
    const { test, roles, round } = await leased(t, new WordsInference(), environments);
    broken = (await readJson<LeasedGroups>(test.run, round.leases)).leases[1]!.exampleId;
    const rollouts = await scoredRollouts(test.run, await generate(test, roles, round));
    const spoiled = rollouts.filter(({ outcome }) => outcome === 'infra_failure');
    assert.deepEqual(places(spoiled), ['2/0', '2/1', '2/2', '2/3']);
    for (const { turns, error = '' } of spoiled) {
      assert.equal(turns.length, 0);
      assert.match(error, /sandbox is gone, key \[secret\]\n\s+at /);
      assert(error.length <= 2_000 && !error.includes('sk-'));
    }
    assert.equal(rollouts.filter(({ outcome }) => outcome === 'ok').length, 12);
    assert.equal(lives(), 3);
  });

  test('a cancelled chunk stops, and what had finished by then is there for the next one', async (t) => {
    const inference = new WordsInference();
    const { test, roles, round } = await leased(t, inference);
    inference.sample = async (request) => {
      const sample = await WordsInference.prototype.sample.call(inference, request);
      if (inference.asked.length > 8) await delay(60_000, undefined, { signal: request.signal! });
      return sample;
    };
    inference.beforeAnswer = (call) => delay(call);
    const environment = new MockActivityEnvironment();
    const generating = environment.run(roles.playGroups, { run: test.run, round, chunk: whole });
    setTimeout(() => environment.cancel('CANCELLED'), 200);
    const startedAt = performance.now();
    const ended = (await generating) as PlayedChunk;
    assert(performance.now() - startedAt < 5_000);
    assert.equal(ended.endedBy, 'cancelled');
    assert.equal(ended.rollouts + ended.unfinished!.count!, 16);
    const fresh = new WordsInference();
    const attempt = { run: test.run, round, chunk: whole, attempt: 2 };
    const next = await act(openRoles(fresh).playGroups, attempt);
    assert.equal(next.adopted + fresh.asked.length, 16);
  });
});

describe('scoring rollouts', () => {
  test('whoever scores first decides: the judges are not asked twice', async (t) => {
    const { test, roles, round } = await leased(t);
    const environment = await openEnvironment(test.spec.environments[0]!);
    let asked = 0;
    for (const judge of environment.rubric.functions) {
      const whole = { ...judge };
      t.mock.method(judge, 'score', (rollout: Parameters<typeof whole.score>[0]) => {
        asked += 1;
        return whole.score(rollout);
      });
    }
    const once = await generate(test, roles, round);
    assert.equal(asked, 16 * environment.rubric.functions.length);
    const again = await generate(test, roles, round);
    assert.deepEqual(again.parts[0]!.scored, once.parts[0]!.scored);
    assert.equal(asked, 16 * environment.rubric.functions.length);
  });

  test('every group is there by ordinal, with its rollouts by index and their rewards', async (t) => {
    const { test, roles, round } = await leased(t);
    const chunks = [];
    for (const index of [1, 0]) chunks[index] = (await generate(test, roles, round, { index, count: 2 })).parts[0]!;
    const counts = chunks.map(({ scored }) => scored.count);
    const groups = (await Promise.all(chunks.map(({ scored }) => readRows<ScoredGroup>(test.run, scored)))).flat();
    assert.deepEqual(
      [groups.map(({ ordinal }) => ordinal), counts],
      [
        [1, 2, 3, 4],
        [2, 2],
      ],
    );
    assert.deepEqual(places(groups.flatMap(({ rollouts }) => rollouts)), allPlaces);
    assert(
      groups.every(({ rollouts }) => rollouts.every(({ reward }) => reward !== null && reward >= 0 && reward <= 1)),
    );
  });
});

describe('filtering groups', () => {
  /** A scored round with these rewards; a word instead of a reward is the outcome of a rollout that has none. */
  async function filtered(t: TestContext, rewards: readonly (readonly (number | FailedOutcome)[])[], overrides = {}) {
    const { run, store } = await makeRun(t, overrides);
    const groups = rewards.map((group, i): ScoredGroup => ({
      ordinal: i + 1,
      environment: 'reverse-text',
      exampleId: i,
      epoch: 0,
      policyStep: 0,
      rollouts: group.map((reward, index) => ({
        group: i + 1,
        index,
        exampleId: i,
        turns: [],
        ...(typeof reward === 'string' ? { outcome: reward, reward: null } : { outcome: 'ok', reward }),
        metrics: {},
      })),
    }));
    const scored = await putRows(store, 'scored.jsonl', groups);
    const round = { step: 3, first: 1, last: groups.length, policyStep: 2, leases: scored };
    const { filterGroups } = openRoles();
    const once = await filterGroups({ run, round, scored });
    assert.deepEqual(await filterGroups({ run, round, scored }), once);
    return once;
  }

  test('a failed rollout costs itself; a group of which less than half is left, or one reward, is dropped with the reason', async (t) => {
    const { kept, ended, failures } = await filtered(t, [
      [0, 1, 0.5, 1],
      [0, 1, 'infra_failure', 0],
      ['judge_failure', 1, 0, 'timeout'],
      [1, 1, 'timeout', 1],
      ['timeout', 'judge_failure', 0, 'timeout'],
      ['cancelled', 'cancelled', 'cancelled', 'cancelled'],
      [1, 'infra_failure'],
    ]);
    assert.equal(kept.ordinals, '1-3');
    assert.deepEqual(ended, {
      'filtered:no_signal': '4',
      'failed:timeout': '5',
      'failed:cancelled': '6',
      'failed:infra_failure': '7',
    });
    assert.deepEqual([failures?.failedRollouts, failures?.failedGroups], [12, 3]);
  });

  test('a group whose rollouts all score the same is dropped before training', async (t) => {
    const { kept, ended, solved } = await filtered(t, [
      [1, 1],
      [0, 0],
      [0.5, 0.5],
      [0, 1],
    ]);
    assert.equal(kept.ordinals, '4');
    assert.deepEqual(Object.values(ended), ['1-3']);
    assert.deepEqual(solved, { all: 1, none: 1, some: 2 });
  });

  test('every group of the round is kept or ended, and the kept ones remember their round', async (t) => {
    const { kept, ended } = await filtered(
      t,
      [
        [1, 1, 1, 0.9],
        [0, 0.005],
        [0.4, 0.6],
        [0, 1],
      ],
      {
        'difficulty_filter.enabled': 'true',
        'difficulty_filter.min_reward': '0.01',
        'difficulty_filter.max_reward': '0.97',
        'difficulty_filter.min_reward_variance': '0.02',
      },
    );
    assert.deepEqual(ended, { 'filtered:low_variance': '3', 'filtered:too_easy': '1', 'filtered:too_hard': '2' });
    assert.deepEqual([kept.ordinals, kept.policyStep, kept.scored.key], ['4', 2, 'scored.jsonl']);
  });
});
