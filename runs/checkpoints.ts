import { isDeepStrictEqual } from 'node:util';
import { RatchetError } from '../core/errors.ts';
import { layout, stepOf } from './layout.ts';
import type { ObjectRef, PolicyVersion } from '../core/rl/run-state.ts';
import type { Store } from '../backends/store/index.ts';
import { decodeStored } from './stored-forms.ts';
import { type FoundCommit, type LineagePlace, requireCommit, storeOf, stretchesOf } from './run-access.ts';

/** `checkpoints/step_N/manifest.json`: written last, so a checkpoint that has one is whole. */
export interface CheckpointManifest {
  readonly schemaVersion: 1;
  readonly lineage: string;
  readonly step: number;
  /** sha256 of the commit it belongs to: the run's whole state is there. */
  readonly commit: string;
  readonly policy: PolicyVersion;
  /** null = a fresh optimizer (v0). */
  readonly optimizer: ObjectRef | null;
}

/** A commit as a checkpoint: nothing is in it that the commit does not say. */
export function manifestOf({ commit, sha256 }: FoundCommit): CheckpointManifest {
  const { lineage, step, policy, optimizer } = commit;
  return { schemaVersion: 1, lineage, step, commit: sha256, policy, optimizer };
}

/** The manifest that `run.lineage` sealed for a step. `CheckpointDamaged` when it is gone or not what the commit says. */
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

/** Checkpoints a lineage can be restored from: its own, and those of the lineages before it up to where each was left. */
export async function sealedFor(run: LineagePlace): Promise<{ readonly lineage: string; readonly step: number }[]> {
  const found = [];
  for (const { lineage, upTo } of (await stretchesOf(run)).reverse()) {
    for (const step of await sealedSteps(storeOf(run), lineage)) if (step <= upTo) found.push({ lineage, step });
  }
  return found.sort((a, b) => a.step - b.step);
}
