/** Groups that are scored as they end, and reported to their run while others of their chunk are in flight. */
import assert from 'node:assert/strict';
import { test, type TestContext } from 'node:test';
import { setTimeout as delay } from 'node:timers/promises';
import type { Client } from '@temporalio/client';
import { MockActivityEnvironment } from '@temporalio/testing';
import type { PlayedChunk } from '../../activities/index.ts';
import { sha256 } from '../../store/file-store.ts';
import { chunkName } from '../../core/rl/sampling/chunks.ts';
import { slowPlayS } from '../../core/rl/sampling/window.ts';
import { initialCurriculum } from '../../core/rl/sampling/curriculum.ts';
import { breakerReason } from '../../core/rl/failures.ts';
import { factsOfGroup } from '../../core/rl/rollout/group-facts.ts';
import { decodeRanges } from '../../core/rl/ledger.ts';
import { stepMetrics } from '../../core/rl/metrics.ts';
import { Packer } from '../../core/rl/learning/pack.ts';
import type { PartsNotice, PlayedPart } from '../../core/rl/rollout/played-part.ts';
import type { ScoredGroup } from '../../core/rl/rollout/rollout.ts';
import { groupsEndedSignalName } from '../../core/names.ts';
import { layout } from '../../runs/layout.ts';
import { readRows, requireCommit } from '../../runs/run-access.ts';
import { storeScored } from '../../runs/rollouts/scored-groups.ts';
import { encodeStoredRows } from '../../runs/forms/stored-forms.ts';
import { noteServed } from '../../play/served-version.ts';
import { until } from '../workflows/look.ts';
import { act, commitFirst, datasets, makeRun, openRoles, WordsInference } from './runs.ts';
import { encodeJson } from '../../store/objects.ts';
import { examineStore } from '../../runs/lineages/examine-store.ts';
import { hasCode } from '../store/store.contract.ts';

const chunk = { index: 0, count: 1 };
const count = 4;
let runs = 0;

async function leased(
  t: TestContext,
  inference: WordsInference,
  settings: Record<string, string> = {},
  slow = slowPlayS,
) {
  const run = await makeRun(t, settings);
  const roles = openRoles(inference, { slowPlayS: slow });
  const { state } = await commitFirst(run, roles);
  const lease = { run: run.run, step: 1, count, curriculum: initialCurriculum, datasets, policy: state.policy };
  const { round } = await roles.leaseGroups(lease);
  const input = { run: run.run, round, chunk, tells: `run-${(runs += 1)}` };
  return { ...run, roles, round, input };
}

/** A run's workflow that hears everything, or nothing. */
function hearing({ isThere = true } = {}) {
  const heard: PlayedPart[] = [];
  const signal = (name: string, { lineage, parts }: PartsNotice): Promise<void> => {
    assert.deepEqual([name, lineage], [groupsEndedSignalName, 'main']);
    if (!isThere) return Promise.reject(new Error('workflow not found'));
    heard.push(...parts);
    return Promise.resolve();
  };
  const client = {
    workflow: { getHandle: () => ({ signal }) },
    withAbortSignal: <T>(_: AbortSignal, work: () => T): T => work(),
  } as unknown as Client;
  return { heard, environment: () => new MockActivityEnvironment({}, { client }) };
}

/** One rollout is sampled and never answered, until it is let on. */
function holding(inference: WordsInference, at: number): void {
  inference.sample = async (request) => {
    const call = inference.asked.length + 1;
    const sample = await WordsInference.prototype.sample.call(inference, request);
    if (call === at) await delay(60_000, undefined, { signal: request.signal! });
    return sample;
  };
}

const ordinalsIn = (parts: readonly PlayedPart[]): number[] =>
  parts.flatMap(({ ordinals }) => decodeRanges(ordinals)).sort((a, b) => a - b);

test('groups are told as they end; whoever goes on with their chunk says them again and plays only what is missing', async (t) => {
  const inference = new WordsInference();
  const { run, input, roles } = await leased(t, inference);
  holding(inference, 6);
  const { heard, environment } = hearing();
  const first = environment();
  const playing = first.run(roles.playGroups, input) as Promise<PlayedChunk>;
  await until('three groups are told', () => ordinalsIn(heard).length === count - 1);
  first.cancel('WORKER_SHUTDOWN');
  const left = await playing;
  assert.deepEqual([left.endedBy, left.unfinished?.count, left.parts], ['shutdown', 1, []]);
  const groups = (await Promise.all(heard.map(({ scored }) => readRows<ScoredGroup>(run, scored)))).flat();
  assert.ok(groups.every(({ rollouts }) => rollouts.length === 4 && rollouts.every(({ reward }) => reward !== null)));
  assert.ok(heard.every(({ filtered, ordinals }) => filtered.kept.ordinals !== '' || ordinals !== ''));

  const fresh = new WordsInference();
  const again = hearing();
  const second = (await again
    .environment()
    .run(openRoles(fresh, { slowPlayS }).playGroups, { ...input, attempt: 2 })) as PlayedChunk;
  assert.deepEqual([second.unfinished, fresh.asked.length], [undefined, 1]);
  const said = ordinalsIn([...second.parts, ...again.heard]).toSorted((a, b) => a - b);
  assert.deepEqual(said, [1, 2, 3, 4], 'it is not known what the run has heard');

  const retried = (await hearing().environment().run(openRoles(fresh, { slowPlayS }).playGroups, input)) as PlayedChunk;
  assert.deepEqual([retried.endedBy, fresh.asked.length], ['shutdown', 1], 'a retry of an attempt says what it said');
});

test('the result of a quick chunk has its groups as one part, whether or not a run may be told of them', async (t) => {
  const one = await leased(t, new WordsInference(), {}, Infinity);
  const { heard, environment } = hearing();
  const { parts } = (await environment().run(one.roles.playGroups, one.input)) as PlayedChunk;
  const { tells: _, ...together } = one.input;
  const other = await leased(t, new WordsInference(), {}, Infinity);
  const whole = await act(other.roles.playGroups, { ...together, run: other.run, round: other.round });
  const rowsOf = async (run: typeof one.run, found: readonly PlayedPart[]) =>
    (await Promise.all(found.map(({ scored }) => readRows<ScoredGroup>(run, scored)))).flat();
  const tokensIn = (groups: readonly ScoredGroup[]) =>
    groups
      .toSorted((a, b) => a.ordinal - b.ordinal)
      .map(({ ordinal, rollouts }) => [ordinal, rollouts.map(({ reward, turns }) => [reward, turns[0]?.tokenIds])]);
  const told = await one.store.list(layout.allRounds('main'));
  const stored = told.filter((key) => layout.isPlayedPart(key));
  assert.ok(stored.length > 0 && stored.every((key) => key.includes(`${chunkName(chunk)}_from_`)));
  const scored = told.filter((key) => layout.isScored(key));
  const all = (
    await Promise.all(scored.map(async (key) => readRows<ScoredGroup>(one.run, await refOf(one, key))))
  ).flat();
  assert.deepEqual(tokensIn(all), tokensIn(await rowsOf(other.run, whole.parts)));
  assert.deepEqual([parts.map(({ ordinals }) => ordinals), heard], [['1-4'], []]);
});

test('a run that cannot be told hears all of it with the end of the activity', async (t) => {
  const { roles, input } = await leased(t, new WordsInference());
  const { environment } = hearing({ isThere: false });
  const { parts, unfinished } = (await environment().run(roles.playGroups, input)) as PlayedChunk;
  assert.deepEqual([ordinalsIn(parts), unfinished], [[1, 2, 3, 4], undefined]);
});

test('an attempt that takes the place of a slow one stores no group that this one has stored since', async (t) => {
  const slow = new WordsInference();
  const one = await leased(t, slow, {}, 0);
  const { run, roles } = one;
  const { tells: _, ...input } = one.input;
  holding(slow, 1);
  const first = new MockActivityEnvironment();
  const playing = first.run(roles.playGroups, input) as Promise<PlayedChunk>;
  const scoredKeys = async () => (await one.store.list(layout.allRounds('main'))).filter((key) => layout.isScored(key));
  const storedGroups = async () =>
    (
      await Promise.all((await scoredKeys()).map(async (key) => readRows<ScoredGroup>(run, await refOf(one, key))))
    ).flat();
  const quick = new WordsInference();
  quick.sample = async (request) => {
    // All but the one that is held: at the same moment both could store one.
    await until('what the slow one stored', async () => (await storedGroups()).length === count - 1);
    return WordsInference.prototype.sample.call(quick, request);
  };
  const { parts } = (await new MockActivityEnvironment({ attempt: 2 }).run(
    openRoles(quick, { slowPlayS }).playGroups,
    input,
  )) as PlayedChunk;
  first.cancel();
  await playing.catch(() => undefined);
  assert.deepEqual(ordinalsIn(parts), [1, 2, 3, 4]);
  const ordinals = (await storedGroups()).map(({ ordinal }) => ordinal);
  assert.equal(new Set(ordinals).size, ordinals.length, `each group once: ${ordinals.join(' ')}`);
});

test('only those of its groups are played that have not ended', async (t) => {
  const inference = new WordsInference();
  const { roles, input } = await leased(t, inference);
  const { parts } = (await hearing()
    .environment()
    .run(roles.playGroups, { ...input, only: '2-3' })) as PlayedChunk;
  assert.deepEqual(inference.asked.length, 8);
  assert.ok(ordinalsIn(parts).every((ordinal) => ordinal === 2 || ordinal === 3));
});

test('what was stored and not described when its worker died is neither sampled nor scored again', async (t) => {
  const { store, roles, input } = await leased(t, new WordsInference());
  await hearing().environment().run(roles.playGroups, input);
  for (const key of await store.list(layout.allRounds('main')))
    if (layout.isPlayedPart(key)) await store.removeAll(key);
  const fresh = new WordsInference();
  const again = (await hearing().environment().run(openRoles(fresh, { slowPlayS }).playGroups, input)) as PlayedChunk;
  assert.deepEqual([ordinalsIn(again.parts), fresh.asked.length], [[1, 2, 3, 4], 0]);
});

test('a part whose description was edited is refused by its name, and fsck says what --repair does about it', async (t) => {
  const { run, store, roles, input } = await leased(t, new WordsInference());
  await hearing().environment().run(roles.playGroups, input);
  const key = (await store.list(layout.allRounds('main'))).find((name) => layout.isPlayedPart(name))!;
  const whole = JSON.parse(Buffer.from((await store.read(key))!).toString()) as PlayedPart;
  const { scored: _, ...unscored } = whole;
  for (const [change, expected] of [
    [unscored, 'a reference to its scored groups'],
    [{ ...whole, ordinals: '3-1' }, 'their numbers as ranges'],
    [{ ...whole, filtered: { ...whole.filtered, kept: null } }, 'which groups were kept'],
    [{ ...whole, tokens: -1 }, 'how many rollouts and tokens'],
  ] as const) {
    await store.put(key, encodeJson(change));
    const damaged = hasCode('CheckpointDamaged', key, expected, 'npx ratchet-rl fsck');
    await assert.rejects(hearing().environment().run(openRoles().playGroups, input), damaged);
    const open = [{ step: 1, first: 1, last: 4, leases: input.round.leases.sha256 }];
    const curriculum = { ...initialCurriculum, nextOrdinal: 5 };
    await assert.rejects(roles.reopenRounds({ run, open, curriculum }), damaged);
    const fault = (await examineStore(run)).faults.find((one) => one.key === key);
    assert.deepEqual([fault?.repair, fault?.meaning.includes('described again')], ['set aside', true]);
  }
});

test('a chunk that an older Ratchet generated and scored as one object is neither generated nor scored again', async (t) => {
  const { run, store, roles, round, input } = await leased(t, new WordsInference());
  const { tells: _, ...untold } = input;
  const { parts } = await act(roles.playGroups, untold);
  const read = async (found: readonly PlayedPart[]): Promise<ScoredGroup[]> =>
    (await Promise.all(found.map(({ scored }) => readRows<ScoredGroup>(run, scored)))).flat();
  const groups = (await read(parts)).toSorted((a, b) => a.ordinal - b.ordinal);
  const folder = layout.round('main', 1, round.first, round.last);
  const keys = await store.list(folder);
  for (const key of keys) if (key.includes(chunkName(chunk))) await store.removeAll(key);
  const rollouts = groups.flatMap((group) => group.rollouts);
  const generated = `${folder}${chunkName(chunk)}.jsonl`;
  await store.put(generated, encodeStoredRows(generated, rollouts));

  const fresh = new WordsInference();
  const scoredNow = await act(openRoles(fresh).playGroups, untold);
  assert.deepEqual([fresh.asked.length, scoredNow.adopted], [0, 16]);
  assert.deepEqual(
    (await read(scoredNow.parts)).toSorted((a, b) => a.ordinal - b.ordinal),
    groups,
  );

  for (const key of await store.list(folder)) if (key.includes('_from_')) await store.removeAll(key);
  const name = layout.scored('main', round, chunkName(chunk));
  await storeScored(store, name, groups);
  const again = await act(openRoles(fresh).playGroups, untold);
  assert.deepEqual([fresh.asked.length, again.parts.map(({ scored }) => scored.key)], [0, [name]]);
});

test('the deadline of the last attempt ends the groups that it cut off, with the rewards that there are', async (t) => {
  const inference = new WordsInference();
  const { run, roles, input } = await leased(t, inference, { generation_timeout: '1' });
  holding(inference, 3);
  const { heard, environment } = hearing();
  const ended = (await environment().run(roles.playGroups, { ...input, attempt: 3, isLast: true })) as PlayedChunk;
  const groups = await Promise.all([...heard, ...ended.parts].map(({ scored }) => readRows<ScoredGroup>(run, scored)));
  const late = groups.flat().flatMap(({ rollouts }) => rollouts.filter(({ outcome }) => outcome === 'timeout'));
  assert.deepEqual([ended.unfinished, late.length], [undefined, 1]);
  assert.deepEqual(ordinalsIn([...heard, ...ended.parts]), [1, 2, 3, 4]);
});

test('a group that was leased long ago is as old as its first token: it begins with the version that is served then', async (t) => {
  const inference = new WordsInference();
  const { run, roles, input } = await leased(t, inference);
  const commit = (await requireCommit(run, 0)).commit;
  await noteServed(run, { ...commit.policy, step: 2 });
  const { heard, environment } = hearing();
  const { parts } = (await environment().run(roles.playGroups, { ...input, takesNewest: true })) as PlayedChunk;
  const all = [...heard, ...parts];
  assert.deepEqual(ordinalsIn(all).length, count);
  for (const { filtered } of all) {
    const { policyStep, oldest, ordinals } = filtered.kept;
    assert.deepEqual([policyStep, oldest], [0, ordinals === '' ? undefined : decodeRanges(ordinals).map(() => 2)]);
  }
});

test('a rollout whose oldest token has grown too old is given up in the middle of its turn, by name, and those begun late are not', async (t) => {
  const inference = new WordsInference();
  const { run, roles, input } = await leased(t, inference, { max_off_policy_steps: '1' });
  const { commit } = await requireCommit(run, 0);
  inference.sample = async (request) => {
    const sample = await WordsInference.prototype.sample.call(inference, request);
    const isOld = request.policy.version.step === 0;
    if (isOld) await delay(60_000, undefined, { signal: request.signal! });
    return sample;
  };
  const { heard, environment } = hearing();
  const first = environment();
  const only = { ...input, takesNewest: true, only: '1-2' };
  const playing = first.run(roles.playGroups, only) as Promise<PlayedChunk>;
  await until('all of it is asked for', () => inference.asked.length === 8);
  await noteServed(run, { ...commit.policy, step: 2 });
  const ended = await playing;
  const parts = [...heard, ...ended.parts];
  const stored = (await Promise.all(parts.map(({ scored }) => readRows<ScoredGroup>(run, scored)))).flat();
  const rollouts = stored.flatMap((group) => group.rollouts);
  assert.deepEqual([ended.unfinished, ordinalsIn(parts), rollouts.length], [undefined, [1, 2], 8]);
  assert.ok(rollouts.every(({ outcome, reward }) => outcome === 'stale' && reward === null));
  assert.match(rollouts[0]!.error ?? '', /oldest token is of v0, and v2 is served: max_off_policy_steps = 1/);
  const stale = parts.flatMap(({ filtered }) => decodeRanges(filtered.ended.stale ?? ''));
  assert.deepEqual(new Set(stale), new Set([1, 2]));
  assert.equal(breakerReason(parts[0]!.filtered.failures!, { maxFailedShare: 0.1, maxFailedGroups: 1 }), null);
});

test('where rollouts are truncated that are not finished in time, one without a turn is scored with an empty answer, and counted', async (t) => {
  const inference = new WordsInference();
  const { run, spec, roles, input } = await leased(t, inference, { generation_timeout: '2', on_timeout: '"truncate"' });
  holding(inference, 3);
  const { heard, environment } = hearing();
  const ended = (await environment().run(roles.playGroups, { ...input, attempt: 3, isLast: true })) as PlayedChunk;
  const scored = (
    await Promise.all([...heard, ...ended.parts].map((part) => readRows<ScoredGroup>(run, part.scored)))
  ).flat();
  const late = scored.flatMap(({ rollouts }) => rollouts.filter(({ isTimedOut }) => isTimedOut));
  assert.deepEqual(
    late.map(({ outcome, turns, reward }) => [outcome, turns.length, reward]),
    [['truncated', 0, 0]],
  );
  assert.deepEqual([ended.unfinished, scored.length], [undefined, count]);
  const finished = scored.map((group) => factsOfGroup(group));
  const environments = spec.environments.map(({ name }) => name);
  const metrics = stepMetrics({ step: 1, finished, trained: finished, filter: spec.filter, environments });
  assert.deepEqual(
    [
      metrics['timed_out/reverse-text'],
      metrics['train/agg/all/timed_out/mean'],
      metrics['train/agg/all/error/timeout'],
    ],
    [1, 1 / 16, undefined],
  );
  const packer = new Packer({ ...spec, advantage: 'centered' });
  const rows = scored.flatMap((group) => packer.pack(group).rows);
  assert.deepEqual([packer.stats.rollouts, rows.length], [16, 15]);
});

async function refOf({ store }: Awaited<ReturnType<typeof leased>>, key: string) {
  const bytes = (await store.read(key))!;
  return { key, sha256: sha256(bytes), bytes: bytes.byteLength };
}
