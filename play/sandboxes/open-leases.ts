import { openSandboxProvider } from '../../backends/sandboxes/index.ts';
import type { SandboxPoolSpec } from '../../core/settings/sandboxes.ts';
import { LeaseStore } from '../../runs/sandboxes/lease-store.ts';
import { StoredSnapshots } from '../../runs/sandboxes/stored-snapshots.ts';
import { LeasedSandboxes } from './leased-sandboxes.ts';
import { WarmSandboxes } from './warm-sandboxes.ts';

export interface OpenedSandboxes {
  /** What a rollout is given as `RolloutPlace.sandboxes`; closed with the worker. */
  readonly sandboxes: WarmSandboxes;
  readonly snapshots: StoredSnapshots;
}

/** Sandboxes of one provider under the leases of a place of runs. A worker opens them once for all its rollouts. */
export async function openSandboxLeases(
  store: string,
  { provider: spec, quota, warm, costPerHour }: SandboxPoolSpec,
): Promise<OpenedSandboxes> {
  const leases = new LeaseStore(store);
  const snapshots = new StoredSnapshots(leases);
  const provider = await openSandboxProvider(spec, snapshots);
  // Written before the first sandbox, so that a sweep knows whom to ask.
  const [project, pool] = [await leases.project(), await leases.addPool(spec)];
  const leased = new LeasedSandboxes({ leases, provider, pool, project, quota, costPerHour });
  return { sandboxes: new WarmSandboxes(leased, warm), snapshots };
}
