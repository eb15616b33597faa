import path from 'node:path';
import { isVersionSound, sumsName } from '../../store/version-files.ts';
import { layout } from '../layout.ts';
import { optimizerPlace } from '../versions/optimizer-state.ts';
import type { ObjectRef, PolicyVersion, RunHandle } from '../../core/rl/run-state.ts';
import { storeOf } from '../run-access.ts';

/** Parts of a version that waits in its run's folder for its commit. */
export const pendingNames = { weights: 'weights/', canary: 'canary.json' } as const;

/**
 * Moves a committed version from its pending place to its final one, weights last; nothing is copied. False when it is
 * no longer pending. Only for versions that a commit names, so a late caller moves the same bytes or nothing.
 */
export async function settleVersion(
  run: RunHandle,
  pendingAt: string,
  { policy, optimizer }: { readonly policy: PolicyVersion; readonly optimizer: ObjectRef | null },
): Promise<boolean> {
  const store = storeOf(run);
  if (!store.staging) return false;
  const { staging } = store;
  if (optimizer) {
    const place = optimizerPlace(optimizer.key);
    await staging.settle(pendingAt + path.posix.basename(place), place);
  }
  await staging.settle(pendingAt + pendingNames.canary, layout.canary(run.lineage, policy.step, policy.replay));
  const isSettled = await staging.settle(pendingAt + pendingNames.weights, policy.weights);
  if (isSettled) await store.removeAll(pendingAt);
  return isSettled;
}

/** The same for a committed version whose pending place the caller does not know; it is found by its bytes. */
export async function settleForgotten(
  run: RunHandle,
  version: { readonly policy: PolicyVersion; readonly optimizer: ObjectRef | null },
): Promise<boolean> {
  const store = storeOf(run);
  const { file, sums, step, weights } = version.policy;
  if (!store.staging) return false;
  const name = pendingNames.weights + file.key.slice(weights.length);
  for (const key of await store.list(layout.allPending(run.lineage))) {
    const isIt = key.startsWith(layout.pending(run.lineage, step, '').slice(0, -1)) && key.endsWith(`/${name}`);
    if (!isIt) continue;
    const pendingAt = key.slice(0, -name.length);
    const here = pendingAt + pendingNames.weights;
    const waiting = { weights: here, file: { ...file, key }, sums: { ...sums, key: here + sumsName } };
    if (!(await isVersionSound(store, waiting, { isPending: true }))) continue;
    if (await settleVersion(run, pendingAt, version)) return true;
  }
  return false;
}
