import { RatchetError } from '../../core/errors.ts';
import { isDeepStrictEqual } from 'node:util';
import { layout } from '../layout.ts';
import { firstLineage } from '../../core/names.ts';
import { decodeRanges, encodeRanges } from '../../core/rl/ledger.ts';
import type { ObjectRef, RunState, StepCommit } from '../../core/rl/run-state.ts';
import type { RunSpec } from '../../config/run-spec.ts';
import { sha256 } from '../../store/file-store.ts';
import type { Store } from '../../store/index.ts';
import { encodeSettings, encodeStored } from '../forms/stored-forms.ts';
import { manifestOf, readManifest, sealedFor } from '../versions/checkpoints.ts';
import { Copy } from './fork-copy.ts';
import { type ForkedRollouts, rolloutsWithRewards } from './fork-rewards.ts';
import { firstCommit } from './lineages.ts';
import type { SpecSource } from '../forms/spec-source.ts';
import { commitIn, forkOriginIn, runRecordIn } from '../forms/record-shapes.ts';
import {
  begunAtOf,
  currentLineage,
  type LineagePlace,
  requireNamedCommit,
  requireFreeName,
  requireOwnFolder,
  type RunPlace,
  storeOf,
  stretchesOf,
} from '../run-access.ts';
import { storedSpec } from '../forms/stored-spec.ts';
import { storedTemplate } from '../forms/stored-template.ts';
import type { ForkOrigin } from './unfinished-fork.ts';

/** Settings that a checkpoint depends on: it cannot continue with others. */
const boundToCheckpoint = ['model', 'lora', 'sft'] as const satisfies readonly (keyof RunSpec)[];
/** Settings that stored groups were sampled with: with others, the groups are left behind. */
const boundToGroups = [
  'rolloutsPerExample',
  'sampling',
  'advantage',
  'zeroTruncated',
  'rolloutFilters',
] as const satisfies readonly (keyof RunSpec)[];

interface ForkedRun {
  readonly commit: StepCommit;
  /** URI for the new run's folder. */
  readonly store: string;
}

/**
 * Makes a new run in its own folder whose first lineage begins at a checkpoint of another run. Copies everything it
 * needs, so that it is independent. Idempotent for the same settings; its first commit comes last.
 */
export async function forkRun(input: {
  readonly from: RunPlace;
  readonly step: number;
  /** Its name and its store are the new run's. */
  readonly spec: RunSpec;
  readonly source: SpecSource;
  /** Id of a rescore whose rewards the stored rollouts of the next step have in the fork. */
  readonly rewards?: string | undefined;
}): Promise<ForkedRun> {
  const { from, step, spec, source, rewards } = input;
  const lineage = await currentLineage(from);
  const holder = await requireCheckpoint({ ...from, lineage }, step);
  const { spec: before } = await storedSpec(from);
  refuseOtherCheckpoint(before, spec);

  const to: LineagePlace = { name: spec.name, store: spec.store.uri, lineage: firstLineage };
  const target = storeOf(to);
  const fork: ForkOrigin = { from: from.name, step };
  const rollouts =
    rewards === undefined
      ? null
      : await rolloutsWithRewards({ from: await lineageAfter({ ...from, lineage }, step), step, rewards, before, after: spec }); // prettier-ignore
  const done = await finishedFork(target, spec, fork);
  if (done) {
    await requireRollouts(target, rollouts?.objects(done.policy) ?? []);
    return { commit: done, store: target.uri };
  }

  requireFreeName(to.name);
  await requireOwnFolder(to);
  const found = await requireNamedCommit(holder, step);
  const copy = new Copy(storeOf(from), target);
  const { commit } = found;
  // Before anything is written, so that a copy that would be incomplete leaves nothing behind.
  const template = await storedTemplate(from, before);
  const keepsGroups = boundToGroups.every((key) => isDeepStrictEqual(before[key], spec[key]));
  await copy.verify(commit, { keepsGroups });

  const begun = await begunAtOf(from);
  const ref = await beginFork(target, { spec, fork, source, ...begun });
  if (template !== null) await target.put(layout.chatTemplate(), Buffer.from(template));
  await copyRows(storeOf(from), target, spec);
  // Adapters build on v0, which is in the first lineage of every run.
  if (spec.lora) await copy.folder(layout.weights(firstLineage, 0), layout.weights(firstLineage, 0));
  const policy = await copy.version(commit.policy);
  const reference = await copy.version(commit.state.reference);
  const optimizer = commit.optimizer && (await copy.optimizer(commit.optimizer, layout.checkpoint(firstLineage, step)));
  if (keepsGroups) {
    for (const { scored } of commit.state.surplus) {
      await copy.object(scored, scored.key);
      for (const { name } of spec.environments)
        await copy.results(scored.key, name, { from: from.name, to: spec.name });
    }
  }

  const { pools } = commit.state.curriculum;
  if (pools) await copy.object(pools, pools.key);

  const prompts = await copy.prompts(commit.state.prompts, spec);
  const offered = await copy.prompts(commit.state.offeredPrompts, spec);

  const origin = { run: from.name, lineage: holder.lineage, step, sha256: found.sha256 };
  const taken = firstCommit(commit, { run: spec.name, lineage: firstLineage, origin, committedAt: commit.committedAt });
  const forked: StepCommit = {
    ...(keepsGroups ? taken : withoutSurplus(taken)),
    spec: ref,
    plan: null, // its batch stays where it was; this step is never trained again
    policy,
    optimizer,
  };
  const { prompts: _, offeredPrompts: __, pendingBranches, rows, ...rest } = forked.state;
  const state: RunState = {
    ...rest,
    policy,
    reference,
    // An evaluation of an earlier version stays the other run's.
    pendingEvals: forked.state.pendingEvals.filter((due) => due === step),
    ...(rows && haveOneOrder(before, spec) ? { rows } : {}),
    ...(prompts ? { prompts } : {}),
    ...(offered ? { offeredPrompts: offered } : {}),
    ...(pendingBranches ? { pendingBranches: pendingBranches.filter((due) => due.step === step) } : {}),
  };
  for (const { key, bytes } of rollouts?.objects(policy) ?? []) await target.putIfAbsent(key, bytes);
  const key = layout.commit(firstLineage, step);
  const bytes = encodeStored(key, { ...forked, state });
  const manifest = manifestOf({ commit: { ...forked, state }, sha256: sha256(bytes) });
  const manifestKey = `${layout.checkpoint(firstLineage, step)}manifest.json`;
  await target.put(manifestKey, encodeStored(manifestKey, manifest));
  // Comes last: from here on it is a run.
  const first = await target.putIfAbsent(key, bytes);
  return { commit: commitIn(first.bytes, target.uri + key), store: target.uri };
}

/** The lineage in which the step after this one was made, of those that led to the run's position. */
async function lineageAfter(run: LineagePlace, step: number): Promise<LineagePlace> {
  const { lineage } = (await stretchesOf(run)).find(({ from, upTo }) => from <= step && step < upTo)!;
  return { ...run, lineage };
}

/** Refuses a fork of that name that was made without these rewards. */
async function requireRollouts(target: Store, objects: ReturnType<ForkedRollouts['objects']>): Promise<void> {
  for (const { key, bytes } of objects) {
    const there = await target.read(key);
    if (there !== null && Buffer.compare(there, bytes) === 0) continue;
    throw new RatchetError(
      'ConfigInvalid',
      `${target.uri} holds this fork already, with other rewards. Choose another name: --name NEW.`,
    );
  }
}

/** Whether a place in the rows of `[data]` is the same place for both; of other rows a fork begins with the first. */
function haveOneOrder(before: RunSpec, after: RunSpec): boolean {
  const orderOf = ({ data, seed }: RunSpec) => data && [data.rows.sha256, data.shuffle ? seed : null];
  return isDeepStrictEqual(orderOf(before), orderOf(after));
}

/** Copies the rows of `[data]` when the fork uses the same: their file may be gone. */
async function copyRows(from: Store, to: Store, { data }: RunSpec): Promise<void> {
  const rows = data ? await from.read(layout.sftData()) : null;
  if (rows && sha256(rows) === data?.rows.sha256) await to.put(layout.sftData(), rows);
}

/** The lineage that sealed a checkpoint of this step; a step without one has no optimizer's state to copy. */
async function requireCheckpoint(run: LineagePlace, step: number): Promise<LineagePlace> {
  const sealed = await sealedFor(run);
  const found = sealed.findLast((checkpoint) => checkpoint.step === step);
  if (found) {
    const place = { ...run, lineage: found.lineage };
    await readManifest(place, step);
    return place;
  }
  const choice = encodeRanges([...new Set(sealed.map((checkpoint) => checkpoint.step))]) || 'none yet';
  throw new RatchetError(
    'Unsupported',
    `Fork of ${run.name}: step ${step} has no checkpoint. What can be chosen: ${choice}. (A rewind also reaches steps between checkpoints: npx ratchet-rl checkpoints ${run.name})`,
  );
}

function refuseOtherCheckpoint(before: RunSpec, after: RunSpec): void {
  const changed: string[] = boundToCheckpoint
    .filter((key) => !isDeepStrictEqual(before[key], after[key]))
    .map((key) => `  ${key}: was ${JSON.stringify(before[key])}, now ${JSON.stringify(after[key])}`);
  const [template, other] = [before, after].map(({ chatTemplate }) => chatTemplate?.sha256 ?? null);
  if (template !== other) changed.push(`  chatTemplate: was sha256 ${template}, now ${other} (null = the model's own)`);
  for (const { name, id, args } of after.environments) {
    const then = before.environments.find((environment) => environment.name === name);
    if (then && !isDeepStrictEqual([then.id, then.args], [id, args])) {
      changed.push(
        `  environment ${name}: was ${then.id} ${JSON.stringify(then.args)}, now ${id} ${JSON.stringify(args)} (its place in the examples would mean others; give it another name)`,
      );
    }
  }
  if (changed.length === 0) return;
  throw new RatchetError(
    'ConfigInvalid',
    `Fork of ${before.name}: a fork cannot continue from a checkpoint with other\n${changed.join('\n')}\nLeave these as they are, or start another run.`,
  );
}

/**
 * First commit of this very fork if it is complete, and null if it is still to be made: the name is free, or belongs to
 * an unfinished fork. Refuses another run of that name.
 */
async function finishedFork(target: Store, spec: RunSpec, fork: ForkOrigin): Promise<StepCommit | null> {
  const there = await target.read(layout.run());
  if (!there) return null;
  const where = target.uri + layout.run();
  const origin = forkOriginIn(there, where);
  const isThisFork = isDeepStrictEqual([origin, runRecordIn(there, where)], [fork, spec]);
  const commits = await target.list(layout.commits(firstLineage));
  if (commits.length === 0 && origin !== null) return null;
  const key = layout.commit(firstLineage, fork.step);
  const first = isThisFork ? await target.read(key) : null;
  if (first) return commitIn(first, target.uri + key);
  throw new RatchetError('ConfigInvalid', `${target.uri} holds another run already. Choose another name: --name NEW.`);
}

/** Writes the fork's origin and settings before anything else is in its folder. */
async function beginFork(
  target: Store,
  { spec, fork, source, ...begun }: { spec: RunSpec; fork: ForkOrigin; source: SpecSource; begunAt?: string },
): Promise<ObjectRef> {
  const record = encodeStored(layout.run(), { name: spec.name, ...begun, fork, spec });
  const { bytes: there } = await target.putIfAbsent(layout.run(), record);
  if (Buffer.compare(there, record) !== 0) {
    // Remains of an earlier unfinished fork would be taken for parts of this one.
    for (const key of await target.list('')) if (key !== layout.run()) await target.removeAll(key);
    await target.put(layout.run(), record);
  }
  const bytes = encodeSettings(spec);
  const ref = await target.put(layout.spec(sha256(bytes)), bytes);
  const key = layout.source(ref.key);
  await target.put(key, encodeStored(key, { ...source, attempt: undefined }));
  return ref;
}

/** Ends the groups that were kept for later: they were sampled with other settings than the fork's. */
function withoutSurplus(commit: StepCommit): StepCommit {
  const left = commit.state.surplus.flatMap(({ ordinals }) => decodeRanges(ordinals));
  if (left.length === 0) return commit;
  const ended = { ...commit.outcomes.ended, superseded: encodeRanges(left) };
  return { ...commit, outcomes: { ...commit.outcomes, ended, pending: '' }, state: { ...commit.state, surplus: [] } };
}
