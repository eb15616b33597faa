import assert from 'node:assert/strict';
import { describe, test, type TestContext } from 'node:test';
import { decodeRanges } from '../../core/rl/ledger.ts';
import type { ScoredGroup } from '../../core/rl/rollout/rollout.ts';
import { decodeRows, encodeRows } from '../../store/objects.ts';
import { layout } from '../../runs/layout.ts';
import { readCommit } from '../../runs/run-access.ts';
import { blockOf, decodeBlock, encodeBlock, rowOf } from '../../runs/rollout-index/block.ts';
import { type RolloutFilter, RolloutIndex } from '../../runs/rollout-index/search.ts';
import {
  indexRun,
  joinUpTo,
  removeDamagedBlocks,
  removeIndex,
  rowsOfGroup,
  writeBlock,
} from '../../runs/rollout-index/write-index.ts';
import { advance, commitFirst, makeRun, openRoles, type TestRun } from '../activities/runs.ts';
import { hasCode } from '../store/store.contract.ts';

async function indexed(t: TestContext, steps: number) {
  const test = await makeRun(t);
  const roles = openRoles();
  let at = await commitFirst(test, roles);
  for (let i = 0; i < steps; i++) at = await advance(test, roles, at);
  const done = await all(indexRun(test.run));
  assert.deepEqual(
    done.map(({ step }) => step),
    Array.from({ length: steps + 1 }, (_, i) => i),
  );
  return { test, roles, at, index: await opened(test) };
}

async function opened({ run }: TestRun): Promise<RolloutIndex> {
  const index = new RolloutIndex(run);
  await index.refresh();
  return index;
}

/** All scored groups of a run, as they are stored. */
async function storedGroups({ store, run }: TestRun): Promise<ScoredGroup[]> {
  const keys = (await store.list(layout.allRounds(run.lineage))).filter((key) => layout.isScored(key));
  const rows = await Promise.all(keys.map(async (key) => decodeRows<ScoredGroup>((await store.read(key))!, key)));
  return rows.flat().sort((a, b) => a.ordinal - b.ordinal);
}

async function all<T>(items: AsyncIterable<T>): Promise<T[]> {
  const found: T[] = [];
  for await (const item of items) found.push(item);
  return found;
}

const named = ({ group, index }: { readonly group: number; readonly index: number }) => `${group}.${index}`;

describe('the index of rollouts', () => {
  test('of which a block was cut off says so, and is made anew', async (t) => {
    const { test, index } = await indexed(t, 3);
    const { store, run } = test;
    const before = await index.find({}, { limit: 1_000 });
    const cut = async (step: number, what: 'columns' | 'text', share: number): Promise<string> => {
      const key = layout.indexBlock(run.lineage, step, step, what);
      const bytes = (await store.read(key))!;
      await store.put(key, bytes.slice(0, Math.floor(bytes.byteLength * share)));
      return key;
    };
    const columns = [await cut(1, 'columns', 0.7), await cut(2, 'columns', 0)];
    await cut(3, 'text', 0.5);
    await assert.rejects((await opened(test)).find({}), {
      code: 'CheckpointDamaged',
      message: /steps_\d-\d\.\w+: expected .*made anew by npx ratchet-rl index words/,
    });
    assert.deepEqual(await all(indexRun(run)), [], 'each step has a block');
    const removed = await removeDamagedBlocks(run);
    assert.deepEqual([...removed].sort(), [...columns, layout.indexBlock(run.lineage, 3, 3, 'columns')].sort());
    const made = await all(indexRun(run));
    assert.deepEqual(
      made.map(({ step }) => step),
      [1, 2, 3],
    );
    assert.deepEqual(await (await opened(test)).find({}, { limit: 1_000 }), before);
    assert.deepEqual(await removeDamagedBlocks(run), []);
  });

  test('has every rollout of a committed step, with how its group ended and where it is stored', async (t) => {
    const { test, index } = await indexed(t, 3);
    const groups = await storedGroups(test);
    const found = await index.find({}, { limit: 1_000 });
    assert.equal(found.matches, groups.flatMap(({ rollouts }) => rollouts).length);
    assert.equal(found.of, found.matches);
    for (const one of found.rollouts) {
      const { commit } = (await readCommit(test.run, one.step))!;
      const ended = Object.entries(commit.outcomes.ended).find(([, ranges]) =>
        decodeRanges(ranges!).includes(one.group),
      );
      assert.equal(one.end, ended?.[0]);
      const rows = decodeRows<ScoredGroup>((await test.store.read(one.object))!, one.object);
      const group = rows[one.line]!;
      const rollout = group.rollouts[one.index]!;
      assert.equal(group.ordinal, one.group);
      assert.equal(one.said, rollout.turns[0]!.text);
      assert.equal(one.asked, group.example!.prompt.at(-1)!.content);
      assert.equal(one.tokens, rollout.turns[0]!.tokenIds.length);
      assert.ok(Math.abs(one.reward! - rollout.reward!) < 1e-6);
    }
    const { counts } = found;
    assert.deepEqual(
      Object.values(counts.outcome).reduce((a, b) => a + b, 0),
      found.matches,
    );
  });

  test('finds by step, reward, group, end and text, newest first or best first, page by page', async (t) => {
    const { index } = await indexed(t, 3);
    const every = (await index.find({}, { limit: 1_000 })).rollouts;
    const wanted: [RolloutFilter, (one: (typeof every)[number]) => boolean][] = [
      [{ step: [2, 3] }, ({ step }) => step >= 2],
      [{ reward: [0, 0.2] }, ({ reward }) => reward! >= 0 && reward! <= 0.2],
      [{ group: every[0]!.group }, ({ group }) => group === every[0]!.group],
      [{ end: 'trained' }, ({ end }) => end === 'trained'],
      [{ end: 'filtered' }, ({ end }) => end.startsWith('filtered')],
      [{ environment: 'elsewhere' }, () => false],
      [{ text: 'ABCD' }, ({ asked, said }) => /abcd/i.test(`${asked}\n${said}`)],
      [{ text: 'abc', step: [1, 1] }, ({ asked, said, step }) => step === 1 && /abc/i.test(`${asked}\n${said}`)],
    ];
    for (const [filter, isWanted] of wanted) {
      const { rollouts, matches } = await index.find(filter, { limit: 1_000 });
      assert.deepEqual(rollouts.map(named), every.filter(isWanted).map(named), JSON.stringify(filter));
      assert.equal(matches, rollouts.length);
    }
    const best = await index.find({}, { order: 'reward', limit: 5, skip: 2 });
    const rewards = every.map(({ reward }) => reward!).sort((a, b) => b - a);
    assert.deepEqual(
      best.rollouts.map(({ reward }) => reward),
      rewards.slice(2, 7),
    );
    const pages = [0, 1, 2].map((page) => index.find({}, { limit: 7, skip: 7 * page }));
    const paged = (await Promise.all(pages)).flatMap(({ rollouts }) => rollouts);
    assert.deepEqual(paged.map(named), every.slice(0, 21).map(named));
  });

  test('a search for a text that runs out of time says where it goes on, and misses nothing', async (t) => {
    const { index } = await indexed(t, 3);
    const whole = await index.find({ text: 'a' }, { limit: 1_000, budgetMs: 60_000 });
    assert.equal(whole.searched?.next, null);
    const found: string[] = [];
    let from: number | null = 0;
    for (let looks = 0; from !== null; looks++) {
      const part = await index.find({ text: 'a' }, { limit: 1_000, from, budgetMs: -1 });
      assert.ok(looks < 100 && part.searched!.rows > from);
      found.push(...part.rollouts.map(named));
      from = part.searched!.next;
    }
    assert.deepEqual(found, whole.rollouts.map(named));
  });

  test('is the same when its blocks are joined, and when it is made anew', async (t) => {
    const { test, index } = await indexed(t, 4);
    const before = await index.find({}, { limit: 1_000 });
    const words = await index.find({ text: 'b' }, { limit: 1_000, budgetMs: 60_000 });
    await joinUpTo(test.store, test.run.lineage, 4);
    const keys = await test.store.list(layout.rolloutIndex(test.run.lineage));
    assert.deepEqual(
      keys.map((key) => key.split('/').at(-1)),
      ['steps_0-4.columns', 'steps_0-4.text'],
    );
    const joined = await opened(test);
    assert.deepEqual(await joined.find({}, { limit: 1_000 }), before);
    assert.deepEqual((await joined.find({ text: 'b' }, { limit: 1_000, budgetMs: 60_000 })).rollouts, words.rollouts);
    assert.deepEqual(await all(indexRun(test.run)), [], 'nothing is missing');
    await removeIndex(test.run);
    await all(indexRun(test.run));
    assert.deepEqual(await (await opened(test)).find({}, { limit: 1_000 }), before);
  });

  test('leaves out what a rewind left behind', async (t) => {
    const { test, roles, index } = await indexed(t, 3);
    const kept = await index.find({ step: [0, 1] }, { limit: 1_000 });
    const begun = await roles.beginLineage({ run: test.run, step: 1, request: 'wf/1' });
    const there = { ...test, run: { ...test.run, lineage: begun.lineage } };
    await advance(there, roles, { state: begun.head.commit.state, parent: begun.head.sha256 });
    await all(indexRun(there.run));
    const found = await (await opened(there)).find({}, { limit: 1_000 });
    assert.deepEqual(
      new Set(found.rollouts.map(({ lineage, step }) => `${lineage} ${step}`)),
      new Set(['l2 2', 'main 1']),
    );
    assert.deepEqual(
      found.rollouts.filter(({ step }) => step === 1),
      kept.rollouts,
    );
  });

  test('a group that waited for a batch is in the step that it ended in', async (t) => {
    const test = await makeRun(t);
    const [group] = await sampled(test);
    const rows = rowsOfGroup(group!, { step: 9, end: 'stale', object: 'rollouts/step_7/x', line: 3 });
    await writeBlock(test.store, 'main', 9, rows);
    const { rollouts } = await (await opened(test)).find({ end: 'stale' });
    assert.deepEqual(
      rollouts.map(({ step, object, line }) => ({ step, object, line })),
      rows.map(() => ({ step: 9, object: 'rollouts/step_7/x', line: 3 })),
    );
  });

  test('refuses a block that was cut or changed, by name', () => {
    const row = {
      step: 1,
      group: 2,
      index: 3,
      environment: 'e',
      exampleId: 4,
      outcome: 'timeout',
      end: 'failed:timeout',
      reward: null,
      version: 5,
      versionEnd: 6,
      tokens: 7,
      turns: 8,
      object: 'o',
      line: 9,
    };
    const bytes = encodeBlock(blockOf([row, { ...row, reward: 0.5 }], [{ row: 0, at: 0, bytes: 3 }]));
    assert.deepEqual(rowOf(decodeBlock(bytes, 'here'), 'main', 0), { lineage: 'main', ...row });
    assert.equal(rowOf(decodeBlock(bytes, 'here'), 'main', 1).reward, 0.5);
    for (const bad of [bytes.subarray(0, 20), bytes.subarray(0, bytes.length - 8), encodeRows([row])])
      assert.throws(() => decodeBlock(bad, 'here'), hasCode('CheckpointDamaged', 'here'));
  });
});

/** Groups that were scored for the first step. */
async function sampled(test: TestRun): Promise<ScoredGroup[]> {
  const roles = openRoles();
  await advance(test, roles, await commitFirst(test, roles));
  return storedGroups(test);
}
