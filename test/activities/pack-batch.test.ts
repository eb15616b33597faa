/** What a step's commit counts is read from what packing its batch says. */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { MockActivityEnvironment } from '@temporalio/testing';
import type { PlayedChunk } from '../../activities/index.ts';
import { auditLedger } from '../../core/rl/ledger.ts';
import { nothingLost } from '../../core/rl/lost-work.ts';
import type { ScoredGroup } from '../../core/rl/rollout/rollout.ts';
import { initialCurriculum } from '../../core/rl/sampling/curriculum.ts';
import { storeScored } from '../../runs/rollouts/scored-groups.ts';
import { layout } from '../../runs/layout.ts';
import { readRows, storeOf } from '../../runs/run-access.ts';
import { stepOutcomes } from '../../workflows/step/step-outcomes.ts';
import { commitFirst, datasets, makeRun, openRoles, WordsInference } from './runs.ts';

test('the ledger of a step counts the effects and the timed-out rollouts of its groups', async (t) => {
  const made = await makeRun(t);
  const { run } = made;
  const roles = openRoles(new WordsInference());
  const { state } = await commitFirst(made, roles);
  const lease = { run, step: 1, count: 4, curriculum: initialCurriculum, datasets, policy: state.policy };
  const { round } = await roles.leaseGroups(lease);
  const chunk = { index: 0, count: 1 };
  const played = (await new MockActivityEnvironment().run(roles.playGroups, { run, round, chunk })) as PlayedChunk;
  const groups = (await Promise.all(played.parts.map(({ scored }) => readRows<ScoredGroup>(run, scored)))).flat();
  const withEffects = groups.map((group, i) => ({
    ...group,
    rollouts: group.rollouts.map((rollout, member) => ({
      ...rollout,
      effects: { once_settled: 2, ...(i + member === 0 ? { once_in_doubt: 1 } : {}) },
      ...(member === 0 ? { isTimedOut: true as const } : {}),
    })),
  }));
  const { scored } = (await storeScored(storeOf(run), layout.scored('main', round, 'chunk_2_of_2'), withEffects))!;
  const { kept } = played.parts[0]!.filtered;
  const trained = [{ ...kept, scored }];
  const packed = await roles.packBatch({ run, step: 1, trained, scored: [scored] });
  const collected = {
    packed: packed.packed,
    trained,
    surplus: [],
    curriculum: initialCurriculum,
    issued: [[1, 4]] as const,
    ended: [],
    rows: packed.rows,
    figures: packed.metrics,
    lost: nothingLost,
  };
  const { effects, timedOut } = auditLedger([stepOutcomes(1, [collected])]);
  assert.deepEqual(effects, { once_settled: 2 * 16, once_in_doubt: 1 });
  assert.deepEqual(Object.values(timedOut), [4]);
});
