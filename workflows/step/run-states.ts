import { initialCurriculum } from '../../core/rl/sampling/curriculum.ts';
import { driftAfter } from '../../core/rl/sampling/drift.ts';
import { nextBeta } from '../../core/rl/learning/kl-controller.ts';
import type { Overrides, PolicyVersion, RunHandle, RunState } from '../../core/rl/run-state.ts';
import { levelOf } from '../../core/rl/sampling/window.ts';
import type { RunSpec } from '../../config/run-spec.ts';
import type { CollectedStep } from './collect-step.ts';

/** The part of a state about prompts and the branches that look for better ones. */
type StateOfBranches = Pick<RunState, 'prompts' | 'offeredPrompts' | 'pendingBranches'>;

export function withoutBranches(state: RunState): Omit<RunState, keyof StateOfBranches> {
  const { prompts: _, offeredPrompts: __, pendingBranches: ___, ...rest } = state;
  return rest;
}

/** State of v0. */
export function firstState(made: {
  readonly run: RunHandle;
  readonly spec: RunSpec;
  readonly policy: PolicyVersion;
  readonly overrides: Overrides;
  readonly pendingEvals: readonly number[];
  readonly branches: StateOfBranches;
}): RunState {
  const { run, spec, policy, overrides, pendingEvals, branches } = made;
  return {
    schemaVersion: 1,
    lineage: run.lineage,
    step: 0,
    policy,
    reference: policy,
    klBeta: spec.kl.beta,
    curriculum: initialCurriculum,
    surplus: [],
    overrides,
    pendingEvals,
    ...branches,
  };
}

/** State after training on what was collected. */
export function stateAfter(
  before: RunState,
  made: {
    readonly spec: RunSpec;
    readonly policy: PolicyVersion;
    readonly collected: Pick<
      CollectedStep,
      'curriculum' | 'surplus' | 'open' | 'baselines' | 'staleBudget' | 'rowsNext' | 'figures'
    >;
    /** Metrics of the training. */
    readonly metrics: Readonly<Record<string, number>>;
    readonly overrides: Overrides;
    readonly pendingEvals: readonly number[];
    readonly branches: StateOfBranches;
  },
): RunState {
  const { kl } = made.spec;
  const { policy, collected, overrides, pendingEvals, branches } = made;
  const step = before.step + 1;
  const renewsReference = kl.refSyncSteps !== null && step % kl.refSyncSteps === 0;
  const measuredKl = made.metrics['kl_divergence'] ?? 0;
  const [mismatchKl, behind] = [made.metrics['mismatch_kl'], collected.figures['off_policy/mean']];
  const drift =
    levelOf(made.spec) > 1
      ? driftAfter(before.drift, { mismatchKl, behind, most: maxMismatchKlOf(made.spec, overrides) })
      : undefined;
  return {
    schemaVersion: 1,
    lineage: before.lineage,
    step,
    policy,
    reference: renewsReference ? policy : before.reference,
    klBeta: nextBeta({ beta: before.klBeta, targetKl: kl.targetKl, measuredKl }),
    curriculum: collected.curriculum,
    surplus: collected.surplus,
    ...(collected.open ? { open: collected.open } : {}),
    ...(collected.baselines ? { baselines: collected.baselines } : {}),
    ...(collected.staleBudget === undefined ? {} : { staleBudget: collected.staleBudget }),
    ...(collected.rowsNext ? { rows: collected.rowsNext } : {}),
    ...(drift ? { drift } : {}),
    overrides,
    pendingEvals,
    ...branches,
  };
}

/** Nats per token that samples may be from what is trained, by now; null = any. */
export function maxMismatchKlOf({ maxMismatchKl }: RunSpec, overrides: Overrides): number | null {
  return overrides.maxMismatchKl ?? maxMismatchKl;
}
