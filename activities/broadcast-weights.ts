import type { Inference } from '../backends/inference/index.ts';
import { layout } from '../core/layout.ts';
import type { PolicyVersion, RunHandle } from '../core/rl/run-state.ts';
import type { RunSpec } from '../core/spec/run-spec.ts';
import { decodeJson } from '../backends/store/objects.ts';
import { withHeartbeat } from './heartbeat.ts';
import { servedPolicy, specOf, storeOf } from './run-access.ts';
import type { Canary } from './version-spool.ts';

/** How far the servers' logprobs of the canary lie from the trainer's, at most; null where there was nothing to compare. */
export interface BroadcastResult {
  readonly canaryDifference: number | null;
  /** They sample from the version they were given last, and from no other. Absent: they hold several. */
  readonly holdsOne?: boolean;
}

/** Nobody needs it kept: how a server answers says what it can. */
const askedHoldS = 1;

/**
 * Brings every inference server to a committed version, and asks it for the logprobs of a few tokens that the trainer
 * scored under the same weights. A desired state: twice is once.
 */
export const createBroadcastWeights =
  (inference: (spec: RunSpec) => Inference) =>
  async (input: { readonly run: RunHandle; readonly policy: PolicyVersion }): Promise<BroadcastResult> =>
    withHeartbeat(async () => {
      const { run, policy } = input;
      const servers = inference(await specOf(run));
      const served = await servedPolicy(run, policy);
      await servers.bringTo(served);
      // Whoever refuses the question is brought to a version when it is asked for another.
      const held = await servers.hold?.(served, `${run.name}.broadcast`, askedHoldS).catch(() => undefined);
      const kind = held === 'single' ? { holdsOne: true } : {};
      const key = layout.canary(run.lineage, policy.step, policy.replay);
      const bytes = await storeOf(run).read(key);
      const canary = bytes && decodeJson<Canary>(bytes, key);
      if (!canary || canary.digest !== policy.digest || !servers.score) return { canaryDifference: null, ...kind };
      const { tokenIds, positions, logprobs } = canary;
      const sampled = await servers.score({ policy: served, tokenIds, positions, expected: logprobs });
      if (!sampled) return { canaryDifference: null, ...kind };
      const canaryDifference = Math.max(...logprobs.map((logprob, i) => Math.abs(logprob - sampled[i]!)));
      return { canaryDifference, ...kind };
    });
