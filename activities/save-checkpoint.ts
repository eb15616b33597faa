import { layout, stepOf } from '../runs/layout.ts';
import { firstLineage } from '../core/names.ts';
import type { RunHandle } from '../core/rl/run-state.ts';
import type { CheckpointSpec } from '../config/run-spec.ts';
import { encodeStored } from '../runs/forms/stored-forms.ts';
import type { Store } from '../store/index.ts';
import { withHeartbeat } from './around/heartbeat.ts';
import { manifestOf, sealedSteps } from '../runs/versions/checkpoints.ts';
import { removePlayed } from '../runs/lineages/unneeded.ts';
import { RatchetError } from '../core/errors.ts';
import { begunLineages, readCommit, requireCommit, requireNamedCommit, specOf, storeOf } from '../runs/run-access.ts';

interface CheckpointInput {
  readonly run: RunHandle;
  readonly step: number;
  /** Versions that something still refers to: the reference policy, evaluations under way. */
  readonly pinned: readonly number[];
  /** Removes nothing: the run is about to be rewound to a step that retention might remove. */
  readonly keepsAll?: boolean;
  /** sha256 of the step's commit, from the worker that wrote it. If missing, the next commit's reference is used. */
  readonly commit?: string;
}

/** Seals a committed step as a checkpoint, then removes what retention no longer keeps. Idempotent. */
export async function saveCheckpoint({
  run,
  step,
  pinned,
  keepsAll = false,
  commit,
}: CheckpointInput): Promise<{ kept: number[] }> {
  return withHeartbeat(async () => {
    const store = storeOf(run);
    const { checkpoints: spec, kl, maxAsyncLevel, maxOffPolicySteps } = await specOf(run);
    const found = await requireNamedCommit(run, step, commit);
    const manifest = manifestOf(found);
    const key = `${layout.checkpoint(run.lineage, step)}manifest.json`;
    await store.putIfAbsent(key, encodeStored(key, manifest));

    await sealForgotten(run, step);
    const sealed = (await listedTwice(run)).filter((sealedStep) => sealedStep <= step);
    if (!sealed.includes(step)) {
      const what = `the list of ${layout.allCheckpoints(run.lineage)} in ${store.uri} does not have step ${step}, which was just stored`;
      throw new RatchetError('StoreUnavailable', `${what}. Nothing was removed; the list is requested again.`);
    }
    if (keepsAll) return { kept: sealed };
    const begun = await begunLineages(run);
    // Steps at which other lineages took over from this one; they need their checkpoints.
    const takenOver = begun.flatMap(({ origin }) => (origin.lineage === run.lineage ? [origin.step] : []));
    const needed = takenOver.flatMap((at) => sealed.findLast((sealedStep) => sealedStep <= at) ?? []);
    const regular = keptCheckpoints(sealed, spec, run.lineage === firstLineage ? sealed[0] : undefined);
    const kept = sealed.filter((sealedStep) => regular.includes(sealedStep) || needed.includes(sealedStep));
    const oldestLive = step - maxAsyncLevel - maxOffPolicySteps - 1;
    const newest = regular.slice(-spec.keepLast);
    // A lineage's origin counts as one of its checkpoints until it has enough of its own.
    const beganAt = begun.find(({ lineage }) => lineage === run.lineage)?.origin.step;
    const oldest = newest.length < spec.keepLast ? (beganAt ?? newest[0]) : newest[0];
    const replayFrom = Math.min(oldest ?? 0, ...needed);
    // Adapters build on v0; the reference in use when the first of these batches is trained again may be older.
    const inUse = sealed.includes(replayFrom) ? (await requireCommit(run, replayFrom)).commit.state.reference.step : 0;
    const references = [0, inUse, ...referencesSince(replayFrom, step, kl.refSyncSteps)];
    const keepWeights = new Set([...kept, ...takenOver, ...pinned, ...references]);
    await removeSteps(store, layout.allCheckpoints(run.lineage), (n) => n <= step && !kept.includes(n));
    await removeSteps(store, layout.allWeights(run.lineage), (n) => n < oldestLive && !keepWeights.has(n));
    await removeSteps(store, layout.allPending(run.lineage), (n) => n <= step); // left by attempts that were given up
    await removeFiles(store, layout.allCanaries(run.lineage), (n) => n < oldestLive);
    await removeFiles(store, layout.allBatches(run.lineage), (n) => n <= replayFrom);
    await removePlayed(store, run.lineage, { before: step, inPlay: found.commit.state.open ?? [] });
    if (step > 0) await store.removeAll(layout.allWarmUps());
    return { kept };
  });
}

/** Lists twice, because steps that are not listed are removed and a stale listing must not remove any. */
async function listedTwice(run: RunHandle): Promise<number[]> {
  const [one, two] = [await sealedSteps(storeOf(run), run.lineage), await sealedSteps(storeOf(run), run.lineage)];
  return [...new Set([...one, ...two])].sort((a, b) => a - b);
}

/** Earlier steps that left their parts but were not sealed before their workflow ended: they are checkpoints, too. */
async function sealForgotten(run: RunHandle, before: number): Promise<void> {
  const store = storeOf(run);
  const keys = await store.list(layout.allCheckpoints(run.lineage));
  const sealed = new Set(await sealedSteps(store, run.lineage));
  const begun = new Set(keys.map(stepOf).filter((step) => step !== null && step < before && !sealed.has(step)));
  for (const step of begun) {
    const found = step === null ? null : await readCommit(run, step);
    if (!found?.commit.optimizer) continue; // left behind by an attempt that was never committed
    const { policy, optimizer } = found.commit;
    const weights = await store.list(policy.weights);
    if (!keys.includes(optimizer.key) || !weights.includes(policy.file.key)) continue;
    const named = await requireNamedCommit(run, found.commit.step);
    const key = `${layout.checkpoint(run.lineage, found.commit.step)}manifest.json`;
    await store.putIfAbsent(key, encodeStored(key, manifestOf(named)));
  }
}

/** Reference policies of steps that may be trained again: the one in use at `from`, and each renewal since. */
function referencesSince(from: number, to: number, refSyncSteps: number | null): number[] {
  if (refSyncSteps === null) return [0];
  const first = Math.floor(from / refSyncSteps);
  const last = Math.floor(to / refSyncSteps);
  return Array.from({ length: last - first + 1 }, (_, i) => (first + i) * refSyncSteps);
}

/**
 * The run's first checkpoint (v0, or the origin of a fork), the newest `keepLast`, and every multiple of
 * `keepInterval`; ascending.
 */
export function keptCheckpoints(sealed: readonly number[], spec: CheckpointSpec, first = 0): number[] {
  const newest = new Set(sealed.slice(-spec.keepLast));
  return sealed.filter(
    (step) => step === first || newest.has(step) || (spec.keepInterval !== null && step % spec.keepInterval === 0),
  );
}

async function removeSteps(store: Store, prefix: string, isOver: (step: number) => boolean): Promise<void> {
  // Compares folder names: a version that was replayed to other weights is beside the first, `step_12.r1/`.
  const folders = new Set((await store.list(prefix)).map((key) => key.slice(0, key.indexOf('/', prefix.length) + 1)));
  for (const folder of folders) {
    const step = stepOf(folder);
    if (step !== null && isOver(step)) await store.removeAll(folder);
  }
}

async function removeFiles(store: Store, prefix: string, isOver: (step: number) => boolean): Promise<void> {
  for (const key of await store.list(prefix)) {
    const step = stepOf(key);
    if (step !== null && isOver(step)) await store.removeAll(key);
  }
}
