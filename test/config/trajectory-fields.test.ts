import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { accept } from './read-run.ts';

describe('fields that say which tokens of a rollout are trained', () => {
  test('in our own words they are what they say, and neutral where they are missing', () => {
    const usual = accept(own(''), 'ratchet').spec;
    assert.deepEqual(
      [usual.trajectoryStrategy, usual.maskTruncated, usual.zeroTruncated, usual.seqLen, usual.overlongRows],
      ['interleaved', false, false, null, 'truncate'],
    );
    assert.deepEqual([usual.maxPromptTokens, usual.rolloutFilters], [null, { pre: [], post: [] }]);
    const { spec, warnings } = accept(
      own(`trajectory_strategy = "branching"
mask_truncated_completions = true
zero_truncated_completions = true
seq_len = 512
overlong_rows = "drop"
max_prompt_len = 64`),
      'ratchet',
    );
    assert.deepEqual(
      [spec.trajectoryStrategy, spec.maskTruncated, spec.zeroTruncated, spec.seqLen, spec.overlongRows],
      ['branching', true, true, 512, 'drop'],
    );
    assert.deepEqual([spec.maxPromptTokens, warnings], [64, []]);
  });

  test('a strategy is taken from every dialect that has one', () => {
    const hosted = `model = "m"\ntrajectory_strategy = "branching"\n[[env]]\nid = "reverse-text"\n`;
    const primeRl = `[orchestrator]\ntrajectory_strategy = "branching"\nbatch_size = 8\nrollouts_per_example = 8\n[[orchestrator.env]]\nid = "reverse-text"\n`;
    const head = `[orchestrator]\ntrajectory_strategy = "branching"\nbatch_size = 8\ngroup_size = 8\n[trainer]\n[[orchestrator.train.env]]\nid = "reverse-text"\n`;
    for (const [dialect, text] of [
      ['hosted', hosted],
      ['hosted-0.5.61', hosted],
      ['prime-rl-0.4', primeRl],
      ['prime-rl', head],
    ] as const) {
      const { spec, warnings } = accept(text, dialect);
      assert.equal(spec.trajectoryStrategy, 'branching', dialect);
      assert.doesNotMatch(warnings.join(), /trajectory_strategy/);
    }
  });

  test('cut completions are as verifiers’ trainers have them: masked before 0.1.7, and neither since', () => {
    const grpo = accept(`model = "m"\nmax_steps = 5\nnum_generations = 4\n[env]\nid = "reverse-text"\n`, 'grpo').spec;
    assert.deepEqual([grpo.maskTruncated, grpo.zeroTruncated, grpo.maxPromptTokens], [true, false, 512]);
    const off = accept(
      `model = "m"\nmax_steps = 5\nmask_truncated_completions = false\nzero_truncated_completions = true\n[env]\nid = "reverse-text"\n`,
      'grpo',
    ).spec;
    assert.deepEqual([off.maskTruncated, off.zeroTruncated], [false, true]);
  });

  test('filters of prime-rl 0.5 take the loss of what fills the batch all the same', () => {
    const text = `[trainer]\n[orchestrator]\nbatch_size = 8\ngroup_size = 8\nfilters = [{ type = "repetition", enforce = true }]\n[[orchestrator.train.env]]\nid = "reverse-text"\n`;
    const { rolloutFilters } = accept(text, 'prime-rl').spec;
    assert.deepEqual(
      [rolloutFilters.pre, rolloutFilters.post.map(({ type, enforce }) => [type, enforce])],
      [[], [['repetition', true]]],
    );
  });

  test('a length that nothing is measured against is said', () => {
    assert.match(accept(own('overlong_rows = "mask"'), 'ratchet').warnings.join(), /no effect without seq_len/);
  });
});

function own(lines: string): string {
  return `model = "preset:reverse-text-0.2m"\n${lines}\n[[env]]\nid = "reverse-text"\n`;
}
