/** Calls of a program that owns its loop: stored before they return, found again by their prompt, by whoever plays the rollout next. */
import assert from 'node:assert/strict';
import { setTimeout as delay } from 'node:timers/promises';
import { test } from 'node:test';
import { temporaryFolder } from '../../backends/testing/material.ts';
import { RatchetError } from '../../core/errors.ts';
import type { ChatMessage, Turn } from '../../core/rl/rollout/rollout.ts';
import { chatPolicy } from '../../play/policy/chat-policy.ts';
import { recordTurn } from '../../play/training-players.ts';
import { RolloutJournal } from '../../runs/rollouts/rollout-journal.ts';
import { FileStore } from '../../store/file-store.ts';
import type { Store } from '../../store/index.ts';
import { until } from '../eventually.ts';
import { scriptedPolicy } from '../environments/agent/scripted-policy.ts';

const prefix = 'rollouts/step_1/groups_1-2/chunk_1_of_1/';
const place = { group: 1, index: 0, exampleId: 0 };
const never = new AbortController().signal;
const user = (content: string): ChatMessage => ({ role: 'user', content });

function openJournal(store: Store): Promise<RolloutJournal> {
  return RolloutJournal.open(store, prefix, 'leases');
}

/** A policy whose calls are stored in the journal, as in a run. */
function playing(journal: RolloutJournal, index = 0) {
  const of = { ...place, index };
  return scriptedPolicy({
    says: (prompt, { seed }) => `${/say (\w+)/.exec(prompt)?.[1] ?? 'nothing'} ${seed % 1000}`,
    recorded: journal.turnsOf(of),
    onTurn: (turn) => recordTurn(journal, { ...of, turn: 0, ...turn }, { onRecord: false, until: never }),
  });
}

const ask = (policy: ReturnType<typeof scriptedPolicy>, word: string): Promise<Turn> => {
  const heard = [user(`say ${word}`)];
  return policy.sample(heard, { call: { after: null, heard } });
};

test('a call returns when its turn is in the store; four writes are under way at once, and what comes meanwhile shares the next', async (t) => {
  const folder = await temporaryFolder(t);
  const files = new FileStore(folder);
  const writes: (() => void)[] = [];
  const slow = new (class extends FileStore {
    override async putIfAbsent(key: string, bytes: Uint8Array) {
      await new Promise<void>((resolve) => writes.push(resolve));
      return super.putIfAbsent(key, bytes);
    }
  })(folder);
  const journal = await openJournal(slow);
  const [policy, ...others] = Array.from({ length: 5 }, (_, index) => playing(journal, index));
  const returned: Turn[] = [];
  const calls: Promise<unknown>[] = [];
  const call = (word: string, of = policy!): void => void calls.push(ask(of, word).then((turn) => returned.push(turn)));
  for (const n of [1, 2, 3, 4]) {
    call(`n${n}`, others[n - 1]);
    await until('a write of its own', () => writes.length === n, { everyMs: 1 });
  }
  for (let i = 0; i < 40; i++) call(`w${i}`);
  await until('all samples', () => policy!.asked.length === 40, { everyMs: 1 });
  await delay(50);
  assert.deepEqual([returned.length, writes.length, (await files.list(prefix)).length], [0, 4, 0]);
  writes[0]!();
  await calls[0];
  await until('the write of all others', () => writes.length === 5, { everyMs: 1 });
  assert.equal(returned.length, 1);
  for (const write of writes.slice(1)) write();
  await Promise.all(calls);
  assert.deepEqual([returned.length, writes.length], [44, 5]);
  const again = await openJournal(files);
  const stored = others.map((_, index) => again.turnsOf({ ...place, index: index + 1 }).length);
  assert.deepEqual([again.turnsOf(place).length, stored], [40, [1, 1, 1, 1]]);
});

test('of two writes under way the one that fails is written again; that of a rollout waits for the one before it', async (t) => {
  const folder = await temporaryFolder(t);
  const ends: (() => void)[] = [];
  let count = 0;
  const moody = new (class extends FileStore {
    override async putIfAbsent(key: string, bytes: Uint8Array) {
      const isFirst = count++ === 0;
      if (count <= 2) await new Promise<void>((resolve) => ends.push(resolve));
      if (isFirst) throw new RatchetError('StoreUnavailable', 'the store is away');
      return super.putIfAbsent(key, bytes);
    }
  })(folder);
  const journal = await openJournal(moody);
  const [policy, other] = [playing(journal), playing(journal, 1)];
  const long = 'again '.repeat(50);
  const first = ask(policy, `${long} one`);
  await until('its write', () => ends.length === 1, { everyMs: 1 });
  const third = ask(policy, `${long} three`); // waits for the first
  const second = ask(other, `${long} two`);
  await until('a second write', () => ends.length === 2, { everyMs: 1 });
  for (const end of ends) end();
  const turns = await Promise.all([first, third, second]);
  const again = await openJournal(new FileStore(folder));
  const inOrder = (all: readonly Turn[]) => all.toSorted((a, b) => a.call!.id.localeCompare(b.call!.id));
  assert.deepEqual(
    inOrder([0, 1].flatMap((index) => again.turnsOf({ ...place, index }))).map(({ promptTokenIds }) => promptTokenIds),
    inOrder(turns).map(({ promptTokenIds }) => promptTokenIds),
  );
});

test('while the store is away a call waits, and is not answered without being stored', async (t) => {
  const folder = await temporaryFolder(t);
  let away = 2;
  const moody = new (class extends FileStore {
    override putIfAbsent(key: string, bytes: Uint8Array) {
      if (away-- > 0) return Promise.reject(new RatchetError('StoreUnavailable', 'the store is away'));
      return super.putIfAbsent(key, bytes);
    }
  })(folder);
  const policy = playing(await openJournal(moody));
  await ask(policy, 'one');
  assert.equal(away, -1);
  const again = await openJournal(new FileStore(folder));
  assert.equal(again.turnsOf(place).length, 1);
});

test('the next attempt, in another process, gets each finished turn once: nothing is sampled again', async (t) => {
  const store = new FileStore(await temporaryFolder(t));
  const words = ['one', 'two', 'one', 'three', 'one', 'two'];
  const first = playing(await openJournal(store));
  const before = await Promise.all(words.map((word) => ask(first, word)));
  assert.equal(new Set(before.map(({ call }) => call!.id)).size, words.length);
  assert.equal(new Set(before.map(({ text }) => text)).size, words.length, 'equal calls have seeds of their own');
  const second = playing(await openJournal(store));
  const after = await Promise.all(words.toReversed().map((word) => ask(second, word)));
  assert.equal(second.asked.length, 0);
  const texts = (turns: readonly Turn[]) => turns.map(({ text, tokenIds, logprobs }) => `${text} ${tokenIds.join()} ${logprobs!.join()}`).toSorted(); // prettier-ignore
  assert.deepEqual(texts(after), texts(before));
  // One more of a kind is new, and stored for the attempt after.
  const more = await ask(second, 'one');
  assert.equal(second.asked.length, 1);
  assert.ok(!before.some(({ call }) => call!.id === more.call!.id));
  assert.equal((await openJournal(store)).turnsOf(place).length, words.length + 1);
});

test('a turn that was not sampled again in the same version has the tokens that it would have had', async (t) => {
  const store = new FileStore(await temporaryFolder(t));
  const whole = playing(await openJournal(store));
  const order = ['one', 'two', 'one'];
  const undisturbed = await Promise.all(order.map((word) => ask(whole, word)));
  const other = new FileStore(await temporaryFolder(t));
  const dead = playing(await openJournal(other));
  await ask(dead, 'one');
  const resumed = playing(await openJournal(other));
  const after = [];
  for (const word of order.toReversed()) after.push(await ask(resumed, word));
  const said = (turns: readonly Turn[]) => turns.map(({ text }) => text).toSorted();
  assert.deepEqual(said(after), said(undisturbed));
});

test('what a call says continues from the tokens of the turn that it follows, among parallel ones too', async (t) => {
  const policy = playing(await openJournal(new FileStore(await temporaryFolder(t))));
  const [a, b] = await Promise.all([ask(policy, 'a'), ask(policy, 'b')]);
  const heard = [user('say more')];
  const next = await policy.sample([user('say a'), { role: 'assistant', content: a.text }, ...heard], {
    call: { after: a.call!.id, heard },
  });
  assert.deepEqual(next.promptTokenIds.slice(0, a.promptTokenIds.length + a.tokenIds.length), [...a.promptTokenIds, ...a.tokenIds]); // prettier-ignore
  assert.deepEqual(next.call!.after, a.call!.id);
  assert.notDeepEqual(b.tokenIds, a.tokenIds);
});

test('a call that two attempts answered at the same time is one turn for the next', async (t) => {
  const store = new FileStore(await temporaryFolder(t));
  const [one, other] = [playing(await openJournal(store)), playing(await openJournal(store))];
  await Promise.all([ask(one, 'one'), ask(other, 'one')]);
  const next = playing(await openJournal(store));
  assert.equal(next.earlier!.length, 1);
  const [first, second] = [await ask(next, 'one'), await ask(next, 'one')];
  assert.equal(next.asked.length, 1);
  assert.notEqual(first.call!.id, second.call!.id);
});

test('a call that ends because nobody waits for it is no failure of the policy', async () => {
  const says = (_: string, { signal }: { readonly signal?: AbortSignal | undefined }): Promise<string> =>
    new Promise((_resolve, reject) => signal!.addEventListener('abort', () => reject(signal!.reason as Error)));
  const token = scriptedPolicy({ says });
  const endpoint = {
    chat: ({ signal }: { readonly signal?: AbortSignal | undefined }) => says('', { signal }) as never,
  };
  const api = chatPolicy({ endpoint, fields: {} });
  const heard = [user('say one')];
  for (const policy of [token, api]) {
    const gone = new AbortController();
    const call = policy.sample(heard, { call: { after: null, heard, signal: gone.signal } });
    setTimeout(() => gone.abort(new Error('the address is closed')), 5);
    await assert.rejects(call);
    assert.equal(policy.failure, undefined);
  }
});
