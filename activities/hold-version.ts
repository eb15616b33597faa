import type { PolicyVersion, RunHandle } from '../core/rl/run-state.ts';
import type { RunSpec } from '../core/spec/run-spec.ts';
import type { HoldOutcome, Inference } from '../backends/inference/index.ts';
import { withHeartbeat } from './heartbeat.ts';
import { requireCommit, servedPolicy, specOf } from './run-access.ts';

export interface HoldInput {
  readonly run: RunHandle;
  readonly policy: PolicyVersion;
  /** Who keeps it; a version stays while anybody does. */
  readonly holder: string;
}

/** A version that nobody asks for again is kept no longer than this. */
export const versionHeldS = 300;

/** Keeps a version at the inference servers, for an evaluation of it. A desired state: twice is once. */
export const createHoldVersion =
  (inference: (spec: RunSpec) => Inference) =>
  async ({ run, policy, holder }: HoldInput): Promise<HoldOutcome> =>
    withHeartbeat(async () => {
      const servers = inference(await specOf(run));
      return (await servers.hold?.(await servedPolicy(run, policy), holder, versionHeldS)) ?? 'held';
    });

/** Of servers that do not answer it is of no matter: what nobody asks for again is released by itself. */
export const createReleaseVersion =
  (inference: (spec: RunSpec) => Inference) =>
  async ({ run, policy, holder }: HoldInput): Promise<void> => {
    const servers = inference(await specOf(run));
    await servers.release?.(await servedPolicy(run, policy), holder).catch(() => undefined);
  };

/** The version that a step was committed with. */
export async function readVersion(input: { readonly run: RunHandle; readonly step: number }): Promise<PolicyVersion> {
  return (await requireCommit(input.run, input.step)).commit.policy;
}
