import type { Client } from '@temporalio/client';
import { openSandboxProvider } from '../../../backends/sandboxes/index.ts';
import { thisWorker } from '../../../host/worker-process.ts';
import { sweepSandboxes } from '../../../play/sandboxes/sweep.ts';
import { LeaseStore } from '../../../runs/sandboxes/lease-store.ts';
import { StoredSnapshots } from '../../../runs/sandboxes/stored-snapshots.ts';
import { resolveStoreUri } from '../../../store/index.ts';
import { scheduleSweeps } from '../../../workers/temporal/sweep-schedule.ts';
import { recordIt } from '../../eval/schedule-changes.ts';
import { print } from '../../output/print.ts';
import { defaultStore } from '../../stored/run-place.ts';
import { connect, temporalHere } from '../../../workers/temporal/client.ts';
import { withTemporal } from '../../temporal/with-temporal.ts';
import { askGrants } from '../../start/ask-grants.ts';
import { linesOfProvider } from '../../../backends/sandboxes/named.ts';
import { present } from '../../../core/present.ts';

/** Ends the sandboxes of a folder of runs that nobody owns. */
export async function sweep({
  schedule,
  store,
  grant,
}: {
  readonly schedule?: true;
  readonly store?: string;
  readonly grant?: readonly string[];
}): Promise<void> {
  const uri = resolveStoreUri(store ?? defaultStore, process.cwd());
  if (schedule) {
    await withTemporal(async (client) => {
      const { id, isNew } = await scheduleSweeps(client, uri);
      print(`${id}: sweeps each minute, while an orchestrator runs`);
      const asked = `${id} ends sandboxes that nobody owns, every minute`;
      if (isNew) await recordIt(client, { schedule: id, store: uri, run: null, what: 'schedule', asked });
    });
  }
  const leases = new LeaseStore(uri);
  const lines = [...(await leases.pools()).values()].flatMap(linesOfProvider);
  // Another user may have written the folder: its providers are reached and executed only with a grant.
  await askGrants({ name: 'sandboxes', store: uri }, { lines, environments: [] }, present({ grant }));
  const snapshots = new StoredSnapshots(leases, thisWorker());
  const settings = await temporalHere(process.cwd());
  const temporal = settings && (await connect(settings));
  try {
    const swept = await sweepSandboxes({
      leases,
      snapshots,
      open: (spec) => openSandboxProvider(spec, snapshots),
      isWorkflowRunning: (id) => isRunning(temporal?.client ?? null, id),
    });
    for (const { name, why } of swept.ended) print(`${name}: ended (${why})`);
    for (const name of swept.orphans) print(`${name}: destroyed, it had no lease`);
    for (const name of swept.left)
      print(`${name}: nobody owns it; its provider still has it, and the next sweep looks again`);
    for (const worker of swept.forgotten ?? [])
      print(`${worker}: has ended, and what it saved of sandboxes was removed`);
    for (const trouble of swept.troubles) print(trouble);
    print(
      `${swept.open} leased, ${swept.ended.length} of them ended, ${swept.orphans.length} without a lease destroyed`,
    );
    if (swept.troubles.length > 0) process.exitCode = 1;
  } finally {
    await temporal?.close();
  }
}

/** Without a server nobody knows, and then nothing is ended for it. */
async function isRunning(client: Client | null, workflowId: string): Promise<boolean> {
  if (client === null) return true;
  try {
    return (await client.workflow.getHandle(workflowId).describe()).status.name === 'RUNNING';
  } catch (error) {
    return !(error instanceof Error && error.name === 'WorkflowNotFoundError');
  }
}
