/** Tools of verifiers environments with an effect: Python decorates them, the notes are kept here. */
import assert from 'node:assert/strict';
import { existsSync, readFileSync } from 'node:fs';
import path from 'node:path';
import { describe, test, type TestContext } from 'node:test';
import type { Rollout, Turn } from '../../core/rl/rollout/rollout.ts';
import { temporaryFolder } from '../../backends/testing/material.ts';
import { groupScores, verifiersEnvironment } from '../../backends/environments/verifiers/environment.ts';
import { openInputs } from '../../backends/environments/verifiers/inputs.ts';
import { Suspects } from '../../backends/environments/verifiers/suspects.ts';
import type { Environment } from '../../backends/environments/types.ts';
import { playRollout } from '../../play/play-rollout.ts';
import type { PlayedPolicy } from '../../play/policy/sample-policy.ts';
import { NotesLog } from '../../runs/rollouts/notes.ts';
import type { Store } from '../../store/index.ts';
import { installPython } from '../python-here.ts';
import { memoryStore } from '../stand-ins/memory-store.ts';
import { bridgesOf, loaded } from './python-bridge.ts';

const installed = await installPython('verifiers-v0-requirements.txt');
const { open, shared } = bridgesOf(installed);
const place = { group: 0, index: 0, exampleId: 0 };

type Called = readonly [tool: string, word: string];

describe('a tool of a verifiers environment with an effect', { skip: installed.why }, () => {
  test('is called once each, and its calls are counted', async (t) => {
    const { rollout, calls } = await playWith(t, [['once', 'a'], ['keyed', 'b'], ['idempotent', 'a'], ['once', 'a']]); // prettier-ignore
    assert.equal(rollout.outcome, 'ok', rollout.error);
    assert.deepEqual(calls.map(([kind, word]) => [kind, word]), [['once', 'a'], ['keyed', 'b'], ['idempotent', 'a'], ['once', 'a']]); // prettier-ignore
    assert.deepEqual(rollout.effects, { once_settled: 2, keyed_settled: 1, idempotent_settled: 1 });
    assert.equal(new Set(calls.map(([, , key]) => key)).size, 4);
    assert.deepEqual(answersIn(rollout), ['done 0', 'done 1', 'done 2', 'done 3']);
  });

  test('ends its rollout in doubt when the process dies in a once-only call', async (t) => {
    const { rollout, calls } = await playWith(
      t,
      [
        ['keyed', 'b'],
        ['once', 'deadly'],
      ],
      'deadly',
    );
    assert.equal(rollout.outcome, 'in_doubt', rollout.error);
    assert.match(rollout.error!, /once \{"word": "deadly"\}/);
    assert.deepEqual(calls.map(([kind]) => kind), ['keyed', 'once']); // prettier-ignore
  });

  test('is called again with its key when the process dies in a keyed one; what was settled is not', async (t) => {
    const { rollout, calls } = await playWith(
      t,
      [
        ['once', 'a'],
        ['keyed', 'deadly'],
        ['once', 'c'],
      ],
      'deadly',
    );
    assert.equal(rollout.outcome, 'ok', rollout.error);
    assert.deepEqual(calls.map(([kind, word]) => `${kind} ${word}`), ['once a', 'keyed deadly', 'keyed deadly', 'once c']); // prettier-ignore
    assert.equal(calls[1]![2], calls[2]![2]);
    assert.deepEqual(rollout.effects, { once_settled: 2, keyed_settled: 1, keyed_again: 1 });
  });

  test('settles a failure that it is sure of; any other leaves a once-only call in doubt', async (t) => {
    const sure = await playWith(t, [['once', 'fails']]);
    assert.deepEqual([sure.rollout.outcome, sure.rollout.effects], ['ok', { once_settled: 1 }]);
    assert.match(answersIn(sure.rollout)[0]!, /it cannot be done/);
    const unsure = await playWith(t, [['once', 'breaks']]);
    assert.equal(unsure.rollout.outcome, 'in_doubt');
    assert.equal(unsure.calls.length, 1);
  });
});

describe('a verifiers environment that says its state', { skip: installed.why }, () => {
  for (const kind of ['counting', 'boxed']) {
    test(`goes on from its last turn, and ends as one that was not disturbed (${kind})`, async (t) => {
      const whole = await disturbed(t, kind, Infinity);
      assert.deepEqual([whole.rollout.outcome, whole.replies.length], ['ok', 5], whole.rollout.error);
      for (const dies of [1, 3, 4]) {
        const { rollout, replies, sampled } = await disturbed(t, kind, dies);
        assert.equal(rollout.outcome, 'ok', rollout.error);
        assert.deepEqual(replies, whole.replies, `death before turn ${dies}`);
        assert.equal(sampled, 5);
        const told = ({ record, turns, judged }: Rollout): unknown => [record!['completion'], turns.map(({ heard }) => heard), judged]; // prettier-ignore
        assert.deepEqual(told(rollout), told(whole.rollout));
        assert.deepEqual(scoringState(rollout), scoringState(whole.rollout));
      }
    });
  }

  test('one with something live in its rollouts begins anew, and says why', async (t) => {
    const bridge = await shared();
    const replies = path.join(await temporaryFolder(t), 'replies');
    const { about } = await loaded(bridge, 'toy_state', { replies, kind: 'live' });
    assert.equal(about.says_state, false);
    assert.match(about.says_state_why!, /cleans up after its rollouts \(close_it\)/);
    assert.equal((await loaded(bridge, 'toy_state', { replies, kind: 'counting' })).about.says_state, true);
    assert.equal((await loaded(bridge, 'toy_single')).about.says_state, false);
  });
});

/** A rollout whose first attempt is broken off before it samples this turn, counted from 0. */
async function disturbed(
  t: TestContext,
  kind: string,
  dies: number,
): Promise<{ rollout: Rollout; replies: string[]; sampled: number }> {
  const file = path.join(await temporaryFolder(t), 'replies');
  const environment = await environmentOf(t, 'toy_state', { replies: file, kind });
  const store = memoryStore(new Map());
  const recorded: Turn[] = [];
  let sampled = 0;
  const attempt = async (diesAt: number): Promise<Rollout> => {
    const turns: Turn[] = [];
    const cut = new AbortController();
    const sample = (): Promise<Turn> => {
      const position = turns.length;
      if (recorded[position] === undefined && position >= diesAt) {
        cut.abort(new Error('cut off'));
        return Promise.reject(new Error('cut off'));
      }
      if (recorded[position] === undefined) sampled += 1;
      const turn = (recorded[position] ??= turnOf(`turn ${position} ...`));
      turns.push(turn);
      return Promise.resolve(turn);
    };
    return playOne(environment, { turns, failure: undefined, sample }, { store, signal: cut.signal });
  };
  if (dies < Infinity) await assert.rejects(attempt(dies), /cut off/);
  const rollout = await attempt(Infinity);
  return { rollout, replies: readFileSync(file, 'utf8').trim().split('\n'), sampled };
}

/** What scoring reads, without what differs between two rollouts. */
function scoringState({ record }: Rollout): unknown {
  const { flags, ...kept } = JSON.parse(record!['scoring_state'] as string) as Record<
    string,
    { trajectory_id?: string }
  >;
  const { steps, judged } = kept as { steps?: { response: unknown[] }[]; judged?: { reward: number; metrics: object } };
  if (judged !== undefined) return [judged.reward, judged.metrics];
  for (const { response } of steps!) response[1] = 0; // when it came
  return [{ ...flags, trajectory_id: '' }, kept];
}

async function playWith(
  t: TestContext,
  calls: readonly Called[],
  diesIn = '',
): Promise<{ rollout: Rollout; calls: string[][] }> {
  const file = path.join(await temporaryFolder(t), 'calls');
  const environment = await environmentOf(t, 'toy_effects', { calls: file, dies_in: diesIn });
  const rollout = await playOne(environment, () => policyOf(calls), { store: memoryStore(new Map()) });
  const made = existsSync(file) ? readFileSync(file, 'utf8').trim().split('\n') : [];
  return { rollout, calls: made.map((line) => line.split(' ')) };
}

async function environmentOf(t: TestContext, id: string, args: Record<string, string>): Promise<Environment> {
  // A call that kills the process has one of its own.
  const bridge = args['dies_in'] ? await open({ children: 1 }) : await shared();
  const { env, about } = await loaded(bridge, id, args);
  const inputs = await openInputs((await bridge.inputs({ env, split: 'train' })).file);
  t.after(() => inputs.close());
  return verifiersEnvironment('toy', {
    bridge,
    loaded: about,
    dataset: inputs,
    evalDataset: inputs,
    groups: groupScores(bridge, env),
    suspects: new Suspects(),
  });
}

async function playOne(
  environment: Environment,
  policy: PlayedPolicy | (() => PlayedPolicy),
  { store, signal = new AbortController().signal }: { readonly store: Store; readonly signal?: AbortSignal },
): Promise<Rollout> {
  const before = (): Promise<void> => Promise.resolve();
  const notes = await NotesLog.open(store, 'rollouts/chunk_0/notes_', { signal, before });
  return playRollout({
    environments: { open: () => Promise.resolve(environment), reopen: () => Promise.resolve(environment) },
    entry: { id: 'toy', args: {}, python: {} as never },
    dataset: 'dataset',
    place,
    together: { group: 'g', size: 1 },
    openPolicy: () => (typeof policy === 'function' ? policy() : policy),
    notes: notes.of(place),
    signal,
  });
}

/** One call a turn, then an answer. */
function policyOf(calls: readonly Called[]): PlayedPolicy {
  const turns: Turn[] = [];
  return {
    turns,
    failure: undefined,
    sample: (messages) => {
      const call = calls[messages.filter(({ role }) => role === 'assistant').length];
      const turn = {
        ...turnOf(call ? 'I call.' : 'Done.'),
        ...(call ? { toolCalls: [{ name: call[0], arguments: JSON.stringify({ word: call[1] }) }] } : {}),
      };
      turns.push(turn);
      return Promise.resolve(turn);
    },
  };
}

function turnOf(text: string): Turn {
  return { promptTokenIds: [1], tokenIds: [2], logprobs: [0], text, finishReason: 'stop', policyStep: 0 };
}

function answersIn({ turns }: Rollout): string[] {
  return turns.flatMap(({ heard = [] }) => heard.filter(({ role }) => role === 'tool').map(({ content }) => content));
}
