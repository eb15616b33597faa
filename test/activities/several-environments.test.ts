/** A run with two environments, step by step: whose groups wait for whom, what is counted for each, and where examples go. */
import assert from 'node:assert/strict';
import { describe, test, type TestContext } from 'node:test';
import { setTimeout as delay } from 'node:timers/promises';
import { forkRun } from '../../runs/lineages/fork-run.ts';
import { poolsOf } from '../../runs/rollouts/pools.ts';
import { readJson, readRows, storeOf } from '../../runs/run-access.ts';
import type { FilteredGroups } from '../../core/rl/filters/filter-groups.ts';
import type { PlayedPart } from '../../core/rl/rollout/played-part.ts';
import { createEnvironments, openEnvironment, type Environments } from '../../backends/environments/index.ts';
import { encodeJson } from '../../store/objects.ts';
import { rolloutsAtOnce } from '../../core/rl/sampling/chunks.ts';
import { layout } from '../../runs/layout.ts';
import { initialCurriculum, type CurriculumState } from '../../core/rl/sampling/curriculum.ts';
import { encodeRanges } from '../../core/rl/ledger.ts';
import { Packer } from '../../core/rl/learning/pack.ts';
import type { ScoredGroup } from '../../core/rl/rollout/rollout.ts';
import type { KeptGroups, LeasedGroups } from '../../core/rl/run-state.ts';
import {
  act,
  advance,
  commitFirst,
  makeRun,
  openRoles,
  type Roles,
  scoredRollouts,
  type TestRun,
  WordsInference,
} from './runs.ts';
import type { PackedBatch } from '../../core/rl/run-state.ts';

const entries = [
  '{ id = "reverse-text", name = "well", args = { max_length = 5 }, weight = 0.7 }',
  '{ id = "reverse-text", name = "slow", args = { max_length = 6 }, weight = 0.3 }',
];
const env = `[${entries.join(', ')}]`;
const datasets = [
  { name: 'well', weight: 0.7, datasetLength: 9 },
  { name: 'slow', weight: 0.3, datasetLength: 4 },
];

/** Environments, one of them scripted. */
function environmentsWhere(slow: (word: string) => Promise<void> | void): Environments {
  return createEnvironments(async (entry) => {
    const words = await openEnvironment(entry);
    if (entry.args['max_length'] !== 6) return words;
    return {
      ...words,
      async rollout(example, policy) {
        await slow(example.answer);
        return words.rollout(example, policy);
      },
    };
  });
}

async function leased(t: TestContext, environments?: Environments, settings: Readonly<Record<string, string>> = {}) {
  const run = await makeRun(t, { env, ...settings });
  const inference = new WordsInference();
  const roles = openRoles(inference, environments ? { environments } : {});
  const from = await commitFirst(run, roles);
  const { policy } = from.state;
  const ask = { run: run.run, step: 1, count: 8, curriculum: initialCurriculum, datasets, policy };
  const lease = await roles.leaseGroups(ask);
  const groups: Record<string, number> = {};
  for (const chunk of lease.chunks) groups[chunk.environment!] = (groups[chunk.environment!] ?? 0) + chunk.groups;
  return { test: run, roles, inference, from, ask, groups, ...lease };
}

async function playAll({ test, roles, round, chunks }: Awaited<ReturnType<typeof leased>>): Promise<PlayedPart[]> {
  const played = [];
  for (const chunk of chunks) played.push((await act(roles.playGroups, { run: test.run, round, chunk })).parts[0]!);
  return played;
}

async function groupsOf({ test }: Awaited<ReturnType<typeof leased>>, played: readonly PlayedPart[]) {
  const groups = await Promise.all(played.map(({ scored }) => readRows<ScoredGroup>(test.run, scored)));
  return groups.flat().toSorted((a, b) => a.ordinal - b.ordinal);
}

describe('a sampling round over several environments', () => {
  test('the lease says how many groups are of each; leased again they are the same', async (t) => {
    const { test, roles, ask, round, groups, chunks, curriculum } = await leased(t);
    const { leases } = await readJson<LeasedGroups>(test.run, round.leases);
    const count = (name: string) => leases.filter(({ environment }) => environment === name).length;
    assert.deepEqual(groups, { well: count('well'), slow: count('slow') });
    assert.ok(count('well') > 0 && count('slow') > 0, JSON.stringify(groups));
    assert.deepEqual(await roles.leaseGroups(ask), { round, chunks, curriculum, workers: 1 });
  });

  test('a temperature that has a course is that of the version a group starts from, as it was leased, and of its rows', async (t) => {
    const temp_scheduler = '{ start_temperature = 1.5, end_temperature = 0.5, total_steps = 5 }';
    const found = await leased(t, undefined, { 'sampling.temp_scheduler': temp_scheduler });
    const { test, roles, inference, ask } = found;
    const groups = await groupsOf(found, await playAll(found));
    assert.ok(inference.asked.length > 0 && inference.asked.every(({ temperature }) => temperature === 1.5));
    const packed = groups.flatMap((group) => new Packer({ ...test.spec, advantage: 'centered' }).pack(group).rows);
    assert.ok(packed.length > 0 && packed.every(({ sample }) => sample.temperature === 1.5));
    const later = { ...ask, step: 3, curriculum: found.curriculum, policy: { ...ask.policy, step: 2 } };
    const second = await roles.leaseGroups(later);
    const { leases } = await readJson<LeasedGroups>(test.run, second.round.leases);
    assert.ok(leases.every(({ temperature }) => temperature === 1));
    const again = await roles.leaseGroups({ ...later, policy: { ...ask.policy, step: 4 } });
    assert.equal(again.round.leases.sha256, second.round.leases.sha256, 'what was leased stands');
  });

  test('one environment hangs: the groups of the other are finished and stored meanwhile, and what fails is its own', async (t) => {
    let breakIt = (_reason: Error): void => undefined;
    const hanging = new Promise<void>((_, reject) => (breakIt = reject));
    const { test, roles, round, groups, chunks } = await leased(
      t,
      environmentsWhere(() => hanging),
    );
    const { run } = test;
    const generate = (name: string) =>
      Promise.all(
        chunks
          .filter(({ environment }) => environment === name)
          .map((chunk) => act(roles.playGroups, { run, round, chunk })),
      );
    const slow = generate('slow');
    const well = await generate('well'); // or this test never ends
    const rollouts = (await Promise.all(well.map((chunk) => scoredRollouts(run, chunk)))).flat();
    assert.ok(rollouts.length === groups['well']! * 4 && rollouts.every(({ outcome }) => outcome === 'ok'));

    breakIt(new Error('the sandbox has no disk left'));
    const [{ environments: ofWell }, { environments: ofSlow, ended }] = [...well, ...(await slow)].map(
      (chunk) => chunk.parts[0]!.filtered,
    ) as [FilteredGroups, FilteredGroups];
    const { leases } = await readJson<LeasedGroups>(run, round.leases);
    const broken = leases.filter(({ environment }) => environment === 'slow').map(({ ordinal }) => ordinal);
    assert.equal(ended['failed:infra_failure'], encodeRanges(broken));
    assert.equal(ofWell!['well']!.failures.failedGroups, 0);
    assert.equal(ofSlow!['slow']!.failures.failedGroups, groups['slow']);
    assert.match(ofSlow!['slow']!.failures.causes.infra_failure!.first, /no disk left/);
  });

  test('a slow environment may have all of the rollouts in flight that the run may have, but what is kept for others', async (t) => {
    let [atOnce, most] = [0, 0];
    const slow = environmentsWhere(async () => {
      most = Math.max(most, ++atOnce);
      await delay(5);
      atOnce -= 1;
    });
    const run = await leased(t, slow);
    const chunk = { index: 0, count: 1, environment: 'slow' };
    await act(run.roles.playGroups, { run: run.test.run, round: run.round, chunk });
    const rollouts = run.groups['slow']! * 4;
    assert.equal(most, Math.min(rollouts, rolloutsAtOnce(run.test.spec, 1)));
  });

  test('scored, groups are in the order of their ordinals, and metrics tell each environment apart', async (t) => {
    const round = await leased(t);
    const { test, roles } = round;
    const played = await playAll(round);
    const groups = await groupsOf(round, played);
    assert.deepEqual(
      groups.map(({ ordinal }) => ordinal),
      [1, 2, 3, 4, 5, 6, 7, 8],
    );
    const trained = played.map(({ filtered }, i): KeptGroups => {
      return { ...filtered.kept, ordinals: round.chunks[i]!.ordinals };
    });
    const scored = played.map((one) => one.scored);
    const { packed, metrics } = await roles.packBatch({ run: test.run, step: 1, trained, scored });
    const all = (await readJson<PackedBatch>(test.run, packed)).metrics;
    const rewards = (name: string) =>
      groups
        .filter(({ environment }) => environment === name)
        .flatMap(({ rollouts }) => rollouts.map(({ reward }) => reward!));
    for (const name of ['well', 'slow']) {
      const mean = rewards(name).reduce((sum, reward) => sum + reward, 0) / rewards(name).length;
      assert.ok(Math.abs(all[`reward/${name}/mean`]! - mean) < 1e-12);
      assert.equal(all[`train/${name}/all/reward/mean`], all[`reward/${name}/mean`]);
      assert.equal(all[`batch/${name}`], rewards(name).length);
      assert.equal(metrics[`reward/${name}/mean`], all[`reward/${name}/mean`], 'for the line of the step');
      assert.ok(`train/${name}/effective/reward/mean` in all && `train/${name}/all/solved_none` in all);
    }
  });
});

describe('difficulty pools of a run', () => {
  const buffer = '{ easy_threshold = 0.3, hard_threshold = 0.1, easy_fraction = 0.5 }';

  /** A round that is leased, generated, scored and filtered. */
  async function filtered(test: TestRun, roles: Roles, lease: Awaited<ReturnType<typeof leased>>) {
    const played = await playAll({ ...lease, test, roles });
    return { played, curriculum: await sortedAfter(test, roles, lease, played) };
  }

  async function sortedAfter(
    { run }: TestRun,
    roles: Roles,
    { round, curriculum: before }: Awaited<ReturnType<typeof leased>>,
    played: readonly PlayedPart[],
  ) {
    let curriculum = before;
    for (const { scored } of played) {
      curriculum = (await roles.filterGroups({ run, round, scored, curriculum })).curriculum!;
    }
    return curriculum;
  }

  test('a scored round moves its examples, and the state names the pools by an object in the store', async (t) => {
    const lease = await leased(t, undefined, { buffer });
    const { test, roles } = lease;
    const { played, curriculum } = await filtered(test, roles, lease);
    assert.deepEqual(await sortedAfter(test, roles, lease, played), curriculum, 'twice is once');
    const pools = await poolsOf(test.run, curriculum);
    const groups = await groupsOf(lease, played);
    const scored = played.map((one) => one.scored);
    const means = groups.map(({ rollouts }) => rollouts.reduce((sum, { reward }) => sum + reward!, 0) / 4);
    const apart = new Set(
      groups.filter((_, i) => means[i]! >= 0.3 || means[i]! <= 0.1).map((one) => `${one.environment} ${one.exampleId}`),
    );
    const { packed } = await roles.packBatch({
      run: test.run,
      step: 1,
      trained: [],
      scored,
      curriculum,
      datasets,
    });
    const { metrics } = await readJson<PackedBatch>(test.run, packed);
    assert.equal(metrics['pool/easy']! + metrics['pool/hard']!, apart.size);
    assert.ok(apart.size > 0);
    assert.equal(metrics['pool/well/normal']! + metrics['pool/slow/normal']!, 13 - apart.size);
    assert.deepEqual(Object.keys(pools).sort(), ['slow', 'well']);
    const unasked = await roles.filterGroups({ run: test.run, round: lease.round, scored: scored[0]! });
    assert.equal(unasked.curriculum, undefined);
  });

  test('the object counts for the limit of the state by its reference alone, however large the dataset is', async (t) => {
    const { test, roles, from } = await leased(t, undefined, { buffer });
    const ids = Array.from({ length: 50_000 }, (_, i) => i * 2).join(',');
    const bytes = encodeJson({ well: { easy: ids, hard: '' } });
    const pools = await storeOf(test.run).put(layout.pools('large'), bytes);
    assert.ok(bytes.byteLength > 16 * 1024);
    const curriculum = { ...initialCurriculum, pools };
    const made = await advance(test, roles, { ...from, state: { ...from.state, curriculum } }, { datasets });
    assert.deepEqual(made.state.curriculum.pools, pools);
  });

  test('when nothing is left to draw, no group is opened, and taking all as normal again continues where it was', async (t) => {
    const { test, roles, ask, curriculum } = await leased(t, undefined, { buffer: '{ hard_threshold = 0.1 }' });
    const gone = encodeJson({ well: { easy: '', hard: '0-8' }, slow: { easy: '', hard: '0-3' } });
    const without: CurriculumState = { ...curriculum, pools: await storeOf(test.run).put(layout.pools('gone'), gone) };
    assert.deepEqual(await roles.leaseOrNone({ ...ask, curriculum: without }), {
      round: null,
      curriculum: without,
      chunks: [],
      workers: 1,
    });
    const next = await roles.leaseGroups({ ...ask, curriculum });
    assert.deepEqual([next.round.first, next.round.last], [9, 16]);
  });

  test('a rewind and a fork carry the pools, and draw from them as the run itself would have', async (t) => {
    const lease = await leased(t, undefined, { buffer, 'checkpoints.interval': '1' });
    const { test, roles, from } = lease;
    const { curriculum } = await filtered(test, roles, lease);
    await test.store.putIfAbsent(layout.run(), encodeJson({ schemaVersion: 1, name: test.run.name, spec: test.spec }));
    // Round 1 is of its own step; this one only carries what it came to.
    const made = await advance(test, roles, { ...from, state: { ...from.state, curriculum } }, { datasets });
    const { state } = made;
    const ask = { step: 2, count: 30, curriculum: state.curriculum, datasets, policy: state.policy };
    const expected = await readJson<LeasedGroups>(
      test.run,
      (await roles.leaseGroups({ run: test.run, ...ask })).round.leases,
    );

    const begun = await roles.beginLineage({ run: test.run, step: 1, request: 'wf/1' });
    const back = { ...test.run, lineage: begun.lineage };
    const rewound = await roles.leaseGroups({ run: back, ...ask, curriculum: begun.head.commit.state.curriculum });
    assert.deepEqual((await readJson<LeasedGroups>(back, rewound.round.leases)).leases, expected.leases);

    const spec = { ...test.spec, name: 'forked' };
    const { commit } = await forkRun({ from: test.run, step: 1, spec, source: { config: '', overrides: {} } });
    assert.deepEqual(commit.state.curriculum, state.curriculum);
    const forked = { ...test.run, name: 'forked', spec: commit.spec };
    const there = await roles.leaseGroups({ run: forked, ...ask, curriculum: commit.state.curriculum });
    assert.deepEqual((await readJson<LeasedGroups>(forked, there.round.leases)).leases, expected.leases);
  });
});
