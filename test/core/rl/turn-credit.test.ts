/** Learning from rewards of single turns (`test/data/algorithms/record.py` has verl's returns). */
import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { describe, test } from 'node:test';
import { scoreRollout } from '../../../backends/environments/score.ts';
import { groupAdvantages } from '../../../core/rl/learning/advantage.ts';
import { Packer } from '../../../core/rl/learning/pack.ts';
import type { Example, ScoredGroup, ScoredRollout, Turn } from '../../../core/rl/rollout/rollout.ts';
import { settleRollout } from '../../../core/rl/rollout/settle-rollout.ts';
import { returns, turnAdvantages } from '../../../core/rl/learning/turn-credit.ts';
import { accept, only } from '../../config/read-run.ts';

const golden = JSON.parse(readFileSync(new URL('../../data/algorithms/golden.json', import.meta.url), 'utf8')) as {
  readonly returns: {
    readonly discount: number;
    readonly rewards: readonly (readonly number[])[];
    readonly returns: readonly (readonly number[])[];
  };
};

/** A conversation that only grows: turn k says k + 1 tokens. */
function turnsOf(count: number): Turn[] {
  const turns: Turn[] = [];
  let promptTokenIds = [1, 2];
  for (let k = 0; k < count; k++) {
    const tokenIds = Array.from({ length: k + 1 }, (_, i) => 10 * (k + 1) + i);
    const logprobs = tokenIds.map(() => -1);
    turns.push({ promptTokenIds, tokenIds, logprobs, text: '', finishReason: 'stop', policyStep: 0 });
    promptTokenIds = [...promptTokenIds, ...tokenIds, 3];
  }
  return turns;
}

function groupOf(
  rollouts: readonly { reward: number | null; turnRewards?: readonly number[]; turns: number }[],
): ScoredGroup {
  return {
    ordinal: 1,
    environment: 'x',
    exampleId: 0,
    epoch: 0,
    policyStep: 0,
    rollouts: rollouts.map(({ reward, turns, turnRewards }, index): ScoredRollout => {
      const common = { group: 1, index, exampleId: 0, turns: turnsOf(turns), metrics: {} };
      if (reward === null) return { ...common, outcome: 'timeout', reward };
      return { ...common, outcome: 'ok', reward, ...(turnRewards ? { turnRewards } : {}) };
    }),
  };
}

const near = (actual: readonly (readonly number[])[], expected: readonly (readonly number[])[]): void =>
  actual.forEach((row, i) => {
    assert.equal(row.length, expected[i]!.length);
    row.forEach((value, k) =>
      assert.ok(Math.abs(value - expected[i]![k]!) < 1e-9, `rollout ${i}, turn ${k}: ${value}`),
    );
  });

describe('rewards of turns', () => {
  const rewarded = groupOf([
    { reward: 1.5, turnRewards: [0.5, 1], turns: 2 },
    { reward: 1, turnRewards: [0, 0, 0.25], turns: 3 },
    { reward: null, turns: 2 },
    { reward: 0.5, turns: 2 },
  ]);
  /** The second’s last turn has what the rollout was rewarded and no turn was; the last one’s turns have nothing of their own. */
  const own = [[0.5, 1], [0, 0, 1], [], [0, 0.5]];

  test('add up, discounted, to what verl’s returns are', () => {
    const { discount, rewards, returns: expected } = golden.returns;
    near(
      rewards.map((turns) => returns(turns, discount)),
      expected,
    );
  });

  for (const kind of ['centered', 'std_normalized'] as const) {
    test(`by returns each turn is compared with those in its place (${kind})`, () => {
      const sums = own.map((turns) => returns(turns, 0.5));
      const inPlace = (k: number) =>
        groupAdvantages(
          sums.map((turns) => turns[k] ?? null),
          kind,
        );
      const expected = sums.map((turns, i) => turns.map((_, k) => inPlace(k)[i]!));
      near(turnAdvantages(rewarded, kind, { by: 'returns', discount: 0.5 }), expected);
    });

    test(`by process each has what it and those after it have over the rewards of all turns (${kind})`, () => {
      const all = own.flat();
      const mean = all.reduce((sum, value) => sum + value, 0) / all.length;
      const deviation = Math.sqrt(all.reduce((sum, value) => sum + (value - mean) ** 2, 0) / (all.length - 1));
      const scale = kind === 'centered' ? 1 : 1 / (deviation + 1e-4);
      const expected = own.map((turns) =>
        turns.map((_, k) => turns.slice(k).reduce((sum, value) => sum + (value - mean) * scale, 0)),
      );
      near(turnAdvantages(rewarded, kind, { by: 'process', discount: 1 }), expected);
    });
  }

  test('become advantages of tokens, each token its turn’s; without the setting a rollout has one', () => {
    const turnCredit = { by: 'returns', discount: 1 } as const;
    const packer = new Packer({ advantage: 'centered', turnCredit });
    const { rows, advantages } = packer.pack(rewarded);
    const credits = turnAdvantages(rewarded, 'centered', turnCredit);
    assert.deepEqual(
      rows.map(({ sample }) => sample.advantages),
      [0, 1, 3].map((i) =>
        credits[i]!.flatMap((advantage, k) => [
          ...(k === 0 ? [0, 0] : [0]),
          ...Array.from({ length: k + 1 }, () => advantage),
        ]),
      ),
    );
    const tokens = rows[0]!.sample.advantages.filter((value) => value !== 0);
    assert.ok(Math.abs(advantages.get(0)! - tokens.reduce((sum, value) => sum + value, 0) / tokens.length) < 1e-12);
    const usual = new Packer({ advantage: 'centered' })
      .pack(rewarded)
      .rows.map(({ sample }) => new Set(sample.advantages));
    assert.deepEqual(usual, [new Set([0, 0.5]), new Set([0]), new Set([0, -0.5])]);
  });

  test('of another number than the turns are refused where they are asked for', () => {
    const wrong = groupOf([{ reward: 1, turnRewards: [1], turns: 2 }]);
    assert.throws(() => turnAdvantages(wrong, 'centered', { by: 'returns', discount: 1 }), /2 turns.*gave 1/);
  });

  test('come from a reward function that gives a list, weighted; their sum is its score', async () => {
    const example: Example = { id: 0, prompt: [], answer: '' };
    const rubric = {
      functions: [
        { name: 'whole', weight: 1, score: () => 1 },
        { name: 'each', weight: 0.5, score: () => [1, 0, 2] },
      ],
    };
    const rollout = { group: 1, index: 0, exampleId: 0, turns: turnsOf(3), outcome: 'truncated' as const };
    const scored = await scoreRollout({ rubric }, example, rollout);
    assert.deepEqual([scored.reward, scored.metrics, scored.turnRewards], [2.5, { whole: 1, each: 3 }, [0.5, 0, 1]]);
    const zeroed = { zeroTruncated: true, trajectoryStrategy: 'interleaved', seqLen: null } as const;
    const cut = settleRollout(scored, { ...zeroed, rolloutFilters: { pre: [], post: [] } }, 0);
    assert.deepEqual([cut.reward, cut.turnRewards], [0, undefined]);
  });

  test('a function of one’s own may give a number for each token in place of one for the rollout', () => {
    const group = groupOf([
      { reward: 1, turns: 2 },
      { reward: 0, turns: 1 },
    ]);
    const pack = (given: readonly (number | readonly number[])[]) =>
      new Packer({ advantage: () => given }).pack(group).rows.map(({ sample }) => sample.advantages);
    assert.deepEqual(pack([[1, 2, 3], -1]), [
      [0, 0, 1, 0, 2, 3],
      [0, 0, -1],
    ]);
    assert.throws(() => pack([[1, 2], -1]), /one per sampled token.*2 values/);
  });

  test('are asked for by `turns`, with a discount', () => {
    const minimal = 'model = "m"\n[[env]]\nid = "owner/a"\n';
    const { spec } = accept(`${minimal}[trainer.advantage]\nturns = "returns"\ndiscount = 0.9\n`);
    assert.deepEqual(spec.turnCredit, { by: 'returns', discount: 0.9 });
    assert.equal(accept(minimal).spec.turnCredit, undefined);
    assert.match(only(`${minimal}[trainer.advantage]\ndiscount = 0.9\n`).expected, /turns = "returns" or "process"/);
    const custom = '[trainer.advantage]\ntype = "custom"\nimport = "a.ts"\nturns = "process"\n';
    assert.match(only(minimal + custom).expected, /its function may give a number for each token/);
  });
});
