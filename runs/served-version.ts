import type { PolicyVersion, RunHandle } from '../core/rl/run-state.ts';
import type { ServedPolicy } from '../backends/inference/index.ts';
import { layout } from './layout.ts';
import { isVersion } from './record-shapes.ts';
import { decodeStored, encodeStored } from './stored-forms.ts';
import { servedPolicy, storeOf } from './run-access.ts';

/**
 * The newest version that all servers of a run have held, for rollouts that take it between two turns. It decides nothing that is stored. An
 * older one, which a workflow that was reset brings servers back to, takes nothing's place.
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
    return null; // the next broadcast writes it anew
  }
}

function isLater(one: PolicyVersion, other: PolicyVersion): boolean {
  return one.step > other.step || (one.step === other.step && (one.replay ?? 0) > (other.replay ?? 0));
}

/** For so long the same is taken to be the newest. */
const lookAgainMs = 1_000;

/** The newest version, or `from` while there is none later. Looked for again from time to time, once for all who ask. */
export function newestServed(run: RunHandle, from: ServedPolicy): () => Promise<ServedPolicy> {
  let [newest, at] = [from, -Infinity]; // what was leased long ago may begin now
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
