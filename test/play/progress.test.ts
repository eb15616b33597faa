/** Rollouts in play: what a worker says of them, and what is read for people. */
import assert from 'node:assert/strict';
import { describe, test, type TestContext } from 'node:test';
import { temporaryFolder } from '../../backends/testing/material.ts';
import { firstLineage } from '../../core/names.ts';
import { effectNotes } from '../../core/rl/rollout/effects.ts';
import type { RecordedTurn, ScoredGroup, Turn } from '../../core/rl/rollout/rollout.ts';
import { present } from '../../core/present.ts';
import { thisWorker } from '../../host/worker-process.ts';
import { earlierWorker } from './sandboxes/earlier-worker.ts';
import { unlimited } from '../../core/settings/budgets.ts';
import { noPrices } from '../../core/rl/budget.ts';
import { RolloutBudget } from '../../play/budget/rollout-budget.ts';
import { ChunkProgress } from '../../play/progress/chunk-progress.ts';
import { encodeStored, encodeStoredRows } from '../../runs/forms/stored-forms.ts';
import { layout } from '../../runs/layout.ts';
import { listInPlay } from '../../runs/progress/listed-rollouts.ts';
import { progressOf } from '../../runs/progress/rollout-progress.ts';
import { RolloutJournal } from '../../runs/rollouts/rollout-journal.ts';
import { type RunPlace, storeOf } from '../../runs/run-access.ts';
import { describeList, describeRollout } from '../../cli/describe/rollouts-in-play.ts';
import { onOneLine } from '../../core/steering.ts';

const lineage = firstLineage;
const round = { step: 3, first: 1, last: 400 };
const chunk = 'chunk_1_of_1';
const prefix = `${layout.round(lineage, round.step, round.first, round.last)}${chunk}`;
const of = { lineage, ...round, chunk };
const signal = new AbortController().signal;
const lease = { environment: 'repair', exampleId: 7, version: 2 };

function turnAt(turn: number, { text = '', tool = 'shell' } = {}): Turn {
  const ids = (count: number): number[] => Array.from({ length: count }, (_, i) => i);
  return {
    promptTokenIds: ids(100 + 30 * turn),
    tokenIds: ids(10),
    logprobs: null,
    text,
    toolCalls: [{ name: tool, arguments: '{"command":"ls"}' }],
    finishReason: 'stop',
    call: { id: `0123456789abcdef-${turn}`, after: turn === 0 ? null : `0123456789abcdef-${turn - 1}` },
    policyStep: 2,
  };
}

const row = (group: number, turn: number, more: Partial<RecordedTurn> = {}): RecordedTurn => ({
  group,
  index: 0,
  turn,
  seconds: turn / 10,
  ...turnAt(turn),
  ...more,
});

async function newRun(t: TestContext): Promise<RunPlace> {
  return { name: 'run', store: `file:${await temporaryFolder(t)}` };
}

const inPlayAt = (group: number, index: number, environment = lease.environment) => ({
  ...lease,
  environment,
  group,
  index,
  versionEnd: 2,
  tries: 1,
  begunAtMs: 1_000_000 - (16 - group) * 1000 - index,
  turns: 200,
  promptTokens: 1_000_000,
  tokens: 20_000,
  toolCalls: 199,
  earlier: 0,
  recalled: '',
  newest: { part: 99_999, row: 3 },
});

function openJournal(place: RunPlace): Promise<RolloutJournal> {
  return RolloutJournal.open(storeOf(place), `${prefix}/`, 'leases', { notes: `${prefix}/notes_`, signal });
}

function follow(place: RunPlace, journal: RolloutJournal, groups: readonly number[]): ChunkProgress {
  const places = groups.map((group) => ({ group, index: 0 }));
  return new ChunkProgress({ store: storeOf(place), chunk: of, attempt: 2, journal, places });
}

/** Each turn is stored when the next one is asked for, as calls of programs are. */
async function play(
  journal: RolloutJournal,
  progress: ChunkProgress,
  group: number,
  turns: readonly RecordedTurn[],
): Promise<void> {
  for (const recorded of turns) {
    progress.turn({ group, index: 0 }, recorded, null);
    journal.addTurn(recorded);
    await journal.settle(signal);
  }
}

describe('a rollout in play', () => {
  test('is written down again after a while without news', async (t) => {
    const place = await newRun(t);
    const progress = follow(place, await openJournal(place), [1]);
    const now = performance.now.bind(performance);
    let passedMs = 0;
    t.mock.method(performance, 'now', () => now() + passedMs);
    progress.begin({ group: 1, index: 0 }, { ...lease, earlier: 0, budget: undefined });
    await progress.write();
    const store = storeOf(place);
    await store.removeAll(layout.allInPlay(lineage));
    await progress.write();
    assert.deepEqual(await store.list(layout.allInPlay(lineage)), []);
    passedMs = 31_000;
    await progress.write();
    assert.equal((await store.list(layout.allInPlay(lineage))).length, 1);
    await progress.stop();
  });

  test('whose worker has ended was left, and one whose worker is overdue on another host may have been', async (t) => {
    const place = await newRun(t);
    const store = storeOf(place);
    const say = async (first: number, worker: string, nextByMs?: number): Promise<void> => {
      const rollouts = [inPlayAt(first, 0)];
      const at = layout.inPlay({ lineage, step: 3, first, last: first, chunk }, { beganAtMs: 1, name: 'one' });
      const said = { worker, attempt: 1, writtenAtMs: 1_000_000, ordinals: '', rollouts, waiting: 0, ended: 0 };
      await store.put(at, encodeStored(at, { ...said, ...present({ nextByMs }) }));
    };
    await say(1, earlierWorker()); // an earlier process of this number
    await say(2, 'elsewhere:7:1', Date.now() - 31_000);
    await say(3, 'elsewhere:8:1', Date.now() - 20_000); // within what clocks differ
    await say(4, thisWorker(), Date.now() + 1_000); // its newest turn is as old as that of the others
    const list = await listInPlay(place, { limit: 5 });
    assert.deepEqual(
      list.rollouts.map(({ group, standing }) => [group, standing]),
      [[2, 'silent'], [3, 'in play'], [4, 'in play'], [1, 'left']], // prettier-ignore
    );
    assert.deepEqual([list.inPlay, list.silent, list.left, list.workers, list.turns], [3, 1, 1, 3, 600]);
    const said = describeList('run', list, 1_300_000);
    assert.match(said[0]!, /^run: 3 in play \(repair 3\) on 3 workers; 1 of them on a worker that is overdue: it hangs, or has ended; 1 left by a worker that has ended: the next attempt goes on with them; /); // prettier-ignore
    assert.match(
      said.find((line) => line.startsWith('2/0'))!,
      /5 min ago, overdue/,
    );
    assert.match(
      said.find((line) => line.startsWith('1/0'))!,
      /5 min ago, has ended/,
    );
    const [left, silent] = [await progressOf(place, { group: 1, index: 0 }), await progressOf(place, { group: 2, index: 0 })]; // prettier-ignore
    assert.deepEqual([left.state, silent.state], ['left', 'silent']);
    assert.match(describeRollout('run', left, 1_300_000)[1]!, /^state {9}left by .*, attempt 1, which has ended: the next attempt goes on with it$/); // prettier-ignore
    assert.match(describeRollout('run', silent, 1_300_000)[1]!, /in play for .* on elsewhere:7, attempt 1 \(heard of 5 min ago, overdue\)$/); // prettier-ignore
  });

  test('of an attempt that was taken over does not stand in place of that of the newer one', async (t) => {
    const place = await newRun(t);
    const store = storeOf(place);
    const objects = (): Promise<string[]> => store.list(layout.allInPlay(lineage));
    const begun = { ...lease, earlier: 0, budget: undefined };
    const clock = t.mock.method(Date, 'now', () => 1_000);
    const older = follow(place, await openJournal(place), [1]);
    older.begin({ group: 1, index: 0 }, begun);
    await older.write();
    clock.mock.mockImplementation(() => 2_000);
    const journal = await openJournal(place);
    const newer = follow(place, journal, [1]);
    newer.begin({ group: 1, index: 0 }, begun);
    newer.turn({ group: 1, index: 0 }, row(1, 0), null);
    await newer.write();
    assert.equal((await objects()).length, 1, 'what an earlier attempt left is removed');
    older.sandbox({ group: 1, index: 0 }, { provider: 'namespace', name: 'old', sinceMs: 0, deadlineAtMs: 0 });
    await older.write(); // it has not noticed yet
    const { rollouts } = await listInPlay(place, { limit: 5 });
    assert.deepEqual(rollouts.map(({ turns, sandbox }) => [turns, sandbox]), [[1, undefined]]); // prettier-ignore
    await older.stop();
    assert.equal((await listInPlay(place, { limit: 5 })).rollouts[0]?.turns, 1);
    await newer.stop();
    assert.deepEqual(await objects(), []);
  });

  test('is read turn by turn, from the objects that have its turns alone', async (t) => {
    const place = await newRun(t);
    const journal = await openJournal(place);
    const progress = follow(place, journal, [1, 2, 3]);
    for (const group of [1, 2]) progress.begin({ group, index: 0 }, { ...lease, earlier: 0, budget: undefined });
    for (let turn = 0; turn < 12; turn++) {
      await play(journal, progress, 1, [row(1, turn)]);
      await play(journal, progress, 2, [row(2, turn)]);
    }
    await progress.write();
    const store = storeOf(place);
    const parts = (await store.list(`${prefix}/turns_`)).toSorted((a, b) => a.length - b.length || (a < b ? -1 : 1));
    assert.equal(parts.length, 24);
    for (const part of parts.filter((_, i) => i % 2 === 1)) await store.removeAll(part); // those of group 2

    const told = await progressOf(place, { group: 1, index: 0 });
    assert.equal(told.state, 'in play');
    assert.deepEqual(
      told.turns.map(({ number, promptTokens, tokens, seconds, from }) => [
        number,
        promptTokens,
        tokens,
        seconds,
        from,
      ]),
      Array.from({ length: 12 }, (_, i) => [i + 1, 100 + 30 * i, 10, i / 10, 'sampled']),
    );
    assert.deepEqual(told.turns[1]!.tools, [{ name: 'shell', arguments: '{"command":"ls"}' }]);
    assert.equal(told.turns[1]!.call!.after, told.turns[0]!.call!.id);
    assert.deepEqual([told.turnsOf, told.played!.attempt, told.step, told.exampleId], [12, 2, 3, 7]);
    await assert.rejects(progressOf(place, { group: 3, index: 0 }), /RunNotFound.*has not begun, or it has ended/);
    await progress.stop();
    assert.deepEqual(await store.list(layout.allInPlay(lineage)), []);
  });

  test('says which turns an earlier attempt sampled, and which of them came again', async (t) => {
    const place = await newRun(t);
    const first = await openJournal(place);
    await play(first, follow(place, first, [1]), 1, [row(1, 0), row(1, 1), row(1, 2)]);

    const journal = await openJournal(place);
    const earlier = journal.turnsOf({ group: 1, index: 0 });
    const progress = follow(place, journal, [1]);
    progress.begin({ group: 1, index: 0 }, { ...lease, earlier: earlier.length, budget: undefined });
    for (const [i, turn] of earlier.slice(0, 2).entries())
      progress.turn({ group: 1, index: 0 }, turn, { at: i, isKept: i === 0 });
    await play(journal, progress, 1, [row(1, 3)]);
    await progress.write();
    const { turns } = await progressOf(place, { group: 1, index: 0 });
    assert.deepEqual(turns.map(({ from }) => from), ['snapshot', 'store', 'earlier', 'sampled']); // prettier-ignore
    const { rollouts } = await listInPlay(place, { limit: 5 });
    assert.deepEqual([rollouts[0]!.turns, rollouts[0]!.fromStore, rollouts[0]!.earlier], [3, 2, 3]);
  });

  test('whose turns follow one another shows a turn that was sampled again once', async (t) => {
    const place = await newRun(t);
    const journal = await openJournal(place);
    const progress = follow(place, journal, [1]);
    progress.begin({ group: 1, index: 0 }, { ...lease, earlier: 0, budget: undefined });
    const plain = (turn: number, seconds: number): RecordedTurn => {
      const { call: _, ...recorded } = row(1, turn, { seconds });
      return recorded;
    };
    await play(journal, progress, 1, [plain(0, 1), plain(1, 2), plain(2, 3), plain(1, 4)]);
    await progress.write();
    const { turns } = await progressOf(place, { group: 1, index: 0 });
    assert.deepEqual(turns.map(({ number, seconds }) => [number, seconds]), [[1, 1], [2, 4]]); // prettier-ignore
  });

  test('has its effects by outcome, its sandbox, and its budget', async (t) => {
    const place = await newRun(t);
    const at = { group: 1, index: 0 };
    const note = (kind: string, name: string) => ({ kind, name, arguments: '', digest: '', by: name });
    const first = (await openJournal(place)).notes.of(at);
    await first.put(effectNotes.begun, 'a', note('keyed', 'book'));
    await first.put(effectNotes.settled, 'a', { answer: 1 });
    await first.put(effectNotes.begun, 'b', note('once', 'send'));

    const journal = await openJournal(place);
    const notes = journal.notes.of(at);
    await notes.put(effectNotes.begun, 'c', note('idempotent', 'look'));
    await journal.notes.of({ group: 2, index: 0 }).put(effectNotes.begun, 'z', note('once', 'of another'));
    const progress = follow(place, journal, [1, 2]);
    const budget = new RolloutBudget({ ...unlimited, tokens: 1000, toolCalls: 9 }, { shared: [], prices: noPrices });
    budget.adopt({ promptTokens: 300, completionTokens: 12, toolCalls: 2 });
    progress.begin(at, { ...lease, earlier: 0, budget });
    progress.sandbox(at, { provider: 'namespace', name: 'ratchet-1', sinceMs: 1_000, deadlineAtMs: 99_000 });
    await progress.write();

    const told = await progressOf(place, at);
    assert.deepEqual(
      told.effects.map(({ kind, name, outcome }) => [kind, name, outcome]),
      [['keyed', 'book', 'done'], ['once', 'send', 'in doubt'], ['idempotent', 'look', 'open']], // prettier-ignore
    );
    assert.deepEqual(told.sandbox, { provider: 'namespace', name: 'ratchet-1', sinceMs: 1_000, deadlineAtMs: 99_000, seconds: null }); // prettier-ignore
    assert.deepEqual(told.budget, { used: { tokens: 312, money: 0, sandboxS: 0, toolCalls: 2 }, limits: { tokens: 1000, toolCalls: 9 } }); // prettier-ignore
    const said = describeRollout('run', told, 61_000).join('\n');
    assert.match(said, /sandbox {7}namespace ratchet-1, for 60 s, ends at 1970-01-01T00:01:39/);
    assert.match(said, /budget {8}312 tokens of 1,000 · 2 tool calls of 9/);
    assert.match(said, /effect {8}in doubt: send \(once\)/);
  });
});

describe('a run with thousands of rollouts in play', () => {
  test('is listed from one object for each chunk, and a page of it is small', async (t) => {
    const place = await newRun(t);
    const store = storeOf(place);
    for (let n = 0; n < 16; n++) {
      const of = { step: 3, first: n * 16 + 1, last: n * 16 + 16 };
      const rollouts = Array.from({ length: 256 }, (_, i) => ({
        ...inPlayAt(of.first + Math.floor(i / 16), i % 16, n < 4 ? 'browse' : 'repair'),
        begunAtMs: 1_000_000 - n * 1000 - i,
      }));
      const at = layout.inPlay({ lineage, ...of, chunk }, { beganAtMs: 1, name: 'one' });
      const said = { worker: `host:${n % 2}:7`, attempt: 1, writtenAtMs: 1_000_000, ordinals: '', rollouts, waiting: 1, ended: 2 }; // prettier-ignore
      await store.put(at, encodeStored(at, said));
    }
    const list = await listInPlay(place, { environment: 'browse', limit: 50 });
    assert.deepEqual([list.inPlay, list.matches, list.rollouts.length], [4096, 1024, 50]);
    assert.deepEqual(list.byEnvironment, { browse: 1024, repair: 3072 });
    assert.deepEqual([list.turns, list.waiting, list.ended, list.workers], [819_200, 16, 32, 2]);
    assert.ok(JSON.stringify(list).length < 32_000);
    assert.deepEqual([list.rollouts[0]!.group, list.rollouts[0]!.index], [64, 15], 'in play for the longest first');
    const said = describeList('run', list, 1_060_000);
    assert.match(said[0]!, /^run: 4096 in play \(browse 1024 · repair 3072\) on 2 workers; 32 ended, 16 not begun; 819200 turns/); // prettier-ignore
    assert.ok(
      said.some((line) => /^64\/15 .* v2 .* 63 s /.test(line)),
      said.join('\n'),
    );
    assert.ok(said.includes('974 more: --limit, --env'));
  });

  test('with none in play says so', async (t) => {
    const place = await newRun(t);
    const list = await listInPlay(place, { limit: 5 });
    assert.match(describeList('run', list, 0).join(), /no rollout is in play/);
  });
});

test('a rollout that has ended shows the same from what is stored of it', async (t) => {
  const place = await newRun(t);
  const store = storeOf(place);
  const { call: _, ...other } = turnAt(0);
  const group: ScoredGroup = {
    ordinal: 5,
    environment: 'repair',
    exampleId: 7,
    epoch: 0,
    policyStep: 2,
    rollouts: [
      {
        group: 5,
        index: 1,
        exampleId: 7,
        turns: [turnAt(0, { tool: 'a\u001b[2Jb' }), turnAt(1), turnAt(2)],
        outcome: 'ok',
        reward: 0.5,
        metrics: {},
        effects: { once_settled: 2 },
        program: {
          exitCode: 0,
          seconds: 9,
          setupS: 1,
          stdout: '',
          stderr: '',
          calls: { sampled: 1, recalled: 1, kept: 1, others: 0 },
          turns: { seconds: [0.001, 0.002, 1.5], recalled: '0-1' },
          sandbox: { provider: 'namespace', name: 'ratchet-9', seconds: 11 },
          used: { tokens: 400 },
        },
      },
      { group: 5, index: 0, exampleId: 7, turns: [other], outcome: 'ok', reward: 1, metrics: {} },
    ],
  };
  const scored = layout.scored(lineage, round, `${chunk}_from_5`);
  await store.put(scored, encodeStoredRows(scored, [group]));
  const told = await progressOf(place, { group: 5, index: 1 });
  assert.deepEqual([told.state, told.result!.reward, told.turnsOf], ['ended', 0.5, 3]);
  assert.deepEqual(told.turns.map(({ from, seconds, promptTokens }) => [from, seconds, promptTokens]), [['snapshot', 0.001, 100], ['store', 0.002, 130], ['sampled', 1.5, 160]]); // prettier-ignore
  assert.deepEqual([told.sandbox!.name, told.sandbox!.seconds, told.budget!.used.tokens], ['ratchet-9', 11, 400]);
  const said = describeRollout('run', told, 0).map(onOneLine).join('\n');
  assert.match(said, /effects {7}once 2 settled/);
  assert.ok(!said.includes('\u001b'), 'no control character of a program reaches a terminal');
  assert.match(said, /1 {5}012345-0 {2}–/);
  const plain = await progressOf(place, { group: 5, index: 0 });
  assert.deepEqual(plain.turns.map(({ call, seconds, from }) => [call, seconds, from]), [[null, null, 'sampled']]); // prettier-ignore
  await assert.rejects(progressOf(place, { group: 6, index: 0 }), /RunNotFound: Rollout 6\/0 is neither in play nor scored/); // prettier-ignore
});
