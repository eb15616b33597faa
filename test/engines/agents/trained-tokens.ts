import assert from 'node:assert/strict';
import { trajectoryRows } from '../../../core/rl/rollout/trajectories.ts';
import type { Turn } from '../../../core/rl/rollout/rollout.ts';
import { tokenizer } from '../../environments/agent/scripted-policy.ts';

/**
 * The rows of a rollout are token for token what was sampled: each sampled token once, behind the prompt that the server
 * saw, with its own log probability.
 */
export function assertTrainedAsSampled(turns: readonly Turn[], expected: { readonly rows: number }): void {
  const rows = trajectoryRows(turns, 'interleaved');
  const trained = new Map<number, string>();
  for (const { tokenIds, lossMask, behaviorLogprobs, sampledAt } of rows) {
    for (const [t, id] of tokenIds.entries()) {
      if (lossMask[t] !== 1) continue;
      assert.ok(!trained.has(sampledAt[t]!), 'a token is trained twice');
      trained.set(sampledAt[t]!, `${id} ${behaviorLogprobs![t]} behind ${t} ${tokenIds.slice(0, t).join()}`);
    }
  }
  let at = 0;
  for (const { promptTokenIds, tokenIds, logprobs } of turns) {
    for (const [i, id] of tokenIds.entries()) {
      const before = [...promptTokenIds, ...tokenIds.slice(0, i)];
      assert.equal(trained.get(at++), `${id} ${logprobs![i]} behind ${before.length} ${before.join()}`);
    }
  }
  assert.equal(trained.size, at);
  const texts = rows.map(({ tokenIds }) => tokenizer.decode(tokenIds, { skipSpecialTokens: false }).slice(0, 200));
  assert.equal(rows.length, expected.rows, `rows begin with:\n${texts.join('\n---\n')}`);
}
