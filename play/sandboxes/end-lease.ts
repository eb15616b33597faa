import { setTimeout as delay } from 'node:timers/promises';
import type { SandboxProvider } from '../../backends/sandboxes/types.ts';
import { RatchetError } from '../../core/errors.ts';
import type { EndedSandbox, LeaseEnd } from '../../runs/sandboxes/lease-records.ts';
import type { LeaseStore, OpenLease } from '../../runs/sandboxes/lease-store.ts';

/** A provider may take a while to remove what it was told to. */
const goneWithinMs = 15_000;
const lookAgainMs = 250;

export type Gone = 'still there';

/**
 * Destroys the sandbox of a lease, and closes the lease when the provider has it no more: the place in the quota is free
 * only then. Running twice does no harm.
 */
export async function endLease(
  leases: LeaseStore,
  provider: Pick<SandboxProvider, 'destroy' | 'find'>,
  open: OpenLease,
  why: LeaseEnd,
): Promise<EndedSandbox | Gone> {
  const { name } = open.lease;
  if (open.creating !== null && !(await isGone(provider, name))) return 'still there';
  return leases.end(open, { atMs: Date.now(), why });
}

/** Also false while the provider does not answer. */
async function isGone(provider: Pick<SandboxProvider, 'destroy' | 'find'>, name: string): Promise<boolean> {
  for (const end = Date.now() + goneWithinMs; ;) {
    try {
      await provider.destroy(name);
      if ((await provider.find(name)) === null) return true;
    } catch (error) {
      if (!(error instanceof RatchetError && error.isRetryable)) throw error;
    }
    if (Date.now() > end) return false;
    await delay(lookAgainMs);
  }
}
