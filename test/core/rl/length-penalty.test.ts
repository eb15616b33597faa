/** Length penalties on rewards, compared with verl's and prime-rl's (`test/data/algorithms/record.py`). */
import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { describe, test } from 'node:test';
import { fileURLToPath } from 'node:url';
import { groupAdvantages } from '../../../core/rl/learning/advantage.ts';
import { overlongOf, penalized, withLengthsCounted } from '../../../core/rl/learning/length-penalty.ts';
import { advantagesOf } from '../../../core/rl/learning/pack.ts';
import type { ScoredGroup } from '../../../core/rl/rollout/rollout.ts';
import { accept } from '../../config/read-run.ts';

interface Golden {
  readonly overlong: { max: number; buffer: number; penalty: number; lengths: number[]; penalties: number[] };
  readonly lengthPenalty: {
    readonly weights: Record<'num_output_tokens_weight' | 'num_input_tokens_weight' | 'num_turns_weight', number>;
    /** reward, sampled tokens, other tokens, turns */
    readonly rollouts: readonly (readonly [number, number, number, number])[];
    readonly advantages: readonly number[];
  };
}
const golden = JSON.parse(
  readFileSync(fileURLToPath(new URL('../../data/algorithms/golden.json', import.meta.url)), 'utf8'),
) as Golden;

describe('lengths', () => {
  test('an answer near its limit loses what DAPO takes', () => {
    const { max, buffer, penalty, lengths, penalties } = golden.overlong;
    const taken = lengths.map((tokens) => -overlongOf(tokens, { maxTokens: max, buffer, factor: penalty }));
    for (const [i, expected] of penalties.entries()) assert.ok(Math.abs(taken[i]! - expected) < 1e-12, `${lengths[i]}`);
  });

  test('a group has the advantages that prime-rl computes of it', () => {
    const { weights, rollouts, advantages } = golden.lengthPenalty;
    const sizes = sizesOf(rollouts);
    const shaped = penalized(
      rollouts.map(([reward]) => reward),
      sizes,
      {
        outputTokens: weights.num_output_tokens_weight,
        inputTokens: weights.num_input_tokens_weight,
        turns: weights.num_turns_weight,
      },
    );
    const ours = groupAdvantages(shaped, 'centered');
    for (const [i, expected] of advantages.entries()) assert.ok(Math.abs(ours[i]! - expected) < 1e-6, `rollout ${i}`);
  });

  test('they are counted over rollouts that have a reward; what is recorded stays', () => {
    const group = groupOf([
      { reward: 1, tokens: [4, 2] },
      { reward: 1, tokens: [2] },
      { reward: null, tokens: [90] },
    ]);
    const lengthPenalty = { outputTokens: 0.5, inputTokens: 0, turns: 0 };
    assert.deepEqual(
      withLengthsCounted(group, { lengthPenalty }).rollouts.map(({ reward }) => reward),
      [0.5, 1 - 0.5 * (2 / 6), null],
    );
    const overlongPenalty = { maxTokens: 8, buffer: 4, factor: 1 };
    assert.deepEqual(
      withLengthsCounted(group, { overlongPenalty }).rollouts.map(({ reward }) => reward),
      [0.5, 1, null],
    );
    assert.equal(withLengthsCounted(group, {}), group);
    assert.deepEqual(advantagesOf(group, 'centered', { overlongPenalty }), [-0.25, 0.25, 0]);
  });

  test('a run file says it, and a file of prime-rl; equal rewards then keep their place in a batch', () => {
    const head = 'model = "preset:reverse-text-0.2m"\n[[env]]\nid = "reverse-text"\n';
    const own = accept(
      `${head}[trainer.length_penalty]\noutput_tokens = 0.25\n[trainer.overlong_penalty]\nmax_tokens = 64\nbuffer = 16\n`,
    );
    assert.deepEqual(own.spec.lengthPenalty, { outputTokens: 0.25, inputTokens: 0, turns: 0 });
    assert.deepEqual(own.spec.overlongPenalty, { maxTokens: 64, buffer: 16, factor: 1 });
    assert.deepEqual([own.spec.filter.keepsEqual, accept(head).spec.filter.keepsEqual], [true, false]);
    const { spec } = accept(
      'max_steps = 2\n[orchestrator]\ngroup_size = 8\nalgo = { type = "grpo", length_penalty = { num_turns_weight = 0.0 } }\n[[orchestrator.train.source]]\nenv = { taskset = { id = "owner/x" } }\n',
    );
    assert.deepEqual(spec.lengthPenalty, { outputTokens: 0.25, inputTokens: 0.1, turns: 0 });
  });
});

/** In the form of `Golden`. */
function sizesOf(rollouts: Golden['lengthPenalty']['rollouts']) {
  return rollouts.map(([, outputTokens, inputTokens, turns]) => ({ outputTokens, inputTokens, turns }));
}

function groupOf(
  rollouts: readonly { readonly reward: number | null; readonly tokens: readonly number[] }[],
): ScoredGroup {
  return {
    ordinal: 1,
    environment: 'e',
    exampleId: 0,
    rollouts: rollouts.map(({ reward, tokens }, index) => ({
      index,
      reward,
      turns: tokens.map((count) => ({
        promptTokenIds: [1],
        tokenIds: Array(count).fill(2),
        logprobs: Array(count).fill(-1),
      })),
    })),
  } as unknown as ScoredGroup;
}
