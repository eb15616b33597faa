import type { PolicyVersion, RunHandle, ServedPolicy } from '../core/rl/run-state.ts';
import { layout } from '../runs/layout.ts';
import { isVersion } from '../runs/forms/record-shapes.ts';
import { decodeStored, encodeStored } from '../runs/forms/stored-forms.ts';
import { servedPolicy, storeOf } from '../runs/run-access.ts';

/**
 * Records the newest version that all servers of a run have held, for rollouts that switch to it between two turns.
 * Nothing stored depends on it. An older version, to which a reset workflow brings servers back, does not replace it.
 */
export async function noteServed(run: RunHandle, policy: PolicyVersion): Promise<void> {
  const before = await readServed(run);
  if (before === null || isLater(policy, before))
    await storeOf(run).put(layout.served(run.lineage), encodeStored(layout.served(run.lineage), policy));
}

async function readServed(run: RunHandle): Promise<PolicyVersion | null> {
  const key = layout.served(run.lineage);
  const bytes = await storeOf(run).read(key);
  if (bytes === null) return null;
  try {
    return decodeStored<PolicyVersion>(bytes, key, (value) => ({ 'a version': isVersion(value) }));
  } catch {
    return null; // the next broadcast writes it again
  }
}

function isLater(one: PolicyVersion, other: PolicyVersion): boolean {
  return one.step > other.step || (one.step === other.step && (one.replay ?? 0) > (other.replay ?? 0));
}

/** Milliseconds for which the newest version is cached. */
const lookAgainMs = 1_000;

/** The newest version, or `from` if there is none later. Looked up from time to time, once for all callers. */
export function newestServed(run: RunHandle, from: ServedPolicy): () => Promise<ServedPolicy> {
  let [newest, at] = [from, -Infinity]; // a chunk leased long ago may begin now
  let looking: Promise<ServedPolicy> | null = null;
  const look = async (): Promise<ServedPolicy> => {
    const version = await readServed(run);
    return version !== null && isLater(version, newest.version)
      ? servedPolicy(run, version, { isRead: false })
      : newest;
  };
  return () => {
    if (performance.now() - at < lookAgainMs) return Promise.resolve(newest);
    looking ??= look()
      .then((found) => (newest = found))
      .finally(() => {
        at = performance.now();
        looking = null;
      });
    return looking;
  };
}
