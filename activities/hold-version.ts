import { versionHeldS } from '../core/limits.ts';
import { lineageOf } from '../runs/layout.ts';
import type { PolicyVersion, Prompts, RunHandle } from '../core/rl/run-state.ts';
import type { RunSpec } from '../config/run-spec.ts';
import type { HoldOutcome, Inference } from '../backends/inference/index.ts';
import { hasMetrics } from '../runs/metrics/metrics.ts';
import { withHeartbeat } from './around/heartbeat.ts';
import { requireCommit, servedPolicy, specOf, storeOf } from '../runs/run-access.ts';

interface HoldVersionInput {
  readonly run: RunHandle;
  readonly policy: PolicyVersion;
  /** Name of the holder; a version stays while it has any. */
  readonly holder: string;
}

/** Has the inference servers hold a version for its evaluation. Idempotent. */
export const createHoldVersion =
  (inference: (spec: RunSpec) => Inference) =>
  async ({ run, policy, holder }: HoldVersionInput): Promise<HoldOutcome> =>
    withHeartbeat(async () => {
      const servers = inference(await specOf(run));
      return (await servers.hold?.(await servedPolicy(run, policy), holder, versionHeldS)) ?? 'held';
    });

/** Servers that do not answer are ignored: a hold that is not renewed expires by itself. */
export const createReleaseVersion =
  (inference: (spec: RunSpec) => Inference) =>
  async ({ run, policy, holder }: HoldVersionInput): Promise<void> => {
    const servers = inference(await specOf(run));
    await servers.release?.(await servedPolicy(run, policy, { isRead: false }), holder).catch(() => undefined);
  };

/** Has the inference servers forget an ended run. Idempotent. */
export const createLeaveServers =
  (inference: (spec: RunSpec) => Inference) =>
  async ({ run }: { readonly run: RunHandle }): Promise<void> =>
    withHeartbeat(async () => inference(await specOf(run)).leave?.(run.name));

/** The version that a step was committed with, and whether its evaluation on an environment is in the run's metrics already. */
export async function findEvaluation({
  run,
  step,
  environment,
}: {
  readonly run: RunHandle;
  readonly step: number;
  readonly environment: string;
}): Promise<{
  readonly policy: PolicyVersion;
  readonly isRecorded: boolean;
  /** Prompts in use at that commit; absent while every environment had its own. */
  readonly prompts?: Prompts;
}> {
  const { policy, state } = (await requireCommit(run, step)).commit;
  const { prompts } = state;
  const row = { lineage: lineageOf(policy.weights), step, [`eval/${environment}/policy_version`]: step };
  return { policy, isRecorded: await hasMetrics(storeOf(run), row), ...(prompts ? { prompts } : {}) };
}
