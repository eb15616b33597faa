import { openSandboxProvider } from '../backends/sandboxes/index.ts';
import { thisWorker } from '../host/worker-process.ts';
import { type Sweep, sweepSandboxes } from '../play/sandboxes/sweep.ts';
import { LeaseStore } from '../runs/sandboxes/lease-store.ts';
import { StoredSnapshots } from '../runs/sandboxes/stored-snapshots.ts';
import { withHeartbeat } from './around/heartbeat.ts';

interface SweepDependencies {
  readonly isWorkflowRunning: (workflowId: string) => Promise<boolean>;
}

/**
 * Ends the sandboxes of one place of runs that nobody owns. Running twice, or beside another, does no harm: ending a
 * sandbox is idempotent, and the first account of a lease stands.
 */
export const createSweepSandboxes =
  ({ isWorkflowRunning }: SweepDependencies) =>
  async ({ store }: { readonly store: string }): Promise<Sweep> => {
    const leases = new LeaseStore(store);
    const snapshots = new StoredSnapshots(leases, thisWorker());
    return withHeartbeat(() =>
      sweepSandboxes({ leases, snapshots, open: (spec) => openSandboxProvider(spec, snapshots), isWorkflowRunning }),
    );
  };
