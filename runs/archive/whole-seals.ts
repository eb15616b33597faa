import path from 'node:path';
import { RatchetError } from '../../core/errors.ts';
import type { ObjectRef, PolicyVersion } from '../../core/rl/run-state.ts';
import { listedIn } from '../../store/version-files.ts';
import { lineageOf, stepOf } from '../layout.ts';
import { readManifest } from '../versions/checkpoints.ts';
import { optimizerObjects } from '../versions/optimizer-state.ts';
import { requireCommit, type RunPlace, storeOf } from '../run-access.ts';

/** sha256 of each object of an archive, by key. */
export type Digests = ReadonlyMap<string, string>;

/**
 * All objects that a run needs to continue from a sealed checkpoint; a text where its records do not say so, with the
 * reason. The small records that name them are read from the run's store.
 */
export async function needsOfSeal(run: RunPlace, seal: string): Promise<readonly ObjectRef[] | string> {
  const here = { ...run, lineage: lineageOf(seal) };
  const step = stepOf(seal)!;
  try {
    const { policy, optimizer } = await readManifest(here, step);
    const { commit } = await requireCommit(here, step);
    const { reference, curriculum, surplus, prompts = {}, offeredPrompts = {} } = commit.state;
    return [
      commit.spec,
      ...(curriculum.pools ? [curriculum.pools] : []),
      ...surplus.map(({ scored }) => scored),
      ...[prompts, offeredPrompts].flatMap((entries) => Object.values(entries).map(({ ref }) => ref)),
      ...(optimizer ? await optimizerObjects(storeOf(run), optimizer) : []),
      ...(await filesOf(run, policy)),
      ...(await filesOf(run, reference)),
    ];
  } catch (error) {
    if (error instanceof RatchetError && error.code === 'CheckpointDamaged') return error.message;
    throw error;
  }
}

/** Which of these objects an archive lacks, in words; null if it has all of them. */
export function lackOf(needs: readonly ObjectRef[], digests: Digests): string | null {
  const lacking = needs.find(({ key, sha256 }) => digests.get(key) !== sha256);
  if (lacking === undefined) return null;
  return `${lacking.key} ${digests.has(lacking.key) ? 'is not what the checkpoint has' : 'is missing'}`;
}

/** What a sealed checkpoint lacks in an archive with these objects, in words; null if a run can continue from it. */
export async function lackOfSeal(run: RunPlace, seal: string, digests: Digests): Promise<string | null> {
  const needs = await needsOfSeal(run, seal);
  return typeof needs === 'string' ? needs : lackOf(needs, digests);
}

/** All files of a version, and of an adapter's base. */
async function filesOf(run: RunPlace, { weights, file, sums }: PolicyVersion): Promise<ObjectRef[]> {
  const store = storeOf(run);
  const listed = listedIn(Buffer.from(await store.get(sums)).toString('utf8'), store.uri + sums.key);
  return [sums, file, ...listed.map(({ name, sha256 }) => ({ key: path.posix.join(weights, name), sha256, bytes: 0 }))];
}
