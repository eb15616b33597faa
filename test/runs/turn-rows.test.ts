import assert from 'node:assert/strict';
import { test, type TestContext } from 'node:test';
import type { RecordedTurn } from '../../core/rl/rollout/rollout.ts';
import { RolloutJournal } from '../../runs/rollouts/rollout-journal.ts';
import { TurnRows } from '../../runs/rollouts/turn-rows.ts';
import { FileStore } from '../../store/file-store.ts';
import type { Store } from '../../store/index.ts';
import { temporaryFolder } from '../../backends/testing/material.ts';
import { until } from '../eventually.ts';

const prefix = 'rollouts/step_1/groups_1-2/chunk_1_of_1/';
const place = { group: 1, index: 0 };
const call = { id: 'c' };

/** Turn of a conversation that has 1,000 ids at its start, 20 that are heard and 10 that are said in each turn. */
function turnAt(turn: number, seed = 0): RecordedTurn {
  const ids = (count: number, from: number): number[] => Array.from({ length: count }, (_, i) => from + i);
  const past = Array.from({ length: turn }, (_, i) => [...ids(10, said(i)), ...ids(20, heard(i))]).flat();
  return {
    ...place,
    turn,
    promptTokenIds: [...ids(1000, 7), ...past],
    tokenIds: ids(10, said(turn) + seed),
    logprobs: ids(10, 0).map(() => -1),
    text: '',
    finishReason: 'stop',
    policyStep: 0,
  };
}
const said = (turn: number): number => 10_000 + turn * 100;
const heard = (turn: number): number => 20_000 + turn * 100;

const recorded = ({ group: _group, index: _index, turn: _turn, ...turn }: RecordedTurn): unknown => turn;

async function opened(t: TestContext): Promise<{ store: Store; open: () => Promise<RolloutJournal> }> {
  const store = new FileStore(await temporaryFolder(t));
  return { store, open: () => RolloutJournal.open(store, prefix, 'leases') };
}

/** Numbers among the ids of all stored prompts and turns. */
async function storedIds(store: Store): Promise<number> {
  let count = 0;
  for (const key of await store.list(prefix)) {
    const rows = Buffer.from((await store.read(key))!)
      .toString()
      .trim()
      .split('\n');
    for (const row of rows.map((line) => JSON.parse(line) as StoredRow))
      count += (row.promptTokenIds ?? row.prompt!.rest).length + row.tokenIds.length;
  }
  return count;
}
interface StoredRow {
  readonly promptTokenIds?: readonly number[];
  readonly prompt?: { readonly rest: readonly number[] };
  readonly tokenIds: readonly number[];
}

test('a conversation whose turns are stored one by one has each token once, whoever goes on with it', async (t) => {
  const { store, open } = await opened(t);
  let journal = await open();
  for (let turn = 0; turn < 50; turn++) {
    journal.addTurn(turnAt(turn));
    if (turn % 3 === 1) continue; // stored with the next one
    await journal.flush();
    if (turn % 7 === 3) journal = await open(); // another worker
  }
  await journal.flush();
  assert.equal(await storedIds(store), 1000 + 50 * 10 + 49 * 20);
  const turns = Array.from({ length: 50 }, (_, i) => recorded(turnAt(i)));
  assert.deepEqual((await open()).turnsOf(place), turns);
});

test('attempts that overlap write what each of them has, and a reader has the prompts of both', async (t) => {
  const { open } = await opened(t);
  const [slow, next] = [await open(), await open()];
  const calls = (turn: RecordedTurn): RecordedTurn => ({ ...turn, call }) as RecordedTurn;
  // They sample other ids for the same turn, so what follows differs as well.
  slow.addTurn(calls(turnAt(0, 1)));
  await slow.flush();
  next.addTurn(calls(turnAt(0)));
  await next.flush();
  const following = (before: RecordedTurn): RecordedTurn => ({
    ...turnAt(1),
    promptTokenIds: [...before.promptTokenIds, ...before.tokenIds, 5, 6],
  });
  for (const [journal, seed] of [[slow, 1] as const, [next, 0] as const]) {
    journal.addTurn(calls(following(turnAt(0, seed))));
    await journal.flush();
  }
  const read = (await open()).turnsOf(place);
  const expected = [turnAt(0, 1), turnAt(0), following(turnAt(0, 1)), following(turnAt(0))].map(calls);
  assert.deepEqual(read, expected.map(recorded));
});

test('turns of another rollout that say the same are not referred to', async (t) => {
  const { store, open } = await opened(t);
  const journal = await open();
  journal.addTurn(turnAt(0));
  journal.addTurn({ ...turnAt(0), index: 1 });
  await journal.flush();
  assert.equal(await storedIds(store), 2 * 1010);
});

test('a write that fails refers to nothing that was not stored', async (t) => {
  const folder = await temporaryFolder(t);
  let fails = true;
  class FailingStore extends FileStore {
    override async putIfAbsent(...given: Parameters<Store['putIfAbsent']>): ReturnType<Store['putIfAbsent']> {
      if (fails) throw new Error('no store at the moment');
      return super.putIfAbsent(...given);
    }
  }
  const failing = new FailingStore(folder);
  const journal = await RolloutJournal.open(failing, prefix, 'leases');
  journal.addTurn(turnAt(0));
  await assert.rejects(journal.flush(), /no store/);
  fails = false;
  journal.addTurn(turnAt(1));
  await journal.flush();
  const read = await RolloutJournal.open(new FileStore(folder), prefix, 'leases');
  assert.deepEqual(read.turnsOf(place), [turnAt(0), turnAt(1)].map(recorded));
});

test('an object that is gone is damage: the row that needs it is named', async (t) => {
  const { store, open } = await opened(t);
  const journal = await open();
  for (const turn of [0, 1]) {
    journal.addTurn(turnAt(turn));
    await journal.flush();
  }
  await store.removeAll(`${prefix}turns_1.jsonl`);
  await assert.rejects(
    open(),
    /turns_2\.jsonl, line 1: expected a prompt that begins as the turn in line 1 of turns_1/,
  );
});

test('rows that are dropped while they wait for their write leave no object', async (t) => {
  const files = new FileStore(await temporaryFolder(t));
  const writes: (() => void)[] = [];
  const slow = new (class extends FileStore {
    override async putIfAbsent(key: string, bytes: Uint8Array) {
      await new Promise<void>((resolve) => writes.push(resolve));
      return files.putIfAbsent(key, bytes);
    }
  })(await temporaryFolder(t));
  const rows = await TurnRows.open(slow, `${prefix}turns_`, []);
  rows.fresh = [turnAt(0)];
  const first = rows.flush();
  await until('its write', () => writes.length === 1, { everyMs: 1 });
  rows.fresh = [turnAt(1)];
  const second = rows.flush();
  rows.fresh = [];
  writes[0]!();
  await Promise.all([first, second]);
  assert.deepEqual([writes.length, (await files.list(prefix)).length, rows.unstored], [1, 1, []]);
});
