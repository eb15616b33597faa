import { RatchetError } from '../../core/errors.ts';
import { layout } from '../layout.ts';
import type { PolicyVersion } from '../../core/rl/run-state.ts';
import type { Store } from '../../store/index.ts';
import { type ReadAnew, verifyVersion } from '../../store/version-files.ts';
import { committedSteps, lineagesOf, readCommit, type RunPlace, storeOf } from '../run-access.ts';

export interface VersionReport {
  readonly step: number;
  readonly lineage: string;
  /** null when every file is unchanged. */
  readonly problem: string | null;
}

/**
 * Versions whose weights are kept without a checkpoint, for chats, evaluations and searches. `besides`: versions read
 * already, by lineage and step.
 */
export async function auditVersions(
  run: RunPlace,
  { besides, anew }: { readonly besides: ReadonlySet<string>; readonly anew: ReadAnew },
): Promise<VersionReport[]> {
  const store = storeOf(run);
  const reports: VersionReport[] = [];
  const seen = new Set<string>();
  for (const lineage of await lineagesOf(run)) {
    const kept = foldersOf(await store.list(layout.allWeights(lineage)));
    for (const step of await committedSteps({ ...run, lineage })) {
      const found = await readCommit({ ...run, lineage }, step);
      if (!found) continue;
      const { policy } = found.commit;
      const isDone = besides.has(`${lineage}/${step}`) || seen.has(policy.weights);
      if (isDone || !kept.has(policy.weights)) continue;
      seen.add(policy.weights);
      reports.push({ step, lineage, problem: (await faultOfVersion(store, policy, anew))?.message ?? null });
    }
  }
  return reports;
}

/** Fault of a stored version; null also when retention has removed it meanwhile. */
export async function faultOfVersion(
  store: Store,
  policy: PolicyVersion,
  anew: ReadAnew,
): Promise<RatchetError | null> {
  try {
    await verifyVersion(store, policy, { anew });
    return null;
  } catch (error) {
    if (!(error instanceof RatchetError) || error.code !== 'CheckpointDamaged') throw error;
    return (await store.list(policy.weights)).length === 0 ? null : error;
  }
}

/** Folders `…/step_7/` of the keys. */
export function foldersOf(keys: readonly string[]): ReadonlySet<string> {
  return new Set(keys.flatMap((key) => /^.*?(?:^|\/)weights\/[^/]+\//.exec(key)?.[0] ?? []));
}
