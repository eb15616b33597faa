import { RatchetError } from '../core/errors.ts';
import { failpoint } from '../store/failpoints.ts';
import { type Inference, meanDifference, type ServerDrift } from '../backends/inference/index.ts';
import { layout } from '../runs/layout.ts';
import { type Canary, canaryThreshold } from '../core/rl/learning/canary.ts';
import type { PolicyVersion, RunHandle, ServedPolicy } from '../core/rl/run-state.ts';
import type { RunSpec } from '../config/run-spec.ts';
import { encodeJson } from '../store/objects.ts';
import { withHeartbeat } from './around/heartbeat.ts';
import type { LeaseGroups, LeaseInput, MayLease } from './lease-groups.ts';
import { noteServed } from '../play/served-version.ts';
import { readCanary } from '../runs/versions/canary.ts';
import { servedPolicy, specOf, storeOf } from '../runs/run-access.ts';

/** Findings of a broadcast. */
export interface BroadcastResult extends MayLease {
  /**
   * Mean |Δ| between the servers' logprobs of the canary and the trainer's, at the worst server; null without a
   * comparison.
   */
  readonly canaryDifference: number | null;
  /** Limit for the difference; absent without a comparison. */
  readonly threshold?: number;
  /** Servers above it, which get no requests for this version; absent without any. */
  readonly quarantined?: readonly ServerDrift[];
  /** Whether all servers are quarantined. */
  readonly isNoneLeft?: true;
  /** Servers that agreed after a reload; absent without any. */
  readonly reloaded?: readonly ServerDrift[];
  /** Servers that sample only from the version they were given last. Absent: they hold several. */
  readonly holdsOne?: boolean;
  /** Why the canary in the store could not be read, so that nothing was compared. */
  readonly unreadable?: string;
}

/** Short: the hold only tests what the server can do, and the version need not be kept. */
const askedHoldS = 1;

/**
 * Brings every inference server to a committed version, and asks each for the logprobs of a few tokens that the trainer
 * scored under the same weights. Servers that differ are recorded beside the canary, where clients of the version find
 * them. Idempotent.
 */
export const createBroadcastWeights =
  (inference: (spec: RunSpec) => Inference, leaseGroups: LeaseGroups) =>
  async (input: {
    readonly run: RunHandle;
    readonly policy: PolicyVersion;
    /** Rollouts under way switch to it between two turns. */
    readonly isForThoseInPlay?: boolean;
    readonly lease?: LeaseInput;
  }): Promise<BroadcastResult> => {
    const { run, policy } = input;
    const servers = inference(await specOf(run));
    const work = async (): Promise<BroadcastResult> => {
      const result = await broadcast(inference, input);
      if (input.isForThoseInPlay === true && result.isNoneLeft !== true) await noteServed(run, policy);
      if (!input.lease || result.isNoneLeft === true) return result;
      return { ...result, leased: await leaseGroups(input.lease) };
    };
    return withHeartbeat(work, () => ({ waitsFor: servers.silence?.() ?? null }));
  };

async function broadcast(
  inference: (spec: RunSpec) => Inference,
  { run, policy }: { readonly run: RunHandle; readonly policy: PolicyVersion },
): Promise<BroadcastResult> {
  const spec = await specOf(run);
  const servers = inference(spec);
  const { avoid: _, ...served } = await servedPolicy(run, policy);
  await servers.bringTo(served);
  // A server that refuses a hold is brought to a version when it is asked for another.
  const held = await servers.hold?.(served, `${run.name}.broadcast`, askedHoldS).catch(() => undefined);
  const kind = held === 'single' ? { holdsOne: true } : {};
  const canary = await readCanary(storeOf(run), layout.canary(run.lineage, policy.step, policy.replay));
  if (canary instanceof RatchetError) return { canaryDifference: null, unreadable: canary.message, ...kind };
  if (canary?.digest !== policy.digest) return { canaryDifference: null, ...kind };
  const threshold = canaryThreshold(spec, (await servers.floatType?.()) ?? null);
  const drifts = await compare(servers, served, canary, threshold);
  if (!drifts) return { canaryDifference: null, ...kind };
  await failpoint('canary.compared');
  const result = verdict(drifts, threshold);
  await noteQuarantined(run, policy, result.quarantined ?? []);
  return { ...result, ...kind };
}

async function compare(
  servers: Inference,
  policy: ServedPolicy,
  { tokenIds, positions, logprobs: expected }: Canary,
  threshold: number,
): Promise<readonly ServerDrift[] | null> {
  const request = { policy, tokenIds, positions, expected };
  if (servers.compare) return servers.compare({ ...request, threshold });
  const sampled = await servers.score?.(request);
  return sampled ? [{ server: 'the server', difference: meanDifference(sampled, expected) }] : null;
}

function verdict(drifts: readonly ServerDrift[], threshold: number): BroadcastResult {
  const isNear = ({ difference }: ServerDrift): boolean => difference <= threshold; // NaN counts as not near
  const quarantined = drifts.filter((drift) => !isNear(drift));
  const reloaded = drifts.filter((drift) => isNear(drift) && drift.isReloaded);
  return {
    canaryDifference: Math.max(...drifts.map(({ difference }) => difference)),
    threshold,
    ...(quarantined.length === 0 ? {} : { quarantined }),
    ...(quarantined.length < drifts.length ? {} : { isNoneLeft: true }),
    ...(reloaded.length === 0 ? {} : { reloaded }),
  };
}

/** Server names or URLs. */
type QuarantinedServers = readonly string[];

/** A later broadcast of the same version may find them in agreement again. */
async function noteQuarantined(
  run: RunHandle,
  policy: PolicyVersion,
  quarantined: readonly ServerDrift[],
): Promise<void> {
  const store = storeOf(run);
  const key = layout.quarantinedServers(run.lineage, policy.step, policy.replay);
  const servers: QuarantinedServers = quarantined.map(({ server }) => server);
  if (servers.length > 0) await store.put(key, encodeJson(servers));
  else if (await store.read(key)) await store.removeAll(key);
}
