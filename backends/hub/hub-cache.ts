import { existsSync, readdirSync } from 'node:fs';
import path from 'node:path';
import { ofRepository } from '../../engine/model/model-repository.ts';
import { readRegularSync } from '../../host/regular-file.ts';
import { requiredFiles } from '../../engine/model/text-files.ts';
import { type ModelParts, shardsOf, weightsIndex, wholeWeights } from './model-files.ts';

/**
 * The cache of huggingface_hub: `models--OWNER--NAME/{refs,snapshots,blobs}`, for datasets `datasets--…`. It is read
 * here, and written by `snapshot.ts`.
 */

/** A model that is in the cache. */
interface CachedModel {
  /** A snapshot: every file of it is a link to its content. */
  readonly folder: string;
  readonly commit: string;
  /** Missing files. */
  readonly missing: readonly string[];
}

export const commitPattern = /^[0-9a-f]{40}$/;

export type RepositoryKind = 'models' | 'datasets';

/** The folder of a repository, existing or not. `id` is OWNER/NAME. */
export function repositoryFolder(cache: string, id: string, kind: RepositoryKind = 'models'): string {
  return path.join(cache, `${kind}--${id.replace('/', '--')}`);
}

/** The snapshot of `main`, or the only one; null without any. */
export function findCached(cache: string, id: string, parts: ModelParts, revision = 'main'): CachedModel | null {
  const found = snapshotIn(repositoryFolder(cache, id), revision);
  return found && { ...found, missing: missingIn(found.folder, parts) };
}

/** The cached part of a repository, at `main` or its only commit; null if there is none. */
export function snapshotIn(
  repository: string,
  revision = 'main',
): { readonly folder: string; readonly commit: string } | null {
  const commit = commitPattern.test(revision) ? revision : commitOf(repository, revision);
  if (commit === null) return null;
  const folder = path.join(repository, 'snapshots', commit);
  return existsSync(folder) ? { folder, commit } : null;
}

function commitOf(repository: string, revision: string): string | null {
  try {
    const commit = readRegularSync(path.join(repository, 'refs', ...revision.split('/')))
      .toString('utf8')
      .trim();
    return commitPattern.test(commit) ? commit : null;
  } catch {
    return revision === 'main' ? onlySnapshot(repository) : null;
  }
}

function onlySnapshot(repository: string): string | null {
  try {
    const commits = readdirSync(path.join(repository, 'snapshots')).filter((name) => commitPattern.test(name));
    return commits.length === 1 ? commits[0]! : null;
  } catch {
    return null; // the model is not here
  }
}

function missingIn(folder: string, parts: ModelParts): string[] {
  const isThere = (name: string): boolean => existsSync(path.join(folder, name));
  const missing = requiredFiles.filter((name) => !isThere(name));
  if (parts === 'texts' || isThere(wholeWeights)) return missing;
  const shards = isThere(weightsIndex)
    ? shardsOf(readRegularSync(path.join(folder, weightsIndex), undefined, ofRepository(folder)).toString('utf8'))
    : null;
  return [...missing, ...(shards ?? [wholeWeights]).filter((name) => !isThere(name))];
}
