/** Work under way in one attempt that its retry does not find. */
import assert from 'node:assert/strict';
import { describe, test, type TestContext } from 'node:test';
import { setTimeout as delay } from 'node:timers/promises';
import { MockActivityEnvironment } from '@temporalio/testing';
import type { PlayedChunk } from '../../activities/index.ts';
import type { GenerationProgress } from '../../activities/around/generation-attempt.ts';
import { initialCurriculum } from '../../core/rl/sampling/curriculum.ts';
import { RatchetError } from '../../core/errors.ts';
import { layout } from '../../runs/layout.ts';
import { nothingLost } from '../../core/rl/lost-work.ts';
import {
  act,
  commitFirst,
  datasets,
  makeRun,
  openRoles,
  planNext,
  scoredRollouts,
  WordsInference,
  type TestRun,
} from './runs.ts';

/** A chunk of 8 rollouts that the inference leaves unanswered from a call on, until `stuck` is aborted. */
async function chunkOf(t: TestContext, answers: number) {
  const test = await makeRun(t);
  const inference = new WordsInference();
  const stuck = new AbortController();
  t.after(() => stuck.abort());
  inference.beforeAnswer = (call) =>
    call > answers ? delay(60_000, undefined, { signal: stuck.signal }) : Promise.resolve();
  const roles = openRoles(inference);
  const { state } = await commitFirst(test, roles);
  const lease = { run: test.run, step: 1, count: 2, curriculum: initialCurriculum, datasets, policy: state.policy };
  const { round } = await roles.leaseGroups(lease);
  return { test, roles, stuck, input: { run: test.run, round, chunk: { index: 0, count: 1 } } };
}

type Chunk = Awaited<ReturnType<typeof chunkOf>>;

/** The attempt of a process that dies after a while: what it said last. */
async function die({ test, roles, input }: Chunk, info: object = {}, tokens = 0): Promise<GenerationProgress> {
  const environment = new MockActivityEnvironment(info);
  const said = firstWord(environment, tokens); // nothing is heard of it after this
  void environment.run(roles.playGroups, input).catch(() => undefined);
  await said;
  while ((await partsOf(test)).length === 0) await delay(20);
  return said;
}

async function partsOf({ run, store }: TestRun): Promise<string[]> {
  const keys = await store.list(layout.round(run.lineage, 1, 1, 2));
  return keys.filter((key) => key.includes('/part_'));
}

/** Resolves with progress of work that this attempt has begun itself, with at least so many tokens. */
function firstWord(environment: MockActivityEnvironment, tokens = 0): Promise<GenerationProgress> {
  const { attempt } = environment.context.info;
  return new Promise((resolve) => {
    environment.on('heartbeat', (said: GenerationProgress) => {
      const { work } = said;
      if (work.attempt === attempt && work.pieces > 0 && work.tokens >= tokens) resolve(said);
    });
  });
}

function retry(input: Chunk['input'], attempt: number, heartbeatDetails: GenerationProgress): Promise<PlayedChunk> {
  const environment = new MockActivityEnvironment({ attempt, heartbeatDetails });
  return environment.run(openRoles().playGroups, input);
}

const tokensOf = async ({ run }: TestRun, chunk: PlayedChunk): Promise<Map<string, number>> => {
  const rollouts = await scoredRollouts(run, chunk);
  return new Map(
    rollouts.map(({ group, index, turns }) => [
      `${group}/${index}`,
      turns.reduce((sum, turn) => sum + turn.tokenIds.length, 0),
    ]),
  );
};

describe('a rollout worker that dies', () => {
  test('an undisturbed chunk loses nothing, and says nothing of it', async (t) => {
    const { input } = await chunkOf(t, Infinity);
    assert.equal((await act(openRoles().playGroups, input)).lost, undefined);
  });

  test('its retry tells what was under way and not stored; finished rollouts are not among it', async (t) => {
    const chunk = await chunkOf(t, 5);
    const said = await die(chunk);
    await delay(300);
    const retried = await retry(chunk.input, 2, said);
    const { lost } = retried;
    assert.deepEqual([lost?.recoveries, lost?.rollouts, retried.adopted], [1, 8 - 5, 5]);
    assert.equal(lost!.tokens, 0, 'every answer that came was stored');
    assert.ok(lost!.seconds >= 0.3 && lost!.seconds < 60, `${lost!.seconds} s since the oldest of them was begun`);
  });

  test('answers that came and were not stored before it died are lost with their tokens', async (t) => {
    const chunk = await chunkOf(t, 5);
    const said = await die(chunk, {}, 1);
    const { run, store } = chunk.test;
    const stored = await store.list(layout.round(run.lineage, 1, 1, 2));
    for (const key of stored) if (/part_|_from_/.test(key)) await store.removeAll(key);
    const retried = await retry(chunk.input, 2, said);
    const tokens = [...(await tokensOf(chunk.test, retried)).values()].sort((a, b) => a - b);
    assert.deepEqual([retried.lost?.rollouts, retried.adopted], [8, 0]);
    assert.ok(retried.lost!.tokens >= tokens.slice(0, 5).reduce((sum, n) => sum + n, 0), `${retried.lost!.tokens}`);
    assert.ok(retried.lost!.tokens <= tokens.slice(-5).reduce((sum, n) => sum + n, 0), `${retried.lost!.tokens}`);
  });

  test('what a second death loses comes on top, once', async (t) => {
    const chunk = await chunkOf(t, 3);
    const first = await die(chunk);
    const second = await die(chunk, { attempt: 2, heartbeatDetails: first });
    assert.deepEqual([second.work?.lost.recoveries, second.work?.lost.rollouts], [1, 5]);
    const { lost } = await retry(chunk.input, 3, second);
    assert.deepEqual([lost?.recoveries, lost?.rollouts], [2, 10]);
    const unheard = await retry(chunk.input, 4, second);
    assert.equal(unheard.lost?.recoveries, 3, 'also one that died before a word of it was heard');
  });

  test('an attempt that was given up and continues is not lost twice, whoever ends first', async (t) => {
    const chunk = await chunkOf(t, 5);
    const zombie = new MockActivityEnvironment();
    const word = firstWord(zombie);
    const late = zombie.run(chunk.roles.playGroups, chunk.input) as Promise<PlayedChunk>;
    const said = await word;
    while ((await partsOf(chunk.test)).length === 0) await delay(20);
    const retried = await retry(chunk.input, 2, said);
    assert.equal(retried.lost?.rollouts, 3);
    chunk.stuck.abort();
    assert.equal((await late.catch(() => null))?.lost, undefined);
    const third = await retry(chunk.input, 3, { ...said, work: { ...said.work, attempt: 2, lost: retried.lost } });
    assert.deepEqual(
      [third.lost?.recoveries, third.lost?.rollouts],
      [2, 3],
      'the chunk is there: nothing more is lost',
    );
  });

  test('one that shuts down hands over what it has, and tells what it leaves under way', async (t) => {
    const { roles, input } = await chunkOf(t, 5);
    const environment = new MockActivityEnvironment();
    const generating = environment.run(roles.playGroups, input);
    setTimeout(() => environment.cancel('WORKER_SHUTDOWN'), 300);
    const { lost, endedBy } = (await generating) as PlayedChunk;
    assert.deepEqual([endedBy, lost?.recoveries, lost?.rollouts, lost?.tokens], ['shutdown', 1, 3, 0]);
    const fresh = await act(openRoles().playGroups, { ...input, attempt: 2 });
    assert.equal(fresh.lost, undefined, 'the attempt after it has lost nothing itself');
  });
});

test('while a server is away, attempt after attempt is one recovery, and no rollout is lost again and again', async (t) => {
  const { input } = await chunkOf(t, Infinity);
  const away = new WordsInference();
  away.sample = () => Promise.reject(new RatchetError('InferenceUnavailable', 'away'));
  let said: GenerationProgress | undefined;
  for (let attempt = 1; attempt <= 4; attempt++) {
    const environment = new MockActivityEnvironment({ attempt, ...(said ? { heartbeatDetails: said } : {}) });
    environment.on('heartbeat', (details: GenerationProgress) => (said = details));
    await assert.rejects(environment.run(openRoles(away).playGroups, input), /away/);
  }
  const { lost } = await retry(input, 5, said!);
  assert.deepEqual([lost?.recoveries, lost?.rollouts, lost?.tokens], [1, 8, 0]);
});

test('scoring and training that are done again are recoveries: time is lost, no rollout is', async (t) => {
  const { test, roles, input } = await chunkOf(t, Infinity);
  const { parts } = await act(roles.playGroups, input);
  await test.store.removeAll(parts[0]!.scored.key);
  const again = new MockActivityEnvironment({ attempt: 3, scheduledTimestampMs: Date.now() - 9_000 });
  const { lost } = (await again.run(roles.playGroups, input)) as PlayedChunk;
  assert.deepEqual({ ...lost, seconds: Math.floor(lost!.seconds) }, { ...nothingLost, recoveries: 2, seconds: 9 });

  const other = await makeRun(t);
  const first = await commitFirst(other, roles);
  const { plan } = await planNext(other, roles, first);
  const died = new MockActivityEnvironment({ attempt: 2, scheduledTimestampMs: Date.now() - 4_000 });
  const training = died.run(roles.trainStep, { run: other.run, plan });
  const trained = (await training) as Awaited<ReturnType<typeof roles.trainStep>>;
  assert.deepEqual([trained.lost?.recoveries, Math.floor(trained.lost?.seconds ?? 0)], [1, 4]);
  assert.equal((await act(openRoles().trainStep, { run: other.run, plan })).lost, undefined);
});
