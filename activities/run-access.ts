import { RatchetError } from '../core/errors.ts';
import { layout, stepOf } from '../core/layout.ts';
import { policyName } from '../core/names.ts';
import type { ObjectRef, PolicyVersion, RunHandle, StepCommit } from '../core/rl/run-state.ts';
import { RunSpec } from '../core/spec/run-spec.ts';
import type { ServedPolicy } from '../backends/inference/index.ts';
import { openRunStore, type Store } from '../backends/store/index.ts';
import { decodeJson, decodeRows } from '../backends/store/objects.ts';
import { sha256 } from '../backends/store/file-store.ts';
import { weightsFolder } from '../backends/store/weights-folder.ts';

/** How activities reach a run: its store, its spec, its objects. Immutable objects are kept in memory a while. */
export function storeOf(run: RunHandle): Store {
  return openRunStore(run.store, run.name);
}

export async function specOf(run: RunHandle): Promise<RunSpec> {
  return cached(run, run.spec, async (bytes) => RunSpec.parse(decodeJson(bytes)));
}

export async function readJson<T>(run: RunHandle, ref: ObjectRef): Promise<T> {
  return cached(run, ref, async (bytes) => decodeJson<T>(bytes, ref.key));
}

export async function readRows<T>(run: RunHandle, ref: ObjectRef): Promise<T[]> {
  return cached(run, ref, async (bytes) => decodeRows<T>(bytes, ref.key));
}

/** A commit and the sha256 of its bytes, which its child names as parent. */
export interface FoundCommit {
  readonly commit: StepCommit;
  readonly sha256: string;
}

export async function readCommit(run: RunHandle, step: number): Promise<FoundCommit | null> {
  const key = layout.commit(run.lineage, step);
  const bytes = await storeOf(run).read(key);
  if (!bytes) return null;
  return { commit: decodeJson<StepCommit>(bytes, storeOf(run).uri + key), sha256: sha256(bytes) };
}

export async function requireCommit(run: RunHandle, step: number): Promise<FoundCommit> {
  const found = await readCommit(run, step);
  if (found) return found;
  throw new RatchetError(
    'CheckpointDamaged',
    `${layout.commit(run.lineage, step)} is missing from ${storeOf(run).uri}: step ${step} was committed but its record is gone. Restore the file, or start over with --fresh.`,
  );
}

/** The newest commit of the lineage, its chain checked back by one link. */
export async function readHead(run: RunHandle): Promise<FoundCommit | null> {
  const keys = await storeOf(run).list(layout.commits(run.lineage));
  const steps = keys.map(stepOf).filter((step) => step !== null);
  if (steps.length === 0) return null;
  const head = await requireCommit(run, Math.max(...steps));
  const parent = head.commit.step > 0 ? await requireCommit(run, head.commit.step - 1) : null;
  if ((parent?.sha256 ?? null) !== head.commit.parent) {
    throw new RatchetError(
      'CheckpointDamaged',
      `${layout.commit(run.lineage, head.commit.step)} does not continue step ${head.commit.step - 1}: it names parent ${head.commit.parent?.slice(0, 12)}…, found ${parent?.sha256.slice(0, 12)}…. One of the two was changed; restore it, or start over with --fresh.`,
    );
  }
  return head;
}

export async function servedPolicy(run: RunHandle, version: PolicyVersion): Promise<ServedPolicy> {
  const folder = await weightsFolder(storeOf(run), version.weights);
  return { name: policyName(run.name, run.lineage, version.step), version, folder };
}

/** Parsed objects by content. Bounded: a few steps' worth of rollouts. */
const parsed = new Map<string, unknown>();
const parsedMax = 24;

async function cached<T>(run: RunHandle, ref: ObjectRef, parse: (bytes: Uint8Array) => Promise<T>): Promise<T> {
  const key = `${run.store}${run.name}/${ref.key}#${ref.sha256}`;
  if (parsed.has(key)) return parsed.get(key) as T;
  const value = await parse(await storeOf(run).get(ref));
  parsed.set(key, value);
  if (parsed.size > parsedMax) parsed.delete(parsed.keys().next().value!);
  return value;
}
