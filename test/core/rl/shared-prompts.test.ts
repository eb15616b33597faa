import assert from 'node:assert/strict';
import { test } from 'node:test';
import { hash32 } from '../../../core/random.ts';
import type { Turn } from '../../../core/rl/rollout/rollout.ts';
import { sharePrompts, wholePrompts } from '../../../core/rl/rollout/shared-prompts.ts';
import { decodeStoredRow, decodeStoredRows, encodeStoredRows } from '../../../runs/forms/stored-forms.ts';

function turnOf(promptTokenIds: readonly number[], tokenIds: readonly number[]): Turn {
  const logprobs = tokenIds.map(() => -1);
  return { promptTokenIds, tokenIds, logprobs, text: '', finishReason: 'stop', policyStep: 0 };
}

const ids = (count: number, ...key: readonly (number | string)[]): number[] =>
  Array.from({ length: count }, (_, i) => hash32(...key, i) % 50_000);

/** A conversation of so many turns, each of which adds a tool's answer and what the policy says. */
function conversation(turns: number): Turn[] {
  const told: Turn[] = [];
  for (let i = 0; i < turns; i++) {
    const before = told.at(-1);
    const prompt = before ? [...before.promptTokenIds, ...before.tokenIds, ...ids(30, 'heard', i)] : ids(200, 'task');
    told.push(turnOf(prompt, ids(40, 'said', i)));
  }
  return told;
}

const storedIds = (turns: readonly Turn[]): number =>
  sharePrompts(turns).reduce((sum, { prompt, ...turn }) => {
    const own = prompt ? prompt.rest.length : (turn as Turn).promptTokenIds.length;
    return sum + own + turn.tokenIds.length;
  }, 0);

test('each token of a conversation is stored once', () => {
  const turns = conversation(50);
  assert.equal(storedIds(turns), 200 + 50 * 40 + 49 * 30);
  assert.deepEqual(wholePrompts(sharePrompts(turns)), turns);
});

test('branches of a conversation share what they have in common, whichever turn they continue', () => {
  const main = conversation(6);
  const [first, second] = [main[2]!, main[4]!];
  const side = turnOf([...first.promptTokenIds, ...first.tokenIds, ...ids(10, 'side')], ids(5, 'side said'));
  const compacted = turnOf([...ids(200, 'task'), ...ids(20, 'summary')], ids(5, 'goes on'));
  const cut = turnOf(second.promptTokenIds.slice(0, -3), ids(5, 'cut'));
  const turns = [...main, side, compacted, cut];
  assert.deepEqual(wholePrompts(sharePrompts(turns)), turns);
  assert.equal(storedIds(turns) - storedIds(main), 10 + 5 + (20 + 5) + 5);
});

test('prompts without anything in common, empty ones and turns of an API without ids stay as they are', () => {
  const turns = [turnOf(ids(20, 'a'), [1]), turnOf(ids(20, 'b'), [2]), turnOf([], []), turnOf([1, 2, 3], [])];
  assert.deepEqual(sharePrompts(turns), turns);
  assert.deepEqual(wholePrompts(turns), turns);
});

test('any turns come back as they were', () => {
  for (let seed = 0; seed < 200; seed++) {
    const turns: Turn[] = [];
    for (let i = 0; i < 12; i++) {
      const other = turns[hash32(seed, i, 'of') % (i + 1)];
      const common = other ? [...other.promptTokenIds, ...other.tokenIds] : [];
      const kept = common.slice(0, hash32(seed, i, 'kept') % (common.length + 1));
      const then = ids(hash32(seed, i, 'more') % 12, seed, i).map((id) => id % 3);
      turns.push(
        turnOf(
          [...kept, ...then],
          ids(hash32(seed, i, 'n') % 9, 's', seed, i).map((id) => id % 3),
        ),
      );
    }
    assert.deepEqual(wholePrompts(sharePrompts(turns)), turns, `seed ${seed}`);
  }
});

const key = 'rollouts/step_1/groups_0-0/chunk_0_of_1_from_0.scored.jsonl.gz';
const group = {
  ordinal: 0,
  environment: 'e',
  exampleId: 0,
  epoch: 0,
  policyStep: 0,
  rollouts: [{ group: 0, index: 0, exampleId: 0, outcome: 'ok', turns: conversation(8), reward: 1, metrics: {} }],
};

test('stored groups share prompts, and are read as they were', () => {
  const bytes = encodeStoredRows(key, [group]);
  assert.deepEqual(decodeStoredRows(bytes, key), [group]);
  assert.deepEqual(decodeStoredRow(bytes, key, 1), group);
  assert.ok(bytes.length < JSON.stringify(group).length / 2);
});

test('a row of the version before, with whole prompts, is read', () => {
  const row = Buffer.from(JSON.stringify({ schemaVersion: 3, ...group }));
  assert.deepEqual(decodeStoredRow(row, key, 1), group);
});

test('a shared prompt whose turn is missing is damage, and names the row', () => {
  const [first, ...others] = sharePrompts(group.rollouts[0]!.turns);
  const damaged = { ...group, rollouts: [{ ...group.rollouts[0], turns: others }] };
  assert.ok(first && others.length > 0);
  const row = Buffer.from(JSON.stringify({ schemaVersion: 4, ...damaged }));
  assert.throws(() => decodeStoredRows(row, key), /scored\.jsonl\.gz, line 1: expected turns whose prompts begin/);
});
