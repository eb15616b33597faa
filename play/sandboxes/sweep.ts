import type { ListedSandbox, SandboxProvider } from '../../backends/sandboxes/types.ts';
import { RatchetError } from '../../core/errors.ts';
import type { SandboxProviderSpec } from '../../core/settings/sandboxes.ts';
import type { LeaseEnd } from '../../runs/sandboxes/lease-records.ts';
import type { StoredSnapshots } from '../../runs/sandboxes/stored-snapshots.ts';
import { dayOf, type LeaseStore, type OpenLease } from '../../runs/sandboxes/lease-store.ts';
import { endLease } from './end-lease.ts';
import { isGone, isHere } from '../../host/worker-process.ts';
import { settleUsualMs } from './leased-sandboxes.ts';

export interface SweepOptions {
  readonly leases: LeaseStore;
  readonly snapshots: Pick<StoredSnapshots, 'byProcess' | 'removeOf' | 'byWorkflow' | 'remove'>;
  readonly open: (spec: SandboxProviderSpec) => Promise<SandboxProvider>;
  /** Whether a workflow is running; true where nobody knows. */
  readonly isWorkflowRunning: (workflowId: string) => Promise<boolean>;
  readonly settleMs?: number;
  readonly nowMs?: number;
  readonly onProgress?: () => void;
}

/** What a sweep found and did. */
export interface Sweep {
  /** Leases that had not ended. */
  readonly open: number;
  readonly ended: readonly { readonly name: string; readonly why: LeaseEnd }[];
  /** Names of sandboxes without a lease, which were destroyed: a request that was never answered left them. */
  readonly orphans: readonly string[];
  /** Leases of nobody whose sandbox is not gone yet. */
  readonly left: readonly string[];
  /** Processes that have ended, whose snapshots were removed; absent in older histories. */
  readonly forgotten?: readonly string[];
  /** Providers that did not answer, and why. */
  readonly troubles: readonly string[];
}

/** Clocks of hosts may differ. */
const graceMs = 30_000;
/** Accounts are kept for so long. */
const accountDays = 30;

/**
 * Ends every sandbox of this place of runs that nobody owns: its deadline passed, its owner has ended, or its request was
 * never answered. Running twice, or two at once, does no harm.
 */
export async function sweepSandboxes(options: SweepOptions): Promise<Sweep> {
  const { leases, open, nowMs = Date.now(), onProgress = () => undefined } = options;
  const sweep = {
    open: 0,
    ended: [] as Sweep['ended'][number][],
    orphans: [] as string[],
    left: [] as string[],
    forgotten: [] as string[],
    troubles: [] as string[],
  };
  for (const [worker, day] of await options.snapshots.byProcess()) {
    if (!isOver(worker, day, nowMs)) continue;
    await options.snapshots.removeOf(worker);
    sweep.forgotten.push(worker);
  }
  // Rollouts of a run, an evaluation or a search that goes on later begin at their start, and are answered from the stored turns.
  for (const { workflow, prefix } of await options.snapshots.byWorkflow())
    if (!(await options.isWorkflowRunning(workflow))) await options.snapshots.remove(prefix);
  const pools = await leases.pools();
  if (pools.size === 0) return sweep;
  const project = await leases.project();
  for (const [pool, spec] of pools) {
    const provider = await open(spec).catch((error: unknown) => troubleOf(sweep.troubles, spec, error));
    if (provider === null) continue;
    try {
      // Sandboxes first: every lease is older than its sandbox, so one without a lease has lost it.
      const listed = await provider.list(project);
      const ofPool = (await leases.readOpen()).filter(({ lease }) => lease.pool === pool);
      sweep.open += ofPool.length;
      for (const one of ofPool) {
        onProgress();
        const why = await whyNobodyOwns(one, options, nowMs);
        if (why === null) continue;
        const { name } = one.lease;
        const ended = await endOf(one, why, provider, options, nowMs);
        if (ended === 'still there') sweep.left.push(name);
        else sweep.ended.push({ name, why });
      }
      const leased = new Set(ofPool.map(({ lease }) => lease.name));
      for (const { name } of await withoutLease(
        leases,
        listed.filter((one) => !leased.has(one.name)),
      )) {
        onProgress();
        await provider.destroy(name);
        sweep.orphans.push(name);
      }
    } catch (error) {
      troubleOf(sweep.troubles, spec, error);
    } finally {
      await provider.close();
    }
  }
  for (const day of await leases.endedDays())
    if (day < dayOf(nowMs - accountDays * 86_400_000)) await leases.forget(day);
  return sweep;
}

/** On another host a process is not seen: one that still saves nothing after this time sets up anew if it is there. */
const snapshotDays = 7;

function isOver(worker: string, newestDay: string, nowMs: number): boolean {
  return isGone(worker) || (!isHere(worker) && newestDay < dayOf(nowMs - snapshotDays * 86_400_000));
}

/** null where somebody does, or may. */
async function whyNobodyOwns(
  { lease, live }: OpenLease,
  { isWorkflowRunning }: SweepOptions,
  nowMs: number,
): Promise<LeaseEnd | null> {
  const { owner, deadlineAtMs } = live ?? lease;
  if (nowMs > deadlineAtMs + graceMs) return 'deadline';
  if (isGone(owner.worker)) return 'worker gone';
  if (owner.workflow !== undefined && !(await isWorkflowRunning(owner.workflow))) return 'run ended';
  return null;
}

async function endOf(
  open: OpenLease,
  why: LeaseEnd,
  provider: SandboxProvider,
  { leases, settleMs = settleUsualMs }: SweepOptions,
  nowMs: number,
): Promise<'ended' | 'still there'> {
  const { lease, creating, live } = open;
  // One that ends with its worker is not seen from another host, and is long over when its deadline has passed.
  if (provider.traits.endsWithWorker && !isHere((live ?? lease).owner.worker)) {
    if (why !== 'deadline') return 'still there';
    await leases.end(open, { atMs: nowMs, why });
    return 'ended';
  }
  // A request under way may still be answered by a sandbox, which has this lease as long as it is open.
  const mayCome = creating !== null && live === null && nowMs < creating.atMs + settleMs;
  if (mayCome && !provider.traits.endsWithWorker) {
    await provider.destroy(lease.name);
    return 'still there';
  }
  return (await endLease(leases, provider, open, why)) === 'still there' ? 'still there' : 'ended';
}

async function withoutLease(leases: LeaseStore, listed: readonly ListedSandbox[]): Promise<readonly ListedSandbox[]> {
  const known = await Promise.all(listed.map(({ name }) => leases.isOpen(name)));
  return listed.filter((_, i) => !known[i]);
}

function troubleOf(troubles: string[], { kind }: SandboxProviderSpec, error: unknown): null {
  if (!(error instanceof RatchetError)) throw error;
  troubles.push(`${kind}: ${error.message}`);
  return null;
}
