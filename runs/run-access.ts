import { RatchetError } from '../core/errors.ts';
import { present } from '../core/present.ts';
import { layout, stepOf } from './layout.ts';
import { firstLineage, lineageNumber, policyName } from '../core/names.ts';
import type {
  LineageOrigin,
  ObjectRef,
  PolicyVersion,
  RunHandle,
  ServedPolicy,
  StepCommit,
} from '../core/rl/run-state.ts';
import type { RunSpec } from '../config/run-spec.ts';
import { type Landmark, openRunStore, requireSeen, type Store } from '../store/index.ts';
import type { Shape } from '../store/objects.ts';
import { sha256 } from '../store/file-store.ts';
import { rowsKeptBytesMax, weightsReadWholeBytesMax } from '../core/limits.ts';
import { verifyVersion } from '../store/version-files.ts';
import { begunAtIn, commitIn, lineageRecordIn, specIn } from './forms/record-shapes.ts';
import { decodeStored, decodeStoredRows, decodeStoredTexts } from './forms/stored-forms.ts';
import { weightsFolder } from '../store/weights-folder.ts';

export { requireFreeName } from './free-name.ts';
export { requireOwnFolder } from '../store/index.ts';

/** Enough of a handle to find a run's folder. */
export type RunPlace = Pick<RunHandle, 'name' | 'store'>;
/** Enough of a handle to find a lineage's commits. */
export type LineagePlace = Pick<RunHandle, 'name' | 'store' | 'lineage'>;

/** A run that may have been opened before. */
type OpenedPlace = RunPlace & Partial<Pick<RunHandle, 'spec' | 'begunAt'>>;

/**
 * Opens a run's store. Its immutable objects are cached for a while. If the run was opened before, calls throw
 * `StoreNotSeen` unless this is the store that it was opened in.
 */
export function storeOf(run: OpenedPlace): Store {
  const { spec } = run;
  return openRunStore(run.store, run.name, spec === undefined ? {} : { begun: landmarkOf({ ...run, spec }) });
}

/** Identifies the right store: by the run that was opened in it, or by a separate evaluation or search. */
export type Opened = OpenedPlace | { readonly place: RunPlace; readonly spec: Pick<ObjectRef, 'key' | 'sha256'> };

/**
 * Throws `StoreNotSeen` unless this process sees the store of the run, evaluation or search. `isNow`: check even if it was seen a moment
 * ago.
 */
export async function requireStore(of: Opened, options: { readonly isNow?: boolean } = {}): Promise<void> {
  if (!('place' in of)) return requireSeen(storeOf(of), options);
  const { place, spec } = of;
  const begun: Landmark = { key: spec.key, is: spec.sha256, differs: () => null };
  await requireSeen(openRunStore(place.store, place.name, { begun }), options);
}

/**
 * `run.json` is written when a run is first opened, with that time; for an older run, its settings are looked for
 * instead.
 */
function landmarkOf({ begunAt, spec, ...run }: RunPlace & Pick<RunHandle, 'begunAt' | 'spec'>): Landmark {
  if (begunAt === undefined) return { key: spec.key, is: spec.sha256, differs: () => null };
  return {
    key: layout.run(),
    is: begunAt,
    async differs(bytes) {
      const found = begunAtIn(bytes, layout.run());
      if (found === begunAt) return null;
      // After a repair, `run.json` has the time of the first commit; a process that opened the run earlier has the time
      // it began.
      if (found !== null && found > begunAt && (await wasMadeAgain(run))) return null;
      return `expected one that was begun at ${begunAt}, found one of ${found ?? 'an unknown time'}`;
    },
  };
}

/** Whether a damaged `run.json` was set aside there. */
async function wasMadeAgain({ store, name }: RunPlace): Promise<boolean> {
  return (await storeOf({ store, name }).list(layout.allQuarantined())).some((key) =>
    key.startsWith(`${layout.allQuarantined()}${layout.run()}.`),
  );
}

/** `run.json` */
export async function runRecordOf(run: RunPlace): Promise<Uint8Array> {
  const store = storeOf(run);
  const recorded = await store.read(layout.run());
  if (recorded) return recorded;
  throw new RatchetError('RunNotFound', `There is no run ${run.name}: ${store.uri} holds no run.json.`);
}

/** Time the run began, for its handle; empty for a run without that record. */
export async function begunAtOf(run: RunPlace): Promise<Pick<RunHandle, 'begunAt'>> {
  return present({ begunAt: begunAtIn(await runRecordOf(run), storeOf(run).uri + layout.run()) ?? undefined });
}

/** Settings newer than a stored spec get their defaults here, where every user of the run reads it. */
export async function specOf(run: RunHandle): Promise<RunSpec> {
  return cached(run, run.spec, async (bytes) => specIn(bytes, run.spec.key));
}

/** The same as an activity, for a workflow. */
export async function readSpec({ run }: { readonly run: RunHandle }): Promise<RunSpec> {
  return specOf(run);
}

export async function readJson<T>(run: RunPlace, ref: ObjectRef, shape?: Shape): Promise<T> {
  return cached(run, ref, async (bytes) => decodeStored<T>(bytes, ref.key, shape));
}

export async function readRows<T>(run: RunPlace, ref: ObjectRef, shape?: Shape): Promise<T[]> {
  return cached(run, ref, async (bytes) => decodeStoredRows<T>(bytes, ref.key, shape));
}

/** A commit and the sha256 of its bytes, which its child names as parent. */
export interface FoundCommit {
  readonly commit: StepCommit;
  readonly sha256: string;
}

/** `origins/lineage_N.json`: written before the lineage's first commit, and never again. The newest is the current one. */
export interface LineageRecord {
  readonly schemaVersion: 1;
  readonly lineage: string;
  readonly origin: LineageOrigin;
  /** Id of the request: repeating it gives the same lineage. */
  readonly request: string;
  readonly begunAt: string;
}

/** Lineages after the first, oldest first. */
export async function begunLineages(run: RunPlace): Promise<LineageRecord[]> {
  const store = storeOf(run);
  let count = (await store.list(layout.origins())).length;
  // The listing may be stale, so the next lineage is read by name.
  while ((await store.read(layout.origin(count + 2))) !== null) count += 1;
  const numbers = Array.from({ length: count }, (_, i) => i + 2);
  return Promise.all(numbers.map((number) => requireOrigin(run, layout.origin(number))));
}

/** All lineages by name, oldest first; the newest is the current one. */
export async function lineagesOf(run: RunPlace): Promise<string[]> {
  return [firstLineage, ...(await begunLineages(run)).map(({ lineage }) => lineage)];
}

export async function currentLineage(run: RunPlace): Promise<string> {
  return (await lineagesOf(run)).at(-1)!;
}

/** Origin of a lineage of this run; null for the first. */
async function originOf(run: LineagePlace): Promise<LineageOrigin | null> {
  if (run.lineage === firstLineage) return null;
  return (await requireOrigin(run, layout.origin(lineageNumber(run.lineage)))).origin;
}

async function requireOrigin(run: RunPlace, key: string): Promise<LineageRecord> {
  const bytes = await storeOf(run).read(key);
  if (bytes) return lineageRecordIn(bytes, storeOf(run).uri + key);
  throw new RatchetError(
    'CheckpointDamaged',
    `${key} is missing from ${storeOf(run).uri}: it says where a lineage of this run began. Restore the file.`,
  );
}

/** Steps that one lineage contributes to another: from its first commit to where it was left. */
interface Stretch {
  readonly lineage: string;
  readonly from: number;
  readonly upTo: number;
}

/** Lineages that a run's lineage consists of, itself first; neighbours share the step of the takeover. */
export async function stretchesOf(run: LineagePlace): Promise<Stretch[]> {
  const stretches: Stretch[] = [];
  let [lineage, upTo] = [run.lineage, Number.POSITIVE_INFINITY];
  for (;;) {
    const origin = await originOf({ ...run, lineage });
    stretches.push({ lineage, from: origin?.step ?? 0, upTo });
    if (origin === null) return stretches;
    [lineage, upTo] = [origin.lineage, origin.step];
  }
}

/** A lineage's commit of a step: its own, or one of the lineages it continues. */
export async function readCommit(run: LineagePlace, step: number): Promise<FoundCommit | null> {
  const origin = await originOf(run);
  if (origin !== null && step < origin.step) return readCommit({ ...run, lineage: origin.lineage }, step);
  const key = layout.commit(run.lineage, step);
  const bytes = await storeOf(run).read(key);
  if (!bytes) return null;
  return { commit: commitIn(bytes, storeOf(run).uri + key), sha256: sha256(bytes) };
}

export async function requireCommit(run: LineagePlace, step: number): Promise<FoundCommit> {
  const found = await readCommit(run, step);
  if (found) return found;
  throw new RatchetError(
    'CheckpointDamaged',
    `${layout.commit(run.lineage, step)} is missing from ${storeOf(run).uri}: step ${step} was committed but its record is gone. Restore the file from a copy, or continue from the newest whole commit: npx ratchet-rl fsck ${run.name}`,
  );
}

/** Steps that the lineage itself committed, ascending. */
export async function committedSteps(run: LineagePlace): Promise<number[]> {
  const keys = await storeOf(run).list(layout.commits(run.lineage));
  return keys
    .map(stepOf)
    .filter((step) => step !== null)
    .sort((a, b) => a - b);
}

/** The newest commit of the lineage, its chain checked back by one link. */
export async function readHead(run: LineagePlace): Promise<FoundCommit | null> {
  const last = (await committedSteps(run)).at(-1) ?? null;
  // The listing may be stale, so the next commit is read by name.
  const first = last ?? ((await originOf(run))?.step ?? 0) - 1;
  let next = first + 1;
  while ((await readCommit(run, next)) !== null) next += 1;
  if (last === null && next === first + 1) return null;
  const head = await readLinked(run, next - 1);
  // No later commit confirms its sha256 yet, so it is read twice.
  if ((await requireCommit(run, next - 1)).sha256 === head.sha256) return head;
  return readLinked(run, next - 1);
}

/**
 * Reads a commit whose sha256 will be recorded. It must match the sha256 from its writer or from the next commit. Without either, two reads
 * must agree.
 */
export async function requireNamedCommit(run: LineagePlace, step: number, known?: string): Promise<FoundCommit> {
  const child = known === undefined ? await readCommit(run, step + 1) : null;
  const isContinued = child !== null && child.commit.lineage === run.lineage && child.commit.origin === undefined;
  const expected = known ?? (isContinued ? child.commit.parent : null) ?? (await requireCommit(run, step)).sha256;
  let found = await requireCommit(run, step);
  if (found.sha256 !== expected) found = await requireCommit(run, step);
  if (found.sha256 === expected) return found;
  throw new RatchetError(
    'CheckpointDamaged',
    `${layout.commit(found.commit.lineage, step)} in ${storeOf(run).uri} is not what was committed: expected sha256 ${expected.slice(0, 12)}…, found ${found.sha256.slice(0, 12)}…. Restore the file from a copy, or continue from the newest whole commit: npx ratchet-rl fsck ${run.name}`,
  );
}

/** A commit that continues the one before it. */
export async function readLinked(run: LineagePlace, last: number): Promise<FoundCommit> {
  const head = await requireCommit(run, last);
  if (head.commit.step !== last) {
    throw new RatchetError(
      'CheckpointDamaged',
      `${layout.commit(run.lineage, last)} in ${storeOf(run).uri}: expected the commit of step ${last}, found that of step ${head.commit.step}. Restore the file from a copy, or continue from the newest whole commit: npx ratchet-rl fsck ${run.name}`,
    );
  }
  const before = await commitBefore(run, head.commit);
  if (before !== null && before.found !== before.named) {
    const { step } = head.commit;
    throw new RatchetError(
      'CheckpointDamaged',
      `${layout.commit(run.lineage, step)} does not continue step ${before.step}: it names parent ${before.named?.slice(0, 12)}…, found ${before.found.slice(0, 12)}…. One of the two was changed; restore it from a copy, or continue from the newest whole commit: npx ratchet-rl fsck ${run.name}`,
    );
  }
  return head;
}

/** Whether a commit took over another run's step: a fork begins the first lineage, and a rewind a later one. */
export function isForked({ origin, lineage }: Pick<StepCommit, 'origin' | 'lineage'>): boolean {
  return origin !== undefined && lineage === firstLineage;
}

/** Parent that a commit records, and the one found; null when there is nothing to compare. */
async function commitBefore(
  run: LineagePlace,
  commit: StepCommit,
): Promise<{ step: number; named: string | null; found: string } | null> {
  const { step, parent, origin } = commit;
  if (origin !== undefined) {
    if (isForked(commit)) return null; // the other run need not be here
    const source = await requireCommit({ ...run, lineage: origin.lineage }, origin.step);
    return { step: origin.step, named: origin.sha256, found: source.sha256 };
  }
  if (step === 0) return null;
  return { step: step - 1, named: parent, found: (await requireCommit(run, step - 1)).sha256 };
}

/** The version as requested from inference servers; verified against its commit unless its weights are not read. */
export async function servedPolicy(
  run: RunHandle,
  version: PolicyVersion,
  { isRead = true }: { readonly isRead?: boolean } = {},
): Promise<ServedPolicy> {
  const store = storeOf(run);
  // A version that was removed cannot be read: its servers may still hold it, or report that they do not.
  if (isRead && (await store.list(version.weights)).length > 0) {
    await verifyVersion(store, version, { weightsBytesMax: weightsReadWholeBytesMax });
  }
  const key = layout.quarantinedServers(run.lineage, version.step, version.replay);
  const [folder, quarantined] = await Promise.all([weightsFolder(store, version.weights), store.read(key)]);
  const avoid = quarantined ? { avoid: decodeStoredTexts(quarantined, key) } : {};
  const name = policyName(run.name, run.lineage, version.step, version.replay);
  return { name, version, folder, ...present({ templateTime: run.begunAt }), ...avoid };
}

/** Parsed objects by content. Bounded: a few steps' worth of rollouts, none of which is large. */
const parsed = new Map<string, unknown>();
const parsedMax = 24;

async function cached<T>(run: RunPlace, ref: ObjectRef, parse: (bytes: Uint8Array) => Promise<T>): Promise<T> {
  const key = `${run.store}${run.name}/${ref.key}#${ref.sha256}`;
  if (parsed.has(key)) return parsed.get(key) as T;
  const value = await parse(await storeOf(run).get(ref));
  if (ref.bytes > rowsKeptBytesMax) return value;
  parsed.set(key, value);
  if (parsed.size > parsedMax) parsed.delete(parsed.keys().next().value!);
  return value;
}

/** Under the settings at the time of its commit. */
export async function isLastStep(store: Store, { step, spec, state, origin }: StepCommit): Promise<boolean> {
  if (origin !== undefined) return false;
  const { maxSteps } = specIn(await store.get(spec), spec.key);
  const { overrides } = state;
  return step >= Math.min(overrides.maxSteps ?? maxSteps, overrides.stopAfter ?? Infinity);
}
