/** Generation that is cut short, and its continuation by the next attempt. */
import assert from 'node:assert/strict';
import { describe, test, type TestContext } from 'node:test';
import { setTimeout as delay } from 'node:timers/promises';
import { MockActivityEnvironment } from '@temporalio/testing';
import type { PlayedChunk } from '../../activities/index.ts';
import { readJson, readRows } from '../../runs/run-access.ts';
import { noteServed } from '../../play/served-version.ts';
import type { LeasedGroups } from '../../core/rl/run-state.ts';
import { createEnvironments, openEnvironment, type Environments } from '../../backends/environments/index.ts';
import { multiTurn, type RewardInput } from '../../backends/environments/kit.ts';
import { until } from '../workflows/look.ts';
import { initialCurriculum } from '../../core/rl/sampling/curriculum.ts';
import { decodeRanges } from '../../core/rl/ledger.ts';
import { rolloutAttemptsMax } from '../../core/limits.ts';
import { RatchetError } from '../../core/errors.ts';
import type { Rollout, UnfinishedRollout } from '../../core/rl/rollout/rollout.ts';
import { act, commitFirst, datasets, makeRun, openRoles, scoredRollouts, WordsInference } from './runs.ts';

/** Three turns: the policy is asked again with what it said. */
function threeTurns(): Environments {
  return createEnvironments(async () => {
    const { dataset, evalDataset, rubric } = await openEnvironment({ id: 'reverse-text', args: {} });
    return multiTurn<null>({
      name: 'three-turns',
      dataset,
      evalDataset,
      rubric,
      maxTurns: 3,
      setup: () => null,
      respond: () => ({ state: null, say: 'ab' }),
    });
  });
}

async function leased(
  t: TestContext,
  inference: WordsInference,
  more: { settings?: Record<string, string>; environments?: Environments } = {},
) {
  const run = await makeRun(t, more.settings);
  const roles = openRoles(inference, more);
  const { state } = await commitFirst(run, roles);
  const lease = { run: run.run, step: 1, count: 2, curriculum: initialCurriculum, datasets, policy: state.policy };
  const { round } = await roles.leaseGroups(lease);
  return { ...run, roles, input: { run: run.run, round, chunk: { index: 0, count: 1 } } };
}

const stuckAfter = (inference: WordsInference, calls: number) => {
  inference.sample = async (request) => {
    const call = inference.asked.length + 1;
    const sample = await WordsInference.prototype.sample.call(inference, request);
    if (call > calls) await delay(60_000, undefined, { signal: request.signal! });
    return sample;
  };
};

describe('an attempt that ends with rollouts unfinished', () => {
  test('the deadline names what is finished and what is not, and the next attempt plays only that', async (t) => {
    const inference = new WordsInference();
    const { run, roles, input } = await leased(t, inference, { settings: { generation_timeout: '1' } });
    stuckAfter(inference, 5);
    const first = await act(roles.playGroups, { ...input, attempt: 1 });
    assert.equal(first.endedBy, 'deadline');
    const done = [...(await scoredRollouts(run, first)), ...(await readRows<Rollout>(run, first.finished!))];
    const open = await readRows<UnfinishedRollout>(run, first.unfinished!);
    assert.deepEqual([done.length + open.length, first.rollouts], [8, done.length]);
    assert.deepEqual(await act(roles.playGroups, { ...input, attempt: 1 }), first, 'a retry says the same');

    const fresh = new WordsInference();
    const second = await act(openRoles(fresh).playGroups, { ...input, attempt: 2 });
    assert.deepEqual([second.unfinished, second.rollouts, fresh.asked.length], [undefined, 8, open.length]);

    const other = await leased(t, new WordsInference());
    const undisturbed = await scoredRollouts(other.run, await act(other.roles.playGroups, other.input));
    assert.deepEqual(await scoredRollouts(run, second), undisturbed, 'the same random numbers');
  });

  test('the last attempt gives up what is unfinished: a timeout without a reward, which is not trained', async (t) => {
    const inference = new WordsInference();
    const { run, roles, input } = await leased(t, inference, { settings: { generation_timeout: '1' } });
    stuckAfter(inference, 7);
    const last = await act(roles.playGroups, { ...input, attempt: 3, isLast: true });
    assert.equal(last.unfinished, undefined);
    const late = (await scoredRollouts(run, last)).filter(({ outcome }) => outcome === 'timeout');
    const { filtered } = last.parts.find(({ ordinals }) => decodeRanges(ordinals).includes(late[0]!.group))!;
    assert.deepEqual(
      late.map(({ reward }) => reward),
      [null],
    );
    const { ended, failures } = filtered;
    assert.deepEqual([ended['failed:timeout'], failures?.failedRollouts, failures?.failedGroups], [undefined, 1, 0]);
    assert.match(failures?.causes.timeout?.first ?? '', /generation_timeout = 1 s/);
  });

  test('where they are truncated, what is unfinished keeps its turns and is scored with the state that it had', async (t) => {
    const inference = new WordsInference();
    const environments = createEnvironments(async (entry) => {
      const words = await threeTurns().open(entry);
      const score = ({ turns, messages, state }: RewardInput) =>
        turns.length + messages.length / 100 + Number(state === null) / 1000;
      return { ...words, rubric: { functions: [{ name: 'kept', weight: 1, score }] } };
    });
    const settings = { generation_timeout: '2', on_timeout: '"truncate"' };
    const { run, roles, input } = await leased(t, inference, { settings, environments });
    stuckAfter(inference, 20);
    const last = await act(roles.playGroups, { ...input, attempt: 3, isLast: true });
    assert.equal(last.unfinished, undefined);
    const all = await scoredRollouts(run, last);
    const late = all.filter(({ isTimedOut }) => isTimedOut === true);
    assert.ok(late.length > 0);
    for (const { outcome, reward, turns } of late) {
      assert.equal(outcome, 'truncated');
      const said = turns.length === 0 ? 1 : 2 * turns.length; // the prompt, and what was heard and said
      assert.equal(reward, turns.length + said / 100 + 1 / 1000);
    }
    assert.deepEqual(new Set(all.map(({ outcome }) => outcome)), new Set(['ok', 'truncated']));
    assert.equal(
      all.filter(({ isTimedOut }) => !isTimedOut).every(({ turns }) => turns.length === 3),
      true,
    );
  });

  test('a rollout that fails of its environment is left to another worker where it may be, and the turns of the others stay', async (t) => {
    let [failures, failing] = [0, ''];
    const environments = createEnvironments(async (entry) => {
      const words = await openEnvironment(entry);
      const rollout: typeof words.rollout = (example, policy, place) => {
        if (place!.index === 1) failing ||= place!.group.split('/').at(-1)!;
        const isFailing = place!.index === 1 && place!.group.endsWith(`/${failing}`);
        if (isFailing && failures++ < rolloutAttemptsMax) throw new Error('no disk left');
        return words.rollout(example, policy, place);
      };
      return { ...words, rollout };
    });
    const inference = new WordsInference();
    const { run, roles, input } = await leased(t, inference, { environments });
    const first = await act(roles.playGroups, { ...input, leavesFailed: true });
    assert.deepEqual([first.endedBy, first.unfinished?.count, first.parts.length], ['failures', 1, 1]);
    assert.equal(first.parts[0]!.ordinals, failing === '1' ? '2' : '1', 'the group that is whole is scored');
    const asked = inference.asked.length;
    const second = await act(openRoles(inference, { environments }).playGroups, { ...input, attempt: 2 });
    const rollouts = await scoredRollouts(run, second);
    assert.ok(rollouts.length === 8 && rollouts.every(({ outcome }) => outcome === 'ok'));
    assert.equal(inference.asked.length - asked, 1, 'the others are not sampled again');
  });

  test('while the inference server answers nothing, nothing is given up, and it says since when', async (t) => {
    const inference = new WordsInference();
    const { roles, input } = await leased(t, inference, { settings: { generation_timeout: '1' } });
    inference.sample = async (request) => {
      await delay(60_000, undefined, { signal: request.signal! });
      throw new Error('not reached');
    };
    const heartbeatDetails = {
      playedMs: 0,
      notReady: { since: '2026-01-01T00:00:00.000Z', message: 'The policy server does not answer.' },
    };
    const environment = new MockActivityEnvironment({ heartbeatDetails });
    const ended: PlayedChunk = await environment.run(roles.playGroups, { ...input, attempt: 3, isLast: true });
    assert.deepEqual([ended.notReady, ended.unfinished?.count], [heartbeatDetails.notReady, 8]);
  });

  test('a worker that shuts down hands over what it has', async (t) => {
    const inference = new WordsInference();
    const { roles, input } = await leased(t, inference);
    stuckAfter(inference, 5);
    const environment = new MockActivityEnvironment();
    const generating = environment.run(roles.playGroups, input);
    setTimeout(() => environment.cancel('WORKER_SHUTDOWN'), 300);
    const ended = (await generating) as PlayedChunk;
    assert.deepEqual([ended.endedBy, ended.rollouts + ended.unfinished!.count!], ['shutdown', 8]);
  });

  test('a server that stops before the worker does is not what the run waits for', async (t) => {
    const inference = new WordsInference();
    const { roles, input } = await leased(t, inference);
    inference.sample = async (request) => {
      await delay(60_000, undefined, { signal: request.signal! });
      throw new Error('not reached');
    };
    const notReady = { since: '2026-01-01T00:00:00.000Z', message: 'The policy server does not answer.' };
    const environment = new MockActivityEnvironment({ heartbeatDetails: { playedMs: 0, notReady } });
    const generating = environment.run(roles.playGroups, input);
    setTimeout(() => environment.cancel('WORKER_SHUTDOWN'), 300);
    const ended = (await generating) as PlayedChunk;
    assert.deepEqual([ended.endedBy, ended.notReady, ended.unfinished!.count], ['shutdown', undefined, 8]);
  });
});

describe('a rollout of several turns', () => {
  test('it continues from its last finished turn: no turn that was finished is ever sampled again', async (t) => {
    const environments = threeTurns();
    const inference = new WordsInference();
    const settings = { generation_timeout: '1' };
    const { run, roles, input, store } = await leased(t, inference, { environments, settings });
    stuckAfter(inference, 13);
    const first = await act(roles.playGroups, { ...input, attempt: 1 });
    const kept = (await readRows<UnfinishedRollout>(run, first.unfinished!)).map(({ turns }) => turns);
    const turnsKept = first.rollouts * 3 + kept.reduce((sum, turns) => sum + turns, 0);
    assert.equal(turnsKept, 13, 'every answer that was given is kept');
    const parts = (await store.list('rollouts/')).filter((key) => key.includes('/turns_'));
    assert.ok(parts.length >= 1 && parts.length <= 3, `grouped in parts, not one object a turn: ${parts.join()}`);

    const fresh = new WordsInference();
    const second = await act(openRoles(fresh, { environments }).playGroups, { ...input, attempt: 2 });
    assert.equal(fresh.asked.length, 24 - 13);
    const other = await leased(t, new WordsInference(), { environments });
    const undisturbed = await scoredRollouts(other.run, await act(other.roles.playGroups, other.input));
    assert.deepEqual(await scoredRollouts(run, second), undisturbed, 'what an undisturbed chunk gives');
  });

  test('a worker killed between two turns loses at most half a second of them', async (t) => {
    const environments = threeTurns();
    const inference = new WordsInference();
    const { roles, input } = await leased(t, inference, { environments });
    const stuck = new AbortController();
    inference.beforeAnswer = (call) =>
      call > 10 ? delay(60_000, undefined, { signal: stuck.signal }) : Promise.resolve();
    const killed = act(roles.playGroups, input).catch((error: unknown) => error);
    await delay(1_200);
    const fresh = new WordsInference();
    const retried = await act(openRoles(fresh, { environments }).playGroups, input);
    assert.deepEqual([fresh.asked.length, retried.rollouts], [24 - 10, 8]);
    stuck.abort();
    await killed;
  });

  test('a later version that is served meanwhile is taken between two turns, where that is asked for', async (t) => {
    const environments = threeTurns();
    const inference = new WordsInference();
    const { run, roles, input } = await leased(t, inference, { environments });
    const { policy } = await readJson<LeasedGroups>(run, input.round.leases);
    const later = { ...policy, step: 1 };
    inference.beforeAnswer = async (call) => {
      if (call !== 8) return;
      await noteServed(run, later);
      await delay(1_100); // it is looked for once a second
    };
    const rollouts = await scoredRollouts(run, await act(roles.playGroups, { ...input, takesNewest: true }));
    const steps = rollouts.map(({ turns }) => turns.map(({ policyStep }) => policyStep));
    assert.ok(steps.every(([first, , last]) => first === 0 && (last === 0 || last === 1)));
    assert.ok(
      steps.some(([, , last]) => last === 1),
      JSON.stringify(steps),
    );
    const names = inference.asked.map((request) => request.policy.name);
    assert.equal(new Set(names).size, 2);

    const other = await leased(t, new WordsInference(), { environments });
    await noteServed(other.run, later);
    const never = await scoredRollouts(other.run, await act(other.roles.playGroups, other.input));
    assert.ok(never.every(({ turns }) => turns.every(({ policyStep }) => policyStep === 0)));
  });

  test('a prompt that has grown too long ends the rollout with the turns it has; a first one has no reward', async (t) => {
    const environments = threeTurns();
    const inference = new WordsInference();
    const { run, roles, input } = await leased(t, inference, { environments });
    inference.sample = (request) =>
      request.promptTokenIds.length > 20 || inference.asked.length === 3
        ? Promise.reject(new RatchetError('PromptTooLong', 'maximum context length is 20 tokens'))
        : WordsInference.prototype.sample.call(inference, request);
    const rollouts = await scoredRollouts(run, await act(roles.playGroups, input));
    assert.equal(rollouts.length, 8);
    for (const { outcome, turns } of rollouts) {
      assert.equal(outcome, turns.length > 0 ? (turns.length === 3 ? 'ok' : 'truncated') : 'overlong_prompt');
    }
    assert.ok(rollouts.some(({ outcome }) => outcome !== 'ok'));
  });
});

test('rollouts whose judge takes its time are stored: another worker scores them from the store alone', async (t) => {
  let letGo: () => void = () => undefined;
  const stuck = new Promise<void>((resolve) => (letGo = resolve));
  const judging = (until: Promise<void>): Environments =>
    createEnvironments(async (entry) => {
      const words = await openEnvironment(entry);
      const score = (): Promise<number> => until.then(() => 1);
      return { ...words, rubric: { functions: [{ name: 'judge', weight: 1, score }] } };
    });
  const { run, store, roles, input } = await leased(t, new WordsInference(), { environments: judging(stuck) });
  const cutOff = act(roles.playGroups, input).catch(() => undefined); // as if its worker had died
  const isStored = async (): Promise<boolean> => (await store.list('rollouts/')).some((key) => key.includes('/part_'));
  await until('rollouts are stored before they are scored', isStored);
  const fresh = new WordsInference();
  const environments = judging(Promise.resolve());
  const scored = await act(openRoles(fresh, { environments }).playGroups, input);
  assert.deepEqual([fresh.asked.length, scored.adopted], [0, 8]);
  assert.ok((await scoredRollouts(run, scored)).every(({ reward }) => reward === 1));
  letGo();
  await cutOff;
});
