import { hostname } from 'node:os';
import { openSandboxProvider } from '../../backends/sandboxes/index.ts';
import type { EnvironmentEntry } from '../../backends/environments/index.ts';
import type { RolloutSandboxes } from '../../backends/environments/types.ts';
import type { SandboxInPlay } from '../../core/rl/rollout/in-play.ts';
import { type LeaseOwner, ofRollouts, type SandboxPoolSpec } from '../../core/settings/sandboxes.ts';
import { usualQuota } from './usual-quota.ts';
import { processesOpen } from '../../host/processes-open.ts';
import { LeaseStore } from '../../runs/sandboxes/lease-store.ts';
import { StoredSnapshots } from '../../runs/sandboxes/stored-snapshots.ts';
import { thisWorker } from '../../host/worker-process.ts';
import { LeasedSandboxes } from './leased-sandboxes.ts';
import { WarmSandboxes } from './warm-sandboxes.ts';

/** Pools of this process: providers that are asked, and sandboxes that stand ready. */
const pools = new Map<string, Promise<WarmSandboxes>>();

/** A rollout that has sandboxes, and the place of runs beside which their leases are. */
export interface LeasedTo extends Omit<LeaseOwner, 'worker'> {
  readonly store: string;
  /** Told of each sandbox that it gets. */
  readonly onTaken?: (sandbox: SandboxInPlay) => void;
}

/**
 * Sandboxes for a rollout of an environment, under leases beside the runs of a store; undefined for an environment that
 * takes none. The provider is opened with the first that is taken.
 */
export function sandboxesFor(
  { program }: Pick<EnvironmentEntry, 'program'>,
  { store, onTaken, ...owner }: LeasedTo,
): RolloutSandboxes | undefined {
  if (program === undefined) return undefined;
  const { pool, memoryMb } = program.sandbox;
  return {
    snapshotPrefix: snapshotPrefix(owner),
    removeSnapshots: (prefix) => new StoredSnapshots(new LeaseStore(store), thisWorker()).remove(prefix),
    async take(request, options) {
      const sandboxes = await poolOf(store, pool, memoryMb);
      const taken = await sandboxes.take(request, { ...options, owner: { ...owner, worker: thisWorker() } });
      onTaken?.({ provider: pool.provider.kind, sinceMs: Date.now(), ...taken.lease });
      return taken;
    },
  };
}

/** Begins the keys of the snapshots of a rollout; without an index those of its group. A sweep finds the workflow in it. */
function snapshotPrefix({ run, workflow = run, lineage = '', group = '', index }: Omit<LeaseOwner, 'worker'>): string {
  const of = [workflow, lineage, group].map((part) => encodeURIComponent(part)).join('/');
  return `${ofRollouts}${of}/${index === undefined ? '' : `${index}/`}`;
}

/** Nobody goes on with a rollout that is stored, or with a group. What cannot be removed now stays. */
export async function forgetSnapshots(
  { program }: Pick<EnvironmentEntry, 'program'>,
  { store, ...owner }: Omit<LeasedTo, 'attempt' | 'onTaken'>,
): Promise<void> {
  if (program === undefined || program.resume === null) return;
  const snapshots = new StoredSnapshots(new LeaseStore(store), thisWorker());
  await snapshots.remove(snapshotPrefix(owner)).catch(() => undefined);
}

function poolOf(store: string, spec: SandboxPoolSpec, memoryMb: number): Promise<WarmSandboxes> {
  const key = JSON.stringify([store, spec, memoryMb]);
  const known = pools.get(key);
  if (known !== undefined) return known;
  const opening = openPool(store, spec, memoryMb);
  pools.set(key, opening);
  opening.catch(() => pools.delete(key)); // its caller gets the error
  return opening;
}

async function openPool(
  store: string,
  { provider: spec, quota, warm, costPerHour }: SandboxPoolSpec,
  memoryMb: number,
): Promise<WarmSandboxes> {
  // prettier-ignore
  const leases = new LeaseStore(store);
  const snapshots = new StoredSnapshots(leases, thisWorker());
  const provider = await openSandboxProvider(spec, snapshots);
  // Written before the first sandbox: a sweep asks every provider that is written down.
  const [pool, project] = [await leases.addPool(spec), await leases.project()];
  // Those that end with their worker are of its machine, which holds only so many.
  const own = quota === null && provider.traits.endsWithWorker ? usualQuota(memoryMb) : null;
  const places = own === null ? pool : `${pool}-${encodeURIComponent(hostname())}`;
  const sandboxes = new WarmSandboxes(
    new LeasedSandboxes({ leases, provider, pool, places, project, quota: quota ?? own, costPerHour }),
    warm,
  );
  // Sandboxes of rollouts that are under way then are ended by the next sweep.
  processesOpen.add(async () => {
    await sandboxes.close();
    await snapshots.removeOf(thisWorker());
  });
  return sandboxes;
}
