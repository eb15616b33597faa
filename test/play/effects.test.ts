/** Calls with an effect happen as often as their kind allows, wherever the process that makes them dies. */
import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { setImmediate as soon } from 'node:timers/promises';
import { randomStream } from '../../core/random.ts';
import type { EffectKind } from '../../core/rl/rollout/effects.ts';
import type { Rollout, Turn } from '../../core/rl/rollout/rollout.ts';
import { effect, listDataset, rubric, tool, toolEnvironment, z } from '../../backends/environments/kit.ts';
import type { Environment } from '../../backends/environments/types.ts';
import { playRollout } from '../../play/play-rollout.ts';
import type { PlayedPolicy } from '../../play/policy/sample-policy.ts';
import { RolloutJournal } from '../../runs/rollouts/rollout-journal.ts';
import { memoryStore } from '../stand-ins/memory-store.ts';

const prefix = 'rollouts/step_1/groups_1-1/chunk_1_of_1/';
const place = { group: 1, index: 0, exampleId: 0 };
const turnsOfRollout = 4;
const callsOfTurn = 2;

describe('a rollout whose process dies at any moment', () => {
  for (const isDeterministic of [true, false]) {
    const which = isDeterministic ? 'whose tools answer alike' : 'that says its state';
    for (const kind of ['once', 'keyed', 'idempotent'] as const) {
      test(`makes its ${kind} calls as often as it may, in an environment ${which}`, async () => {
        const ends = { ok: 0, in_doubt: 0 };
        for (let at = 1; ; at++) {
          const world = new World(at * 7919, [kind], isDeterministic);
          const first = await world.attempt(at);
          const rollout = first ?? (await world.attempt(Infinity));
          world.check(rollout!, `death at ${at}`);
          if (first !== null) break; // it ended before
          ends[rollout!.outcome as 'ok']++;
        }
        assert.ok(ends.ok > 20, `${ends.ok} ended well`);
        // Between the note of a call and the note of its answer.
        if (kind === 'once') assert.ok(ends.in_doubt >= turnsOfRollout * callsOfTurn, `${ends.in_doubt} in doubt`);
        else assert.equal(ends.in_doubt, 0);
      });
    }
  }

  test('200 times over, at random: no once-only call is made twice', async () => {
    let kills = 0;
    let inDoubt = 0;
    for (let seed = 1; kills < 200; seed++) {
      const random = randomStream('kills', seed);
      const world = new World(seed, ['once', 'keyed', 'idempotent'], seed % 2 === 0);
      let rollout = null;
      while (rollout === null) {
        rollout = await world.attempt(1 + Math.floor(random() * 60));
        if (rollout === null) kills += 1;
      }
      world.check(rollout, `seed ${seed}`);
      if (rollout.outcome === 'in_doubt') inDoubt += 1;
    }
    assert.ok(inDoubt > 0);
  });
});

test('a once-only call that throws ends its rollout in doubt, and is not tried again', async () => {
  const world = new World(1, ['once'], true);
  world.throws = 2;
  const rollout = await world.attempt(Infinity);
  assert.equal(rollout?.outcome, 'in_doubt');
  assert.match(rollout.error!, /made only once was begun and has no answer.*: once0 /);
  assert.deepEqual(rollout.effects, { once_settled: 1, once_in_doubt: 1 });
  assert.ok([...world.made.values()].every(({ length }) => length === 1));
});

test('a keyed call that throws is tried again with its key', async () => {
  const world = new World(1, ['keyed'], true);
  world.throws = 2;
  const rollout = await world.attempt(Infinity);
  assert.equal(rollout?.outcome, 'ok');
  assert.equal(rollout.effects?.keyed_again, 1);
  const twice = [...world.made.values()].filter(({ length }) => length === 2);
  assert.equal(twice.length, 1);
  assert.equal(new Set(twice[0]).size, 1);
});

test('an earlier attempt that was only cut off makes no call once another one has begun, and its rollout counts for nothing', async () => {
  const world = new World(3, ['once'], true);
  let release = (): void => undefined;
  world.holds = new Promise((resolve) => (release = resolve));
  const zombie = world.play(() => Promise.resolve());
  while (world.made.size === 0) await soon(); // its first call is under way
  const next = world.attempt(Infinity);
  const rollout = await next;
  assert.equal(rollout?.outcome, 'in_doubt');
  release();
  await assert.rejects(zombie, { code: 'RolloutTakenOver' });
  assert.equal(world.made.size, 1);
});

/** What is outside of a rollout, and survives it: the store, and who is called. */
class World {
  readonly objects = new Map<string, Uint8Array>();
  /** Keys with which each call was made, by the word that it was made with; the word is new in each sampled turn. */
  readonly made = new Map<string, string[]>();
  /** Number of the call that throws, having happened. */
  throws = 0;
  /** Awaited in each call. */
  holds: Promise<void> = Promise.resolve();
  readonly #random: () => number;
  readonly #kinds: readonly EffectKind[];
  readonly #isDeterministic: boolean;
  #calls = 0;
  #words = 0;

  constructor(seed: number, kinds: readonly EffectKind[], isDeterministic: boolean) {
    this.#random = randomStream('world', seed);
    this.#kinds = kinds;
    this.#isDeterministic = isDeterministic;
  }

  /** One attempt, which dies at its n-th step: it never comes back from there. Null if it died. */
  async attempt(diesAt: number): Promise<Rollout | null> {
    let steps = 0;
    let die = (): void => undefined;
    const dead = new Promise<null>((resolve) => (die = () => resolve(null)));
    const pass = async (): Promise<void> => {
      steps += 1;
      if (steps >= diesAt) {
        die();
        await new Promise(() => undefined);
      }
      await soon();
    };
    return Promise.race([this.play(pass), dead]);
  }

  async play(pass: () => Promise<void>): Promise<Rollout> {
    const { signal } = new AbortController();
    const store = memoryStore(this.objects, pass);
    const journal = await RolloutJournal.open(store, prefix, 'leases', { notes: `${prefix}notes_` });
    const environment = this.#environment(pass);
    const rollout = await playRollout({
      environments: { open: () => Promise.resolve(environment), reopen: () => Promise.resolve(environment) },
      entry: { id: 'effects', args: {} },
      dataset: 'dataset',
      place,
      together: { group: 'g', size: 1 },
      openPolicy: () => this.#policy(journal, pass),
      notes: journal.notes.of(place),
      recorded: () => journal.turnsOf(place),
      signal,
    });
    await pass();
    return rollout;
  }

  /** Every call was made as often as its kind allows, and those of a rewarded rollout are exactly those outside. */
  check(rollout: Rollout, where: string): void {
    const said = rollout.turns.flatMap(({ toolCalls = [] }) => toolCalls);
    for (const [word, keys] of this.made) {
      const kind = word.split(' ')[0]!;
      if (kind === 'once') assert.equal(keys.length, 1, `${where}: ${word} was made ${keys.length} times`);
      assert.equal(new Set(keys).size, 1, `${where}: ${word} was made with ${new Set(keys).size} keys`);
    }
    if (rollout.outcome === 'in_doubt') {
      assert.ok(this.#kinds.includes('once') && rollout.effects?.once_in_doubt === 1, where);
      return;
    }
    assert.equal(rollout.outcome, 'ok', `${where}: ${rollout.error}`);
    const words = said.map((call) => (JSON.parse(call.arguments) as { word: string }).word);
    assert.deepEqual([...this.made.keys()].toSorted(), words.toSorted(), where);
    const settled = Object.entries(rollout.effects ?? {}).filter(([name]) => name.endsWith('_settled'));
    assert.equal(settled.reduce((sum, [, count]) => sum + count, 0), words.length, where); // prettier-ignore
    assert.equal(words.length, turnsOfRollout * callsOfTurn, where);
  }

  #environment(pass: () => Promise<void>): Environment {
    const rows = Array.from({ length: 2 }, (_, i) => ({ prompt: `task ${i}`, answer: '' }));
    const tools = this.#kinds.map((kind) =>
      effect(
        tool({
          name: `${kind}0`,
          description: 'Changes something.',
          parameters: z.object({ word: z.string() }),
          run: async ({ word }, { idempotencyKey }) => {
            await pass();
            this.made.set(word, [...(this.made.get(word) ?? []), idempotencyKey!]);
            await this.holds;
            if ((this.#calls += 1) === this.throws) throw new Error('the connection was lost');
            await pass();
            return `done ${this.#random()}`; // another answer each time
          },
        }),
        { kind },
      ),
    );
    return toolEnvironment({
      name: 'effects',
      dataset: listDataset(rows.slice(0, 1)),
      evalDataset: listDataset(rows.slice(1)),
      rubric: rubric([{ name: 'always', weight: 1, score: () => 1 }]),
      tools,
      maxTurns: turnsOfRollout + 1,
      isDeterministic: this.#isDeterministic,
    });
  }

  /** A policy that says something new each time, except where its turn is recorded. */
  #policy(journal: RolloutJournal, pass: () => Promise<void>): PlayedPolicy {
    const turns: Turn[] = [];
    const recorded = journal.turnsOf(place);
    const sample = async (): Promise<Turn> => {
      await pass();
      const position = turns.length;
      const turn = recorded[position] ?? this.#turn(position);
      turns.push(turn);
      if (recorded[position] === undefined) journal.addTurn({ ...place, turn: position, ...turn });
      return turn;
    };
    return { turns, failure: undefined, sample };
  }

  #turn(position: number): Turn {
    const calls = Array.from({ length: position < turnsOfRollout ? callsOfTurn : 0 }, () => {
      const kind = this.#kinds[Math.floor(this.#random() * this.#kinds.length)]!;
      return { name: `${kind}0`, arguments: JSON.stringify({ word: `${kind} ${(this.#words += 1)}` }) };
    });
    return {
      promptTokenIds: [1],
      tokenIds: [2],
      logprobs: [0],
      text: `turn ${position} ${this.#random()}`,
      ...(calls.length > 0 ? { toolCalls: calls } : {}),
      finishReason: 'stop',
      policyStep: 0,
    };
  }
}
