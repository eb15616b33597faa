import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import fc from 'fast-check';
import { hash32 } from '../../../core/random.ts';
import { packSamples } from './pack-samples.ts';
import type { ScoredGroup, ScoredRollout, Turn } from '../../../core/rl/rollout/rollout.ts';
import { settleRollout, type SettleSettings } from '../../../core/rl/rollout/settle-rollout.ts';
import {
  isCut,
  missingTokens,
  rowsOfRollout,
  trajectoryRows,
  defaultTrajectories,
} from '../../../core/rl/rollout/trajectories.ts';

const turn = (promptTokenIds: number[], tokenIds: number[]): Turn => ({
  promptTokenIds,
  tokenIds,
  logprobs: tokenIds.map((id) => -id / 100),
  text: 'said',
  finishReason: 'stop',
  policyStep: 0,
});
/** Two consecutive turns, then one whose template rewrote the past. */
const turns = [turn([1, 2], [7, 8]), turn([1, 2, 7, 8, 3], [9]), turn([1, 2, 8, 3], [4, 5])];
const rollout = (index: number, reward: number, more: Partial<ScoredRollout> = {}): ScoredRollout =>
  ({
    group: 1,
    index,
    exampleId: 0,
    turns,
    outcome: 'ok',
    reward,
    metrics: { right: reward },
    ...more,
  }) as ScoredRollout;
const group = (...rollouts: ScoredRollout[]): ScoredGroup => ({
  ordinal: 1,
  environment: 'e',
  exampleId: 0,
  epoch: 0,
  policyStep: 0,
  rollouts,
});
const tokensOf = (rows: readonly { readonly tokenIds: readonly number[] }[]) => rows.map(({ tokenIds }) => tokenIds);

describe('trajectories', () => {
  test('interleaved joins turns that extend each other exactly, branching gives each turn a row', () => {
    assert.deepEqual(tokensOf(trajectoryRows(turns, 'interleaved')), [
      [1, 2, 7, 8, 3, 9],
      [1, 2, 8, 3, 4, 5],
    ]);
    const branches = trajectoryRows(turns, 'branching');
    assert.deepEqual(tokensOf(branches), [
      [1, 2, 7, 8],
      [1, 2, 7, 8, 3, 9],
      [1, 2, 8, 3, 4, 5],
    ]);
    assert.deepEqual(branches[1]!.lossMask, [0, 0, 0, 0, 0, 1], 'what was sampled before is context');
    assert.deepEqual(branches[1]!.behaviorLogprobs, [0, 0, 0, 0, 0, -0.09]);
  });

  test('either way the same sampled tokens are trained, each once, with its own log probability', () => {
    const token = fc.integer({ min: 1, max: 4 });
    const step = fc.record({
      said: fc.array(token, { maxLength: 4 }),
      heard: fc.array(token, { minLength: 1, maxLength: 3 }),
      rewrites: fc.boolean(),
    });
    fc.assert(
      fc.property(
        fc.array(token, { minLength: 1, maxLength: 3 }),
        fc.array(step, { maxLength: 6 }),
        (prompt, steps) => {
          let before = prompt;
          const played = steps.map(({ said, heard, rewrites }) => {
            const made = turn(before, said);
            before = rewrites ? [...prompt, ...heard] : [...before, ...said, ...heard];
            return made;
          });
          const trained = (strategy: 'interleaved' | 'branching') =>
            trajectoryRows(played, strategy)
              .flatMap(({ tokenIds, lossMask, behaviorLogprobs }) =>
                tokenIds.flatMap((id, t) => (lossMask[t] === 1 ? [`${id} ${behaviorLogprobs![t]}`] : [])),
              )
              .sort();
          const sampled = played.flatMap(({ tokenIds, logprobs }) => tokenIds.map((id, t) => `${id} ${logprobs![t]}`));
          assert.deepEqual(trained('interleaved'), sampled.toSorted());
          assert.deepEqual(trained('branching'), sampled.toSorted());
          assert.ok(trajectoryRows(played, 'interleaved').length <= trajectoryRows(played, 'branching').length);
        },
      ),
    );
  });

  test('of a tree of turns each sampled token is trained once, behind exactly what the server saw', () => {
    const token = fc.integer({ min: 1, max: 3 });
    const call = fc.record({
      /** Which earlier turn it continues, modulo their number; null = it begins a conversation. */
      after: fc.option(fc.nat(), { freq: 4 }),
      heard: fc.array(token, { minLength: 1, maxLength: 3 }),
      said: fc.array(token, { minLength: 1, maxLength: 3 }),
    });
    fc.assert(
      fc.property(fc.array(call, { maxLength: 12 }), fc.nat(), (calls, seed) => {
        const asked: Turn[] = [];
        for (const { after, heard, said } of calls) {
          const before = after === null || asked.length === 0 ? undefined : asked[after % asked.length]!;
          const context = before ? [...before.promptTokenIds, ...before.tokenIds] : [];
          asked.push(turn([...context, ...heard], said));
        }
        // Parallel calls end in any order.
        const order = asked.map((made, i) => [hash32('order', seed, i), made] as const);
        const played = order.toSorted(([a], [b]) => a - b).map(([, made]) => made);
        const rows = trajectoryRows(played, 'interleaved');
        const sampled = played.flatMap(({ promptTokenIds, tokenIds, logprobs }) =>
          tokenIds.map((id, t) => `${[...promptTokenIds, ...tokenIds.slice(0, t)].join()} ${id} ${logprobs![t]}`),
        );
        const trained = rows.flatMap(({ tokenIds, lossMask, behaviorLogprobs, sampledAt }) =>
          tokenIds.flatMap((id, t) =>
            lossMask[t] === 1
              ? [[sampledAt[t]!, `${tokenIds.slice(0, t).join()} ${id} ${behaviorLogprobs![t]}`] as const]
              : [],
          ),
        );
        assert.deepEqual(
          trained.toSorted(([a], [b]) => a - b),
          sampled.map((text, i) => [i, text]),
        );
        assert.ok(rows.length <= played.length);
      }),
    );
  });

  test('a sub-agent in between does not end the row of the agent that waits for it', () => {
    const agent = [turn([1, 2], [7]), turn([1, 2, 7, 3], [8])];
    const helper = [turn([5], [6]), turn([5, 6, 4], [9])];
    const twice = turn([1, 2], [8]);
    assert.deepEqual(tokensOf(trajectoryRows([agent[0]!, helper[0]!, twice, helper[1]!, agent[1]!], 'interleaved')), [
      [1, 2, 7, 3, 8],
      [5, 6, 4, 9],
      [1, 2, 8],
    ]);
  });

  test('rollouts that were cut carry no loss where the config says so, and count in the mean of their group', () => {
    const cut = rollout(1, 0, { outcome: 'truncated' });
    const packed = (maskTruncated: boolean) =>
      packSamples([group(rollout(0, 1), cut)], { advantage: 'centered', maskTruncated });
    assert.deepEqual([packed(false).samples.length, packed(false).setAside.maskedRollouts], [4, 0]);
    const { samples, setAside } = packed(true);
    assert.deepEqual([samples.length, setAside.maskedRollouts], [2, 1]);
    assert.equal(samples[0]!.advantages.at(-1), 0.5, 'the mean is that of both');
  });

  test('rows over seq_len are cut, left out, or take the loss of their rollout away; they are always counted', () => {
    const rows = (overlongRows: 'truncate' | 'mask' | 'drop', seqLen: number | null = 5) =>
      rowsOfRollout(rollout(0, 1, { turns: [turn([1], [2, 3]), ...turns] }), {
        ...defaultTrajectories,
        seqLen,
        overlongRows,
      });
    assert.deepEqual(tokensOf(rows('truncate', null).rows), [
      [1, 2, 3],
      [1, 2, 7, 8, 3, 9],
      [1, 2, 8, 3, 4, 5],
    ]);
    const truncated = rows('truncate');
    assert.deepEqual(tokensOf(truncated.rows), [
      [1, 2, 3],
      [1, 2, 7, 8, 3],
      [1, 2, 8, 3, 4],
    ]);
    assert.deepEqual(truncated.rows[1]!.lossMask, [0, 0, 1, 1, 0]);
    assert.deepEqual(tokensOf(rows('drop').rows), [[1, 2, 3]]);
    assert.deepEqual([rows('mask').rows, rows('mask').isMasked], [[], true]);
    assert.deepEqual(
      (['truncate', 'drop', 'mask'] as const).map((remedy) => rows(remedy).overlongRows),
      [2, 2, 2],
    );
  });

  test('a row that is cut before its first sampled token is left out', () => {
    const { rows, overlongRows } = rowsOfRollout(rollout(0, 1, { turns: [turn([1, 2, 3], [4])] }), {
      ...defaultTrajectories,
      seqLen: 3,
    });
    assert.deepEqual([rows, overlongRows], [[], 1]);
  });
});

describe('what training makes of a rollout that has its reward', () => {
  const settings: SettleSettings = {
    zeroTruncated: true,
    trajectoryStrategy: 'interleaved',
    seqLen: null,
    rolloutFilters: { pre: [], post: [] },
  };

  test('one that was cut has the reward 0 where the config says so, and keeps its metrics', () => {
    const cut = rollout(0, 0.75, { outcome: 'truncated' });
    const zeroed = settleRollout(cut, settings, 0);
    assert.deepEqual([zeroed.reward, zeroed.rewardBeforeCut, zeroed.metrics], [0, 0.75, { right: 0.75 }]);
    assert.deepEqual(settleRollout(cut, { ...settings, zeroTruncated: false }, 0), cut);
    assert.deepEqual(settleRollout(rollout(0, 0.75), settings, 0), rollout(0, 0.75));
    assert.equal(
      settleRollout(rollout(0, 0.75), { ...settings, seqLen: 5 }, 0).reward,
      0,
      'over seq_len is cut as well',
    );
    assert.ok(isCut(rollout(0, 1), { trajectoryStrategy: 'interleaved', seqLen: 5 }));
  });

  test('without token ids it is rejected with a reason: no reward, and never tokenized again', () => {
    const without = { ...turn([1], []), tokenIds: undefined } as unknown as Turn;
    for (const [broken, says] of [
      [without, /Turn 2 came without the token ids that were sampled/],
      [{ ...turn([1], []), text: 'something' }, /Turn 2 came without the token ids that were sampled/],
      [{ ...turn([1], [2]), promptTokenIds: null } as unknown as Turn, /without the token ids of its prompt/],
    ] as const) {
      const { outcome, reward, error } = settleRollout(rollout(0, 1, { turns: [turns[0]!, broken] }), settings, 0);
      assert.deepEqual([outcome, reward], ['rejected', null]);
      assert.match(error!, says);
      assert.match(error!, /never tokenized again/);
    }
    assert.equal(missingTokens({ turns }), null);
    assert.equal(missingTokens({ turns: [{ ...turn([1], []), text: '' }] }), null, 'nothing was said');
  });
});
