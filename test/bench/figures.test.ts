import assert from 'node:assert/strict';
import { test } from 'node:test';
import fc from 'fast-check';
import { beyondFirst, resampledOf, tokensOf, turnSecondsOf } from '../../bench/agents-world.ts';
import { busyTicks, meterCpu } from '../../bench/cpu-meter.ts';
import { driftOf } from '../../bench/long-run.ts';
import { onPolicyOverhead, prefetchedOverhead } from '../../bench/orchestration.ts';
import { shuffleRewards } from '../../bench/shuffled-control.ts';
import { delayOf } from '../../bench/mock-model-server.ts';
import { firstOf, replayedOf, secondsAlive, spreadOf } from '../../bench/rollout-workers.ts';
import { boundOf, utilisationOf } from '../../bench/rollouts-tail.ts';
import { summarize } from '../../bench/smollm2-learning.ts';
import { mean, median } from '../../bench/statistics.ts';
import type { StepCommit } from '../../core/rl/run-state.ts';
import type { ScoredGroup } from '../../core/rl/rollout/rollout.ts';

test('on-policy overhead is what is left of the time between commits, from the fourth step on', () => {
  const commits = [0, 900, 1800, 2700, 3200, 3800].map((at, step) => commit(step, at, { generate: 0.2, train: 0.1 }));
  assert.deepEqual(onPolicyOverhead(commits).map(tenths), [2, 3]);
});

test('with prefetching a step is compared with its training or the generation beside it, whichever is longer', () => {
  const commits = [
    commit(0, 0),
    commit(1, 900),
    commit(2, 1800),
    commit(3, 2700),
    commit(4, 3700, { generate: 9, train: 0.9 }),
    commit(5, 4700, { generate: 0.4, train: 0.3 }),
    commit(6, 5700, { generate: 0.8, train: 0.3 }),
  ];
  assert.deepEqual(prefetchedOverhead(commits).map(tenths), [1, 2], 'beside the last step nothing is generated');
});

test('a turn counts as sampled again where the program had used its answer before', () => {
  const call = (prompt: string, after: string, whole: string) => ({
    session: '/run/one',
    prompt,
    after,
    whole,
    tokens: 5,
    at: 0,
  });
  const [first, second] = [call('p', '', 'pa'), call('pau', 'pa', 'paub')];
  assert.deepEqual(resampledOf([first, second]), { finished: 0, underWay: 0 });
  assert.deepEqual(resampledOf([first, first, second, second]), { finished: 0, underWay: 2 });
  assert.deepEqual(resampledOf([first, second, first]), { finished: 1, underWay: 0 });
  assert.deepEqual(resampledOf([first, second, { ...first, session: '/run/other' }]), { finished: 0, underWay: 0 });
  assert.equal(tokensOf([first, second, { ...first, session: '/run-2/one' }], 'run'), 10);
  const at = (session: string, ms: number) => ({ ...first, session, at: ms });
  assert.equal(turnSecondsOf([at('a', 0), at('b', 100), at('a', 500), at('b', 1100), at('a', 1100)]), 0.6);
  assert.equal(beyondFirst(new Map([['a', 1], ['b', 3]])), 2); // prettier-ignore
});

test('drift compares the last tenth with the second, so neither a slow start nor one slow step counts', () => {
  const steady = Array.from({ length: 100 }, (_, i) => (i < 10 ? 9 : i === 95 ? 50 : 1));
  assert.equal(driftOf(steady), 0);
  const growing = Array.from({ length: 100 }, (_, i) => 100 + i);
  assert.ok(Math.abs(driftOf(growing) - (194.5 / 114.5 - 1)) < 1e-9);
  assert.ok(Math.abs(driftOf(growing.toReversed()) - (1 - 104.5 / 184.5)) < 1e-9, 'in both directions');
});

test('the median of an even number of values is the mean of the two in the middle', () => {
  assert.equal(median([3, 1, 2]), 2);
  assert.equal(median([4, 1, 2, 3]), 2.5);
  fc.assert(
    fc.property(fc.array(fc.integer(), { minLength: 1 }), (values) => {
      const below = values.filter((value) => value < median(values)).length;
      const above = values.filter((value) => value > median(values)).length;
      return below <= values.length / 2 && above <= values.length / 2;
    }),
  );
});

test('shuffling deals the same rewards out anew, and changes nothing else', () => {
  const groups = [1, 2, 3].map((ordinal) => group(ordinal, [ordinal, ordinal + 0.1, ordinal + 0.2, ordinal + 0.3]));
  const shuffled = shuffleRewards(groups, 7, 1);
  const rewards = (all: readonly ScoredGroup[]) => all.flatMap(({ rollouts }) => rollouts.map(({ reward }) => reward!));
  const sorted = (all: readonly ScoredGroup[]) => rewards(all).sort((a, b) => a - b);
  assert.notDeepEqual(rewards(shuffled), rewards(groups));
  assert.deepEqual(sorted(shuffled), sorted(groups));
  assert.deepEqual(withoutRewards(shuffled), withoutRewards(groups));
  assert.deepEqual(shuffleRewards(groups, 7, 1), shuffled, 'the same key, the same deal');
});

test('a task counts when every seed of it gains enough; the longest run and the worst control are told', () => {
  const cpu = (own_s: number) => ({ wall_s: own_s, own_s, others_s: 0 });
  const at = (reward: number) => ({ reward, exact: reward, greedy: reward });
  const result = (task: string, seed: number, after: number, seconds: number) => ({
    task,
    seed,
    run: { before: at(0.2), after: at(after), steps: 4, step_s: [], seconds, isPartial: false, cpu: cpu(seconds) },
    control: { before: at(0.2), after: at(0.2 + seed / 100), steps: 4 },
    killed: { digest: 'a', killedDigest: 'a', isEqual: true, killedAfter: 1 },
    trl: {
      evaluations: [
        { step: 0, reward: 0.2, wall_s: 60, cpu_s: 100 },
        { step: 4, reward: 0.5, wall_s: 600, cpu_s: 1000 },
      ],
      details: {},
    },
  });
  const found = summarize([
    result('a', 0, 0.4, 300),
    result('a', 1, 0.6, 600),
    result('b', 0, 0.3, 240),
    { task: 'b', seed: 1, run: null, control: null, killed: null, trl: null },
  ]);
  const { details: _, ...figures } = found;
  assert.deepEqual(figures, {
    tasks: 1,
    gain_min: 0.1,
    control_max: 0.01,
    minutes_max: 10,
    cpu_minutes_max: 5,
    killed_equal: true,
    trl_time_ratio: 1,
    trl_time_ratio_cpu: 0.6,
    trl_reached: false,
  });
});

test('utilisation is what a step takes at best ÷ what it takes, from the fourth step on', () => {
  const run = { trainS: 1, latencyS: 2, batch: 512 };
  assert.equal(boundOf({ ...run, inFlight: 512 }), 2);
  assert.equal(boundOf({ ...run, inFlight: 1536 }), 1, 'the trainer is the bound');
  const commits = [0, 9_000, 18_000, 27_000, 29_000, 33_000].map((at, step) => commit(step, at));
  const measured = utilisationOf(commits, 2);
  assert.deepEqual(measured, { utilisation: 0.667, bound_s: 2, step_s: 3, step_worst_s: 4 });
});

test('latencies of the mock are log-normal with the mean that was asked for, the same for the same seed', () => {
  const delays = Array.from({ length: 40_000 }, (_, seed) => delayOf(String(seed), { delayMs: 2_000, sigma: 1 }));
  assert.ok(Math.abs(mean(delays) / 2_000 - 1) < 0.03, String(mean(delays)));
  assert.ok(Math.abs(median(delays) / (2_000 * Math.exp(-0.5)) - 1) < 0.03, String(median(delays)));
  assert.equal(delayOf('7', { delayMs: 2_000, sigma: 1 }), delays[7]);
  const hung = { delayMs: 2_000, sigma: 1, hangShare: 0.02, hangMs: 60_000 };
  const hangs = delays.filter((_, seed) => delayOf(String(seed), hung) === 60_000).length;
  assert.ok(Math.abs(hangs / delays.length - 0.02) < 0.003, String(hangs));
});

test('workers are alive from when they are ready until they are killed, and shares are compared with their mean', () => {
  const lives = [life(1, 0), life(2, 3_000, 6_000), life(3, 9_000, 99_000)];
  assert.equal(secondsAlive(lives, 4_000, 10_000), 6 + 2 + 1);
  const taken = [1, 1, 1, 2, 2, 2, 2, 2].map((pid) => ({ pid }));
  assert.equal(spreadOf(taken, lives.slice(0, 2)), 0.5);
});

test('a turn that is played again was lost with its worker, unless it had ended long before', () => {
  const turns = [
    turn({ seed: 1, pid: 1, at: 1_000 }),
    turn({ seed: 2, pid: 1, at: 9_500 }),
    turn({ seed: 2, pid: 2, at: 12_000 }),
    turn({ seed: 3, pid: 2, at: 12_000 }),
  ];
  const lives = [life(1, 0, 10_000), life(2, 0)];
  assert.equal(firstOf(turns).length, 3);
  assert.equal(replayedOf(turns, lives), 0);
  assert.equal(replayedOf([...turns, turn({ seed: 1, pid: 2, at: 13_000 })], lives), 1);
});

test('processors are busy unless they idle or wait for disks', () => {
  assert.equal(busyTicks('cpu  1 2 3 4000 5000 6 7 8 1 2\ncpu0 9 9 9 9 9 9 9 9 9 9'), 1 + 2 + 3 + 6 + 7 + 8);
});

test('work of our own is counted as our own', { skip: process.platform !== 'linux' }, async () => {
  const { cpu } = await meterCpu(async () => {
    const until = process.cpuUsage().user + 300_000;
    while (process.cpuUsage().user < until);
  });
  assert.ok(cpu && cpu.own_s >= 0.25, JSON.stringify(cpu));
});

function life(pid: number, readyAt: number, endedAt = Infinity) {
  return { pid, readyAt, endedAt };
}

function turn({ at, ...line }: { seed: number; pid: number; at: number }) {
  return { ...line, policy: 'v0', prompt: 7, time: new Date(at).toISOString() };
}

function commit(step: number, atMs: number, times = { generate: 0, train: 0 }): StepCommit {
  const metrics = { 'rollout/generation_time': times.generate, 'time/train': times.train };
  return { step, committedAt: new Date(atMs).toISOString(), metrics } as unknown as StepCommit;
}

function group(ordinal: number, rewards: readonly number[]): ScoredGroup {
  const rollouts = rewards.map((reward, index) => ({ group: ordinal, index, exampleId: ordinal, reward }));
  return { ordinal, rollouts } as unknown as ScoredGroup;
}

function withoutRewards(groups: readonly ScoredGroup[]) {
  return groups.map((group) => ({ ...group, rollouts: group.rollouts.map((rollout) => ({ ...rollout, reward: 0 })) }));
}

const tenths = (seconds: number): number => Math.round(seconds * 10);
