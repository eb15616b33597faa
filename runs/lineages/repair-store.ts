import { RatchetError } from '../../core/errors.ts';
import { layout } from '../layout.ts';
import { minuteOf } from '../../core/minute-of.ts';
import { firstLineage } from '../../core/names.ts';
import { sha256 } from '../../store/file-store.ts';
import type { Store } from '../../store/types.ts';
import { decodeJson, encodeJson, isUnreadable } from '../../store/objects.ts';
import { decodeStored, encodeStored } from '../forms/stored-forms.ts';
import { keepWholeRows } from '../metrics/metrics.ts';
import { recordMissing } from '../metrics/record-metrics.ts';
import { runRecordIn } from '../forms/record-shapes.ts';
import { committedSteps, isForked, lineagesOf, readCommit, type RunPlace, storeOf } from '../run-access.ts';
import type { Repair } from '../forms/stored-records.ts';

/** Moves objects away, newest first, under names that show what they were. Returns their new keys. */
export async function setAside(run: RunPlace, keys: readonly string[]): Promise<readonly string[]> {
  const moved: string[] = [];
  // Newest first, so that an interruption leaves a chain of commits without a gap.
  for (const key of keys.toReversed()) {
    const to = await moveAside(storeToRepair(run), key);
    if (to !== null) moved.push(to);
  }
  return moved;
}

/** Opens the store without checking its landmark: the user has named the store, and the landmark may be the damaged object. */
function storeToRepair({ store, name }: RunPlace): Store {
  return storeOf({ store, name });
}

/** Repairs a damaged record as far as possible. Returns its new key, or null if it could not be moved. */
export async function repairRecord(run: RunPlace, key: string, repair: Repair): Promise<string | null> {
  const store = storeToRepair(run);
  const again = repair === 'made again' ? await settingsAgain(run, key) : null;
  const rows = repair === 'rows kept' ? await keepWholeRows(store) : null;
  const to = await moveAside(store, key);
  if (to === null) return null;
  if (again) await store.put(key, again);
  if (repair === 'released') await store.put(key, encodeStored(key, claimOfNobody(key)));
  if (rows) {
    await rows.putBack();
    await recordMissing(run).catch(unlessDamaged);
  }
  return to;
}

/**
 * Rebuilds `run.json` from the settings of the first commit, or those settings from `run.json`. Null when the other
 * record is missing or differs. The time of the first commit stands in for the time the run began, which was shortly
 * before: `landmarkOf` allows for the difference.
 */
export async function settingsAgain(run: RunPlace, key: string): Promise<Uint8Array | null> {
  try {
    return key === layout.run() ? await runRecordAgain(run) : await specAgain(run, key);
  } catch (error) {
    unlessDamaged(error);
    return null;
  }
}

async function runRecordAgain(run: RunPlace): Promise<Uint8Array | null> {
  const place = { ...run, lineage: firstLineage };
  const [first] = await committedSteps(place);
  const commit = first === undefined ? undefined : (await readCommit(place, first))?.commit;
  if (!commit) return null;
  const { origin } = commit;
  const fork = origin && isForked(commit) ? { fork: { from: origin.run, step: origin.step } } : {};
  const spec = decodeStored(await storeOf(run).get(commit.spec), commit.spec.key);
  const begunAt = minuteOf(new Date(commit.committedAt));
  const bytes = encodeStored(layout.run(), { name: run.name, begunAt, ...fork, spec });
  runRecordIn(bytes, layout.run());
  return bytes;
}

async function specAgain(run: RunPlace, key: string): Promise<Uint8Array | null> {
  const recorded = await storeOf(run).read(layout.run());
  if (!recorded) return null;
  // Keeps the stored version, because commits refer to the sha256 of these bytes.
  const bytes = encodeJson(decodeJson<{ readonly spec: unknown }>(recorded, layout.run()).spec);
  return (await specDigests(run, key)).includes(sha256(bytes)) ? bytes : null;
}

/** Digests that commits record for the settings at a key. */
async function specDigests(run: RunPlace, key: string): Promise<string[]> {
  const digests: string[] = [];
  for (const lineage of await lineagesOf(run)) {
    for (const step of await committedSteps({ ...run, lineage })) {
      const found = await readCommit({ ...run, lineage }, step);
      if (found?.commit.spec.key === key) digests.push(found.commit.spec.sha256);
    }
  }
  return digests;
}

function claimOfNobody(key: string): Readonly<Record<string, unknown>> {
  const [, epoch] = /epoch_(\d+)\.json$/.exec(key) ?? [];
  return epoch === undefined ? { workflowId: 'nobody' } : { epoch: Number(epoch), holder: 'nobody' };
}

/** In a store that is a folder, an entry that is not a file (a FIFO, a folder) is moved as it is. */
async function moveAside(store: Store, key: string): Promise<string | null> {
  try {
    const bytes = await store.read(key);
    if (!bytes) return null;
    const to = layout.quarantined(key, sha256(bytes));
    await store.put(to, bytes);
    await store.removeAll(key);
    return to;
  } catch (error) {
    unlessDamaged(error);
    const to = layout.quarantined(key, sha256(Buffer.from((error as Error).message)));
    const isMoved = await store.staging?.settle(key, to).catch(unlessDamaged);
    return isMoved === true ? to : null;
  }
}

function unlessDamaged(error: unknown): void {
  // Unsupported: a link that leads out of the folder.
  if (isUnreadable(error) || (error instanceof RatchetError && error.code === 'Unsupported')) return;
  throw error;
}
