import { RatchetError } from '../../core/errors.ts';
import { layout } from '../layout.ts';
import { firstLineage, lineageName } from '../../core/names.ts';
import { decodeRanges, encodeRanges } from '../../core/rl/ledger.ts';
import type { OpenRound, RunHandle, RunState, StepCommit } from '../../core/rl/run-state.ts';
import { weightsReadWholeBytesMax } from '../../core/limits.ts';
import { encodeStored } from '../forms/stored-forms.ts';
import { isVersionSound } from '../../store/version-files.ts';
import { commitIn } from '../forms/record-shapes.ts';
import { type ReachableStep, type ReadDepth, RestorableSteps, storedKeys } from './restorable-steps.ts';
import {
  begunLineages,
  committedSteps,
  type FoundCommit,
  isForked,
  type LineagePlace,
  type LineageRecord,
  lineagesOf,
  readCommit,
  readHead,
  requireCommit,
  requireNamedCommit,
  type RunPlace,
  storeOf,
} from '../run-access.ts';

interface BegunLineage {
  readonly lineage: string;
  readonly head: FoundCommit;
  readonly hasWeights: boolean;
}

/**
 * Begins a lineage at a committed step of the run's current one, or of an earlier one that went further. Existing
 * objects stay unchanged: a record says where it begins, then its first commit takes over the state. Idempotent for a
 * `request`; of two concurrent ones each gets its own lineage, and the later one is current.
 */
export async function beginLineage(input: {
  readonly run: RunPlace;
  readonly step: number;
  readonly request: string;
}): Promise<BegunLineage> {
  const { run, step, request } = input;
  for (;;) {
    const begun = await begunLineages(run);
    const known = begun.find((record) => record.request === request);
    if (known) return withWeights(run, await completeLineage(run, known));
    const newest = begun.at(-1);
    if (newest) await completeLineage(run, newest); // its writer may have died before this
    const current = newest?.lineage ?? firstLineage;
    const reached = await requireReachable({ ...run, lineage: current }, step);
    const origin = await holderOf({ ...run, lineage: reached.lineage }, reached.step);
    const lineage = lineageName(begun.length + 2);
    const record: LineageRecord = {
      schemaVersion: 1,
      lineage,
      origin: { run: run.name, lineage: origin.commit.lineage, step, sha256: origin.sha256 },
      request,
      begunAt: new Date().toISOString(),
    };
    const key = layout.origin(begun.length + 2);
    const { stored } = await storeOf(run).putIfAbsent(key, encodeStored(key, record));
    if (stored) return withWeights(run, await completeLineage(run, record));
  }
}

/** Writes the first commit of a lineage with a record, unless it is there. */
export async function completeLineage(run: RunPlace, record: LineageRecord): Promise<Omit<BegunLineage, 'hasWeights'>> {
  const { lineage, origin } = record;
  const here = { ...run, lineage };
  const keys = await storedKeys(here);
  const written = await readCommit(here, origin.step);
  if (!written) {
    const source = await requireCommit({ ...run, lineage: origin.lineage }, origin.step);
    const first = firstCommit(source.commit, { run: run.name, lineage, origin, committedAt: record.begunAt });
    const evaluable = new Set<number>();
    for (const step of first.state.pendingEvals) {
      const found = await readCommit(here, step);
      if (step === origin.step || (found && keys.has(found.commit.policy.file.key))) evaluable.add(step);
    }
    const pendingEvals = first.state.pendingEvals.filter((step) => evaluable.has(step));
    const { pendingBranches, ...state } = first.state;
    // Branches of this version begin again; earlier ones ended with the old lineage.
    const branches = pendingBranches
      ? { pendingBranches: pendingBranches.filter((due) => due.step === origin.step) }
      : {};
    const commit: StepCommit = { ...first, state: { ...state, pendingEvals, ...branches } };
    const key = layout.commit(lineage, origin.step);
    await storeOf(run).putIfAbsent(key, encodeStored(key, commit));
  }
  return { lineage, head: await requireCommit(here, origin.step) };
}

async function withWeights(run: RunPlace, begun: Omit<BegunLineage, 'hasWeights'>): Promise<BegunLineage> {
  return { ...begun, hasWeights: await isWholeHere(run, begun.head.commit) };
}

/** Whether a version's files are complete, so that it can be sampled. If not, a rewind to it makes it again. */
export async function isWholeHere(run: RunPlace, { policy }: StepCommit): Promise<boolean> {
  return isVersionSound(storeOf(run), policy, { weightsBytesMax: weightsReadWholeBytesMax });
}

/** First commit of a lineage: the state it continues from, and the fates of all groups drawn until then. */
export function firstCommit(
  source: StepCommit,
  {
    run,
    lineage,
    origin,
    committedAt,
  }: Pick<StepCommit, 'run' | 'lineage' | 'committedAt'> & Pick<LineageRecord, 'origin'>,
): StepCommit {
  const { open: _, ...before } = source.state; // open rounds stay in the lineage that leased them
  const state: RunState = { ...before, lineage };
  const pending = state.surplus.flatMap(({ ordinals }) => decodeRanges(ordinals));
  const issued = Array.from({ length: state.curriculum.nextOrdinal - 1 }, (_, i) => i + 1);
  const inherited = encodeRanges(issued.filter((ordinal) => !pending.includes(ordinal)));
  return {
    ...source,
    run,
    lineage,
    parent: null,
    origin,
    outcomes: {
      step: source.step,
      issued: encodeRanges(issued),
      ended: inherited === '' ? {} : { inherited },
      pending: encodeRanges(pending),
    },
    state,
    committedAt,
  };
}

/** Commit of a step from the lineage that made it. */
async function holderOf(run: LineagePlace, step: number): Promise<FoundCommit> {
  const found = await requireNamedCommit(run, step);
  const { origin } = found.commit;
  if (origin === undefined || isForked(found.commit) || origin.step !== step) return found;
  return holderOf({ ...run, lineage: origin.lineage }, step);
}

/** The steps that `run.lineage` can be taken back to, ascending. */
export async function reachableSteps(run: LineagePlace, reading: ReadDepth = {}): Promise<ReachableStep[]> {
  return (await RestorableSteps.of(run, reading)).all();
}

/**
 * Refuses a step that the run cannot continue from, with its damage and the steps that it can. Looks for a step beyond
 * the head in the lineages that were left, newest first.
 */
export async function requireReachable(
  run: LineagePlace,
  step: number,
): Promise<ReachableStep & { readonly lineage: string }> {
  const head = await readHead(run);
  if (!head) throw refused(run, 'nothing is committed yet, so there is no step to go back to.');
  const left = await lineagesBeyond(run, head.commit.step);
  const heads = [{ lineage: run.lineage, head: head.commit.step }, ...left];
  const holder = Number.isInteger(step) && step >= 0 ? heads.find((each) => step <= each.head) : undefined;
  const stepsOf = (lineage: string) => RestorableSteps.of({ ...run, lineage }, quickly);
  const steps = holder && (await stepsOf(holder.lineage));
  const found = (await steps?.at(step)) ?? null;
  if (holder && found) return { ...found, lineage: holder.lineage };
  const faults = steps?.faults ?? [];
  const choices: number[] = [];
  for (const { lineage } of heads) {
    const there = steps && lineage === holder?.lineage ? steps : await stepsOf(lineage); // avoids reading the same commits twice
    const reachable = (await there.all()).map((other) => other.step);
    choices.push(...reachable.filter((other) => lineage === run.lineage || other > head.commit.step));
  }
  const choice = `What can be chosen: ${encodeRanges([...new Set(choices)].sort((a, b) => a - b)) || 'nothing'}.`;
  const furthest = Math.max(...heads.map((each) => each.head));
  if (!holder) throw refused(run, `expected a committed step up to ${furthest}, got ${step}. ${choice}`);
  const why =
    faults.length > 0
      ? `step ${step} cannot be restored, as the objects that it would be restored from are damaged:\n${faults.map((fault) => `  ${fault}`).join('\n')}\nRestore it from a copy, or go back to another step.`
      : `step ${step} can no longer be restored: retention ([checkpoints] keep_last, keep_interval) has removed its weights or the batches that lead to it.`;
  throw refused(run, `${why} ${choice}`);
}

/** A limit, since people wait for the answer. */
const quickly: ReadDepth = { bytesMax: weightsReadWholeBytesMax };

/** Lineages that were left after this step, the newest first. */
async function lineagesBeyond(run: LineagePlace, step: number): Promise<{ lineage: string; head: number }[]> {
  const found: { lineage: string; head: number }[] = [];
  for (const lineage of (await lineagesOf(run)).reverse()) {
    const head = (await committedSteps({ ...run, lineage })).at(-1) ?? 0;
    if (lineage !== run.lineage && head > step) found.push({ lineage, head });
  }
  return found;
}

function refused({ name }: LineagePlace, why: string): RatchetError {
  return new RatchetError('Unsupported', `Rewind of ${name}: ${why}`);
}

/** The same as an activity of a running run: checks whether `beginLineage` will succeed. */
export async function checkRewind(input: { readonly run: RunHandle; readonly step: number }): Promise<ReachableStep> {
  return requireReachable(input.run, input.step);
}

/**
 * Stops a workflow whose state is behind the store's: its next step is committed already, or a newer lineage has begun.
 * Anything it did from here on would be discarded.
 */
export async function refuseBehind(run: LineagePlace, step: number): Promise<void> {
  const newest = (await begunLineages(run)).at(-1)?.lineage ?? firstLineage;
  const there = newest === run.lineage ? await storeOf(run).read(layout.commit(run.lineage, step)) : null;
  if (newest === run.lineage && !there) return;
  const head = await readHead({ ...run, lineage: newest });
  const committedAt = there && commitIn(there, layout.commit(run.lineage, step)).committedAt;
  const what = there ? `step ${step} was committed at ${committedAt}` : `lineage ${newest} has begun since`;
  const [at, back] = [head?.commit.step ?? 0, Math.max(0, step - 1)];
  throw new RatchetError(
    'CommitConflict',
    `Temporal's state of the run ${run.name} is behind its store, as after \`temporal workflow reset\` or with an older database of its server: it is about to make step ${step} of ${run.lineage}, but ${what}; the store's head is step ${at} of ${newest}. Nothing is lost. To continue from step ${at}: npx ratchet-rl train FILE again. To continue from step ${back} instead, keeping what came after it: npx ratchet-rl rewind ${run.name} --step ${back}`,
  );
}

/** `refuseBehind` as an activity of a failing run: retention may have removed objects that its older state needs. */
export async function checkBehind(input: { readonly run: RunHandle; readonly step: number }): Promise<void> {
  await refuseBehind(input.run, input.step);
}

/**
 * `refuseBehind` for a workflow that generates a round: if the newest commit does not list the round, its step is
 * already committed.
 */
export async function refuseOverRound(run: LineagePlace, round: Pick<OpenRound, 'step' | 'first'>): Promise<void> {
  const head = (await readHead(run))?.commit;
  if (head?.state.open?.some(({ first }) => first === round.first)) return;
  await refuseBehind(run, Math.min(round.step, (head?.step ?? -1) + 1));
}
