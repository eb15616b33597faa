import { RatchetError } from '../core/errors.ts';
import { layout } from './layout.ts';
import { firstLineage, lineageName } from '../core/names.ts';
import { decodeRanges, encodeRanges } from '../core/rl/ledger.ts';
import type { RunHandle, RunState, StepCommit, StepPlan } from '../core/rl/run-state.ts';
import { encodeJson } from '../backends/store/objects.ts';
import { sealedFor } from './checkpoints.ts';
import { commitIn } from './record-shapes.ts';
import {
  begunLineages,
  committedSteps,
  type FoundCommit,
  type LineagePlace,
  type LineageRecord,
  readCommit,
  readHead,
  readJson,
  requireCommit,
  type RunPlace,
  storeOf,
  stretchesOf,
} from './run-access.ts';

/** A committed step that a lineage can go on from. */
interface ReachableStep {
  readonly step: number;
  /** The checkpoint it is restored from; stored batches lead on from there. */
  readonly checkpoint: number;
  /** Whether its weights are in the store, for the policy servers. If not they are made again from the batches. */
  readonly hasWeights: boolean;
}

interface BegunLineage {
  readonly lineage: string;
  readonly head: FoundCommit;
  readonly hasWeights: boolean;
}

/**
 * Begins a lineage at a committed step of the run's current one. Nothing of what is there is changed: a record says where
 * it begins, then its first commit takes the state over. The same `request` again gets the same lineage; of two at once
 * each gets its own, and the later one is the current one.
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
    if (known) return completeLineage(run, known);
    const newest = begun.at(-1);
    if (newest) await completeLineage(run, newest); // whoever began it may not have come to it
    const current = newest?.lineage ?? firstLineage;
    const reached = await requireReachable({ ...run, lineage: current }, step);
    const origin = await holderOf({ ...run, lineage: current }, reached.step);
    const lineage = lineageName(begun.length + 2);
    const record: LineageRecord = {
      schemaVersion: 1,
      lineage,
      origin: { run: run.name, lineage: origin.commit.lineage, step, sha256: origin.sha256 },
      request,
      begunAt: new Date().toISOString(),
    };
    const { stored } = await storeOf(run).putIfAbsent(layout.origin(begun.length + 2), encodeJson(record));
    if (stored) return completeLineage(run, record);
  }
}

/** Writes the first commit of a lineage whose record is there, unless it was written before. */
export async function completeLineage(run: RunPlace, record: LineageRecord): Promise<BegunLineage> {
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
    // A branch of this very version begins anew; those of earlier ones ended with the lineage that is left.
    const branches = pendingBranches
      ? { pendingBranches: pendingBranches.filter((due) => due.step === origin.step) }
      : {};
    const commit: StepCommit = { ...first, state: { ...state, pendingEvals, ...branches } };
    await storeOf(run).putIfAbsent(layout.commit(lineage, origin.step), encodeJson(commit));
  }
  const head = await requireCommit(here, origin.step);
  return { lineage, head, hasWeights: keys.has(head.commit.policy.file.key) };
}

/** A lineage's first commit: the state of the one it goes on from, and what became of all groups drawn until then. */
export function firstCommit(
  source: StepCommit,
  {
    run,
    lineage,
    origin,
    committedAt,
  }: Pick<StepCommit, 'run' | 'lineage' | 'committedAt'> & Pick<LineageRecord, 'origin'>,
): StepCommit {
  const state: RunState = { ...source.state, lineage };
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

/** The commit of a step as it was first written, in the lineage that made it. */
async function holderOf(run: LineagePlace, step: number): Promise<FoundCommit> {
  const found = await requireCommit(run, step);
  const { origin } = found.commit;
  if (origin === undefined || origin.run !== run.name || origin.step !== step) return found;
  return holderOf({ ...run, lineage: origin.lineage }, step);
}

/** The steps that `run.lineage` can be taken back to, ascending: a checkpoint is there, or stored batches lead on from one. */
export async function reachableSteps(run: LineagePlace): Promise<ReachableStep[]> {
  const head = (await committedSteps(run)).at(-1);
  if (head === undefined) return [];
  const from = (await firstSteps(run)).at(-1)!;
  const steps = Array.from({ length: head - from + 1 }, (_, i) => from + i);
  const commits = await Promise.all(steps.map((step) => readCommit(run, step)));
  const sealed = new Set((await sealedFor(run)).map(({ step }) => step));
  const keys = await storedKeys(run);
  const reachable: ReachableStep[] = [];
  for (const [i, found] of commits.entries()) {
    if (!found) continue;
    const { policy, optimizer, plan, state } = found.commit;
    const step = steps[i]!;
    const hasWeights = keys.has(policy.file.key);
    if (!keys.has(state.reference.file.key) && state.reference.step !== step) continue;
    const before = reachable.at(-1);
    if (sealed.has(step) && hasWeights && (optimizer === null || keys.has(optimizer.key))) {
      reachable.push({ step, checkpoint: step, hasWeights });
    } else if (before?.step === step - 1 && plan && keys.has(plan.key)) {
      const { batch, reference } = await readJson<StepPlan>(run, plan);
      if (keys.has(batch.key) && keys.has(reference.file.key)) {
        reachable.push({ step, checkpoint: before.checkpoint, hasWeights });
      }
    }
  }
  return reachable;
}

/** Refuses a step that cannot be gone on from, with those that can. */
export async function requireReachable(run: LineagePlace, step: number): Promise<ReachableStep> {
  const head = await readHead(run);
  const refuse = (why: string): RatchetError => new RatchetError('Unsupported', `Rewind of ${run.name}: ${why}`);
  if (!head) throw refuse('nothing is committed yet, so there is no step to go back to.');
  const reachable = await reachableSteps(run);
  const choice = `What can be chosen: ${encodeRanges(reachable.map((found) => found.step)) || 'nothing'}.`;
  if (!Number.isInteger(step) || step < 0 || step > head.commit.step) {
    throw refuse(`expected a committed step up to ${head.commit.step}, got ${step}. ${choice}`);
  }
  const found = reachable.find((candidate) => candidate.step === step);
  if (found) return found;
  throw refuse(
    `step ${step} can no longer be restored: retention ([checkpoints] keep_last, keep_interval) has removed its weights or the batches that lead to it. ${choice}`,
  );
}

/** The same as an activity, for a run that is running: says whether `beginLineage` will succeed. */
export async function checkRewind(input: { readonly run: RunHandle; readonly step: number }): Promise<ReachableStep> {
  return requireReachable(input.run, input.step);
}

/** The first step of each stretch, newest first; a fork's first is later than 0. */
async function firstSteps(run: LineagePlace): Promise<number[]> {
  const stretches = await stretchesOf(run);
  const [root] = await committedSteps({ ...run, lineage: firstLineage });
  return stretches.map(({ lineage, from }) => (lineage === firstLineage ? (root ?? 0) : from));
}

async function storedKeys(run: LineagePlace): Promise<Set<string>> {
  const keys: string[] = [];
  for (const { lineage } of await stretchesOf(run)) {
    const prefixes = [layout.allWeights(lineage), layout.allCheckpoints(lineage), layout.allBatches(lineage)];
    for (const prefix of prefixes) keys.push(...(await storeOf(run).list(prefix)));
  }
  return new Set(keys);
}

/**
 * Stops a workflow whose state is behind the store's: the step it is about to make is committed, or a newer lineage has
 * begun. Whatever it did from here on would be thrown away.
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
    `Temporal's state of the run ${run.name} is behind its store, as after \`temporal workflow reset\`: it is about to make step ${step} of ${run.lineage}, but ${what}; the store's head is step ${at} of ${newest}. Nothing is lost. To go on from step ${at}: npx ratchet train FILE again. To go on from step ${back} instead, keeping what came after it: npx ratchet rewind ${run.name} --step ${back}`,
  );
}
