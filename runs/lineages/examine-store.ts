import { RatchetError } from '../../core/errors.ts';
import { layout } from '../layout.ts';
import type { ObjectRef, PolicyVersion, StepPlan } from '../../core/rl/run-state.ts';
import type { Store } from '../../store/types.ts';
import { damaged, isUnreadable } from '../../store/objects.ts';
import { decodeStored, decodeStoredRows, formOf } from '../forms/stored-forms.ts';
import { sha256 } from '../../store/file-store.ts';
import type { ReadAnew } from '../../store/version-files.ts';
import { decodePart, decodeScores, decodeTaught } from '../rollouts/batch-parts.ts';
import { partsOfPlan } from '../rollouts/batches.ts';
import { faultOfVersion, foldersOf } from '../versions/kept-versions.ts';
import { listCheckpoints } from '../versions/list-checkpoints.ts';
import { settingsAgain } from './repair-store.ts';
import { fixedRecords, kindOfRecord, type Repair } from '../forms/stored-records.ts';
import {
  committedSteps,
  type LineagePlace,
  lineagesOf,
  readCommit,
  readLinked,
  type RunPlace,
  storeOf,
} from '../run-access.ts';

interface Fault {
  readonly key: string;
  readonly problem: string;
  /** Consequence for the run, and advice. */
  readonly meaning: string;
  /** Action of --repair; null when it has none, or for a commit at the head. */
  readonly repair: Repair | null;
}

export interface Examined {
  /** Number of files read. */
  readonly read: number;
  readonly faults: readonly Fault[];
  /** Commits at the head of the current lineage that a run cannot continue from, and their checkpoints. */
  readonly unreadableHead: readonly string[];
  /** Newest sound commit; null without one. */
  readonly whole: { readonly lineage: string; readonly step: number } | null;
}

/** Reads everything in a run's folder. Changes nothing. */
export async function examineStore(run: RunPlace): Promise<Examined> {
  const store = storeOf(run);
  const faults = new Faults();
  const note = faults.note.bind(faults);
  const lineages = await lineagesOf(run).catch((error: unknown) => {
    note(layout.origins(), error, 'it is unknown where a lineage began: restore the file from a copy');
    return null;
  });
  const keys = await store.list('');
  if (lineages === null) return { read: 0, faults: faults.found, unreadableHead: [], whole: null };
  const anew: ReadAnew = new Map();
  const kept = foldersOf(keys);
  const current: LineagePlace = { ...run, lineage: lineages.at(-1)! };
  const head = await examineHead(current);
  for (const key of head.unreadable) {
    note(key, await whyUnreadable(current, key), 'the run does not continue from here: --repair sets it aside');
  }
  for (const lineage of lineages) {
    for (const step of await committedSteps({ ...run, lineage })) {
      const key = layout.commit(lineage, step);
      if (head.unreadable.includes(key)) continue;
      const found = await readCommit({ ...run, lineage }, step).catch((error: unknown) => {
        note(key, error, 'no rewind goes to this step or over it, and no audit is sound: restore the file from a copy');
        return null;
      });
      if (!found) continue;
      const { plan, policy, spec } = found.commit;
      if (spec) await store.get(spec).catch((error: unknown) => note(spec.key, error, meaningOf(spec.key)));
      if (kept.has(policy.weights)) await examineVersion(store, policy, { faults, anew });
      if (plan && keys.includes(plan.key)) await examinePlan(run, plan, faults);
    }
  }
  if (faults.found.every(({ key }) => !key.includes('/steps/'))) await examineCheckpoints(run, { faults, anew });
  for (const key of new Set([...fixedRecords, ...keys]))
    if (!faults.isKnown(key)) await examineRecord(store, key, faults);
  const ahead = head.unreadable.map((key) => key.replace(/^.*step_(\d+)\.json$/, '$1'));
  const sealed = ahead.map((step) => `${layout.checkpoint(current.lineage, Number(step))}manifest.json`);
  return {
    read: keys.length,
    faults: await Promise.all(faults.found.map((fault) => withRepair(run, fault))),
    unreadableHead: [...head.unreadable, ...sealed.filter((key) => keys.includes(key))],
    whole: head.whole === null ? null : { lineage: current.lineage, step: head.whole },
  };
}

/** Faults found, one for each object. */
class Faults {
  readonly found: Fault[] = [];

  isKnown(key: string): boolean {
    return this.found.some((known) => known.key === key);
  }

  /** Rethrows errors that are not damage. */
  note(key: string, error: unknown, meaning: string): void {
    // Unsupported: a link that leads out of the folder.
    if (!isUnreadable(error) && !(error instanceof RatchetError && error.code === 'Unsupported')) throw error;
    if (!this.isKnown(key)) this.found.push({ key, problem: error.message, meaning, repair: null });
  }
}

/** Faults so far, and files read already. */
interface Examining {
  readonly faults: Faults;
  readonly anew: ReadAnew;
}

async function examineVersion(store: Store, policy: PolicyVersion, { faults, anew }: Examining): Promise<void> {
  const meaning = 'this version is not sampled or restored; it is made again where stored batches lead to it';
  const fault = await faultOfVersion(store, policy, anew).catch((error: unknown) => error);
  if (fault !== null) faults.note(policy.weights, fault, meaning);
}

const needed = 'the step cannot be trained again: it is reached from a later checkpoint only';

async function examinePlan(run: RunPlace, ref: ObjectRef, faults: Faults): Promise<void> {
  const store = storeOf(run);
  const plan = await store.get(ref).then(
    (bytes) => decodeStored<StepPlan>(bytes, ref.key),
    (error: unknown) => faults.note(ref.key, error, needed),
  );
  if (!plan) return;
  for (const object of [plan.packed, ...(plan.taught ? [plan.taught.logprobs] : [])]) {
    await store.get(object).catch((error: unknown) => faults.note(object.key, error, needed));
    if (faults.isKnown(object.key)) return;
  }
  const parts = await partsOfPlan(run, plan).catch((error: unknown) => faults.note(plan.packed.key, error, needed));
  for (const part of parts ?? [])
    await store.verify(part).catch((error: unknown) => faults.note(part.key, error, needed));
}

async function examineCheckpoints(run: RunPlace, { faults, anew }: Examining): Promise<void> {
  const meaning = 'it is passed over: an earlier one is restored, and batches after it trained again';
  for (const { lineage, step, state, problem } of (await listCheckpoints(run, anew)).checkpoints) {
    if (state === 'damaged')
      faults.found.push({ key: layout.checkpoint(lineage, step), problem: problem!, meaning, repair: null });
  }
}

/** A record without a digest is parsed by its own reader; other JSON is only checked to be readable. */
async function examineRecord(store: Store, key: string, faults: Faults): Promise<void> {
  const kind = kindOfRecord(key);
  const isRows = key.endsWith('.jsonl');
  const ofBatch = layout.isBatchPart(key) || layout.isTaughtPart(key) || layout.isTokenScores(key);
  const ours = formOf(key);
  const isOurs = ours !== null && ours.id !== 'batchRow';
  if (!kind && !isRows && !ofBatch && !key.endsWith('.json')) return;
  try {
    const bytes = await store.read(key);
    if (!bytes) return; // or removed since it was listed
    if (ofBatch) examinePart(bytes, key);
    else if (kind) kind.read(bytes, key);
    else if (isOurs && isRows) decodeStoredRows(bytes, key);
    else if (isOurs) decodeStored(bytes, key);
    else examineText(bytes, key, isRows);
  } catch (error) {
    faults.note(key, error, meaningOf(key));
  }
}

/** A part of a batch is named by its content, whether a plan names it or not. */
function examinePart(bytes: Uint8Array, key: string): void {
  if (layout.isTokenScores(key)) return void decodeScores(bytes, key);
  if (layout.isTaughtPart(key)) return void decodeTaught(bytes, key);
  decodePart(bytes, key);
  const found = sha256(bytes);
  if (!layout.isNamedBy(key, found)) throw damaged(key, `expected what its name says, found sha256 ${found}`);
}

function examineText(bytes: Uint8Array, key: string, isRows: boolean): void {
  const text = Buffer.from(bytes).toString('utf8');
  for (const [i, part] of (isRows ? text.split('\n') : [text]).entries()) {
    if (isRows && part === '') continue;
    try {
      JSON.parse(part);
    } catch (cause) {
      throw damaged(isRows ? `${key}, line ${i + 1}` : key, 'expected JSON, found none', cause);
    }
  }
}

/** Adds the action of --repair to a fault's meaning. */
async function withRepair(run: RunPlace, fault: Fault): Promise<Fault> {
  const repair = kindOfRecord(fault.key)?.repair ?? null;
  if (repair === null) return fault;
  if (repair !== 'made again') return { ...fault, repair, meaning: `${fault.meaning}; --repair sets it aside` };
  if ((await settingsAgain(run, fault.key)) === null) return fault;
  const from = fault.key === layout.run() ? 'the settings that the first commit names' : layout.run();
  return { ...fault, repair, meaning: `${fault.meaning}, or make it again from ${from}: --repair` };
}

/** Commits after the newest one that a run can continue from. */
async function examineHead(run: LineagePlace): Promise<{ whole: number | null; unreadable: readonly string[] }> {
  const steps = await committedSteps(run);
  const unreadable: string[] = [];
  for (const step of steps.toReversed()) {
    const isWhole = await readLinked(run, step).then(
      () => true,
      (error: unknown) => {
        if (isUnreadable(error)) return false;
        throw error;
      },
    );
    if (isWhole) return { whole: step, unreadable };
    unreadable.unshift(layout.commit(run.lineage, step));
  }
  return { whole: null, unreadable };
}

async function whyUnreadable(run: LineagePlace, key: string): Promise<unknown> {
  const step = Number(/step_(\d+)\.json$/.exec(key)![1]);
  return readLinked(run, step).then(
    () => new RatchetError('CheckpointDamaged', `${key} follows one that cannot be read.`),
    (error: unknown) => error,
  );
}

function meaningOf(key: string): string {
  const known: readonly (readonly [string, string])[] = [
    ['batches/', needed],
    ['rollouts/', 'what cannot be read of rollouts is generated again, where it is still needed'],
    ['results/', 'people read it; the run does not'],
    ['tokens/', 'people read it; the run does not'],
    ['evals/', 'the evaluation is to be made again'],
    ['logs/', 'people read it; the run does not'],
  ];
  const found = known.find(([prefix]) => key.replace(/^lineages\/[^/]+\//, '').startsWith(prefix));
  const meaning = kindOfRecord(key)?.meaning ?? found?.[1];
  return meaning ?? 'whatever needs it will say so: restore the file from a copy';
}
