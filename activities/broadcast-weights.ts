import { RatchetError } from '../core/errors.ts';
import { failpoint } from '../backends/failpoints.ts';
import type { Inference, ServerDrift } from '../backends/inference/index.ts';
import { meanDifference } from '../backends/inference/index.ts';
import { layout } from '../runs/layout.ts';
import { canaryThreshold } from '../core/rl/canary.ts';
import type { PolicyVersion, RunHandle } from '../core/rl/run-state.ts';
import type { RunSpec } from '../config/run-spec.ts';
import type { ServedPolicy } from '../backends/inference/index.ts';
import { encodeJson } from '../backends/store/objects.ts';
import { withHeartbeat } from './around/heartbeat.ts';
import { noteServed } from '../runs/served-version.ts';
import { readCanary } from '../runs/canary.ts';
import { servedPolicy, specOf, storeOf } from '../runs/run-access.ts';
import type { Canary } from '../runs/pending-versions.ts';

/** What a broadcast found. */
export interface BroadcastResult {
  /** How far the servers' logprobs of the canary lie from the trainer's: mean |Δ| at the worst of them; null where there was nothing to compare. */
  readonly canaryDifference: number | null;
  /** What it may be; absent where nothing was compared. */
  readonly threshold?: number;
  /** Servers above it, which are asked for nothing of this version; absent when there are none. */
  readonly quarantined?: readonly ServerDrift[];
  /** All of them are. */
  readonly isNoneLeft?: true;
  /** Servers that agreed once they had been given the weights again; absent when there are none. */
  readonly reloaded?: readonly ServerDrift[];
  /** They sample from the version they were given last, and from no other. Absent: they hold several. */
  readonly holdsOne?: boolean;
  /** Why the canary in the store could not be read: nothing was compared. */
  readonly unreadable?: string;
}

/** Nobody needs it kept: how a server answers says what it can. */
const askedHoldS = 1;

/**
 * Brings every inference server to a committed version, and asks each for the logprobs of a few tokens that the trainer
 * scored under the same weights. Which of them are off is noted beside the canary, where whoever asks for the version finds it. A
 * desired state: twice is once.
 */
export const createBroadcastWeights =
  (inference: (spec: RunSpec) => Inference) =>
  async (input: {
    readonly run: RunHandle;
    readonly policy: PolicyVersion;
    /** Rollouts in play take it between two turns. */
    readonly isForThoseInPlay?: boolean;
  }): Promise<BroadcastResult> => {
    const { run, policy } = input;
    const servers = inference(await specOf(run));
    const work = async (): Promise<BroadcastResult> => {
      const result = await broadcast(inference, input);
      if (input.isForThoseInPlay === true && result.isNoneLeft !== true) await noteServed(run, policy);
      return result;
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
  // Whoever refuses the question is brought to a version when it is asked for another.
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
  const isNear = ({ difference }: ServerDrift): boolean => difference <= threshold; // not so where it is no number
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

/** A later broadcast of the same version may find them well again. */
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
