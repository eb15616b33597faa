import { isDeepStrictEqual } from 'node:util';
import { RatchetError } from '../../core/errors.ts';
import { layout, stepOf } from '../layout.ts';
import type { ObjectRef, PolicyVersion } from '../../core/rl/run-state.ts';
import type { Store } from '../../store/index.ts';
import { decodeStored } from '../forms/stored-forms.ts';
import { type FoundCommit, type LineagePlace, requireCommit, storeOf, stretchesOf } from '../run-access.ts';

export { copyOptimizer, openOptimizer, putOptimizer, verifyOptimizer } from './optimizer-state.ts';

/** `checkpoints/step_N/manifest.json`: written last, so a checkpoint that has one is whole. */
export interface CheckpointManifest {
  readonly schemaVersion: 1;
  readonly lineage: string;
  readonly step: number;
  /** sha256 of its commit, which has the run's whole state. */
  readonly commit: string;
  readonly policy: PolicyVersion;
  /** null = a fresh optimizer (v0). */
  readonly optimizer: ObjectRef | null;
}

/** Manifest of a commit's checkpoint, made only from the commit. */
export function manifestOf({ commit, sha256 }: FoundCommit): CheckpointManifest {
  const { lineage, step, policy, optimizer } = commit;
  return { schemaVersion: 1, lineage, step, commit: sha256, policy, optimizer };
}

/**
 * Manifest that `run.lineage` sealed for a step. Throws `CheckpointDamaged` when it is gone or differs from the commit.
 */
export async function readManifest(run: LineagePlace, step: number): Promise<CheckpointManifest> {
  const store = storeOf(run);
  const key = `${layout.checkpoint(run.lineage, step)}manifest.json`;
  const bytes = await store.read(key);
  if (!bytes) throw new RatchetError('CheckpointDamaged', `${key} is gone.`);
  const manifest = manifestOf(await requireCommit(run, step));
  if (!isDeepStrictEqual(decodeStored(bytes, store.uri + key), manifest)) {
    throw new RatchetError(
      'CheckpointDamaged',
      `${key} in ${store.uri} does not agree with ${layout.commit(run.lineage, step)}: one of the two was changed.`,
    );
  }
  return manifest;
}

/** Steps of one lineage that have a manifest, ascending. */
export async function sealedSteps(store: Store, lineage: string): Promise<number[]> {
  const keys = await store.list(layout.allCheckpoints(lineage));
  return keys
    .filter((key) => key.endsWith('/manifest.json'))
    .map(stepOf)
    .filter((step) => step !== null)
    .sort((a, b) => a - b);
}

/**
 * Checkpoints that a lineage can be restored from: its own, and those of earlier lineages up to where each was left.
 */
export async function sealedFor(run: LineagePlace): Promise<{ readonly lineage: string; readonly step: number }[]> {
  const found = [];
  for (const { lineage, upTo } of (await stretchesOf(run)).reverse()) {
    for (const step of await sealedSteps(storeOf(run), lineage)) if (step <= upTo) found.push({ lineage, step });
  }
  return found.sort((a, b) => a.step - b.step);
}
