import assert from 'node:assert/strict';
import type { ObjectRef } from '../../core/rl/run-state.ts';
import { act, type Committed, type Roles, type TestRun } from './runs.ts';

export interface DrawnStep extends Committed {
  readonly plan: ObjectRef;
  readonly learningRate: number;
  readonly metrics: Readonly<Record<string, number>>;
}

/** The next step of a run on rows, from its draw to its commit, and its checkpoint where one is due. */
export async function trainDrawn(
  { run }: Pick<TestRun, 'run'>,
  roles: Roles,
  { state, parent }: Committed,
): Promise<DrawnStep> {
  const step = state.step + 1;
  const { klBeta, overrides, policy, reference } = state;
  const from = state.rows ?? { row: 0, sample: 0 };
  const { packed, next } = await act(roles.drawRows, { run, step, from, policy: reference });
  const planned = await roles.planStep({ run, step, attempt: 1, from: policy, reference, klBeta, overrides, packed });
  const trained = await act(roles.trainStep, { run, plan: planned.plan });
  assert.ok(trained.policy, trained.reason);
  const after = { ...state, step, policy: trained.policy, rows: next };
  const { sha256, isPublished } = await roles.commitStep({
    run,
    parent,
    plan: planned.plan,
    optimizer: trained.optimizer,
    pendingAt: trained.pendingAt,
    outcomes: { step, issued: '', ended: {}, pending: '' },
    metrics: {},
    state: after,
  });
  if (!isPublished) await act(roles.publishVersion, { run, policy: trained.policy, optimizer: trained.optimizer });
  if (planned.snapshot) await act(roles.saveCheckpoint, { run, step, pinned: [] });
  const { plan, learningRate } = planned;
  return { state: after, parent: sha256, plan, learningRate, metrics: trained.metrics };
}
