/** Lines of `ratchet status` on a search for a better prompt beside a run. */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { describePrompts } from '../../cli/describe/prompts.ts';
import type { PromptSearchStatus, SearchInPlay } from '../../core/gepa/prompt-search.ts';
import type { BranchUnderWay, RunStatus } from '../../workflows/control/messages.ts';

const workflow = 'words.gepa.reverse-text.v1';
const inPlay = (of: Partial<SearchInPlay>): SearchInPlay => ({
  leases: 0,
  rollouts: 0,
  waiting: 0,
  reflections: 0,
  ...of,
});

function said(branch: Partial<BranchUnderWay>, search: SearchInPlay): string[] {
  const underWay = { step: 1, since: '2026-11-27T12:00:00Z', workflow, ...branch };
  const prompts = [{ environment: 'reverse-text', inUse: null, offered: null, branch: underWay }];
  const figures = { calls: 12, maxCalls: 60, bestScore: null, inPlay: search } as unknown as PromptSearchStatus;
  const status = { run: 'words', prompts } as unknown as RunStatus;
  return describePrompts(status, { [workflow]: { figures, retries: [] } }, true).map((line) => line.trim());
}

test('what the leases of a search have in play is said below it, and of its trial once that is played', () => {
  assert.deepEqual(said({}, inPlay({ leases: 3, rollouts: 7, waiting: 4 })).slice(1), [
    `a better one is looked for from v1 since 2026-11-27T12:00:00Z, 12 of 60 calls (${workflow})`,
    'in play: 7 rollouts in 3 leases, 4 wait for their turn',
  ]);
  assert.deepEqual(said({}, inPlay({})).length, 2, 'nothing is in play');
  assert.equal(
    said({ workflow: null, trial: inPlay({ leases: 1, rollouts: 1 }) }, inPlay({})).at(-1),
    'in play: 1 rollout in 1 lease, to try what was found',
  );
});
