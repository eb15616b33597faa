import { sandboxTraits } from '../../core/kinds/sandboxes.ts';
import { isGone, thisWorker } from '../../host/worker-process.ts';
import { LeaseStore } from '../../runs/sandboxes/lease-store.ts';
import type { SandboxesOfWorkers } from '../budget/shared-budget.ts';

/** A sweep looks each minute; a lease that is still open so long after its deadline is looked after by nobody. */
const sweptWithinMs = 180_000;

/** What the leases beside the runs of a store, and this host, know of sandboxes whose workers died. */
export function sandboxesOfWorkers(store: string): SandboxesOfWorkers {
  const leases = new LeaseStore(store);
  return {
    place: store,
    worker: thisWorker(),
    async endOf(worker) {
      if (!isGone(worker)) return 'unknown';
      // From here on it opens no lease. Some sandboxes end with their worker; of the others a lease ends when they are gone.
      const [open, pools] = [await leases.readOpen(), await leases.pools()];
      const others = open.filter(({ lease, live }) => {
        const spec = pools.get(lease.pool);
        return (live ?? lease).owner.worker === worker && !(spec && sandboxTraits(spec).endsWithWorker);
      });
      if (others.length === 0) return Date.now();
      const isLookedAfter = others.some(({ lease, live }) => Date.now() < (live ?? lease).deadlineAtMs + sweptWithinMs);
      return isLookedAfter ? 'ending' : 'unknown';
    },
  };
}
