import type { Inference } from '../backends/inference/index.ts';
import type { PolicyVersion, RunHandle } from '../core/rl/run-state.ts';
import type { RunSpec } from '../core/spec/run-spec.ts';
import { withHeartbeat } from './heartbeat.ts';
import { servedPolicy, specOf } from './run-access.ts';

/** Brings every inference server to a committed version. A desired state: twice is once. */
export const createBroadcastWeights =
  (inference: (spec: RunSpec) => Inference) =>
  async (input: { readonly run: RunHandle; readonly policy: PolicyVersion }): Promise<void> =>
    withHeartbeat(async () => {
      await inference(await specOf(input.run)).bringTo(await servedPolicy(input.run, input.policy));
    });
